// SPDX-License-Identifier: Apache-2.0

// The trainer's side: a loader, its epochs and their batches.

package feedlane

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"runtime/cgo"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// A Loader owns shared memory, the order of the batches, and the workers that make them.
//
// Thread safety: one goroutine at a time may call Begin, Next, Poll, Stop, State, OpenWorker, OpenConsumer, Serve and
// Consumers; another one gets ErrBusy. Any goroutine may call the other methods. After Close every method returns
// ErrState.
type Loader struct {
	c        *C.feedlane_loader
	call     *C.feedlane_go_call // for the one goroutine that is in a call
	calls    guard
	busy     atomic.Bool
	owned    atomic.Int32 // references to c
	waiter   *waiter
	arm      func() C.int32_t
	config   Config
	dataset  *kept      // the data set whose methods the library calls, otherwise nil
	local    *localCrew // separate from the Loader, which worker goroutines must not keep alive
	drained  sync.Once
	consumer bool // created by Join or JoinPath
}

// NewLoader checks the configuration and reserves all memory. Worker processes start with the first Begin. Close the
// loader at the end. If a loader is forgotten, the garbage collector ends it and kills its worker processes.
//   - ErrArgument: the configuration is invalid; Error.Argument names the setting.
//   - ErrMemory, ErrLimit, ErrOS: a resource of the system is missing, or a limit is too low.
//   - ErrState: this process is a worker: call WorkerMain first in main.
//   - ErrCorrupt, ErrABI: Config.State is damaged, or was written by a later library.
func NewLoader(config Config) (*Loader, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	c, dataset, err := config.create()
	if err != nil {
		return nil, err
	}
	return newLoader(c, config, dataset)
}

// newLoader takes ownership of c and dataset in every case.
func newLoader(c *C.feedlane_loader, config Config, dataset cgo.Handle) (*Loader, error) {
	l := &Loader{c: c, call: C.feedlane_go_call_new(), config: config, dataset: keep(dataset),
		local: new(localCrew)}
	l.arm = func() C.int32_t { return C.feedlane_loader_arm(c, nil) }
	l.owned.Store(1)
	// A second reference: Close releases one, and the last call in progress releases the other.
	if status := C.feedlane_loader_ref(c); status == C.FEEDLANE_OK {
		l.owned.Add(1)
	}
	var err error
	var fd C.int32_t
	if status := C.feedlane_loader_arm(c, &fd); status < 0 {
		err = Status(status)
	} else {
		l.waiter, err = newWaiter(fd)
	}
	if err != nil {
		l.drain()
		return nil, err
	}
	runtime.SetFinalizer(l, (*Loader).drain)
	return l, nil
}

func newLoaderPointer(m *memory) **C.feedlane_loader {
	return (**C.feedlane_loader)(m.allocate(1, unsafe.Sizeof((*C.feedlane_loader)(nil))))
}

func fieldAt(first *C.feedlane_field, i int) *C.feedlane_field {
	return (*C.feedlane_field)(unsafe.Add(unsafe.Pointer(first), i*C.sizeof_feedlane_field))
}

// drain releases everything that is left. It never waits.
func (l *Loader) drain() {
	l.drained.Do(func() {
		if l.config.Start == Goroutines { // worker goroutines have their own references
			C.feedlane_loader_close(l.c)
		}
		for ; l.owned.Load() > 0; l.owned.Add(-1) {
			C.feedlane_loader_unref(l.c)
		}
		C.free(unsafe.Pointer(l.call))
		if l.waiter != nil {
			l.waiter.close()
		}
		l.dataset.release()
	})
}

// enter begins a call that any goroutine may make.
func (l *Loader) enter() error {
	if !l.calls.enter() {
		l.leave()
		return refuse(ErrState, "the loader is closed")
	}
	return nil
}

func (l *Loader) leave() {
	if l.calls.leave() {
		l.drain()
	}
}

// enterOne begins a call that one goroutine at a time may make.
func (l *Loader) enterOne() error {
	if err := l.enter(); err != nil {
		return err
	}
	if l.busy.Swap(true) {
		l.leave()
		return refuse(ErrBusy, "another goroutine is in a call of this loader")
	}
	return nil
}

func (l *Loader) leaveOne() {
	l.busy.Store(false)
	l.leave()
}

// failed makes an error from the outcome of the current call.
func (l *Loader) failed(status C.int32_t) error { return newError(status, &l.call.err) }

