// SPDX-License-Identifier: Apache-2.0

// Memory that is registered with a device, buffers in it, and batches that streams read.

package feedlane

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// PoolConfig has the device with which a pool registers memory, and the pool's buffers.
type PoolConfig struct {
	// "none" or "": memory is not pinned, and device memory is memory of this process. "mlock": as "none", but pages stay
	// resident. "cuda": libcuda.so.1 and the primary context of Device.
	Backend     string
	Custom      unsafe.Pointer // a feedlane_backend in C memory instead of Backend, see feedlane/pool.h; copied
	Device      int            // ordinal of the device
	Buffers     uint32         // number of buffers, up to 65,536, created and registered at once; 0: none
	BufferBytes uint64         // size of each buffer; rounded up to whole pages
	BudgetBytes uint64         // limit for all memory registered at the same time; 0: no limit
}

// A Stream is a stream of a pool's device, such as a CUstream or cudaStream_t: Stream(uintptr(unsafe.Pointer(stream))). 0
// is the device's default stream. The backends "none" and "mlock" ignore it. A wrong number crashes the driver.
type Stream uintptr

const noStream = ^Stream(0) // FEEDLANE_NO_STREAM

// waitNanoseconds is the longest wait in C of a call that nothing can interrupt. Then the call checks its context.
const waitNanoseconds = 20_000_000

// A Pool is memory that is registered with a device: its buffers, the memory of loaders with Config.Pinned, and memory of
// the program. The garbage collector closes a forgotten pool when nothing uses it any more.
//
// Thread safety: any goroutine.
type Pool struct {
	c     *C.feedlane_pool // nil: closed
	mutex sync.RWMutex     // for writing: in Close
}

// NewPool creates a pool and its buffers.
//   - ErrUnsupported: there is no driver, or no backend of this name.
//   - ErrDevice: the driver failed.
//   - ErrLimit: RLIMIT_MEMLOCK or PoolConfig.BudgetBytes is too small.
//   - ErrMemory: there is too little memory.
func NewPool(config PoolConfig) (*Pool, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	var m memory
	defer m.free()
	to := (*C.feedlane_pool_config)(m.allocate(1, C.sizeof_feedlane_pool_config))
	to.size = C.sizeof_feedlane_pool_config
	if config.Backend != "" {
		to.backend = m.string(config.Backend)
	}
	to.custom = (*C.feedlane_backend)(config.Custom)
	to.device = C.int32_t(config.Device)
	to.buffers = C.uint32_t(config.Buffers)
	to.buffer_bytes = C.uint64_t(config.BufferBytes)
	to.budget_bytes = C.uint64_t(config.BudgetBytes)
	out := (**C.feedlane_pool)(m.allocate(1, unsafe.Sizeof((*C.feedlane_pool)(nil))))
	if err := check(func(err *C.feedlane_error) C.int32_t { return C.feedlane_pool_create(to, out, err) }); err != nil {
		return nil, err
	}
	p := &Pool{c: *out}
	runtime.SetFinalizer(p, (*Pool).finalize)
	return p, nil
}

func (p *Pool) finalize() {
	if p.Close() != nil {
		runtime.SetFinalizer(p, (*Pool).finalize) // in use: the next collection tries again
	}
}

// Close unregisters all memory and frees the pool. Closing a pool again has no effect.
//   - ErrState: a buffer is in use, or a loader, a worker goroutine of it, a batch, a monitor or a DLPack tensor uses the
//     pool's memory. The pool stays open.
func (p *Pool) Close() error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if status := C.feedlane_go_pool_destroy(p.c); status != C.FEEDLANE_OK {
		return refuse(Status(status), "the pool is in use: release its buffers, and close its loaders and release their batches")
	}
	p.c = nil
	return nil
}

func (p *Pool) enter() error {
	p.mutex.RLock()
	if p.c == nil {
		p.mutex.RUnlock()
		return refuse(ErrState, "the pool is closed")
	}
	return nil
}

func (p *Pool) leave() { p.mutex.RUnlock() }

func (p *Pool) check(call func(err *C.feedlane_error) C.int32_t) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer p.leave()
	return check(call)
}

// Acquire waits for a buffer. The caller releases it: the garbage collector does not.
//   - ErrState: the pool has no buffers.
//   - ErrDevice: a stream failed while a release on it was pending; reported once.
//   - ctx.Err(): the context ended. Acquire checks it every 20 ms.
func (p *Pool) Acquire(ctx context.Context) (*Buffer, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b, err := p.acquire(waitNanoseconds)
		if !errors.Is(err, ErrTimeout) && !errors.Is(err, ErrInterrupted) {
			return b, err
		}
	}
}

// TryAcquire is like Acquire, but does not wait.
//   - ErrTimeout: all buffers are in use.
func (p *Pool) TryAcquire() (*Buffer, error) { return p.acquire(0) }

