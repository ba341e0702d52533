// SPDX-License-Identifier: Apache-2.0

// Why a run is as fast as it is: stamps, timings, the trace, distinct errors, what bounds the run, and a report of it.

package feedlane

// #include "shim.h"
import "C"

import (
	"io"
	"time"
	"unsafe"
)

// Stamps say when each step of a batch happened: CLOCK_MONOTONIC. They never decrease. 0: it has not happened yet.
type Stamps struct {
	Dispatched time.Duration // sent to its worker
	Begun      time.Duration // the worker began it
	Committed  time.Duration // the worker committed it
	Swept      time.Duration // the trainer read its result
	Yielded    time.Duration // the library's next yielded it
	Exposed    time.Duration // not a time but a duration: how long the library's next waited for it; 0: it was there
}

func newStamps(dispatched, begun, committed, swept, yielded, exposed C.uint64_t) Stamps {
	return Stamps{time.Duration(dispatched), time.Duration(begun), time.Duration(committed), time.Duration(swept),
		time.Duration(yielded), time.Duration(exposed)}
}

// Stamps returns when each step of the batch happened.
func (b *Batch) Stamps() Stamps {
	return newStamps(b.c.dispatched_ns, b.c.begun_ns, b.c.committed_ns, b.c.swept_ns, b.c.yielded_ns, b.c.exposed_ns)
}

// HistogramBuckets is the number of buckets of a Histogram.
const HistogramBuckets = C.FEEDLANE_HISTOGRAM_BUCKETS

// A Histogram says how often which duration occurred. Bucket 0 counts durations of 0 ns, b those of 2^(b-1) to 2^b - 1 ns,
// the last one all longer ones.
type Histogram struct {
	Count   uint64        // the sum of all buckets
	Sum     time.Duration // of all durations
	Buckets [HistogramBuckets]uint64
	P50     time.Duration // one half of the durations lasted at most so long, to an eighth; 0: there are none
	P90     time.Duration // 90 % of them
	P99     time.Duration // 99 % of them
}

func newHistogram(c *C.feedlane_histogram, at *C.feedlane_percentiles) Histogram {
	h := Histogram{Count: uint64(c.count), Sum: time.Duration(c.sum_ns), P50: time.Duration(at.p50_ns),
		P90: time.Duration(at.p90_ns), P99: time.Duration(at.p99_ns)}
	for i, count := range c.buckets {
		h.Buckets[i] = uint64(count)
	}
	return h
}

// Timings say how long the steps of batches took, over the loader's life.
type Timings struct {
	Exposed Histogram // how long the library's next waited for the batch; without the first batches of epochs
	Start   Histogram // the same for the first batch of each epoch
	Queue   Histogram // from its dispatch until the worker began it
	Work    Histogram // from there until the worker committed it
	Ready   Histogram // from there until it was yielded
	Hold    Histogram // from there until its slot was free; counted when the slot is used again, or the epoch ends
}

func newTimings(c *C.feedlane_timings) Timings {
	return Timings{newHistogram(&c.exposed, &c.exposed_percentiles), newHistogram(&c.start, &c.start_percentiles),
		newHistogram(&c.queue, &c.queue_percentiles), newHistogram(&c.work, &c.work_percentiles),
		newHistogram(&c.ready, &c.ready_percentiles), newHistogram(&c.hold, &c.hold_percentiles)}
}

// A BatchRecord is one batch of the trace.
type BatchRecord struct {
	Stamps
	Sequence uint64 // its number in the trace, from 1
	Task     uint64 // unique in the loader, also among attempts
	Epoch    int64
	Batch    int64
	Worker   int // -1: made inline
	Attempt  int // from 0
	Slot     int
	Status   Status // OK, or the error that Next returned for it
	Rows     uint64
	Bytes    uint64
	Released time.Duration // its slot became free
}

func newBatchRecord(c *C.feedlane_batch_record) BatchRecord {
	return BatchRecord{
		newStamps(c.dispatched_ns, c.begun_ns, c.committed_ns, c.swept_ns, c.yielded_ns, c.exposed_ns),
		uint64(c.sequence), uint64(c.task), int64(c.epoch), int64(c.batch), int(c.worker), int(c.attempt), int(c.slot),
		Status(c.status), uint64(c.rows), uint64(c.bytes), time.Duration(c.released_ns),
	}
}

