// SPDX-License-Identifier: Apache-2.0

// One loader, many trainers: a feeder's places for consumers and its loop, and consumers' loaders.

package feedlane

// #include "shim.h"
import "C"

import (
	"context"
	"os"
	"syscall"
	"time"
)

// A Share is the way in which the batches of a loader are divided among consumers in other processes.
type Share int32

const (
	NotShared  Share = C.FEEDLANE_SHARE_NONE  // the loader's own Next yields its batches
	ShareEvery Share = C.FEEDLANE_SHARE_EVERY // every consumer gets every batch
	ShareDeal  Share = C.FEEDLANE_SHARE_DEAL  // batch k goes to consumer k mod Config.Consumers
)

// A Lag is how the feeder acts when it has no free slot because a consumer has not released its batches.
type Lag int32

const (
	LagBlock   Lag = C.FEEDLANE_LAG_BLOCK   // waits for the consumer
	LagEvict   Lag = C.FEEDLANE_LAG_EVICT   // evicts a consumer that took and returned no batch for EvictAfter
	LagObserve Lag = C.FEEDLANE_LAG_OBSERVE // revokes batches not taken yet, so the consumer skips them; not with ShareDeal
)

// AnyPlace stands for any free place.
const AnyPlace = -1

// ConsumerConfig configures a consumer's place. Zero is the default of every field.
type ConsumerConfig struct {
	Lag        Lag
	EvictAfter time.Duration // with LagEvict; 0: 60 s
	Pinned     *Pool         // for Join and JoinPath: registers the batches' memory for reading; nil: no registration
}

func (c *ConsumerConfig) create(id int, m *memory) *C.feedlane_consumer_config {
	to := (*C.feedlane_consumer_config)(m.allocate(1, C.sizeof_feedlane_consumer_config))
	to.size = C.sizeof_feedlane_consumer_config
	to.id = C.int32_t(id)
	to.lag = C.int32_t(c.Lag)
	to.evict_after_ns = C.int64_t(c.EvictAfter)
	if c.Pinned != nil {
		to.pinned = c.Pinned.c
	}
	return to
}

// OpenConsumer opens a place of a loader with Config.Share for one consumer. It returns the place's number and a
// socket, which the caller passes to that process and closes. The process calls Join with it. From now on batches are
// kept for the place. id is AnyPlace or the place, with ShareDeal the rank. With ShareDeal, call this again to replace
// a consumer that has ended.
//   - ErrState: the loader is not shared.
//   - ErrLimit: all places have a consumer.
//   - ErrArgument: id is out of range, or this place has a consumer.
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

// Serve is the feeder's loop: it delivers batches to the consumers, receives released slots, admits consumers and
// detects their ends, until the epoch is over. Before the first epoch it returns when Config.Consumers consumers have
// joined; call it then if consumers join by a path and none may miss a batch. After an epoch it returns when all
// consumers have left. The goroutine sleeps on Go's poller.
//   - ErrPeerDead: there is no consumer. With ShareDeal also if a place has none and the batches kept for it prevent
//     progress: see OpenConsumer.
//   - ErrHung: consumers that were evicted or have left hold every slot.
//   - ErrInterrupted: see Interrupt.
//   - ctx.Err(): the context ended. No batch is lost: call again with another context.
//   - Other errors of Next, except errors of one batch, which go to the consumers.
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

// Join returns the loader of a consumer. socket is the one of the feeder's OpenConsumer; Join closes it in every case.
// A place takes one consumer. Begin, Next, Batches, Poll, Stop, State and Close work as on any loader. Only the feeder
// has workers and their functions.
//
// The tensors are read-only memory: a write to a slice of View is a segmentation fault. Of config only Pinned may be set.
// timeout 0: 60 s.
//   - ErrPeerDead: the feeder has ended.
//   - ErrTimeout: the feeder did not answer in time.
//   - ErrUnsupported, ErrDevice: the pool's device cannot register memory for reading.
//   - ErrCorrupt, ErrABI: the socket is not connected to a feeder, or the feeder's library is of another version.
//
// Next returns ErrPeerDead after the feeder's end, ErrHung after this consumer was evicted, and ErrState if the feeder
// is in a later epoch or has stopped this one.
func Join(socket *os.File, config ConsumerConfig, timeout time.Duration) (*Loader, error) {
	defer socket.Close()
	return join(config, timeout, func(wait C.int64_t, out **C.feedlane_loader, err *C.feedlane_error, m *memory) C.int32_t {
		fd := C.feedlane_go_duplicate(C.int(socket.Fd())) // the library closes it
		return C.feedlane_loader_join(C.int32_t(fd), nil, config.create(AnyPlace, m), wait, out, err)
	})
}

