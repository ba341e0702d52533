// SPDX-License-Identifier: Apache-2.0

// Monitors of loaders, here and in other processes, their counters, and events.

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

// Stats are totals over a loader's life, and its current state.
type Stats struct {
	Batches        uint64        // batches yielded
	Samples        uint64        // rows yielded
	Bytes          uint64        // tensor bytes yielded
	Epochs         uint64        // epochs begun
	Wait           time.Duration // time without a batch to yield: in Next, also while it sleeps on Go's poller
	Restarts       uint64        // workers that replaced a dead one
	Redispatched   uint64        // tasks sent out again
	Quarantined    uint64        // batches given up
	InvalidResults uint64        // results refused by validation
	LateResults    uint64        // results of abandoned tasks
	Slots          uint64        // now: all slots
	SlotsFree      uint64        // now: free slots
	SlotsHeld      uint64        // now: slots of batches that the trainer holds
	ControlBytes   uint64        // now: size of the control segment
	DataBytes      uint64        // now: size of the data segment
	ReservedBytes  uint64        // memory reserved at creation for both segments
	Retried        uint64        // samples (with Batcher: batches) that were retried
	Substituted    uint64        // samples replaced by other samples
	Skipped        uint64        // samples left out
	Hung           uint64        // workers that exceeded Config.TaskTimeout
	RankSource     string        // source of the sampler's rank, see Rank; empty: none, or another process
	HugeBytes      uint64        // part of DataBytes that was in huge pages at creation
	StartWait      time.Duration // part of Wait that was spent waiting for the first batch of each epoch

	// Parts of Restarts, by the end of the replaced worker.

	RestartsSignal     uint64 // a signal killed it
	RestartsExit       uint64 // it exited
	RestartsHung       uint64 // it exceeded a deadline
	RestartsInvalid    uint64 // it sent invalid data
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

// A WorkerState is the state of a worker.
type WorkerState int32

const (
	WorkerNone     WorkerState = C.FEEDLANE_WORKER_NONE     // does not exist, or has ended
	WorkerStarting WorkerState = C.FEEDLANE_WORKER_STARTING // started or offered, but not attached yet
	WorkerOpening  WorkerState = C.FEEDLANE_WORKER_OPENING  // attached, and opening its data set
	WorkerReady    WorkerState = C.FEEDLANE_WORKER_READY    // accepts tasks
	WorkerStopping WorkerState = C.FEEDLANE_WORKER_STOPPING // was asked to end
	WorkerFailed   WorkerState = C.FEEDLANE_WORKER_FAILED   // could not open its data set
)

// WorkerStats are the counters of one worker. Replacements add to them.
type WorkerStats struct {
	PID        int // 0: unknown
	State      WorkerState
	Generation int           // 0, +1 for each replacement
	Tasks      uint64        // tasks committed, failed or dropped
	Samples    uint64        // rows committed
	Bytes      uint64        // tensor bytes committed
	Errors     uint64        // tasks failed
	Work       time.Duration // time from receipt of a task to its commit or failure
	Wait       time.Duration // time asleep
	StateSince time.Duration // when it entered this state: CLOCK_MONOTONIC
	TaskSince  time.Duration // when it got its current task; 0: it has none
	Epoch      int64         // epoch of the current task, or -1
	Batch      int64         // batch of the current task, or -1
	Row        int64         // row of this batch that is in progress, or -1
}

func newWorkerStats(c *C.feedlane_worker_stats) WorkerStats {
	return WorkerStats{int(c.pid), WorkerState(c.state), int(c.generation), uint64(c.tasks), uint64(c.samples),
		uint64(c.bytes), uint64(c.errors), time.Duration(c.work_ns), time.Duration(c.wait_ns), time.Duration(c.state_since_ns),
		time.Duration(c.task_since_ns), int64(c.epoch), int64(c.batch), int64(c.row)}
}

// An EventKind is the kind of an Event.
type EventKind int32

const (
	EventWarning           EventKind = C.FEEDLANE_EVENT_WARNING            // see What.Text
	EventWorkerDied        EventKind = C.FEEDLANE_EVENT_WORKER_DIED        // What.Worker died; What.Batch: its batch, or -1
	EventWorkerStarted     EventKind = C.FEEDLANE_EVENT_WORKER_STARTED     // a replacement of a dead worker was started
	EventWorkerWanted      EventKind = C.FEEDLANE_EVENT_WORKER_WANTED      // a worker is missing, call OpenWorker
	EventQuarantined       EventKind = C.FEEDLANE_EVENT_QUARANTINED        // What.Batch was given up
	EventInvalid           EventKind = C.FEEDLANE_EVENT_INVALID            // What.Worker sent invalid data
	EventSampleRetried     EventKind = C.FEEDLANE_EVENT_SAMPLE_RETRIED     // What.Found: retries; What.Text: the failure
	EventSampleSubstituted EventKind = C.FEEDLANE_EVENT_SAMPLE_SUBSTITUTED // What.Needed: index of the substitute
	EventSampleSkipped     EventKind = C.FEEDLANE_EVENT_SAMPLE_SKIPPED     // see EventSampleRetried
	EventWorkerHung        EventKind = C.FEEDLANE_EVENT_WORKER_HUNG        // What.Worker, What.Batch and What.Sample
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
	What Error         // worker, batch, sample and description; Status is 0 if nothing failed
}

// Event returns the oldest event that was not read yet. io.EOF: there is none.
func (l *Loader) Event() (Event, error) {
	if err := l.enter(); err != nil {
		return Event{}, err
	}
	defer l.leave()
	return nextEvent(l.c)
}

// nextEvent returns the next event of a loader or an arena.
func nextEvent(l *C.feedlane_loader) (Event, error) {
	c := C.feedlane_event{size: C.sizeof_feedlane_event}
	c.what.size = C.sizeof_feedlane_error
	switch status := C.feedlane_loader_event(l, &c); status {
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

// A Monitor reads the counters of a loader, of this process or of another one of the same user. Reading does not involve
// the loader's process. The monitor keeps the loader's memory until Close: after the loader has ended, the monitor
// returns the last values. The garbage collector closes a forgotten monitor.
//
// Thread safety: any goroutine. After Close every method returns ErrState.
type Monitor struct {
	c     *C.feedlane_monitor
	calls guard
	once  sync.Once
}

// Monitor opens a monitor of the loader. If the loader is a consumer (see Join), the monitor has Stats and Info; its
// other methods return ErrState, because the workers and the batches are the feeder's.
func (l *Loader) Monitor() (*Monitor, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.leave()
	return newMonitor(func(out **C.feedlane_monitor, err *C.feedlane_error) C.int32_t {
		return C.feedlane_monitor_of(l.c, out, err)
	})
}

// OpenMonitor opens a monitor of loader number nth, from 0, of a process.
//   - io.EOF: the process has no such loader.
//   - ErrPeerDead: there is no such process.
//   - ErrOS: the process belongs to another user, or a system call failed.
func OpenMonitor(pid, nth int) (*Monitor, error) {
	return newMonitor(func(out **C.feedlane_monitor, err *C.feedlane_error) C.int32_t {
		return C.feedlane_monitor_open(C.int64_t(pid), C.int32_t(nth), out, err)
	})
}

func newMonitor(open func(out **C.feedlane_monitor, err *C.feedlane_error) C.int32_t) (*Monitor, error) {
	var m memory
	defer m.free()
	out := (**C.feedlane_monitor)(m.allocate(1, unsafe.Sizeof((*C.feedlane_monitor)(nil))))
	if err := check(func(err *C.feedlane_error) C.int32_t { return open(out, err) }); err != nil {
		return nil, err
	}
	monitor := &Monitor{c: *out}
	runtime.SetFinalizer(monitor, (*Monitor).drain)
	return monitor, nil
}

func (m *Monitor) drain() { m.once.Do(func() { C.feedlane_go_monitor_destroy(m.c) }) }

func (m *Monitor) enter() error {
	if !m.calls.enter() {
		m.leave()
		return refuse(ErrState, "the monitor is closed")
	}
	return nil
}

func (m *Monitor) leave() {
	if m.calls.leave() {
		m.drain()
	}
}

// Close ends the monitor. Closing a monitor again has no effect.
func (m *Monitor) Close() error {
	if m.calls.close() {
		m.leave()
	}
	return nil
}

// Stats returns the loader's counters.
func (m *Monitor) Stats() (Stats, error) {
	if err := m.enter(); err != nil {
		return Stats{}, err
	}
	defer m.leave()
	c := C.feedlane_stats{size: C.sizeof_feedlane_stats}
	if status := C.feedlane_monitor_get_stats(m.c, &c); status != C.FEEDLANE_OK {
		return Stats{}, Status(status)
	}
	return newStats(&c), nil
}

// Workers returns the counters of all workers, in order of their ids.
func (m *Monitor) Workers() ([]WorkerStats, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	var workers []WorkerStats
	for id := C.int32_t(0); ; id++ {
		c := C.feedlane_worker_stats{size: C.sizeof_feedlane_worker_stats}
		switch status := C.feedlane_monitor_get_worker_stats(m.c, id, &c); status {
		case C.FEEDLANE_OK:
			workers = append(workers, newWorkerStats(&c))
		case C.FEEDLANE_END:
			return workers, nil
		default:
			return workers, Status(status)
		}
	}
}
