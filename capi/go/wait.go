// SPDX-License-Identifier: Apache-2.0

// Waits on Go's own poller, so that no thread is blocked.

package feedlane

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// spinNanoseconds is how long a call polls in C before the goroutine sleeps on the poller. A batch that is almost ready
// arrives sooner than a sleeping goroutine wakes up.
const spinNanoseconds = 50_000

// A waiter sleeps until a descriptor of the library is readable.
//
// Thread safety: one goroutine at a time; any goroutine may call end.
type waiter struct {
	file *os.File // a duplicate, because the poller closes its descriptors
	raw  syscall.RawConn
}

func newWaiter(fd C.int32_t) (*waiter, error) {
	duplicate, err := C.feedlane_go_duplicate(C.int(fd))
	if duplicate < 0 {
		return nil, &Error{Status: ErrOS, Errno: err.(syscall.Errno), Text: "fcntl: " + err.Error(), Worker: -1,
			Attempt: -1, Epoch: -1, Batch: -1, Sample: -1}
	}
	w := &waiter{file: os.NewFile(uintptr(duplicate), "feedlane")}
	if w.raw, err = w.file.SyscallConn(); err == nil {
		err = w.file.SetReadDeadline(time.Time{}) // fails if the file is not in the poller
	}
	if err != nil {
		w.file.Close()
		return nil, refuse(ErrOS, "the descriptor cannot be polled: %v", err)
	}
	return w, nil
}

func (w *waiter) close() { w.file.Close() }

// end ends the current wait, and every later one at once.
func (w *waiter) end() { _ = w.file.SetReadDeadline(past) }

// past is a deadline in the past.
var past = time.Unix(1, 0)

// wait sleeps until something may have happened, or until the context ends; then it returns the context's error. `arm`
// prepares the sleep; if it returns another status than OK, the wait ends at once.
func (w *waiter) wait(ctx context.Context, arm func() C.int32_t) error {
	stop := watch(ctx, w.end)
	armed := false
	// The poller drops events from before the first call of this function. arm checks again after that.
	err := w.raw.Read(func(uintptr) bool {
		if armed {
			return true
		}
		armed = arm() == C.FEEDLANE_OK
		return !armed
	})
	if stop() {
		_ = w.file.SetReadDeadline(time.Time{})
	}
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	if err != nil && !errors.Is(err, os.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
		return refuse(ErrOS, "the poller failed: %v", err)
	}
	return nil
}

// watch calls end when the context ends, unless the returned function is called first. That function returns whether it
// has called end.
func watch(ctx context.Context, end func()) (stop func() bool) {
	if ctx.Done() == nil {
		return func() bool { return false }
	}
	over, ended := make(chan struct{}), make(chan bool, 1)
	go func() {
		select {
		case <-ctx.Done():
			end()
			ended <- true
		case <-over:
			ended <- false
		}
	}()
	return func() bool {
		close(over)
		return <-ended
	}
}