// LoaderInfo says what a loader is, and where its epoch is.
type LoaderInfo struct {
	Pid            int
	Created        time.Duration // when the loader was created: CLOCK_MONOTONIC, as the other times
	Start          Start
	Workers        int           // 0: inline
	PrefetchFactor int           // batches in flight per worker, at the moment
	Held           int           // Config.Held
	BatchSize      int64         // rows of a batch at most
	TaskTimeout    time.Duration // 0: none
	Iterable       bool
	InEpoch        bool          // an epoch has begun, and Next has not returned io.EOF since
	Epoch          int64         // the newest epoch; -1: none has begun
	Batch          int64         // the number of the batch after the newest one yielded
	Batches        int64         // batches in the epoch; -1: unknown
	Begun          time.Duration // when the epoch began; 0: none has
	Yielded        time.Duration // when the newest batch was yielded; 0: none was
	WaitingSince   time.Duration // since when the library's next has waited for the next batch; 0: it does not wait now
	Trace          int           // records that the trace keeps; 0: off
	Name           string        // Config.Name, or empty
	Version        string        // of the trainer's library
}

func newLoaderInfo(c *C.feedlane_loader_info) LoaderInfo {
	return LoaderInfo{
		int(c.pid), time.Duration(c.created_ns), Start(c.start), int(c.workers), int(c.prefetch_factor), int(c.held),
		int64(c.batch_size), time.Duration(c.task_timeout_ns), c.iterable != 0, c.in_epoch != 0, int64(c.epoch),
		int64(c.batch), int64(c.batches), time.Duration(c.begun_ns), time.Duration(c.yielded_ns),
		time.Duration(c.waiting_since_ns), int(c.trace), C.GoString(&c.name[0]), C.GoString(&c.version[0]),
	}
}

// A Bound says what bounds a run.
type Bound int32

const (
	BoundNothing  Bound = C.FEEDLANE_BOUND_NOTHING  // no epoch is in progress, or too little has happened to tell
	BoundTrainer  Bound = C.FEEDLANE_BOUND_TRAINER  // batches were there when the trainer wanted them
	BoundData     Bound = C.FEEDLANE_BOUND_DATA     // workers were busy, and the trainer waited
	BoundWorker   Bound = C.FEEDLANE_BOUND_WORKER   // one worker, which is slow, stopped or stuck
	BoundSlots    Bound = C.FEEDLANE_BOUND_SLOTS    // the trainer holds the slots that workers would need
	BoundStarting Bound = C.FEEDLANE_BOUND_STARTING // workers start, or open their data sets
	// Processes could run and did not, or workers idled while the trainer waited.
	BoundProcessors Bound = C.FEEDLANE_BOUND_PROCESSORS
)

// A Diagnosis says what bounded a run for some time, and why.
type Diagnosis struct {
	Bound    Bound
	Worker   int           // BoundWorker: which one; otherwise -1
	Interval time.Duration // how long the time was; the following fields are of it
	Batches  uint64        // yielded
	Samples  uint64        // rows
	Bytes    uint64        // of tensors
	Exposed  time.Duration // how long the library's next waited
	Start    time.Duration // of that, for the first batch of an epoch
	Busy     time.Duration // how long workers had a task in hand, in all
	Ready    uint64        // batches that were there when asked for
	Asked    uint64        // of how many
	Text     string        // what bounds the run, one or two sentences
	Advice   string        // what to change, or empty
}

func newDiagnosis(c *C.feedlane_diagnosis) Diagnosis {
	return Diagnosis{Bound(c.bound), int(c.worker), time.Duration(c.interval_ns), uint64(c.batches), uint64(c.samples),
		uint64(c.bytes), time.Duration(c.exposed_ns), time.Duration(c.start_ns), time.Duration(c.busy_ns), uint64(c.ready),
		uint64(c.asked), C.GoString(&c.text[0]), C.GoString(&c.advice[0])}
}

func readTimings(get func(*C.feedlane_timings) C.int32_t) (Timings, error) {
	c := C.feedlane_timings{size: C.sizeof_feedlane_timings}
	switch status := get(&c); status {
	case C.FEEDLANE_OK:
		return newTimings(&c), nil
	case C.FEEDLANE_END:
		return Timings{}, io.EOF
	default:
		return Timings{}, Status(status)
	}
}

func readDiagnosis(get func(*C.feedlane_diagnosis) C.int32_t) (Diagnosis, error) {
	c := C.feedlane_diagnosis{size: C.sizeof_feedlane_diagnosis}
	if status := get(&c); status != C.FEEDLANE_OK {
		return Diagnosis{}, Status(status)
	}
	return newDiagnosis(&c), nil
}

func readInfo(get func(*C.feedlane_loader_info) C.int32_t) (LoaderInfo, error) {
	c := C.feedlane_loader_info{size: C.sizeof_feedlane_loader_info}
	if status := get(&c); status != C.FEEDLANE_OK {
		return LoaderInfo{}, Status(status)
	}
	return newLoaderInfo(&c), nil
}

