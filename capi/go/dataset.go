// SPDX-License-Identifier: Apache-2.0

// What a program implements: data sets; and what they get: rows, tasks, and the worker's identity.

package feedlane

// #include "shim.h"
import "C"

import (
	"fmt"
	"time"
	"unsafe"
)

// A Dataset makes samples by their indices.
//
// Worker processes are this program again, and each has its own Dataset. Worker goroutines share the one of the Config, so
// its methods must allow calls from several goroutines, unless it is an Opener. A panic in a method fails the sample, with
// the stack as Error.Detail.
type Dataset interface {
	// Len returns the number of samples.
	Len() int64
	// Get writes one sample into its row. An error fails the sample: the trainer gets it with ErrSample.
	Get(row *Row) error
}

// An Iterable is a Dataset that makes samples one after another instead of by index. Each worker iterates over its own
// shard, for which it is an Opener: WorkerInfo has the worker's ID and Count. Get writes the shard's next sample, of which
// Row.Index is the number in the shard, or returns io.EOF at its end. Len is the expected number of samples of all shards,
// or 0. Worker goroutines of an Iterable wait in C, each in a thread.
type Iterable interface {
	Dataset
	// Restart begins the shard again; called before the first sample of each epoch.
	Restart(epoch int64) error
}

// A Saver is an Iterable that continues at a position which it has saved: in the replacement of a worker that died, and in
// a run resumed from Loader.State. Save returns up to 64 KiB. Load is called after Restart.
type Saver interface {
	Save() ([]byte, error)
	Load(position []byte) error
}

// A Batcher is a Dataset that makes whole batches; its Get is not called.
type Batcher interface {
	GetBatch(task *Task) error
}

// An Opener is a Dataset of which each worker has its own, such as one with open files: Open is called once in each worker
// before its first task. If what it returns is an io.Closer it is closed at the worker's end.
type Opener interface {
	Open(info *WorkerInfo) (Dataset, error)
}

// A Substituter names another sample in the place of one that failed, with Config.Substitute. tries counts earlier
// substitutes of this sample, seed is the row's. An error: there is none.
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
	Seed  uint64 // of this sample; depends on base seed, epoch and position, not on the worker
	task  *Task
	row   uintptr // in the batch
}

// Task returns the batch of this row.
func (r *Row) Task() *Task { return r.task }

// Tensor returns this sample's row of tensor i, without the batch dimension. View of one that does not exist is an error.
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

// Field returns this sample's row of a field, by its name. Tensor takes less time.
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
		return refuse(ErrArgument, "tensor %q has %d elements, not %d", to.Name(), len(view), len(from))
	}
	copy(view, from)
	return nil
}

// A Task is one batch to make. It is valid during GetBatch, or Get of one of its rows.
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

// ID returns a number that is unique within the loader. The tasks of one worker come in ascending order.
func (t *Task) ID() uint64 { return uint64(t.c.id) }

// Epoch returns the epoch as the trainer numbered it.
func (t *Task) Epoch() int64 { return int64(t.c.epoch) }

// Batch returns the batch's number in the epoch, from 0.
func (t *Task) Batch() int64 { return int64(t.c.batch) }

// Attempt returns how often the batch was sent out before.
func (t *Task) Attempt() int { return int(t.c.attempt) }

// Rows returns the number of samples to make.
func (t *Task) Rows() int { return int(t.c.count) }

// Indices returns the data set indices of the rows: memory of the task, read-only; nil if the data set is Iterable.
func (t *Task) Indices() []int64 {
	if t.c.indices == nil {
		return nil
	}
	return unsafe.Slice((*int64)(unsafe.Pointer(t.c.indices)), t.c.count)
}

// Seeds returns the seeds of the rows: memory of the task, read-only.
func (t *Task) Seeds() []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(t.c.seeds)), t.c.count)
}

// Tensors returns how many tensors there are: the declared fields, then those added by NewTensor.
func (t *Task) Tensors() int { return int(t.c.tensor_count) }

