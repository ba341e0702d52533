// SPDX-License-Identifier: Apache-2.0

// The speed of a run: stamps, timings, the trace, distinct errors, the bottleneck, and a report.

package feedlane

// #include "shim.h"
import "C"

import (
	"io"
	"time"
	"unsafe"
)

// Stamps are the times of the steps of a batch: CLOCK_MONOTONIC. They never decrease. 0: the step has not happened yet.
type Stamps struct {
	Dispatched time.Duration // when the batch was sent to its worker
	Begun      time.Duration // when the worker began it
	Committed  time.Duration // when the worker committed it
	Swept      time.Duration // when the trainer read the result
	Yielded    time.Duration // when Next yielded it
	Exposed    time.Duration // a duration: how long Next waited for the batch; 0: it was ready
}

func newStamps(dispatched, begun, committed, swept, yielded, exposed C.uint64_t) Stamps {
	return Stamps{time.Duration(dispatched), time.Duration(begun), time.Duration(committed), time.Duration(swept),
		time.Duration(yielded), time.Duration(exposed)}
}

// Stamps returns the times of the steps of the batch.
func (b *Batch) Stamps() Stamps {
	return newStamps(b.c.dispatched_ns, b.c.begun_ns, b.c.committed_ns, b.c.swept_ns, b.c.yielded_ns, b.c.exposed_ns)
}

// HistogramBuckets is the number of buckets of a Histogram.
const HistogramBuckets = C.FEEDLANE_HISTOGRAM_BUCKETS

// A Histogram counts durations. Bucket 0 counts durations of 0 ns, bucket b durations of 2^(b-1) to 2^b - 1 ns, the
// last bucket all longer durations.
type Histogram struct {
	Count   uint64        // the sum of all buckets
	Sum     time.Duration // the sum of all durations
	Buckets [HistogramBuckets]uint64
	P50     time.Duration // the median, to within an eighth of the exact value; 0: there are no durations
	P90     time.Duration // 90 % lasted no longer, to within an eighth
	P99     time.Duration // 99 % lasted no longer, to within an eighth
}

func newHistogram(c *C.feedlane_histogram, at *C.feedlane_percentiles) Histogram {
	h := Histogram{Count: uint64(c.count), Sum: time.Duration(c.sum_ns), P50: time.Duration(at.p50_ns),
		P90: time.Duration(at.p90_ns), P99: time.Duration(at.p99_ns)}
	for i, count := range c.buckets {
		h.Buckets[i] = uint64(count)
	}
	return h
}

// Timings are the durations of the steps of batches, over the loader's life.
type Timings struct {
	Exposed Histogram // how long Next waited for the batch; without the first batch of each epoch
	Start   Histogram // as Exposed, for the first batch of each epoch
	Queue   Histogram // from the batch's dispatch to a worker until the worker began it
	Work    Histogram // from then until the worker committed it
	Ready   Histogram // from then until Next yielded it
	Hold    Histogram // from then until the slot was free; counted when the slot is reused or the epoch ends
}

func newTimings(c *C.feedlane_timings) Timings {
	return Timings{newHistogram(&c.exposed, &c.exposed_percentiles), newHistogram(&c.start, &c.start_percentiles),
		newHistogram(&c.queue, &c.queue_percentiles), newHistogram(&c.work, &c.work_percentiles),
		newHistogram(&c.ready, &c.ready_percentiles), newHistogram(&c.hold, &c.hold_percentiles)}
}

// A BatchRecord is one batch of the trace.
type BatchRecord struct {
	Stamps
	Sequence uint64 // number of the record in the trace, from 1
	Task     uint64 // unique in the loader, also among attempts
	Epoch    int64
	Batch    int64
	Worker   int // -1: made inline
	Attempt  int // from 0
	Slot     int
	Status   Status // OK, or the error that Next returned for the batch
	Rows     uint64
	Bytes    uint64
	Released time.Duration // when the slot became free
}

func newBatchRecord(c *C.feedlane_batch_record) BatchRecord {
	return BatchRecord{
		newStamps(c.dispatched_ns, c.begun_ns, c.committed_ns, c.swept_ns, c.yielded_ns, c.exposed_ns),
		uint64(c.sequence), uint64(c.task), int64(c.epoch), int64(c.batch), int(c.worker), int(c.attempt), int(c.slot),
		Status(c.status), uint64(c.rows), uint64(c.bytes), time.Duration(c.released_ns),
	}
}