func readTrace(room C.uint64_t, get func(*C.feedlane_batch_record, C.uint64_t, *C.uint64_t) C.int32_t) ([]BatchRecord, error) {
	if room == 0 {
		return nil, refuse(ErrState, "Config.Trace is 0: there is no trace")
	}
	records := make([]C.feedlane_batch_record, room)
	for i := range records {
		records[i].size = C.sizeof_feedlane_batch_record
	}
	var count C.uint64_t
	switch status := get(&records[0], room, &count); status {
	case C.FEEDLANE_OK:
	case C.FEEDLANE_END:
		return nil, nil
	default:
		return nil, Status(status)
	}
	list := make([]BatchRecord, count)
	for i := range list {
		list[i] = newBatchRecord(&records[i])
	}
	return list, nil
}

// Timings returns how long the steps of batches took: of those that one worker made, or with -1 of all.
//   - io.EOF: there are fewer workers.
func (l *Loader) Timings(worker int) (Timings, error) {
	if err := l.enter(); err != nil {
		return Timings{}, err
	}
	defer l.leave()
	return readTimings(func(c *C.feedlane_timings) C.int32_t {
		return C.feedlane_loader_get_timings(l.c, C.int32_t(worker), c)
	})
}

// Trace returns the records with a sequence of at least from, oldest first. The trace keeps the newest ones; a batch's record
// is written when its memory is used again, or the epoch ends.
//   - ErrState: Config.Trace is 0.
func (l *Loader) Trace(from uint64) ([]BatchRecord, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	info, err := readInfo(func(c *C.feedlane_loader_info) C.int32_t { return C.feedlane_loader_get_info(l.c, c) })
	if err != nil {
		return nil, err
	}
	return readTrace(C.uint64_t(info.Trace), func(records *C.feedlane_batch_record, room C.uint64_t, count *C.uint64_t) C.int32_t {
		return C.feedlane_loader_get_trace(l.c, C.uint64_t(from), records, room, count)
	})
}

// Info returns what the loader is, and where its epoch is.
func (l *Loader) Info() (LoaderInfo, error) {
	if err := l.enter(); err != nil {
		return LoaderInfo{}, err
	}
	defer l.leave()
	return readInfo(func(c *C.feedlane_loader_info) C.int32_t { return C.feedlane_loader_get_info(l.c, c) })
}

// Diagnose returns what bounded the present epoch since it began, or the newest one.
func (l *Loader) Diagnose() (Diagnosis, error) {
	if err := l.enter(); err != nil {
		return Diagnosis{}, err
	}
	defer l.leave()
	return readDiagnosis(func(c *C.feedlane_diagnosis) C.int32_t { return C.feedlane_loader_diagnose(l.c, c) })
}

// Report returns a short text for people about the present epoch, or the newest one: rates, each worker, what bounded it,
// what to change, and the errors that occurred. Its form may change; Diagnose is for programs.
func (l *Loader) Report() (string, error) {
	if err := l.enter(); err != nil {
		return "", err
	}
	defer l.leave()
	for room := 4096; ; {
		buffer := make([]byte, room)
		var bytes C.uint64_t
		status := C.int32_t(C.FEEDLANE_OK)
		err := check(func(err *C.feedlane_error) C.int32_t {
			status = C.feedlane_loader_report(l.c, (*C.char)(unsafe.Pointer(&buffer[0])), C.uint64_t(room), &bytes, err)
			return status
		})
		if status == C.FEEDLANE_E_LIMIT && int(bytes) > room {
			room = int(bytes)
			continue
		}
		if err != nil {
			return "", err
		}
		return string(buffer[:bytes]), nil
	}
}

// Timings returns what Loader.Timings returns in that process.
func (m *Monitor) Timings(worker int) (Timings, error) {
	defer m.leave()
	if !m.calls.enter() {
		return Timings{}, refuse(ErrState, "the monitor is closed")
	}
	return readTimings(func(c *C.feedlane_timings) C.int32_t {
		return C.feedlane_monitor_get_timings(m.c, C.int32_t(worker), c)
	})
}

// Info returns what Loader.Info returns in that process.
func (m *Monitor) Info() (LoaderInfo, error) {
	defer m.leave()
	if !m.calls.enter() {
		return LoaderInfo{}, refuse(ErrState, "the monitor is closed")
	}
	return readInfo(func(c *C.feedlane_loader_info) C.int32_t { return C.feedlane_monitor_get_info(m.c, c) })
}

// Diagnose returns what bounded the loader in that process since the last call; the first call: since OpenMonitor.
func (m *Monitor) Diagnose() (Diagnosis, error) {
	defer m.leave()
	if !m.calls.enter() {
		return Diagnosis{}, refuse(ErrState, "the monitor is closed")
	}
	return readDiagnosis(func(c *C.feedlane_diagnosis) C.int32_t { return C.feedlane_monitor_diagnose(m.c, c) })
}
