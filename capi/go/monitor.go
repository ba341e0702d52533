// SPDX-License-Identifier: Apache-2.0

// Counters and events of a loader, and what can be seen of another process's loader.

package feedlane

// #include "shim.h"
import "C"

import (
	"io"
	"runtime"
	"sync"
	"time"
	"unsafe"
)

// Stats are totals over a loader's life, and its present state.
type Stats struct {
	Batches        uint64        // yielded
	Samples        uint64        // rows yielded
	Bytes          uint64        // tensor bytes yielded
	Epochs         uint64        // begun
	Wait           time.Duration // time in the library's next without a batch to yield; not what Go's poller waits
	Restarts       uint64        // workers that replaced one that died
	Redispatched   uint64        // tasks sent out again
	Quarantined    uint64        // batches given up
	InvalidResults uint64        // results refused by validation
	LateResults    uint64        // results of abandoned tasks
	Slots          uint64        // now: all slots
	SlotsFree      uint64        // now: free slots
	SlotsHeld      uint64        // now: slots of batches that the trainer holds
	ControlBytes   uint64        // now: size of the control segment
	DataBytes      uint64        // now: size of the data segment
	ReservedBytes  uint64        // memory reserved for both from the start
	Retried        uint64        // samples (or batches, by Batcher) that were retried
	Substituted    uint64        // samples that others replaced
	Skipped        uint64        // samples left out
	Hung           uint64        // workers that exceeded Config.TaskTimeout
	RankSource     string        // of a distributed sampler, see Rank; empty: another sampler
	HugeBytes      uint64        // of DataBytes, in huge pages from the start
	StartWait      time.Duration // of Wait, that for the first batch of each epoch

	// Of Restarts, by what ended the worker before.

	RestartsSignal     uint64 // a signal killed it
	RestartsExit       uint64 // it exited
	RestartsHung       uint64 // it exceeded a deadline
	RestartsInvalid    uint64 // it sent something invalid
	RestartsUnattached uint64 // it ended before it attached
}

func newStats(c *C.feedlane_stats) Stats {
	return Stats{
		uint64(c.batches), uint64(c.samples), uint64(c.bytes), uint64(c.epochs), time.Duration(c.wait_ns),
		uint64(c.restarts), uint64(c.redispatched), uint64(c.quarantined), uint64(c.invalid_results),
		uint64(c.late_results), uint64(c.slots), uint64(c.slots_free), uint64(c.slots_held), uint64(c.control_bytes),
		uint64(c.data_bytes), uint64(c.reserved_bytes), uint64(c.retried), uint64(c.substituted), uint64(c.skipped),
		uint64(c.hung), C.GoString(&c.rank_source[0]), uint64(c.huge_bytes), time.Duration(c.start_wait_ns),
		uint64(c.restarts_signal), uint64(c.restarts_exit), uint64(c.restarts_hung), uint64(c.restarts_invalid),
		uint64(c.restarts_unattached),
	}
}

// A WorkerState says what a worker does.
type WorkerState int32

const (
	WorkerNone     WorkerState = C.FEEDLANE_WORKER_NONE     // does not exist, or has ended
	WorkerStarting WorkerState = C.FEEDLANE_WORKER_STARTING // started or offered, not attached
	WorkerOpening  WorkerState = C.FEEDLANE_WORKER_OPENING  // attached, opens its data set
	WorkerReady    WorkerState = C.FEEDLANE_WORKER_READY    // accepts tasks
	WorkerStopping WorkerState = C.FEEDLANE_WORKER_STOPPING // was asked to end
	WorkerFailed   WorkerState = C.FEEDLANE_WORKER_FAILED   // could not open its data set
)