// Close ends the loader. A Next in progress returns ErrState. Workers may finish their tasks, within the configured
// stop timeouts. Held batches stay valid. Closing a loader again has no effect.
//   - ErrHung: a worker did not end.
//   - ErrBusy: called by the data set of an inline loader.
func (l *Loader) Close() error {
	if !l.calls.close() {
		return nil
	}
	defer l.leave()
	C.feedlane_loader_close(l.c)
	l.waiter.end() // wakes a goroutine that sleeps on the poller, because destroy consumes the event of close
	status := C.feedlane_go_loader_destroy(l.c)
	if status == C.FEEDLANE_E_BUSY {
		return Status(status) // the call in progress releases the references
	}
	l.owned.Add(-1)
	if status != C.FEEDLANE_OK {
		return Status(status)
	}
	return nil
}

// Begin starts an epoch (>= 0), and workers that are not running. An epoch in progress is abandoned.
func (l *Loader) Begin(epoch int64) error {
	if err := l.enterOne(); err != nil {
		return err
	}
	defer l.leaveOne()
	l.startLocal()
	defer l.startLocal() // replaces goroutines that Begin has ended after a failure
	for {
		status := C.feedlane_loader_begin(l.c, C.int64_t(epoch), &l.call.err)
		if status == C.FEEDLANE_OK {
			return nil
		}
		if status != C.FEEDLANE_INTERRUPTED {
			return l.failed(status)
		}
	}
}

// A localCrew counts worker goroutines.
type localCrew struct {
	mutex   sync.Mutex
	running int
	called  int // number of calls of startLocal
}

// calls returns the number of calls of startLocal.
func (crew *localCrew) calls() int {
	crew.mutex.Lock()
	defer crew.mutex.Unlock()
	return crew.called
}

// leave removes a goroutine from the crew. It returns false, and does not remove it, if startLocal was called after
// `seen`. Such a call has counted this goroutine, which may have looked for work before there was any.
func (crew *localCrew) leave(seen int) bool {
	crew.mutex.Lock()
	defer crew.mutex.Unlock()
	if crew.called != seen {
		return false
	}
	crew.running--
	return true
}

// startLocal starts the worker goroutines that are missing.
func (l *Loader) startLocal() {
	if l.config.Start != Goroutines || l.config.Workers == 0 {
		return
	}
	c, dataset, handle, crew := l.c, l.config.Dataset, l.dataset, l.local
	crew.mutex.Lock()
	defer crew.mutex.Unlock()
	for crew.called++; crew.running < l.config.Workers; crew.running++ {
		if C.feedlane_loader_ref(c) != C.FEEDLANE_OK {
			return
		}
		handle.add()
		go func() {
			defer handle.release()
			defer C.feedlane_loader_unref(c)
			for {
				seen := crew.calls()
				for serveLocal(c, dataset) {
				}
				if crew.leave(seen) {
					return
				}
			}
		}()
	}
}

// Next waits for the next batch, in the sampler's order. The goroutine sleeps on Go's poller. The caller releases the
// batch. io.EOF: the epoch is over.
//
// Errors of one batch; the next call continues with the next batch:
//   - ErrSample: a sample failed. The Error names worker, batch and sample; Detail is the traceback.
//   - ErrQuarantined: the batch killed its worker Config.MaxKillsPerBatch times.
//
// Errors of the loader, returned by every call until Begin: ErrInit, ErrRestarts, ErrCorrupt, ErrABI, and ErrHung if a
// worker did not start in time. Errors of the current state:
//   - ErrSlotsHeld: the program holds a batch in every slot: release one, or raise Config.Held.
//   - ErrInterrupted: see Interrupt.
//   - ErrState: Begin was not called, or the loader was closed, possibly by another goroutine.
//   - ctx.Err(): the context ended. No batch is lost: call again with another context.
func (l *Loader) Next(ctx context.Context) (*Batch, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := l.enterOne(); err != nil {
		return nil, err
	}
	defer l.leaveOne()
	for collections := 0; ; {
		status := C.feedlane_loader_next(l.c, spinNanoseconds, &l.call.batch, &l.call.err)
		switch status {
		case C.FEEDLANE_OK:
			return newBatch(l.c, &l.call.batch), nil
		case C.FEEDLANE_END:
			return nil, io.EOF
		case C.FEEDLANE_TIMEOUT:
			if err := l.waiter.wait(ctx, l.arm); err != nil {
				return nil, err
			}
			continue
		case C.FEEDLANE_INTERRUPTED:
			if l.call.err.os_errno == C.EINTR { // a signal, which Go's runtime handles
				continue
			}
		case C.FEEDLANE_SLOTS_HELD:
			if collect(&collections) {
				continue
			}
		}
		return nil, l.failed(status)
	}
}

