// SPDX-License-Identifier: Apache-2.0

// Waits of an arena in C, which contexts end.

package feedlane

// #include "shim.h"
import "C"

import (
	"context"
	"sync"
)

// An outcome is what a call of an arena returns. It has no pointers to Go memory.
type outcome struct {
	status C.int32_t
	batch  C.feedlane_batch
	err    C.feedlane_error
}

// wait repeats a call until it has succeeded (FEEDLANE_OK or FEEDLANE_ABSENT) or failed, or the context has ended. The
// call waits for at most its argument, in nanoseconds.
func (a *Arena) wait(ctx context.Context, call func(C.int64_t, *outcome) C.int32_t) (*outcome, error) {
	timeout := C.int64_t(C.FEEDLANE_FOREVER)
	if ctx.Done() != nil {
		timeout = spinNanoseconds // most calls end before a goroutine has to watch the context
	}
	for collections := 0; ; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		out, err := a.call(timeout, call)
		if err != nil {
			return nil, err
		}
		switch out.status {
		case C.FEEDLANE_OK, C.FEEDLANE_ABSENT:
			return out, nil
		case C.FEEDLANE_TIMEOUT:
			if timeout == C.FEEDLANE_FOREVER {
				return nil, ErrTimeout // of a call that does not wait
			}
			timeout = C.FEEDLANE_FOREVER
			defer a.watch(ctx)()
			continue
		case C.FEEDLANE_INTERRUPTED: // also by a signal, which Go's runtime handles
			a.passOn(ctx)
			continue
		case C.FEEDLANE_SLOTS_HELD:
			if collect(&collections) {
				continue
			}
		}
		return nil, newError(out.status, &out.err)
	}
}

func (a *Arena) call(timeout C.int64_t, call func(C.int64_t, *outcome) C.int32_t) (*outcome, error) {
	if err := a.enter(); err != nil {
		return nil, err
	}
	defer a.leave()
	out := new(outcome)
	out.batch.size = C.sizeof_feedlane_batch
	out.err.size = C.sizeof_feedlane_error
	out.status = call(timeout, out)
	return out, nil
}

// cancelled counts the calls whose contexts have ended and that have not returned. An interrupt of the library ends any
// one of the calls that wait, and several interrupts may count as one. So each interrupted call interrupts the next one
// as long as a call is cancelled. If it is not cancelled itself, it does not wait again before the others have returned.
type cancelled struct {
	mutex sync.Mutex
	count int
	empty chan struct{} // closed when count becomes 0
}

func (c *cancelled) add() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.count++; c.count == 1 {
		c.empty = make(chan struct{})
	}
}

func (c *cancelled) remove() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.count--; c.count == 0 {
		close(c.empty)
	}
}

// none returns a channel that is closed when no call is cancelled; nil: no call is cancelled now.
func (c *cancelled) none() <-chan struct{} {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.count == 0 {
		return nil
	}
	return c.empty
}

// watch interrupts calls when the context ends, until the returned function is called.
func (a *Arena) watch(ctx context.Context) (stop func()) {
	over := watch(ctx, func() {
		a.cancelled.add()
		a.interruptCancelled()
	})
	return func() {
		if over() {
			a.cancelled.remove()
		}
	}
}

// passOn passes an interrupt on, and waits until no call is cancelled, or until the context ends.
func (a *Arena) passOn(ctx context.Context) {
	if none := a.interruptCancelled(); none != nil {
		select {
		case <-none:
		case <-ctx.Done():
		}
	}
}

// interruptCancelled interrupts a call if one is cancelled, and returns cancelled.none.
func (a *Arena) interruptCancelled() <-chan struct{} {
	none := a.cancelled.none()
	if none != nil && a.enter() == nil {
		defer a.leave()
		C.feedlane_loader_interrupt(a.c)
	}
	return none
}
