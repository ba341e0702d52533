// SPDX-License-Identifier: Apache-2.0

// One loader, many trainers: a feeder's places for consumers and its loop, and the loaders of consumers.

package feedlane

// #include "shim.h"
import "C"

import (
	"context"
	"os"
	"syscall"
	"time"
)

// A Share says who gets which batch of a loader with consumers in other processes.
type Share int32

const (
	NotShared  Share = C.FEEDLANE_SHARE_NONE  // the loader's own Next yields its batches
	ShareEvery Share = C.FEEDLANE_SHARE_EVERY // every consumer gets every batch
	ShareDeal  Share = C.FEEDLANE_SHARE_DEAL  // batch k goes to consumer k mod Config.Consumers
)

// A Lag says what the feeder does when it has no free slot because a consumer has not released its batches.
type Lag int32

const (
	LagBlock   Lag = C.FEEDLANE_LAG_BLOCK   // waits for it
	LagEvict   Lag = C.FEEDLANE_LAG_EVICT   // waits for EvictAfter without progress of the consumer, then ends its place
	LagObserve Lag = C.FEEDLANE_LAG_OBSERVE // takes back what the consumer has not taken: it misses those batches. Not with ShareDeal
)

// AnyPlace is a place that has no consumer.
const AnyPlace = -1

// ConsumerConfig is what a consumer's place is like. Zero is the default of every field.
type ConsumerConfig struct {
	Lag        Lag
	EvictAfter time.Duration // with LagEvict; 0: 60 s
}

func (c *ConsumerConfig) create(id int, m *memory) *C.feedlane_consumer_config {
	to := (*C.feedlane_consumer_config)(m.allocate(1, C.sizeof_feedlane_consumer_config))
	to.size = C.sizeof_feedlane_consumer_config
	to.id = C.int32_t(id)
	to.lag = C.int32_t(c.Lag)
	to.evict_after_ns = C.int64_t(c.EvictAfter)
	return to
}

// OpenConsumer opens a place of a loader with Config.Share for one consumer. It returns the place's number and a socket
// to pass to that process, which calls Join with it; close it then. From here on batches are kept for the place. id is
// AnyPlace, or, with ShareDeal, the rank. With ShareDeal a place whose consumer has ended is opened again by the same
// call.
//   - ErrState: the loader is not shared.
//   - ErrLimit: all places have a consumer.
//   - ErrArgument: id is out of range, or has a consumer.
func (l *Loader) OpenConsumer(id int, config ConsumerConfig) (int, *os.File, error) {
	if err := l.enterOne(); err != nil {
		return 0, nil, err
	}
	defer l.leaveOne()
	var m memory
	defer m.free()
	place, fd := C.int32_t(-1), C.int32_t(-1)
	status := C.feedlane_loader_open_consumer(l.c, config.create(id, &m), &place, &fd, &l.call.err)
	if status != C.FEEDLANE_OK {
		return 0, nil, l.failed(status)
	}
	syscall.CloseOnExec(int(fd))
	return int(place), os.NewFile(uintptr(fd), "feedlane consumer"), nil
}

// Serve is the feeder's loop: it delivers batches to the consumers, takes them back, admits consumers and observes their
// ends, until the epoch is over. Before the first epoch: until Config.Consumers have joined, for those that join by a path
// and are to miss no batch. After an epoch: until all have left. The goroutine sleeps on Go's poller.
//   - ErrPeerDead: there is no consumer, or, with ShareDeal, a place has none: see OpenConsumer.
//   - ErrHung: every slot is held by consumers that were evicted.
//   - ErrInterrupted: see Interrupt.
//   - ctx.Err(): the context ended. Nothing is lost: call again with another.
//   - Other errors of Next that are not of one batch; those go to the consumers.
func (l *Loader) Serve(ctx context.Context) error {
	if err := l.enterOne(); err != nil {
		return err
	}
	defer l.leaveOne()
	if err := ctx.Err(); err != nil {
		return err
	}
	for {
		switch status := C.feedlane_loader_serve(l.c, spinNanoseconds, &l.call.err); {
		case status == C.FEEDLANE_END:
			return nil
		case status == C.FEEDLANE_TIMEOUT:
			if err := l.waiter.wait(ctx, l.arm); err != nil {
				return err
			}
		case status == C.FEEDLANE_INTERRUPTED && l.call.err.os_errno == C.EINTR: // a signal, which Go's runtime handles
		default:
			return l.failed(status)
		}
	}
}

