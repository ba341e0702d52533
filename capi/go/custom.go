// SPDX-License-Identifier: Apache-2.0

// User-defined samplers.

package feedlane

// #include "shim.h"
import "C"

import (
	"errors"
	"io"
	"runtime/cgo"
	"unsafe"
)

// An Order is a user-defined sampler, see Custom. If it is also a Saver, its position is part of Loader.State.
type Order interface {
	// Len returns the number of indices in an epoch, or 0 if it is unknown.
	Len() int64
	// Restart starts an epoch. seed is the loader's base seed, 0 without a loader.
	Restart(epoch int64, seed uint64) error
	// Next writes at least one index and returns their number. io.EOF: the epoch has ended, and no index was written.
	Next(to []int64) (int, error)
}

// A LiveOrder is an Order that may have no index now: its Next then returns 0 and nil. Next first reads what made the
// descriptor readable, then looks for indices.
type LiveOrder interface {
	Order
	// WakeFD returns a descriptor, which stays open as long as the sampler and its loader exist. Next is called again when
	// it is readable, or earlier.
	WakeFD() int
}

// Custom yields the indices of an Order. Copies of the sampler share the Order: use only one copy at a time. The
// methods run in the goroutine that calls Loader.Begin, Next or Poll, or a method of the sampler. Loader.Next first
// yields all earlier batches, then returns the error of a failed method. The next call repeats the failed method.
func Custom(order Order) (*Sampler, error) { return custom(order, 0) }

// CustomBatches yields batches. Each Order.Next writes one batch of at most rows indices, and Len counts batches.
func CustomBatches(order Order, rows int) (*Sampler, error) {
	if rows <= 0 {
		return nil, refuse(ErrArgument, "rows is %d: must be at least 1", rows)
	}
	return custom(order, rows)
}

func custom(order Order, rows int) (*Sampler, error) {
	if order == nil {
		return nil, refuse(ErrArgument, "order is nil")
	}
	handle := cgo.NewHandle(order)
	var m memory
	defer m.free()
	table := (*C.feedlane_sampler_callbacks)(m.allocate(1, C.sizeof_feedlane_sampler_callbacks))
	_, saves := order.(Saver)
	C.feedlane_go_order(C.uintptr_t(handle), flag(saves), table)
	table.length, table.batch_rows = C.int64_t(order.Len()), C.int64_t(rows)
	if live, ok := order.(LiveOrder); ok {
		table.wake_fd = C.int32_t(live.WakeFD())
	}
	s, err := newSampler(C.feedlane_sampler_config{kind: C.FEEDLANE_SAMPLER_CUSTOM, callbacks: table}, arrays{})
	if err != nil {
		handle.Delete()
	}
	return s, err
}

func orderOf(handle C.uintptr_t) Order { return cgo.Handle(handle).Value().(Order) }

// answerOrder turns the error of an Order's method into a status.
func answerOrder(failed error, err *C.feedlane_error) C.int32_t {
	var e *Error
	switch {
	case failed == nil:
		return C.FEEDLANE_OK
	case errors.Is(failed, io.EOF):
		return C.FEEDLANE_END
	}
	report(err, &failure{failed, -1}, -1)
	if errors.As(failed, &e) && e.Status < 0 {
		return C.int32_t(e.Status)
	}
	return C.FEEDLANE_E_STATE
}

//export feedlaneGoOrderRestart
func feedlaneGoOrderRestart(handle C.uintptr_t, epoch C.int64_t, seed C.uint64_t, err *C.feedlane_error) C.int32_t {
	return answerOrder(guarded(func() error { return orderOf(handle).Restart(int64(epoch), uint64(seed)) }), err)
}

//export feedlaneGoOrderNext
func feedlaneGoOrderNext(handle C.uintptr_t, to *C.int64_t, room C.uint64_t, got *C.uint64_t, err *C.feedlane_error) C.int32_t {
	hasNone := false
	status := answerOrder(guarded(func() error {
		order := orderOf(handle)
		count, err := order.Next(unsafe.Slice((*int64)(unsafe.Pointer(to)), room))
		if _, isLive := order.(LiveOrder); isLive && count == 0 && err == nil {
			hasNone = true
			return nil
		}
		if err == nil && (count <= 0 || uint64(count) > uint64(room)) {
			err = refuse(ErrArgument, "Next returned %d indices, but there is room for only %d", count, uint64(room))
		}
		if err == nil {
			*got = C.uint64_t(count)
		}
		return err
	}), err)
	if hasNone {
		return C.FEEDLANE_AGAIN
	}
	return status
}

//export feedlaneGoOrderSave
func feedlaneGoOrderSave(handle C.uintptr_t, buffer unsafe.Pointer, room C.uint64_t, bytes *C.uint64_t, err *C.feedlane_error) C.int32_t {
	return answerOrder(guarded(func() error {
		position, err := orderOf(handle).(Saver).Save()
		if err != nil {
			return err
		}
		if *bytes = C.uint64_t(len(position)); uint64(len(position)) > uint64(room) {
			return refuse(ErrLimit, "the position has %d bytes, but at most %d are allowed", len(position), uint64(room))
		}
		if len(position) != 0 {
			copy(unsafe.Slice((*byte)(buffer), len(position)), position)
		}
		return nil
	}), err)
}

//export feedlaneGoOrderLoad
func feedlaneGoOrderLoad(handle C.uintptr_t, buffer unsafe.Pointer, bytes C.uint64_t, err *C.feedlane_error) C.int32_t {
	return answerOrder(guarded(func() error {
		return orderOf(handle).(Saver).Load(C.GoBytes(buffer, C.int(bytes)))
	}), err)
}

//export feedlaneGoOrderDrop
func feedlaneGoOrderDrop(handle C.uintptr_t) { cgo.Handle(handle).Delete() }