// JoinPath joins a feeder at its Config.SharePath. The feeder opens a place, as OpenConsumer does, at its next Serve or
// Poll.
//   - ErrPeerDead: no feeder listens at this path.
//   - ErrLimit, ErrArgument: see OpenConsumer.
func JoinPath(path string, id int, config ConsumerConfig, timeout time.Duration) (*Loader, error) {
	return join(config, timeout, func(wait C.int64_t, out **C.feedlane_loader, err *C.feedlane_error, m *memory) C.int32_t {
		return C.feedlane_loader_join(-1, m.string(path), config.create(id, m), wait, out, err)
	})
}

func join(config ConsumerConfig, timeout time.Duration,
	call func(C.int64_t, **C.feedlane_loader, *C.feedlane_error, *memory) C.int32_t) (*Loader, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	var m memory
	defer m.free()
	if config.Pinned != nil {
		if err := config.Pinned.enter(); err != nil {
			return nil, err
		}
		defer config.Pinned.leave()
	}
	out := newLoaderPointer(&m)
	err := check(func(err *C.feedlane_error) C.int32_t { return call(joinNanoseconds(timeout), out, err, &m) })
	if err != nil {
		return nil, err
	}
	l, err := newLoader(*out, Config{}, 0)
	if l != nil {
		l.consumer = true
	}
	return l, err
}

// joinNanoseconds returns the timeout of a join. 0: 60 s.
func joinNanoseconds(timeout time.Duration) C.int64_t {
	if timeout == 0 {
		timeout = time.Minute
	}
	return C.int64_t(timeout)
}

// NextEpoch returns the smallest epoch that Begin accepts on this consumer. Before the first Begin this is the feeder's
// epoch at the time of the join, afterwards one more than the last epoch begun here.
//   - ErrState: the loader is not a consumer.
func (l *Loader) NextEpoch() (int64, error) {
	info, err := l.info()
	if err != nil {
		return 0, err
	}
	if info.NextEpoch < 0 {
		return 0, refuse(ErrState, "the loader is not a consumer")
	}
	return info.NextEpoch, nil
}

// A ConsumerState is the state of a consumer.
type ConsumerState int32

const (
	ConsumerNone     ConsumerState = C.FEEDLANE_CONSUMER_NONE     // ShareDeal: no consumer; batches are kept for the next one
	ConsumerOffered  ConsumerState = C.FEEDLANE_CONSUMER_OFFERED  // the place was opened, but nobody has joined yet
	ConsumerAttached ConsumerState = C.FEEDLANE_CONSUMER_ATTACHED // has joined
	ConsumerEvicted  ConsumerState = C.FEEDLANE_CONSUMER_EVICTED  // was evicted, but still holds batches
	ConsumerLeft     ConsumerState = C.FEEDLANE_CONSUMER_LEFT     // has left, but still holds batches
)

// ConsumerStats describe a consumer, as its feeder sees it.
type ConsumerStats struct {
	ID        int // the place
	State     ConsumerState
	PID       int // 0: unknown, or the consumer has not joined
	Lag       Lag
	Delivered uint64 // batches delivered
	TakenBack uint64 // batches revoked before the consumer took them, or not delivered because its ring was full
	Waiting   uint64 // batches delivered but not yet taken
	Held      uint64 // batches taken but not yet returned
}

// Consumers returns the consumers of this feeder, including the ones that have ended and still hold batches.
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

// Missed returns the number of batches just before this one that the feeder revoked, see LagObserve.
func (b *Batch) Missed() uint64 { return uint64(b.c.missed) }
