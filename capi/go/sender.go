// SPDX-License-Identifier: Apache-2.0

// A sending end of a ring.

package feedlane

// #include "shim.h"
import "C"

import (
	"context"
	"os"
	"runtime"
	"time"
	"unsafe"
)

// A Sender is a sending end of a ring. A call that waits for space occupies a thread.
//
// Thread safety: one goroutine at a time; another one gets ErrBusy. Any goroutine may call Close. After Close every method
// returns ErrState.
type Sender struct {
	ringEnd
	c *C.feedlane_tx
}

// NewSender attaches to a ring through a socket of the receiver's Offer, and closes the socket in every case. The receiver
// admits it when it waits in a call. timeout 0: 60 s. Close the sender at the end; the garbage collector closes a forgotten
// one.
//   - ErrPeerDead: there is no receiver.
//   - ErrTimeout: the receiver did not answer in time.
//   - ErrCorrupt, ErrABI: the receiver's library is of another version, or its message is invalid.
func NewSender(socket *os.File, timeout time.Duration) (*Sender, error) {
	defer socket.Close()
	return newSender(C.feedlane_go_duplicate(C.int(socket.Fd())), "", timeout)
}

// NewSenderPath attaches to the ring whose receiver has this path. Otherwise it is like NewSender.
//   - ErrLimit: every lane is taken.
//   - ErrState: the receiver belongs to another user.
func NewSenderPath(path string, timeout time.Duration) (*Sender, error) {
	return newSender(-1, path, timeout)
}

func newSender(fd C.int, path string, timeout time.Duration) (*Sender, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	var m memory
	defer m.free()
	out := (**C.feedlane_tx)(m.allocate(1, unsafe.Sizeof((*C.feedlane_tx)(nil))))
	var name *C.char
	if path != "" {
		name = m.string(path)
	}
	var bytes C.uint32_t
	err := check(func(err *C.feedlane_error) C.int32_t {
		return C.feedlane_tx_attach(C.int32_t(fd), name, joinNanoseconds(timeout), out, &bytes, err)
	})
	if err != nil {
		return nil, err
	}
	c := *out
	s := &Sender{c: c}
	s.init(bytes, func() { C.feedlane_go_tx_destroy(c) })
	runtime.SetFinalizer(s, (*Sender).drain)
	return s, nil
}

// Close leaves the ring: the receiver still gets all messages that were sent. A call in progress returns ErrState. Do not
// use slices of messages afterwards. Closing a sender again has no effect.
func (s *Sender) Close() error {
	if !s.calls.close() {
		return nil
	}
	C.feedlane_tx_close(s.c)
	s.exit()
	<-s.ended
	return nil
}

// MessageBytes returns the size of a message.
func (s *Sender) MessageBytes() int { return s.bytes }

// Send copies messages, which lie one after another, into the ring, and waits for space. It returns how many were sent: the
// receiver gets these, also after an error.
//   - ErrArgument: len(messages) is not a multiple of the size of a message.
//   - ErrPeerDead: the lane is full and the receiver is gone.
//   - ctx.Err(): the context ended. Send checks it every 20 ms.
func (s *Sender) Send(ctx context.Context, messages []byte) (sent int, err error) {
	if len(messages)%s.bytes != 0 {
		return 0, refuse(ErrArgument, "messages has %d bytes: must be a multiple of the size of a message, %d", len(messages),
			s.bytes)
	}
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.leave()
	s.expire()
	for len(messages) != 0 && err == nil {
		err = s.wait(ctx, func(timeout C.int64_t) C.int32_t {
			status := C.feedlane_tx_send(s.c, unsafe.Pointer(&messages[0]), s.number(messages), timeout, &s.call.count, &s.call.err)
			if s.call.count != 0 {
				return C.FEEDLANE_OK
			}
			return status
		})
		if err == nil {
			sent += int(s.call.count)
			messages = messages[int(s.call.count)*s.bytes:]
		}
	}
	return sent, err
}

// Reserve waits for space and returns up to want messages to fill in place. Commit sends them.
//   - ErrPeerDead: the lane is full and the receiver is gone.
//   - ctx.Err(): the context ended. Reserve checks it every 20 ms.
func (s *Sender) Reserve(ctx context.Context, want int) (*Span, error) { return s.reserve(ctx, want) }

// TryReserve is like Reserve, but does not wait.
//   - ErrTimeout: the lane is full.
func (s *Sender) TryReserve(want int) (*Span, error) { return s.reserve(nil, want) }

// reserve does not wait without a context.
func (s *Sender) reserve(ctx context.Context, want int) (*Span, error) {
	count, err := wanted(want)
	if err != nil {
		return nil, err
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	s.expire()
	err = s.wait(ctx, func(timeout C.int64_t) C.int32_t {
		return C.feedlane_tx_reserve(s.c, count, timeout, &s.call.span, &s.call.err)
	})
	if err != nil {
		return nil, err
	}
	return s.newSpan(), nil
}

// Commit sends the first count messages of the last Reserve, in order, and drops the others.
//   - ErrStale: the span is over.
func (s *Sender) Commit(span *Span, count int) error {
	if err := s.finish(span, count); err != nil {
		return err
	}
	defer s.leave()
	s.expire()
	return s.outcome(C.feedlane_tx_commit(s.c, C.uint32_t(count), &s.call.err))
}

// wait repeats a call until it has succeeded or failed, or the context has ended. Without a context it does not wait.
func (s *Sender) wait(ctx context.Context, call func(C.int64_t) C.int32_t) error {
	if ctx == nil {
		return s.outcome(call(0))
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		status := call(waitNanoseconds)
		if status != C.FEEDLANE_TIMEOUT && status != C.FEEDLANE_INTERRUPTED {
			return s.outcome(status)
		}
	}
}