// Interrupt ends the current or the next wait in Next with ErrInterrupted.
func (l *Loader) Interrupt() error {
	if err := l.enter(); err != nil {
		return err
	}
	defer l.leave()
	return asError(C.feedlane_loader_interrupt(l.c))
}

// Poll does the work of Next without yielding a batch and without waiting. Call it during long computations. It reports
// whether Next has an outcome to return.
func (l *Loader) Poll() (bool, error) {
	if err := l.enterOne(); err != nil {
		return false, err
	}
	defer l.leaveOne()
	switch status := C.feedlane_loader_poll(l.c, &l.call.err); status {
	case C.FEEDLANE_OK:
		return false, nil
	case C.FEEDLANE_AGAIN:
		return true, nil
	default:
		return false, l.failed(status)
	}
}

// RunStager copies the batches of a loader with Config.Staged into buffers of its pool, until the loader is closed; then it
// returns nil. Call it in a goroutine, which occupies a thread. Without it, Next waits for Config.StartTimeout and returns
// ErrPeerDead. An inline loader makes the copies in Next.
//   - ErrState: the loader is not staged, is inline or is closed, or another goroutine is in RunStager.
func (l *Loader) RunStager() error {
	if err := l.enter(); err != nil {
		return err
	}
	defer l.leave()
	return check(func(err *C.feedlane_error) C.int32_t { return C.feedlane_loader_run_stager(l.c, err) })
}

// Stop ends the epoch and all workers; Begin starts them again.
//   - ErrHung: a worker still exists.
func (l *Loader) Stop() error {
	if err := l.enterOne(); err != nil {
		return err
	}
	defer l.leaveOne()
	if status := C.feedlane_loader_stop(l.c, &l.call.err); status != C.FEEDLANE_OK {
		return l.failed(status)
	}
	return nil
}

// Len returns the number of batches in an epoch; -1: unknown to the sampler, or the loader is closed.
func (l *Loader) Len() int64 {
	info, err := l.info()
	if err != nil {
		return -1
	}
	return info.Batches
}

// State returns the position in the epoch just after the batch was yielded (nil: after the newest batch), for a model
// checkpoint taken after that batch. A loader created with this state as Config.State continues with exactly the
// remaining batches.
//   - ErrStale: the batch was released.
//   - ErrState: the batch belongs to an earlier epoch.
func (l *Loader) State(after *Batch) ([]byte, error) {
	if err := l.enterOne(); err != nil {
		return nil, err
	}
	defer l.leaveOne()
	var token C.uint64_t
	if after != nil {
		token = after.c.token
	}
	for room := 4096; ; {
		buffer := make([]byte, room)
		var bytes C.uint64_t
		status := C.feedlane_loader_state(l.c, token, unsafe.Pointer(&buffer[0]), C.uint64_t(room), &bytes, &l.call.err)
		if status == C.FEEDLANE_E_LIMIT && int(bytes) > room {
			room = int(bytes)
			continue
		}
		runtime.KeepAlive(after)
		if status != C.FEEDLANE_OK {
			return nil, l.failed(status)
		}
		return buffer[:bytes], nil
	}
}

// OpenWorker returns the id of a worker of an External loader, and the socket for its process, which calls ServeWorker
// with it. id is the worker wanted, or -1 for any missing worker. io.EOF: no worker is missing.
func (l *Loader) OpenWorker(id int) (int, *os.File, error) {
	if err := l.enterOne(); err != nil {
		return 0, nil, err
	}
	defer l.leaveOne()
	wanted, fd := C.int32_t(id), C.int32_t(-1)
	switch status := C.feedlane_loader_open_worker(l.c, &wanted, &fd, &l.call.err); status {
	case C.FEEDLANE_OK:
		syscall.CloseOnExec(int(fd))
		return int(wanted), os.NewFile(uintptr(fd), "feedlane worker"), nil
	case C.FEEDLANE_END:
		return 0, nil, io.EOF
	default:
		return 0, nil, l.failed(status)
	}
}

func asError(status C.int32_t) error {
	if status == C.FEEDLANE_OK {
		return nil
	}
	return Status(status)
}

// isEnd reports whether an error is the end of an epoch.
func isEnd(err error) bool { return errors.Is(err, io.EOF) }
