// SPDX-License-Identifier: Apache-2.0

// The receiving end of a ring.

package feedlane

// #include "shim.h"
import "C"

import (
	"context"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// A Receiver is the receiving end of a ring. Each sender's messages stay in order; messages of different senders have no
// order. Senders attach while a call of the receiver waits.
//
// Thread safety: one goroutine at a time; another one gets ErrBusy. Any goroutine may call Close. After Close every method
// returns ErrState.
type Receiver struct {
	ringEnd
	c      *C.feedlane_rx
	waiter *waiter
	arm    func() C.int32_t
}

// admissionNanoseconds is how long a call waits for a sender that is connecting before it reports that all have left.
const admissionNanoseconds = 100_000_000

// NewReceiver creates a ring and its receiving end. Close it at the end; the garbage collector closes a forgotten one.
//   - ErrArgument: the configuration is invalid; Error.Argument names the setting.
//   - ErrState: another process listens at RingConfig.Path.
//   - ErrMemory, ErrLimit, ErrOS: a resource of the system is missing.
func NewReceiver(config RingConfig) (*Receiver, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	var m memory
	defer m.free()
	to := (*C.feedlane_ring_config)(m.allocate(1, C.sizeof_feedlane_ring_config))
	to.size = C.sizeof_feedlane_ring_config
	to.message_bytes = C.uint32_t(config.MessageBytes)
	to.capacity = C.uint32_t(config.Capacity)
	to.lanes = C.uint32_t(config.Lanes)
	if config.Path != "" {
		to.path = m.string(config.Path)
	}
	out := (**C.feedlane_rx)(m.allocate(1, unsafe.Sizeof((*C.feedlane_rx)(nil))))
	if err := check(func(err *C.feedlane_error) C.int32_t { return C.feedlane_rx_create(to, out, err) }); err != nil {
		return nil, err
	}
	return newReceiver(*out, to.message_bytes)
}

// newReceiver takes ownership of c in every case.
func newReceiver(c *C.feedlane_rx, bytes C.uint32_t) (*Receiver, error) {
	var fd C.int32_t
	status := C.feedlane_rx_arm(c, &fd)
	err := error(Status(status))
	var w *waiter
	if status >= 0 {
		w, err = newWaiter(fd)
	}
	if err != nil {
		C.feedlane_go_rx_destroy(c)
		return nil, err
	}
	r := &Receiver{c: c, waiter: w, arm: func() C.int32_t { return C.feedlane_rx_arm(c, nil) }}
	r.init(bytes, func() {
		C.feedlane_go_rx_destroy(c)
		w.close()
	})
	runtime.SetFinalizer(r, (*Receiver).drain)
	return r, nil
}

// Close ends the ring: senders get ErrPeerDead from their next wait. A call in progress returns ErrState. Do not use slices
// of messages afterwards. Closing a receiver again has no effect.
func (r *Receiver) Close() error {
	if !r.calls.close() {
		return nil
	}
	C.feedlane_rx_close(r.c)
	r.exit()
	<-r.ended
	return nil
}

// Offer reserves a lane and returns a socket for its sender, which calls NewSender with it. The caller passes the socket
// to that process and closes it.
//   - ErrLimit: every lane is taken.
func (r *Receiver) Offer() (*os.File, error) {
	if err := r.enter(); err != nil {
		return nil, err
	}
	defer r.leave()
	var fd C.int32_t
	if status := C.feedlane_rx_offer(r.c, &fd, &r.call.err); status != C.FEEDLANE_OK {
		return nil, newError(status, &r.call.err)
	}
	syscall.CloseOnExec(int(fd))
	return os.NewFile(uintptr(fd), "feedlane ring"), nil
}

// Receive waits for messages of one sender, copies as many as there are and fit into buffer, one after another, and
// returns their number and the sender's lane. The goroutine sleeps on Go's poller.
//   - io.EOF: all senders that attached have left or died, and all their messages were received. Another one may attach
//     during later calls.
//   - ErrArgument: buffer is shorter than a message.
//   - ctx.Err(): the context ended. No message is lost.
func (r *Receiver) Receive(ctx context.Context, buffer []byte) (count, lane int, err error) {
	if len(buffer) < r.bytes {
		return 0, 0, refuse(ErrArgument, "buffer has %d bytes: must have room for a message of %d", len(buffer), r.bytes)
	}
	if err := r.enter(); err != nil {
		return 0, 0, err
	}
	defer r.leave()
	r.expire()
	err = r.wait(ctx, func(timeout C.int64_t) C.int32_t {
		return C.feedlane_rx_receive(r.c, unsafe.Pointer(&buffer[0]), r.number(buffer), timeout, &r.call.count, &r.call.lane,
			&r.call.err)
	})
	if err != nil {
		return 0, 0, err
	}
	return int(r.call.count), int(r.call.lane), nil
}

// Peek waits for messages of one sender and returns up to want of them in place. Release frees them. Errors: see Receive.
func (r *Receiver) Peek(ctx context.Context, want int) (*Span, error) { return r.peek(ctx, want) }

// TryPeek is like Peek, but does not wait.
//   - ErrTimeout: there is no message.
func (r *Receiver) TryPeek(want int) (*Span, error) { return r.peek(nil, want) }

// peek does not wait without a context.
func (r *Receiver) peek(ctx context.Context, want int) (*Span, error) {
	count, err := wanted(want)
	if err != nil {
		return nil, err
	}
	if err := r.enter(); err != nil {
		return nil, err
	}
	defer r.leave()
	r.expire()
	err = r.wait(ctx, func(timeout C.int64_t) C.int32_t {
		return C.feedlane_rx_peek(r.c, count, timeout, &r.call.span, &r.call.err)
	})
	if err != nil {
		return nil, err
	}
	return r.newSpan(), nil
}

// Release frees the first count messages of the last Peek. Later calls return the others again.
//   - ErrStale: the span is over.
func (r *Receiver) Release(span *Span, count int) error {
	if err := r.finish(span, count); err != nil {
		return err
	}
	defer r.leave()
	r.expire()
	return r.outcome(C.feedlane_rx_release(r.c, span.c.lane, C.uint32_t(count), &r.call.err))
}

// wait repeats a call until it has succeeded or failed, or the context has ended. Between the calls it sleeps on the poller.
// Without a context it does not wait.
func (r *Receiver) wait(ctx context.Context, call func(C.int64_t) C.int32_t) error {
	if ctx == nil {
		return r.outcome(call(0))
	}
	timeout := C.int64_t(spinNanoseconds)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		status := call(timeout)
		switch {
		case status == C.FEEDLANE_END && timeout != admissionNanoseconds:
			timeout = admissionNanoseconds
			continue
		case status == C.FEEDLANE_TIMEOUT:
			if err := r.waiter.wait(ctx, r.arm); err != nil {
				return err
			}
		case status != C.FEEDLANE_INTERRUPTED: // by a signal, which Go's runtime handles
			return r.outcome(status)
		}
		timeout = spinNanoseconds
	}
}
