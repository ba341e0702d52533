// SPDX-License-Identifier: Apache-2.0

// Data sets, which a program implements, and their arguments: rows, tasks, and the worker's identity.

package feedlane

// #include "shim.h"
import "C"

import (
	"fmt"
	"math"
	"unsafe"
)

// A Dataset makes samples by index.
//
// A worker process is this program, started again, and has its own Dataset. Worker goroutines share the Dataset of the
// Config. Its methods must therefore allow concurrent calls, unless it is an Opener. A panic in a method fails the
// sample, and Error.Detail contains the stack.
type Dataset interface {
	// Len returns the number of samples.
	Len() int64
	// Get writes one sample into its row. An error fails the sample, and the trainer gets it with ErrSample.
	Get(row *Row) error
}

// An Iterable is a Dataset that makes samples one after another instead of by index. Each worker iterates its own
// shard. To know its shard, the data set is also an Opener: WorkerInfo has Shard and Shards. Get writes the shard's
// next sample, or returns io.EOF at the end of the shard; Row.Index is the sample's number in the shard. Len is the
// expected number of samples of all shards, or 0. Worker goroutines of an Iterable wait in C, and each of them blocks a
// thread.
type Iterable interface {
	Dataset
	// Restart starts the shard over. It is called before the first sample of each epoch.
	Restart(epoch int64) error
}

// A Saver is an Iterable that can continue from a position that it has saved. This happens in the replacement of a dead
// worker, and in a run that is resumed from Loader.State. Save returns up to 64 KiB. Load is called after Restart.
type Saver interface {
	Save() ([]byte, error)
	Load(position []byte) error
}

// A Batcher is a Dataset that makes complete batches. Its Get is not called.
type Batcher interface {
	GetBatch(task *Task) error
}

// An Opener is a Dataset that must be opened separately in each worker, for example because it has open files. Open is
// called once per worker, before its first task. If the Dataset that it returns is an io.Closer, it is closed when the
// worker ends.
type Opener interface {
	Open(info *WorkerInfo) (Dataset, error)
}

// A Substituter names a sample to use in place of one that failed, with Config.Substitute. tries is the number of
// earlier substitutes for this sample, and seed is the row's seed. An error means that there is no substitute.
type Substituter interface {
	Substitute(failed int64, seed uint64, tries int) (int64, error)
}

// transient is an error after which a retry may succeed.
type transient struct{ error }

func (t transient) Unwrap() error { return t.error }

// Transient marks an error of Get as one after which a retry may succeed, see Config.Retries.
func Transient(err error) error { return transient{err} }

// A Row is the place of one sample. It is valid during Get.
type Row struct {
	Index int64  // data set index; Iterable: the sample's number in the shard, from 0
	Seed  uint64 // seed of this sample, from base seed, epoch and position; independent of the worker
	task  *Task
	row   uintptr // in the batch
}

// Task returns the batch of this row.
func (r *Row) Task() *Task { return r.task }

// Tensor returns this sample's row of tensor i, without the batch dimension. If there is no such tensor, View of the
// result is an error.
func (r *Row) Tensor(i int) Tensor {
	t := r.task.Tensor(i)
	if t.c == nil {
		return t
	}
	t.isRow = true
	t.bytes /= uintptr(r.task.c.count)
	t.data = unsafe.Add(t.data, r.row*t.bytes)
	return t
}

// Field returns this sample's row of the field with this name. Tensor is faster.
func (r *Row) Field(name string) Tensor {
	for i := 0; i < r.task.Tensors(); i++ {
		if equal(unsafe.Slice(r.task.c.tensors, r.task.c.tensor_count)[i].name, name) {
			return r.Tensor(i)
		}
	}
	return Tensor{why: fmt.Sprintf("%q", name)}
}

// Copy writes a sample's field from a slice of the same length.
//   - ErrArgument: the types or the lengths differ, or there is no such tensor.
func Copy[T Element](to Tensor, from []T) error {
	view, err := View[T](to)
	if err != nil {
		return err
	}
	if len(view) != len(from) {
		return refuse(ErrArgument, "tensor %q has %d elements, but %d were passed", to.Name(), len(view), len(from))
	}
	copy(view, from)
	return nil
}