// LoaderInfo has facts about a loader, and its position in the epoch.
type LoaderInfo struct {
	Pid            int
	Created        time.Duration // when the loader was created: CLOCK_MONOTONIC, as all times here
	Start          Start
	Workers        int           // 0: inline
	PrefetchFactor int           // current number of batches in flight per worker
	Held           int           // Config.Held
	BatchSize      int64         // maximum number of rows in a batch
	TaskTimeout    time.Duration // 0: none
	Iterable       bool
	InEpoch        bool          // Begin was called, and since then Next has not returned io.EOF, nor was Stop called
	Epoch          int64         // the newest epoch; -1: none has begun
	Batch          int64         // number of the batch after the newest one yielded
	Batches        int64         // batches in the epoch; -1: unknown
	Begun          time.Duration // when the epoch began; 0: none has begun
	Yielded        time.Duration // when the newest batch was yielded; 0: none was yielded
	WaitingSince   time.Duration // when the current wait for a batch began; 0: not waiting now
	Trace          int           // records that the trace keeps; 0: off
	Name           string        // Config.Name, or empty
	Version        string        // version of the trainer's library
	NextEpoch      int64         // consumer: see Loader.NextEpoch; otherwise -1
}

func newLoaderInfo(c *C.feedlane_loader_info) LoaderInfo {
	return LoaderInfo{
		int(c.pid), time.Duration(c.created_ns), Start(c.start), int(c.workers), int(c.prefetch_factor), int(c.held),
		int64(c.batch_size), time.Duration(c.task_timeout_ns), c.iterable != 0, c.in_epoch != 0, int64(c.epoch),
		int64(c.batch), int64(c.batches), time.Duration(c.begun_ns), time.Duration(c.yielded_ns),
		time.Duration(c.waiting_since_ns), int(c.trace), C.GoString(&c.name[0]), C.GoString(&c.version[0]),
		int64(c.next_epoch),
	}
}

// A Bound is the bottleneck of a run.
type Bound int32

const (
	BoundNothing  Bound = C.FEEDLANE_BOUND_NOTHING  // unknown: no epoch is in progress, or too little has happened
	BoundTrainer  Bound = C.FEEDLANE_BOUND_TRAINER  // the trainer: batches were ready when it requested them
	BoundData     Bound = C.FEEDLANE_BOUND_DATA     // the data set: workers were busy, and the trainer waited
	BoundWorker   Bound = C.FEEDLANE_BOUND_WORKER   // one worker, which is slow, stopped or stuck
	BoundSlots    Bound = C.FEEDLANE_BOUND_SLOTS    // memory: the trainer holds the slots that workers would need
	BoundStarting Bound = C.FEEDLANE_BOUND_STARTING // start: workers are starting or opening their data sets
	// Processors: processes that were ready to run did not run, or workers idled while the trainer waited.
	BoundProcessors Bound = C.FEEDLANE_BOUND_PROCESSORS
)

// A Diagnosis is the bottleneck of a run in an interval, with figures.
type Diagnosis struct {
	Bound    Bound
	Worker   int           // BoundWorker: the worker's id; otherwise -1
	Interval time.Duration // length of the interval, to which the fields that follow refer
	Batches  uint64        // batches yielded
	Samples  uint64        // rows yielded
	Bytes    uint64        // tensor bytes yielded
	Exposed  time.Duration // time that Next waited
	Start    time.Duration // part of Exposed that was spent waiting for the first batch of an epoch
	Busy     time.Duration // time with a task in hand, summed over all workers
	Ready    uint64        // batches that were ready when requested, without the first batch of each epoch
	Asked    uint64        // all batches requested, without the first batch of each epoch
	Text     string        // the bottleneck in one or two sentences
	Advice   string        // suggested change, or empty
}

func newDiagnosis(c *C.feedlane_diagnosis) Diagnosis {
	return Diagnosis{Bound(c.bound), int(c.worker), time.Duration(c.interval_ns), uint64(c.batches), uint64(c.samples),
		uint64(c.bytes), time.Duration(c.exposed_ns), time.Duration(c.start_ns), time.Duration(c.busy_ns), uint64(c.ready),
		uint64(c.asked), C.GoString(&c.text[0]), C.GoString(&c.advice[0])}
}

// Timings returns the durations of the steps of the batches that one worker made or, with -1, of all batches.
//   - io.EOF: there are fewer workers.
func (m *Monitor) Timings(worker int) (Timings, error) {
	if err := m.enter(); err != nil {
		return Timings{}, err
	}
	defer m.leave()
	c := C.feedlane_timings{size: C.sizeof_feedlane_timings}
	switch status := C.feedlane_monitor_get_timings(m.c, C.int32_t(worker), &c); status {
	case C.FEEDLANE_OK:
		return newTimings(&c), nil
	case C.FEEDLANE_END:
		return Timings{}, io.EOF
	default:
		return Timings{}, Status(status)
	}
}

// Trace returns the records whose sequence is at least from, oldest first. The trace keeps the newest records. A record
// is written when the batch's slot is reused or the epoch ends.
//   - ErrState: Config.Trace is 0, or the loader is a consumer.
func (m *Monitor) Trace(from uint64) ([]BatchRecord, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	info, err := m.Info()
	if err != nil {
		return nil, err
	}
	if info.NextEpoch >= 0 {
		return nil, refuse(ErrState, "not available on a consumer: only its feeder has a trace")
	}
	if info.Trace == 0 {
		return nil, refuse(ErrState, "Config.Trace is 0, so no trace is recorded")
	}
	return m.records(C.uint64_t(from), info.Trace)
}