// Join returns the loader of a consumer, by the socket of its feeder's OpenConsumer, which it closes in every case. A place
// takes one consumer. Begin, Next, Batches, Poll, Stop, State and Close are those of any loader; what concerns workers
// is the feeder's.
//
// The tensors are memory that this process cannot write: a write to a slice of View is a segmentation fault. timeout 0:
// 60 s.
//   - ErrPeerDead: the feeder has ended. ErrTimeout: it did not answer.
//   - ErrCorrupt, ErrABI: the socket leads to no feeder, or to another version's.
//
// Next returns ErrPeerDead after the feeder's end, ErrHung after this consumer was evicted, ErrState if the feeder is in
// a later epoch or has stopped this one.
func Join(socket *os.File, timeout time.Duration) (*Loader, error) {
	defer socket.Close()
	fd := C.feedlane_go_duplicate(C.int(socket.Fd()))
	return join(timeout, func(wait C.int64_t, out **C.feedlane_loader, err *C.feedlane_error, _ *memory) C.int32_t {
		return C.feedlane_loader_join(C.int32_t(fd), wait, out, err)
	})
}

// JoinPath is Join at the feeder's Config.SharePath. The feeder opens a place, as OpenConsumer does, when it serves next.
//   - ErrPeerDead: no feeder listens there.
//   - ErrLimit, ErrArgument: see OpenConsumer.
func JoinPath(path string, id int, config ConsumerConfig, timeout time.Duration) (*Loader, error) {
	return join(timeout, func(wait C.int64_t, out **C.feedlane_loader, err *C.feedlane_error, m *memory) C.int32_t {
		return C.feedlane_loader_join_path(m.string(path), config.create(id, m), wait, out, err)
	})
}

func join(timeout time.Duration,
	call func(C.int64_t, **C.feedlane_loader, *C.feedlane_error, *memory) C.int32_t) (*Loader, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	if timeout == 0 {
		timeout = time.Minute
	}
	var m memory
	defer m.free()
	out := newLoaderPointer(&m)
	err := check(func(err *C.feedlane_error) C.int32_t { return call(C.int64_t(timeout), out, err, &m) })
	if err != nil {
		return nil, err
	}
	l, err := newLoader(*out, Config{}, 0)
	if l != nil {
		l.consumer = true
	}
	return l, err
}

// NextEpoch returns the smallest epoch that Begin accepts on this consumer: the one that the feeder was in when it joined,
// or the one after the last that it has begun.
//   - ErrState: the loader is not a consumer's.
func (l *Loader) NextEpoch() (int64, error) {
	if err := l.enterOne(); err != nil {
		return 0, err
	}
	defer l.leaveOne()
	var epoch C.int64_t
	status := C.feedlane_loader_next_epoch(l.c, &epoch)
	return int64(epoch), asError(status)
}

// A ConsumerState says where a consumer is.
type ConsumerState int32

const (
	ConsumerNone     ConsumerState = C.FEEDLANE_CONSUMER_NONE     // ShareDeal: the place has none; its batches wait for a replacement
	ConsumerOffered  ConsumerState = C.FEEDLANE_CONSUMER_OFFERED  // opened, not joined
	ConsumerAttached ConsumerState = C.FEEDLANE_CONSUMER_ATTACHED // has joined
	ConsumerEvicted  ConsumerState = C.FEEDLANE_CONSUMER_EVICTED  // was evicted, and still holds batches
	ConsumerLeft     ConsumerState = C.FEEDLANE_CONSUMER_LEFT     // has left, and still holds batches
)

// ConsumerStats are a consumer as its feeder sees it.
type ConsumerStats struct {
	ID        int // the place
	State     ConsumerState
	PID       int // 0: unknown, or it has not joined
	Lag       Lag
	Delivered uint64 // batches
	TakenBack uint64 // batches that it had not taken when the feeder needed their slots
	Waiting   uint64 // batches delivered and not taken
	Held      uint64 // batches taken and not returned
}

// Consumers returns the consumers of this feeder, those included that have ended and still hold batches.
func (l *Loader) Consumers() ([]ConsumerStats, error) {
	if err := l.enterOne(); err != nil {
		return nil, err
	}
	defer l.leaveOne()
	var list []ConsumerStats
	for {
		c := C.feedlane_consumer_stats{size: C.sizeof_feedlane_consumer_stats}
		switch status := C.feedlane_loader_get_consumer(l.c, C.int32_t(len(list)), &c); status {
		case C.FEEDLANE_OK:
			list = append(list, ConsumerStats{int(c.id), ConsumerState(c.state), int(c.pid), Lag(c.lag), uint64(c.delivered),
				uint64(c.taken_back), uint64(c.waiting), uint64(c.held)})
		case C.FEEDLANE_END:
			return list, nil
		default:
			return nil, Status(status)
		}
	}
}

// Missed returns how many batches just before this one the feeder took back, see LagObserve.
func (b *Batch) Missed() uint64 { return uint64(b.c.missed) }