// A Task is one batch to make. It is valid during GetBatch, or during Get of one of its rows.
//
// Thread safety: one goroutine at a time.
type Task struct {
	lease
	c    *C.feedlane_task
	w    *C.feedlane_worker // nil: inline
	rows int
}

func newTask(c *C.feedlane_task, w *C.feedlane_worker) *Task {
	return &Task{c: c, w: w, rows: int(c.count)}
}

// ID returns a number that is unique within the loader. The ids of one worker's tasks ascend.
func (t *Task) ID() uint64 { return uint64(t.c.id) }

// Epoch returns the epoch as given to Loader.Begin.
func (t *Task) Epoch() int64 { return int64(t.c.epoch) }

// Batch returns the batch's number in the epoch, from 0.
func (t *Task) Batch() int64 { return int64(t.c.batch) }

// Attempt returns the number of this attempt at the batch, from 0.
func (t *Task) Attempt() int { return int(t.c.attempt) }

// Rows returns the number of samples to make.
func (t *Task) Rows() int { return int(t.c.count) }

// Indices returns the data set indices of the rows, or nil if the data set is Iterable. The slice is read-only memory
// of the task.
func (t *Task) Indices() []int64 {
	if t.c.indices == nil {
		return nil
	}
	return unsafe.Slice((*int64)(unsafe.Pointer(t.c.indices)), t.c.count)
}

// Seeds returns the seeds of the rows. The slice is read-only memory of the task.
func (t *Task) Seeds() []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(t.c.seeds)), t.c.count)
}

// Tensors returns the number of tensors: the declared fields, followed by tensors added by NewTensor.
func (t *Task) Tensors() int { return int(t.c.tensor_count) }

// Tensor returns all rows of tensor i. If there is no such tensor, View of the result is an error.
func (t *Task) Tensor(i int) Tensor {
	if i < 0 || i >= t.Tensors() {
		return Tensor{why: fmt.Sprintf("%d: the task has %d tensors", i, t.Tensors())}
	}
	return whole(&unsafe.Slice(t.c.tensors, t.c.tensor_count)[i], &t.lease)
}

// Field returns all rows of the field with this name.
func (t *Task) Field(name string) Tensor { return find(t.c.tensors, t.Tensors(), name, &t.lease) }

// Abandoned reports whether the trainer has given up this batch or no longer needs this worker. A long GetBatch may
// then return early.
func (t *Task) Abandoned() bool { return t.w != nil && C.feedlane_worker_check(t.w) != C.FEEDLANE_OK }

// An Ahead is a task that is queued behind the current one, see Task.Ahead.
type Ahead struct {
	ID      uint64 // Task.ID, if this worker gets the task
	Epoch   int64
	Batch   int64    // the batch's number in the epoch, from 0
	Indices []int64  // data set indices of its rows
	Seeds   []uint64 // one for each row, see Task.Seeds
}

// Ahead returns the first queued task with an ID above after (0: the first of all), and whether there is one, so that a
// data set can start reading early. The result is a hint: this worker gets the task with these indices, or never.
// Inline and for an Iterable there is no such task.
func (t *Task) Ahead(after uint64) (Ahead, bool) {
	var m memory
	defer m.free()
	found := (*C.feedlane_ahead)(m.allocate(1, C.sizeof_feedlane_ahead))
	found.size = C.sizeof_feedlane_ahead
	if C.feedlane_task_ahead(t.c, C.uint64_t(after), found, nil) != C.FEEDLANE_OK {
		return Ahead{}, false
	}
	indices := unsafe.Slice((*int64)(unsafe.Pointer(found.indices)), found.count)
	seeds := unsafe.Slice((*uint64)(unsafe.Pointer(found.seeds)), found.count)
	return Ahead{uint64(found.id), int64(found.epoch), int64(found.batch), append([]int64(nil), indices...),
		append([]uint64(nil), seeds...)}, true
}

// SetRows sets the number of rows that GetBatch made, if it is less than Rows.
func (t *Task) SetRows(rows int) { t.rows = rows }

