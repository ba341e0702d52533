// SPDX-License-Identifier: Apache-2.0

// Batches that the trainer holds.

package feedlane

// #include "shim.h"
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// A Batch is a batch that the trainer holds until it is released. It may outlive its loader.
//
// The garbage collector releases a forgotten batch, but only if no slice of its memory was handed out: see View.
//
// Thread safety: any goroutine, as long as no other one releases the batch at the same time.
type Batch struct {
	lease
	c C.feedlane_batch
}

// A held is a reference to a batch, which the garbage collector releases if the Batch and its Tensors are gone. It is
// used again for other batches, because setting and clearing a finalizer takes longer than all else in Loader.Next.
type held struct {
	loader *C.feedlane_loader // valid as long as the batch is held
	token  C.uint64_t         // 0: no batch
	viewed atomic.Bool        // a slice of the batch's memory was handed out
}

var unused = sync.Pool{New: func() any {
	h := new(held)
	runtime.SetFinalizer(h, (*held).finalize)
	return h
}}

func (h *held) finalize() {
	if h.token != 0 && !h.viewed.Load() {
		C.feedlane_batch_release(h.loader, h.token)
	}
}

func newBatch(loader *C.feedlane_loader, c *C.feedlane_batch) *Batch {
	h := unused.Get().(*held)
	h.loader, h.token = loader, c.token
	return &Batch{lease: lease{held: h}, c: *c}
}

// collect runs the garbage collector, which may release batches. It returns false if this was done often enough.
func collect(collections *int) bool {
	if *collections++; *collections > 3 {
		return false
	}
	runtime.GC()
	time.Sleep(time.Millisecond)
	return true
}

// forget notes that the reference of b has ended, and returns its loader; nil if that was so before.
func (b *Batch) forget() *C.feedlane_loader {
	if b.over.Swap(true) {
		return nil
	}
	h, loader := b.held, b.held.loader
	h.token = 0
	h.viewed.Store(false)
	unused.Put(h)
	return loader
}

// Release gives the memory of the batch back to the workers. Do not use slices of it afterwards.
//   - ErrStale: the batch was already released.
func (b *Batch) Release() error {
	loader := b.forget()
	if loader == nil {
		return refuse(ErrStale, "batch %d of epoch %d was released before", b.Number(), b.Epoch())
	}
	return asError(C.feedlane_batch_release(loader, b.c.token))
}

// Retain returns a second reference to the batch, which must be released separately. Use it to keep a batch after the
// loop over Loader.Batches has moved on.
//   - ErrStale: the batch was released.
func (b *Batch) Retain() (*Batch, error) {
	if b.over.Load() {
		return nil, refuse(ErrStale, "batch %d of epoch %d was released", b.Number(), b.Epoch())
	}
	status := C.feedlane_batch_retain(b.held.loader, b.c.token)
	runtime.KeepAlive(b)
	if status != C.FEEDLANE_OK {
		return nil, Status(status)
	}
	return newBatch(b.held.loader, &b.c), nil
}

// Epoch returns the epoch as given to Loader.Begin.
func (b *Batch) Epoch() int64 { return int64(b.c.epoch) }

// Number returns the batch's number in its epoch, from 0.
func (b *Batch) Number() int64 { return int64(b.c.batch) }

// Worker returns the worker that made the batch, -1 if it was made inline.
func (b *Batch) Worker() int { return int(b.c.worker) }

// Attempt returns the number of the attempt that made the batch, from 0.
func (b *Batch) Attempt() int { return int(b.c.attempt) }

// Rows returns the number of samples.
func (b *Batch) Rows() int { return int(b.c.count) }

// Tensors returns the number of tensors: one per field, in declaration order, followed by tensors that the data set
// added.
func (b *Batch) Tensors() int { return int(b.c.tensor_count) }

// Tensor returns tensor i. If there is no such tensor, View of the result is an error.
func (b *Batch) Tensor(i int) Tensor {
	switch {
	case b.over.Load():
		return Tensor{c: &released, lease: &b.lease}
	case i < 0 || i >= b.Tensors():
		return Tensor{why: fmt.Sprintf("%d: the batch has %d tensors", i, b.Tensors())}
	}
	return whole(&unsafe.Slice(b.c.tensors, b.c.tensor_count)[i], &b.lease)
}

// Field returns the tensor of the field with this name. If there is no such tensor, View of the result is an error.
func (b *Batch) Field(name string) Tensor {
	if b.over.Load() {
		return Tensor{c: &released, lease: &b.lease}
	}
	return find(b.c.tensors, b.Tensors(), name, &b.lease)
}

// released stands for the tensors of a released batch; nothing reads it.
var released C.feedlane_tensor

// Indices returns a copy of the data set indices of the rows; nil if the data set is iterable.
//   - ErrStale: the batch was released.
func (b *Batch) Indices() ([]int64, error) { return b.copyInt64(b.c.indices, b.c.count) }

// Skipped returns a copy of the data set indices that were left out; nil if there are none, or if the data set is
// iterable.
//   - ErrStale: the batch was released.
func (b *Batch) Skipped() ([]int64, error) { return b.copyInt64(b.c.skipped, b.c.skipped_count) }

func (b *Batch) copyInt64(from *C.int64_t, count C.uint64_t) ([]int64, error) {
	if b.over.Load() {
		return nil, refuse(ErrStale, "batch %d of epoch %d was released", b.Number(), b.Epoch())
	}
	if from == nil || count == 0 {
		return nil, nil
	}
	list := append([]int64(nil), unsafe.Slice((*int64)(unsafe.Pointer(from)), count)...)
	runtime.KeepAlive(b)
	return list, nil
}

// Metadata returns a copy of the bytes that the data set attached with Task.SetMetadata, or nil.
//   - ErrStale: the batch was released.
func (b *Batch) Metadata() ([]byte, error) {
	if b.over.Load() {
		return nil, refuse(ErrStale, "batch %d of epoch %d was released", b.Number(), b.Epoch())
	}
	if b.c.metadata == nil {
		return nil, nil
	}
	bytes := append([]byte{}, unsafe.Slice((*byte)(b.c.metadata), b.c.metadata_bytes)...)
	runtime.KeepAlive(b)
	return bytes, nil
}