// WorkerStats are the counters of one worker. Replacements add to them.
type WorkerStats struct {
	PID        int // 0: unknown
	State      WorkerState
	Generation int           // 0, +1 for each replacement
	Tasks      uint64        // committed, failed or dropped
	Samples    uint64        // rows committed
	Bytes      uint64        // tensor bytes committed
	Errors     uint64        // tasks failed
	Work       time.Duration // from receipt of a task to its commit or failure
	Wait       time.Duration // asleep
	StateSince time.Duration // since when it has been in this state: CLOCK_MONOTONIC
	TaskSince  time.Duration // since when it has its present task in hand; 0: it has none
	Epoch      int64         // of the task in hand, or -1
	Batch      int64         // likewise
	Row        int64         // its row in progress, or -1
}

func newWorkerStats(c *C.feedlane_worker_stats) WorkerStats {
	return WorkerStats{int(c.pid), WorkerState(c.state), int(c.generation), uint64(c.tasks), uint64(c.samples),
		uint64(c.bytes), uint64(c.errors), time.Duration(c.work_ns), time.Duration(c.wait_ns), time.Duration(c.state_since_ns),
		time.Duration(c.task_since_ns), int64(c.epoch), int64(c.batch), int64(c.row)}
}

// readStats reads counters by a function of a loader or a monitor.
func readStats(get func(*C.feedlane_stats) C.int32_t) (Stats, error) {
	c := C.feedlane_stats{size: C.sizeof_feedlane_stats}
	if status := get(&c); status != C.FEEDLANE_OK {
		return Stats{}, Status(status)
	}
	return newStats(&c), nil
}

func readWorkers(get func(C.int32_t, *C.feedlane_worker_stats) C.int32_t) ([]WorkerStats, error) {
	var workers []WorkerStats
	for id := C.int32_t(0); ; id++ {
		c := C.feedlane_worker_stats{size: C.sizeof_feedlane_worker_stats}
		switch status := get(id, &c); status {
		case C.FEEDLANE_OK:
			workers = append(workers, newWorkerStats(&c))
		case C.FEEDLANE_END:
			return workers, nil
		default:
			return workers, Status(status)
		}
	}
}

// Stats returns the loader's counters.
func (l *Loader) Stats() (Stats, error) {
	if err := l.enter(); err != nil {
		return Stats{}, err
	}
	defer l.leave()
	return readStats(func(c *C.feedlane_stats) C.int32_t { return C.feedlane_loader_get_stats(l.c, c) })
}

// Workers returns the counters of all workers, by their ids.
func (l *Loader) Workers() ([]WorkerStats, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	return readWorkers(func(id C.int32_t, c *C.feedlane_worker_stats) C.int32_t {
		return C.feedlane_loader_get_worker_stats(l.c, id, c)
	})
}

// An EventKind says what happened.
type EventKind int32

const (
	EventWarning           EventKind = C.FEEDLANE_EVENT_WARNING            // see What.Text
	EventWorkerDied        EventKind = C.FEEDLANE_EVENT_WORKER_DIED        // What.Worker; What.Batch it worked on, or -1
	EventWorkerStarted     EventKind = C.FEEDLANE_EVENT_WORKER_STARTED     // a replacement of a dead worker
	EventWorkerWanted      EventKind = C.FEEDLANE_EVENT_WORKER_WANTED      // OpenWorker would return one
	EventQuarantined       EventKind = C.FEEDLANE_EVENT_QUARANTINED        // What.Batch was given up
	EventInvalid           EventKind = C.FEEDLANE_EVENT_INVALID            // What.Worker sent something invalid
	EventSampleRetried     EventKind = C.FEEDLANE_EVENT_SAMPLE_RETRIED     // What.Found retries; What.Text is the failure
	EventSampleSubstituted EventKind = C.FEEDLANE_EVENT_SAMPLE_SUBSTITUTED // What.Needed is the substitute
	EventSampleSkipped     EventKind = C.FEEDLANE_EVENT_SAMPLE_SKIPPED     // see EventSampleRetried
	EventWorkerHung        EventKind = C.FEEDLANE_EVENT_WORKER_HUNG        // What.Worker, Batch and Sample
	EventDeviceFailed      EventKind = C.FEEDLANE_EVENT_DEVICE_FAILED      // a stream failed
	EventConsumerLeft      EventKind = C.FEEDLANE_EVENT_CONSUMER_LEFT      // a consumer has left or ended, see What.Text
	EventConsumerLags      EventKind = C.FEEDLANE_EVENT_CONSUMER_LAGS      // the feeder waits for a consumer, see What.Text
	EventConsumerEvicted   EventKind = C.FEEDLANE_EVENT_CONSUMER_EVICTED   // see LagEvict
)

