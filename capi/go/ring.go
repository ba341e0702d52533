// SPDX-License-Identifier: Apache-2.0

// Rings without a loader: messages of one size from several senders to one receiver, in place or by copies.

package feedlane

// #include "shim.h"
import "C"

import (
	"io"
	"math"
	"sync"
	"sync/atomic"
	"unsafe"
)

// RingConfig configures a ring.
type RingConfig struct {
	MessageBytes uint32 // size of a message, 1 byte to 1 MiB
	Capacity     uint32 // messages in a lane, which is the way of one sender: a power of two up to 2^24
	Lanes        uint32 // senders at the same time, up to 4096; 0: 1
	Path         string // a Unix socket to create, where senders of this user may attach with NewSenderPath; "": none
}

// A ringEnd is what a Receiver and a Sender have in common.
type ringEnd struct {
	calls   guard
	busy    atomic.Bool
	once    sync.Once
	ended   chan struct{} // closed when the end was destroyed
	destroy func()
	bytes   int // of a message
	call    *ringCall
	span    *Span // of the last Peek or Reserve; nil: it is over
}

// A ringCall has the outputs of one call. It has no pointers to Go memory.
type ringCall struct {
	span        C.feedlane_span
	err         C.feedlane_error
	count, lane C.uint32_t
}

// init does not keep the end alive, so that the garbage collector can end it.
func (e *ringEnd) init(bytes C.uint32_t, destroy func()) {
	e.bytes, e.destroy, e.ended, e.call = int(bytes), destroy, make(chan struct{}), new(ringCall)
	e.call.err.size = C.sizeof_feedlane_error
}

// drain destroys the end when no call uses it. It never waits.
func (e *ringEnd) drain() {
	e.once.Do(func() {
		e.expire()
		e.destroy()
		close(e.ended)
	})
}

// enter begins a call that one goroutine at a time may make.
func (e *ringEnd) enter() error {
	if !e.calls.enter() {
		e.exit()
		return refuse(ErrState, "this end of the ring is closed")
	}
	if e.busy.Swap(true) {
		e.exit()
		return refuse(ErrBusy, "another goroutine is in a call of this end of the ring")
	}
	return nil
}

func (e *ringEnd) leave() {
	e.busy.Store(false)
	e.exit()
}

func (e *ringEnd) exit() {
	if e.calls.leave() {
		e.drain()
	}
}

// expire ends the last span.
func (e *ringEnd) expire() {
	if e.span != nil {
		e.span.over.Store(true)
		e.span = nil
	}
}

// newSpan returns the span of the current call.
func (e *ringEnd) newSpan() *Span {
	e.span = &Span{c: e.call.span, bytes: e.bytes}
	return e.span
}

// finish begins the release or commit of a span. leave must follow if there is no error.
func (e *ringEnd) finish(span *Span, count int) error {
	if err := e.enter(); err != nil {
		return err
	}
	var err error
	switch {
	case span == nil || span != e.span:
		err = refuse(ErrStale, "the span is over, or belongs to another ring")
	case count < 0 || count > span.Len():
		err = refuse(ErrArgument, "count is %d: must be 0 to %d, the messages of the span", count, span.Len())
	}
	if err != nil {
		e.leave()
	}
	return err
}

// outcome turns the status of a call into an error.
func (e *ringEnd) outcome(status C.int32_t) error {
	switch status {
	case C.FEEDLANE_OK:
		return nil
	case C.FEEDLANE_END:
		return io.EOF
	default:
		return newError(status, &e.call.err)
	}
}

// number returns how many messages fit into a buffer, at most what C can count.
func (e *ringEnd) number(buffer []byte) C.uint32_t {
	if count := len(buffer) / e.bytes; count < math.MaxUint32 {
		return C.uint32_t(count)
	}
	return math.MaxUint32
}

func wanted(count int) (C.uint32_t, error) {
	if count < 1 || count > math.MaxUint32 {
		return 0, refuse(ErrArgument, "want is %d: must be 1 to %d messages", count, uint32(math.MaxUint32))
	}
	return C.uint32_t(count), nil
}

// A Span is messages in place, all of one sender. It is over after the next call of Receive, Peek, Release, Send, Reserve,
// Commit or Close at its end of the ring. Then its memory belongs to other messages or is unmapped, also under slices of it.
type Span struct {
	c     C.feedlane_span
	bytes int // of a message
	over  atomic.Bool
}

// Len returns the number of messages, which is never 0.
func (s *Span) Len() int { return int(s.c.count) }

// Lane returns the sender's lane: 0 to RingConfig.Lanes - 1.
func (s *Span) Lane() int { return int(s.c.lane) }

// Message returns the memory of message i, from 0. The sender of a received message can still write to it: check a copy.
//   - ErrArgument: there is no such message.
//   - ErrStale: the span is over.
func (s *Span) Message(i int) ([]byte, error) {
	switch {
	case s.over.Load():
		return nil, refuse(ErrStale, "the span is over")
	case i < 0 || i >= s.Len():
		return nil, refuse(ErrArgument, "there is no message %d: the span has %d messages", i, s.Len())
	}
	return unsafe.Slice((*byte)(unsafe.Add(s.c.data, uintptr(i)*uintptr(s.c.stride))), s.bytes), nil
}

// RingInfo describes a ring of any process.
type RingInfo struct {
	PID          int    // the receiver, as passed
	MessageBytes uint64 // size of a message
	Capacity     uint64 // messages in a lane
	Lanes        uint64 // maximum number of senders at the same time
	Received     uint64 // messages that the receiver has released, in all lanes
	ControlBytes uint64 // size of the control segment
}

// ReadRing reads ring number nth, from 0, of a process of this user, which is its receiver, without its help.
//   - io.EOF: the process has no such ring.
//   - ErrPeerDead, ErrOS: see OpenMonitor.
func ReadRing(pid, nth int) (RingInfo, error) {
	c := C.feedlane_ring_info{size: C.sizeof_feedlane_ring_info}
	err := check(func(err *C.feedlane_error) C.int32_t {
		return C.feedlane_monitor_ring(C.int64_t(pid), C.int32_t(nth), &c, err)
	})
	if err != nil {
		return RingInfo{}, err
	}
	return RingInfo{int(c.pid), uint64(c.message_bytes), uint64(c.capacity), uint64(c.lanes), uint64(c.received),
		uint64(c.control_bytes)}, nil
}