func (p *Pool) acquire(timeout C.int64_t) (*Buffer, error) {
	b := &Buffer{pool: p}
	b.c.size = C.sizeof_feedlane_buffer
	err := p.check(func(err *C.feedlane_error) C.int32_t { return C.feedlane_pool_acquire(p.c, timeout, &b.c, err) })
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Copy enqueues a copy of host to device memory on a stream. host is memory of a Buffer, of a batch or of C, not of Go,
// unless it is pinned by runtime.Pinner. It must stay valid and unchanged until the copy is complete: use
// Buffer.ReleaseOn or Batch.ReleaseOn with this stream. device has room for len(host) bytes; a wrong address crashes the
// program or the driver.
//   - ErrDevice, ErrUnsupported: nothing was enqueued.
func (p *Pool) Copy(device uintptr, host []byte, stream Stream) error {
	return p.check(func(err *C.feedlane_error) C.int32_t {
		return C.feedlane_go_pool_copy(p.c, C.uintptr_t(device), start(host), C.uint64_t(len(host)), C.uintptr_t(stream), err)
	})
}

// Register registers memory of C, such as of syscall.Mmap, until Unregister: all pages that contain a part of it. Go memory
// must be pinned by runtime.Pinner.
//   - ErrState: a part of these pages is already registered.
//   - ErrLimit, ErrDevice: refused by PoolConfig.BudgetBytes or by the backend.
func (p *Pool) Register(memory []byte) error {
	return p.check(func(err *C.feedlane_error) C.int32_t {
		return C.feedlane_pool_register(p.c, start(memory), C.uint64_t(len(memory)), err)
	})
}

// Unregister ends Register of the memory with this address.
//   - ErrArgument: Register was not called for this address.
func (p *Pool) Unregister(memory []byte) error {
	return p.check(func(err *C.feedlane_error) C.int32_t { return C.feedlane_pool_unregister(p.c, start(memory), err) })
}

// start returns the address of the first byte, or nil.
func start(bytes []byte) unsafe.Pointer {
	if len(bytes) == 0 {
		return nil
	}
	return unsafe.Pointer(&bytes[0])
}

// PoolStats are a pool's counters.
type PoolStats struct {
	Buffers    uint64        // number of all buffers
	InUse      uint64        // buffers that callers and loaders hold now
	Pending    uint64        // buffers that were released on a stream which has not completed its work yet
	Registered uint64        // bytes registered now: buffers, memory of loaders and of the program
	Acquired   uint64        // buffers acquired so far
	Waited     time.Duration // time asleep in Acquire
	Failures   uint64        // pending releases whose stream failed
}

// Stats returns the pool's counters.
func (p *Pool) Stats() (PoolStats, error) {
	if err := p.enter(); err != nil {
		return PoolStats{}, err
	}
	defer p.leave()
	c := C.feedlane_pool_stats{size: C.sizeof_feedlane_pool_stats}
	if status := C.feedlane_pool_get_stats(p.c, &c); status != C.FEEDLANE_OK {
		return PoolStats{}, Status(status)
	}
	return PoolStats{uint64(c.buffers), uint64(c.in_use), uint64(c.pending), uint64(c.registered_bytes), uint64(c.acquired),
		time.Duration(c.waited_ns), uint64(c.failures)}, nil
}

// A Buffer is a page-aligned, registered buffer of a pool.
//
// Thread safety: any goroutine, as long as no other one releases the buffer at the same time.
type Buffer struct {
	pool *Pool
	c    C.feedlane_buffer
	over atomic.Bool
}

// Bytes returns the memory of the buffer. Do not use the slice after the release.
//   - ErrStale: the buffer was released.
func (b *Buffer) Bytes() ([]byte, error) {
	if b.over.Load() {
		return nil, refuse(ErrStale, "the buffer was released")
	}
	return unsafe.Slice((*byte)(b.c.data), b.c.bytes), nil
}

// Release gives the buffer back at once.
//   - ErrStale: the buffer was already released.
func (b *Buffer) Release() error { return b.ReleaseOn(noStream) }

// ReleaseOn gives the buffer back as soon as the stream has completed all work enqueued so far, or has failed. Do not
// change the buffer afterwards.
//   - ErrStale: the buffer was already released.
//   - ErrDevice, ErrUnsupported: the buffer was not released.
func (b *Buffer) ReleaseOn(stream Stream) error {
	if b.over.Load() {
		return refuse(ErrStale, "the buffer was released before")
	}
	err := b.pool.check(func(err *C.feedlane_error) C.int32_t {
		return C.feedlane_go_pool_release(b.pool.c, b.c.token, C.uintptr_t(stream), err)
	})
	if err == nil {
		b.over.Store(true)
	}
	return err
}

// ReleaseOn releases the batch, but keeps its memory until the stream has completed all work enqueued so far, or has
// failed (EventDeviceFailed). Next waits for such memory.
//   - ErrStale: the batch was already released.
//   - ErrState: the loader has no Config.Pinned.
//   - ErrDevice, ErrUnsupported: the batch was not released.
func (b *Batch) ReleaseOn(stream Stream) error {
	err := b.stream(func(err *C.feedlane_error) C.int32_t {
		return C.feedlane_go_batch_release_on(b.held.loader, b.c.token, C.uintptr_t(stream), err)
	})
	if err == nil {
		b.forget()
	}
	return err
}

// RecordStream notes that a stream uses the batch. After the last reference to it is released, also by a DLPack tensor, its
// memory is kept until the stream has completed all work enqueued before. Intended for copies that other libraries
// enqueue. Up to four streams.
//   - ErrStale: the batch was released.
//   - ErrState: the loader has no Config.Pinned.
//   - ErrLimit: four other streams are recorded.
func (b *Batch) RecordStream(stream Stream) error {
	return b.stream(func(err *C.feedlane_error) C.int32_t {
		return C.feedlane_go_batch_record_stream(b.held.loader, b.c.token, C.uintptr_t(stream), err)
	})
}

func (b *Batch) stream(call func(err *C.feedlane_error) C.int32_t) error {
	if b.over.Load() {
		return refuse(ErrStale, "batch %d of epoch %d was released", b.Number(), b.Epoch())
	}
	defer runtime.KeepAlive(b)
	return check(call)
}