// An Event is something that happened in a loader.
type Event struct {
	Kind EventKind
	Time time.Duration // CLOCK_MONOTONIC
	Lost uint64        // earlier events that were overwritten: the queue keeps the newest 4096
	What Error         // who, where, and the description; Status is 0 where nothing failed
}

// Event returns the oldest event that was not read yet. io.EOF: none.
func (l *Loader) Event() (Event, error) {
	if err := l.enter(); err != nil {
		return Event{}, err
	}
	defer l.leave()
	c := C.feedlane_event{size: C.sizeof_feedlane_event}
	c.what.size = C.sizeof_feedlane_error
	switch status := C.feedlane_loader_event(l.c, &c); status {
	case C.FEEDLANE_OK:
	case C.FEEDLANE_END:
		return Event{}, io.EOF
	default:
		return Event{}, Status(status)
	}
	what := newError(c.what.code, &c.what)
	if c.what.text[0] == 0 {
		what.Text = ""
	}
	return Event{EventKind(c.kind), time.Duration(c.time_ns), uint64(c.lost), *what}, nil
}

// A Monitor looks at a loader in another process of the same user, without that process's help.
//
// Thread safety: any goroutine.
type Monitor struct {
	c     *C.feedlane_monitor
	calls guard
	once  sync.Once
}

// OpenMonitor opens loader number nth, from 0, of a process. The loader's memory is kept until Close.
//   - io.EOF: the process has no such loader.
//   - ErrPeerDead: there is no such process.
//   - ErrOS: it belongs to another user, or a system call failed.
func OpenMonitor(pid, nth int) (*Monitor, error) {
	var m memory
	defer m.free()
	out := (**C.feedlane_monitor)(m.allocate(1, unsafe.Sizeof((*C.feedlane_monitor)(nil))))
	none := false
	err := check(func(err *C.feedlane_error) C.int32_t {
		status := C.feedlane_monitor_open(C.int64_t(pid), C.int32_t(nth), out, err)
		none = status == C.FEEDLANE_END
		return status
	})
	if none {
		return nil, io.EOF
	}
	if err != nil {
		return nil, err
	}
	monitor := &Monitor{c: *out}
	runtime.SetFinalizer(monitor, (*Monitor).drain)
	return monitor, nil
}

func (m *Monitor) drain() { m.once.Do(func() { C.feedlane_monitor_unref(m.c) }) }

func (m *Monitor) leave() {
	if m.calls.leave() {
		m.drain()
	}
}

// Close ends the monitor. Closing it again does nothing.
func (m *Monitor) Close() error {
	if m.calls.close() {
		m.leave()
	}
	return nil
}

// Stats returns what Loader.Stats returns in that process.
func (m *Monitor) Stats() (Stats, error) {
	defer m.leave()
	if !m.calls.enter() {
		return Stats{}, refuse(ErrState, "the monitor is closed")
	}
	return readStats(func(c *C.feedlane_stats) C.int32_t { return C.feedlane_monitor_get_stats(m.c, c) })
}

// Workers returns what Loader.Workers returns in that process.
func (m *Monitor) Workers() ([]WorkerStats, error) {
	defer m.leave()
	if !m.calls.enter() {
		return nil, refuse(ErrState, "the monitor is closed")
	}
	return readWorkers(func(id C.int32_t, c *C.feedlane_worker_stats) C.int32_t {
		return C.feedlane_monitor_get_worker_stats(m.c, id, c)
	})
}