// NewTensor allocates a tensor whose shape differs from the declared one; full includes the batch dimension. The tensor
// replaces field i, or is added if i is Tensors().
//   - ErrLimit: the slot is too small; Error.Needed is the Config.SlotBytes required.
func (t *Task) NewTensor(i int, full Field) (Tensor, error) {
	var m memory
	defer m.free()
	field := (*C.feedlane_field)(m.allocate(1, C.sizeof_feedlane_field))
	if err := full.fill(field, &m); err != nil {
		return Tensor{}, err
	}
	err := check(func(err *C.feedlane_error) C.int32_t {
		return C.feedlane_task_tensor(t.c, C.int32_t(i), field, nil, err)
	})
	if err != nil {
		return Tensor{}, err
	}
	return t.Tensor(i), nil
}

// Scratch returns memory for count elements, which are 0, for example to decode into. Only this worker can reach it. It is
// valid until the task ends, and is then used for other tasks.
//   - ErrMemory: there is too little memory.
//   - ErrStale: the task is over.
func Scratch[T Element](t *Task, count int) ([]T, error) {
	var zero T
	switch limit := math.MaxInt / int(unsafe.Sizeof(zero)); {
	case count < 0 || count > limit:
		return nil, refuse(ErrArgument, "count is %d: must be 0 to %d", count, limit)
	case t.over.Load():
		return nil, refuse(ErrStale, "the task is over")
	case t.c.worker == nil || count == 0: // inline: Go's memory
		return make([]T, count), nil
	}
	p := C.feedlane_worker_scratch(t.c.worker, C.uint64_t(count)*C.uint64_t(unsafe.Sizeof(zero)), 0)
	if p == nil {
		return nil, refuse(ErrMemory, "there is no memory for %d elements of scratch memory", count)
	}
	list := unsafe.Slice((*T)(p), count)
	for i := range list {
		list[i] = zero
	}
	return list, nil
}

// SetMetadata attaches a copy of bytes to the batch, see Batch.Metadata. The last call replaces earlier ones.
//   - ErrLimit: the slot is too small; Error.Needed is the Config.SlotBytes required.
func (t *Task) SetMetadata(bytes []byte) error {
	var m memory
	defer m.free()
	p := m.bytes(bytes)
	return check(func(err *C.feedlane_error) C.int32_t {
		return C.feedlane_task_store(t.c, C.FEEDLANE_STORE_METADATA, p, C.uint64_t(len(bytes)), err)
	})
}

// WorkerInfo is a worker's identity and configuration.
type WorkerInfo struct {
	ID         int    // 0 .. Count - 1; -1: inline
	Count      int    // number of workers
	Generation int    // 0, +1 for each replacement
	Seed       uint64 // base seed + Shard
	Config     []byte // Config.WorkerConfig of the trainer
	Fields     []Field
	Epoch      int64 // the newest epoch begun, 0 before the first
	Rank       int   // Iterable: Config.Rank; otherwise 0
	World      int   // Iterable: Config.World, at least 1; otherwise 1
	Shard      int64 // Iterable: 0 .. Shards - 1: Rank * Count + ID; inline: Rank
	Shards     int64 // World * Count; inline: World
}

func newWorkerInfo(c *C.feedlane_worker_info) *WorkerInfo {
	info := &WorkerInfo{ID: int(c.id), Count: int(c.count), Generation: int(c.generation), Seed: uint64(c.seed),
		Epoch: int64(c.epoch), Rank: int(c.rank), World: int(c.world), Shard: int64(c.shard), Shards: int64(c.shards)}
	if c.config != nil {
		info.Config = C.GoBytes(c.config, C.int(c.config_bytes))
	}
	for _, field := range unsafe.Slice(c.fields, c.field_count) {
		shape := make([]int64, field.ndim)
		for i := range shape {
			shape[i] = int64(field.shape[i])
		}
		info.Fields = append(info.Fields, Field{C.GoString(field.name),
			DType{uint8(field.dtype.code), uint8(field.dtype.bits), uint16(field.dtype.lanes)}, shape})
	}
	return info
}
