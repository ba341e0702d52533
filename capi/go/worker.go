// SPDX-License-Identifier: Apache-2.0

// Workers: this program started again, goroutines, and processes that another program starts.

package feedlane

// #include "shim.h"
import "C"

import (
	"context"
	"fmt"
	"os"
	"unsafe"
)

// workerFD is the descriptor that leads to the trainer; -1: no trainer started this process.
var workerFD C.int32_t

// Runs before main and before the goroutines of main. Go keeps a copy of the environment; without Unsetenv, programs
// that this one starts would inherit the variable.
func init() {
	workerFD = C.feedlane_worker_fd()
	os.Unsetenv("FEEDLANE_WORKER_FD")
}

// IsWorker reports whether a trainer has started this process as a worker. Such a process cannot create loaders with
// workers: call WorkerMain in it.
func IsWorker() bool { return workerFD >= 0 }

// WorkerMain serves the trainer and exits, if this is a worker process. In any other process it returns at once. Call
// it early in main, before code that only the trainer needs.
func WorkerMain(dataset Dataset) {
	if !IsWorker() {
		return
	}
	if err := serve(workerFD, dataset); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// ServeWorker serves the trainer whose Loader.OpenWorker returned the socket, until the trainer no longer needs this
// worker. It closes the socket in every case. The process ends with the trainer, unless Config.NoLifeline is set.
//   - ErrPeerDead: there is no trainer.
func ServeWorker(socket *os.File, dataset Dataset) error {
	defer socket.Close()
	fd := C.feedlane_go_duplicate(C.int(socket.Fd()))
	return serve(C.int32_t(fd), dataset)
}

func serve(fd C.int32_t, dataset Dataset) error {
	var m memory
	defer m.free()
	if _, ok := dataset.(Iterable); ok { // with callbacks, because the library handles shards
		table, handle := callbackTable(dataset, &m)
		defer handle.Delete()
		return check(func(err *C.feedlane_error) C.int32_t {
			if status := C.feedlane_worker_run(fd, nil, table, err); status < 0 {
				return status
			}
			return C.FEEDLANE_OK
		})
	}
	w := (**C.feedlane_worker)(m.allocate(1, unsafe.Sizeof((*C.feedlane_worker)(nil))))
	err := check(func(err *C.feedlane_error) C.int32_t {
		return C.feedlane_worker_attach(fd, nil, C.FEEDLANE_FOREVER, w, err)
	})
	if err != nil {
		return err
	}
	s := &server{w: *w, call: C.feedlane_go_call_new()}
	defer s.end()
	return s.run(dataset)
}

// A server is one worker: it takes tasks and makes their batches.
type server struct {
	w      *C.feedlane_worker
	call   *C.feedlane_go_call
	waiter *waiter // nil: the thread waits in C
}

func (s *server) end() {
	if s.waiter != nil {
		s.waiter.close()
	}
	C.feedlane_go_worker_destroy(s.w)
	C.free(unsafe.Pointer(s.call))
}

func (s *server) run(dataset Dataset) error {
	var m memory
	defer m.free()
	c := (*C.feedlane_worker_info)(m.allocate(1, C.sizeof_feedlane_worker_info))
	c.size = C.sizeof_feedlane_worker_info
	if status := C.feedlane_worker_get_info(s.w, c); status != C.FEEDLANE_OK {
		return Status(status)
	}
	if c.iterable != 0 {
		C.feedlane_worker_ready(s.w, C.FEEDLANE_E_INIT, m.string("the loader expects an iterable data set: implement Iterable"), nil)
		return refuse(ErrInit, "the loader expects an iterable data set: implement Iterable")
	}
	maker, err := openDataset(dataset, newWorkerInfo(c))
	if err != nil {
		text, _, _ := describe(err)
		C.feedlane_worker_ready(s.w, C.FEEDLANE_E_INIT, m.string(text), nil)
		return fmt.Errorf("feedlane: the data set cannot be opened: %w", err)
	}
	defer maker.close()
	status := C.feedlane_worker_ready(s.w, C.FEEDLANE_OK, nil, &s.call.err)
	if status == C.FEEDLANE_OK {
		status = s.next(C.FEEDLANE_TIMEOUT)
	}
	for status == C.FEEDLANE_OK {
		status = s.serve(maker)
	}
	if status == C.FEEDLANE_END {
		return nil
	}
	return newError(status, &s.call.err)
}

// timeout returns how long a call may wait in C for a task.
func (s *server) timeout() C.int64_t {
	if s.waiter != nil {
		return spinNanoseconds
	}
	return C.FEEDLANE_FOREVER
}

// next waits for a task, in C or on the poller. status is the outcome of the last wait for it.
func (s *server) next(status C.int32_t) C.int32_t {
	timeout := s.timeout()
	for status == C.FEEDLANE_TIMEOUT || status == C.FEEDLANE_INTERRUPTED {
		if s.waiter != nil &&
			s.waiter.wait(context.Background(), func() C.int32_t { return C.feedlane_worker_arm(s.w, nil) }) != nil {
			timeout = C.FEEDLANE_FOREVER // a system without a poller: the thread waits in C
		}
		status = C.feedlane_worker_next(s.w, timeout, &s.call.task, &s.call.err)
	}
	return status
}

// serve makes the batch of the current task, and waits for the next one.
func (s *server) serve(maker *maker) C.int32_t {
	task := newTask(s.call.task, s.w)
	rows, failed := maker.make(task)
	task.over.Store(true)
	status := C.int32_t(C.FEEDLANE_OK)
	if failed == nil {
		next := C.feedlane_go_worker_commit(s.w, C.uint64_t(rows), s.timeout(), s.call)
		if status = s.call.committed; status == C.FEEDLANE_OK {
			return s.next(next)
		}
		if status == C.FEEDLANE_E_ARGUMENT { // the data set made an invalid number of rows
			failed = &failure{newError(status, &s.call.err), -1}
		}
	}
	if failed != nil {
		status = fail(s.call.task, failed)
	}
	if status == C.FEEDLANE_OK || status == C.FEEDLANE_E_STALE { // stale: the trainer has given up the task, which is over
		return s.next(C.FEEDLANE_TIMEOUT)
	}
	return status
}

// serveLocal is a worker in this goroutine, until the trainer no longer needs it. It returns whether it should be
// called again, because the worker had to leave although it was not asked to.
func serveLocal(loader *C.feedlane_loader, dataset Dataset) (again bool) {
	if _, ok := dataset.(Iterable); ok {
		C.feedlane_worker_run(-1, loader, nil, nil)
		return false
	}
	var m memory
	defer m.free()
	w := (**C.feedlane_worker)(m.allocate(1, unsafe.Sizeof((*C.feedlane_worker)(nil))))
	if C.feedlane_worker_attach(-1, loader, C.FEEDLANE_FOREVER, w, nil) != C.FEEDLANE_OK {
		return false // no worker is missing, or the loader is closed
	}
	s := &server{w: *w, call: C.feedlane_go_call_new()}
	defer s.end()
	var fd C.int32_t
	if C.feedlane_worker_arm(s.w, &fd) >= 0 { // otherwise the descriptor is not written
		s.waiter, _ = newWaiter(fd) // nil: the thread waits in C
	}
	err := s.run(dataset)
	e, ok := err.(*Error)
	return ok && e.Status != ErrState && e.Status != ErrPeerDead
}