// Tensor returns tensor i, all rows. View of one that does not exist is an error.
func (t *Task) Tensor(i int) Tensor {
	if i < 0 || i >= t.Tensors() {
		return Tensor{why: fmt.Sprintf("%d: the task has %d", i, t.Tensors())}
	}
	return whole(&unsafe.Slice(t.c.tensors, t.c.tensor_count)[i], &t.lease)
}

// Field returns the tensor of a field by its name, all rows.
func (t *Task) Field(name string) Tensor { return find(t.c.tensors, t.Tensors(), name, &t.lease) }

// Abandoned reports whether the trainer has given up this batch or needs no more: a GetBatch that takes long may return
// then.
func (t *Task) Abandoned() bool { return t.w != nil && C.feedlane_worker_check(t.w) != C.FEEDLANE_OK }

// An Ahead is a task that waits behind the one in hand, see Task.Ahead.
type Ahead struct {
	ID      uint64 // Task.ID, if the task comes
	Epoch   int64
	Batch   int64   // the batch's number in the epoch, from 0
	Indices []int64 // data set indices of its rows
}

// Ahead returns the first task behind this one with an ID above after (0: the first of all), so that a data set can begin
// its reads early, and whether there is one. It is a hint: the task comes with these indices, or never. Inline and for an
// Iterable there is none.
func (t *Task) Ahead(after uint64) (Ahead, bool) {
	var m memory
	defer m.free()
	found := (*C.feedlane_ahead)(m.allocate(1, C.sizeof_feedlane_ahead))
	found.size = C.sizeof_feedlane_ahead
	if C.feedlane_task_ahead(t.c, C.uint64_t(after), found, nil) != C.FEEDLANE_OK {
		return Ahead{}, false
	}
	indices := unsafe.Slice((*int64)(unsafe.Pointer(found.indices)), found.count)
	return Ahead{uint64(found.id), int64(found.epoch), int64(found.batch), append([]int64(nil), indices...)}, true
}

// SetRows says that GetBatch made fewer rows than the task has.
func (t *Task) SetRows(rows int) { t.rows = rows }

// NewTensor allocates a tensor of another shape than declared, batch dimension included. It replaces field i, or is added
// if i is Tensors().
//   - ErrLimit: Needed of the error is the Config.SlotBytes that it takes.
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

// SetMetadata attaches bytes to the batch, see Batch.Metadata. They are copied; the last call counts.
//   - ErrLimit: Needed of the error is the Config.SlotBytes that they take.
func (t *Task) SetMetadata(bytes []byte) error {
	var m memory
	defer m.free()
	p := m.bytes(bytes)
	return check(func(err *C.feedlane_error) C.int32_t {
		return C.feedlane_task_metadata(t.c, p, C.uint64_t(len(bytes)), err)
	})
}

// WorkerInfo says who a worker is and what the trainer has configured.
type WorkerInfo struct {
	ID         int    // 0 .. Count - 1; -1: inline
	Count      int    // number of workers
	Generation int    // 0, +1 for each replacement
	Seed       uint64 // base seed + Shard
	Config     []byte // Config.WorkerConfig of the trainer
	Fields     []Field
	Epoch      int64 // begun last, 0 before the first
	Rank       int   // Iterable: Config.Rank; otherwise 0
	World      int   // Iterable: Config.World, at least 1; otherwise 1
	Shard      int64 // of an Iterable, 0 .. Shards - 1: Rank * Count + ID, inline Rank
	Shards     int64 // World * Count, inline World

	retries int
	backoff time.Duration
}

func newWorkerInfo(c *C.feedlane_worker_info) *WorkerInfo {
	info := &WorkerInfo{ID: int(c.id), Count: int(c.count), Generation: int(c.generation), Seed: uint64(c.seed),
		Epoch: int64(c.epoch), Rank: int(c.rank), World: int(c.world), Shard: int64(c.shard), Shards: int64(c.shards),
		retries: int(c.retries), backoff: time.Duration(c.retry_backoff_ns)}
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
