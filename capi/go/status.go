// SPDX-License-Identifier: Apache-2.0

// Statuses and errors.

package feedlane

/*
#cgo pkg-config: feedlane
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"unsafe"
)

// A Status is an outcome of the library other than success. Each Status is an error, for comparison by errors.Is:
//
//	if errors.Is(err, feedlane.ErrSample) { ... }
type Status int32

// The statuses that this package returns. The end of an epoch is io.EOF. If a context ends a wait, the error is its
// Err().
const (
	ErrTimeout     Status = C.FEEDLANE_TIMEOUT       // the timeout has expired
	ErrInterrupted Status = C.FEEDLANE_INTERRUPTED   // interrupted by Loader.Interrupt
	ErrSlotsHeld   Status = C.FEEDLANE_SLOTS_HELD    // the trainer holds every slot: release a batch
	ErrAbandoned   Status = C.FEEDLANE_ABANDONED     // the trainer no longer needs this task: drop it
	ErrArgument    Status = C.FEEDLANE_E_ARGUMENT    // an argument is invalid
	ErrState       Status = C.FEEDLANE_E_STATE       // not possible in this state, for example after Close
	ErrBusy        Status = C.FEEDLANE_E_BUSY        // another goroutine is in a call that only one may make at a time
	ErrForked      Status = C.FEEDLANE_E_FORKED      // the handle belongs to the parent process
	ErrStale       Status = C.FEEDLANE_E_STALE       // the batch or task was already released
	ErrMemory      Status = C.FEEDLANE_E_MEMORY      // not enough memory
	ErrLimit       Status = C.FEEDLANE_E_LIMIT       // a limit of the system or of the configuration was reached
	ErrOS          Status = C.FEEDLANE_E_OS          // a system call failed
	ErrABI         Status = C.FEEDLANE_E_ABI         // the versions or memory layouts do not match
	ErrCorrupt     Status = C.FEEDLANE_E_CORRUPT     // the peer's memory or message is invalid
	ErrPeerDead    Status = C.FEEDLANE_E_PEER_DEAD   // the peer has ended or never connected
	ErrSample      Status = C.FEEDLANE_E_SAMPLE      // the data set failed for a sample
	ErrInit        Status = C.FEEDLANE_E_INIT        // a worker could not set up its data set
	ErrHung        Status = C.FEEDLANE_E_HUNG        // a worker or consumer missed its deadline
	ErrQuarantined Status = C.FEEDLANE_E_QUARANTINED // too many workers died while making this batch
	ErrRestarts    Status = C.FEEDLANE_E_RESTARTS    // workers have died more often than MaxRestarts allows
	ErrDevice      Status = C.FEEDLANE_E_DEVICE      // the accelerator's driver failed
	ErrUnsupported Status = C.FEEDLANE_E_UNSUPPORTED // not supported by this build or this system
)

// Outcomes that are returned as nil or io.EOF, or lead to another call.
const (
	statusOK    Status = C.FEEDLANE_OK
	statusEnd   Status = C.FEEDLANE_END
	statusAgain Status = C.FEEDLANE_AGAIN
)

// String returns the name of s, such as "E_SAMPLE".
func (s Status) String() string { return C.GoString(C.feedlane_status_name(C.int32_t(s))) }

// Error returns the name of s and its meaning in one line.
func (s Status) Error() string {
	return "feedlane: " + s.String() + ": " + C.GoString(C.feedlane_status_text(C.int32_t(s)))
}

// Timeout reports whether s is ErrTimeout. net.Error has this method too.
func (s Status) Timeout() bool { return s == ErrTimeout }

// An Error describes a failure. -1 in Worker, Attempt, Epoch, Batch or Sample means "none".
type Error struct {
	Status   Status
	Errno    syscall.Errno // of the failed system call, 0 if none
	Argument string        // the offending argument in the C interface's terms, such as "config.batch_size"; or empty
	Text     string        // the error message, in one line
	Detail   string        // the traceback of the data set's failure, or empty
	Worker   int
	Attempt  int   // attempt at the batch, from 0
	Epoch    int64 // epoch of the batch
	Batch    int64 // number of the batch in the epoch, from 0
	Sample   int64 // data set index
	Found    int64 // the number found, for errors about a number
	Needed   int64 // the number needed, for errors about a number

	Transient bool // a retry may succeed
}

// Error returns one line: status, text, and the worker, epoch, batch and sample if they are known.
func (e *Error) Error() string {
	var line strings.Builder
	fmt.Fprintf(&line, "feedlane: %s: %s", e.Status.String(), e.Text)
	separator := " ("
	for _, part := range []struct {
		name   string
		number int64
	}{{"worker", int64(e.Worker)}, {"epoch", e.Epoch}, {"batch", e.Batch}, {"sample", e.Sample}} {
		if part.number >= 0 {
			fmt.Fprintf(&line, "%s%s %d", separator, part.name, part.number)
			separator = ", "
		}
	}
	if separator == ", " {
		line.WriteByte(')')
	}
	return line.String()
}

// Is reports whether target is the Status or the syscall.Errno of e.
func (e *Error) Is(target error) bool {
	return target == error(e.Status) || e.Errno != 0 && target == error(e.Errno)
}

// Timeout reports whether the status is ErrTimeout. net.Error has this method too.
func (e *Error) Timeout() bool { return e.Status == ErrTimeout }

// newError makes the error of a call that returned status.
func newError(status C.int32_t, err *C.feedlane_error) *Error {
	e := &Error{
		Status: Status(status), Errno: syscall.Errno(err.os_errno),
		Argument: C.GoString(&err.argument[0]), Text: C.GoString(&err.text[0]),
		Worker: int(err.worker), Attempt: int(err.attempt),
		Epoch: int64(err.epoch), Batch: int64(err.batch), Sample: int64(err.sample),
		Found: int64(err.found), Needed: int64(err.needed), Transient: err.transient != 0,
	}
	if err.detail != nil && err.detail_len != 0 {
		length := err.detail_len
		if length > err.detail_cap {
			length = err.detail_cap
		}
		e.Detail = C.GoStringN(err.detail, C.int(length))
	}
	if e.Text == "" {
		e.Text = C.GoString(C.feedlane_status_text(status))
	}
	return e
}

// refuse makes an error of this package.
func refuse(status Status, format string, arguments ...any) *Error {
	return &Error{Status: status, Text: fmt.Sprintf(format, arguments...), Worker: -1, Attempt: -1, Epoch: -1, Batch: -1,
		Sample: -1}
}

// check calls f with an error struct and turns the status that it returns into an error, FEEDLANE_END into io.EOF.
func check(f func(err *C.feedlane_error) C.int32_t) error {
	call := C.feedlane_go_call_new()
	defer C.free(unsafe.Pointer(call))
	switch status := f(&call.err); status {
	case C.FEEDLANE_OK:
		return nil
	case C.FEEDLANE_END:
		return io.EOF
	default:
		return newError(status, &call.err)
	}
}

// MayContinue reports whether an epoch continues after err: the next call of Next yields the next batch, or tries
// again. A batch, or the rest of a shard, may be lost nevertheless. After other errors, call Begin. The epoch of a
// consumer does not continue after ErrPeerDead and ErrHung, because its feeder has ended or has evicted it.
func MayContinue(err error) bool {
	var e *Error
	if errors.Is(err, ErrHung) && errors.As(err, &e) && e.Argument == "config.start_timeout_ns" {
		return false // a worker did not start in time
	}
	for _, status := range []Status{ErrSample, ErrQuarantined, ErrInterrupted, ErrSlotsHeld, ErrTimeout, ErrPeerDead, ErrHung,
		ErrOS, ErrMemory, ErrDevice} {
		if errors.Is(err, status) {
			return true
		}
	}
	return false
}

// Version returns the version of the library in use, as "major.minor.patch".
func Version() string { return C.GoString(C.feedlane_version()) }

// checkABI compares the ABI of the library in use with that of the header of this build.
func checkABI() error {
	if found := C.feedlane_abi_version(); found != C.FEEDLANE_ABI {
		e := refuse(ErrABI, "libfeedlane has ABI %d, but this program was built for ABI %d", found, C.FEEDLANE_ABI)
		e.Found, e.Needed = int64(found), C.FEEDLANE_ABI
		return e
	}
	return nil
}