// Slots returns a record for each slot of the loader, by number: of the batch in it or, if Released is not 0, of the last
// batch that was there. Task is 0 if the slot has not been used yet. It needs no trace.
//   - ErrState: the loader is a consumer.
func (m *Monitor) Slots() ([]BatchRecord, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	stats, err := m.Stats()
	if err != nil {
		return nil, err
	}
	return m.records(C.FEEDLANE_SLOTS, int(stats.Slots))
}

// records returns up to room records of a trace from a sequence on, or of the slots.
func (m *Monitor) records(from C.uint64_t, room int) ([]BatchRecord, error) {
	records := make([]C.feedlane_batch_record, room+1) // never empty
	for i := range records {
		records[i].size = C.sizeof_feedlane_batch_record
	}
	var count C.uint64_t
	switch status := C.feedlane_monitor_get_trace(m.c, from, &records[0], C.uint64_t(room), &count); status {
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

// An ErrorRecord stands for errors or events of one kind whose texts differ only in numbers.
type ErrorRecord struct {
	Kind   EventKind     // 0: an error that Next returned
	Code   Status        // 0: nothing failed
	Worker int           // worker of the newest occurrence, or -1
	Batch  int64         // batch of the newest occurrence, or -1
	Sample int64         // sample of the newest occurrence, or -1
	Count  uint64        // number of occurrences
	First  time.Duration // when it occurred first: CLOCK_MONOTONIC
	Last   time.Duration // when it occurred last
	Text   string        // the beginning of the newest occurrence's text
}

// Errors returns the distinct errors of the loader, in the order of first occurrence. The loader keeps 32; another one
// replaces the error that has not occurred for the longest time.
func (m *Monitor) Errors() ([]ErrorRecord, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	var list []ErrorRecord
	for {
		c := C.feedlane_error_record{size: C.sizeof_feedlane_error_record}
		switch status := C.feedlane_monitor_get_error(m.c, C.int32_t(len(list)), &c); status {
		case C.FEEDLANE_OK:
			list = append(list, ErrorRecord{EventKind(c.kind), Status(c.code), int(c.worker), int64(c.batch), int64(c.sample),
				uint64(c.count), time.Duration(c.first_ns), time.Duration(c.last_ns), C.GoString(&c.text[0])})
		case C.FEEDLANE_END:
			return list, nil
		default:
			return nil, Status(status)
		}
	}
}

// Info returns facts about the loader, and its position in the epoch.
func (m *Monitor) Info() (LoaderInfo, error) {
	if err := m.enter(); err != nil {
		return LoaderInfo{}, err
	}
	defer m.leave()
	c := C.feedlane_loader_info{size: C.sizeof_feedlane_loader_info}
	if status := C.feedlane_monitor_get_info(m.c, &c); status != C.FEEDLANE_OK {
		return LoaderInfo{}, Status(status)
	}
	return newLoaderInfo(&c), nil
}

// Diagnose finds the bottleneck. Of a loader of this process (see Loader.Monitor): in the current epoch since its
// beginning, or in the newest epoch. Of a loader of another process: since the last call; the first call: since
// OpenMonitor.
func (m *Monitor) Diagnose() (Diagnosis, error) {
	if err := m.enter(); err != nil {
		return Diagnosis{}, err
	}
	defer m.leave()
	c := C.feedlane_diagnosis{size: C.sizeof_feedlane_diagnosis}
	if status := C.feedlane_monitor_diagnose(m.c, &c); status != C.FEEDLANE_OK {
		return Diagnosis{}, Status(status)
	}
	return newDiagnosis(&c), nil
}

// Report returns a short report for people about the interval of Diagnose: rates, each worker, the bottleneck, advice,
// and the errors that occurred. The format may change; programs use Diagnose.
func (m *Monitor) Report() (string, error) {
	if err := m.enter(); err != nil {
		return "", err
	}
	defer m.leave()
	for room := 4096; ; {
		buffer := make([]byte, room)
		var bytes C.uint64_t
		status := C.int32_t(C.FEEDLANE_OK)
		err := check(func(err *C.feedlane_error) C.int32_t {
			status = C.feedlane_monitor_report(m.c, (*C.char)(unsafe.Pointer(&buffer[0])), C.uint64_t(room), &bytes, err)
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

// Report returns what Monitor.Report returns for this loader.
func (l *Loader) Report() (string, error) {
	monitor, err := l.Monitor()
	if err != nil {
		return "", err
	}
	defer monitor.Close()
	return monitor.Report()
}

// info returns what Monitor.Info returns for this loader.
func (l *Loader) info() (LoaderInfo, error) {
	monitor, err := l.Monitor()
	if err != nil {
		return LoaderInfo{}, err
	}
	defer monitor.Close()
	return monitor.Info()
}
