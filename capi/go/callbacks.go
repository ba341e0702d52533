// SPDX-License-Identifier: Apache-2.0

// Data sets whose methods the library calls: the ones of inline loaders, and all iterable ones.

package feedlane

// #include "shim.h"
import "C"

import (
	"errors"
	"io"
	"runtime/cgo"
	"sync/atomic"
	"unsafe"
)

// An opened is the data set of one worker, or of an inline loader.
type opened struct {
	maker *maker
	task  *Task
}

func openedOf(handle C.uintptr_t) *opened { return cgo.Handle(handle).Value().(*opened) }

// of returns the Go object of a task, which is shared by all its rows.
func (d *opened) of(c *C.feedlane_task) *Task {
	if d.task == nil || d.task.over.Load() || d.task.c != c || d.task.Batch() != int64(c.batch) {
		d.finish()
		d.task = newTask(c, nil)
	}
	return d.task
}

// finish ends the lease of the current task.
func (d *opened) finish() {
	if d.task != nil {
		d.task.over.Store(true)
	}
}

//export feedlaneGoOpen
func feedlaneGoOpen(handle C.uintptr_t, info *C.feedlane_worker_info, own *C.uintptr_t, err *C.feedlane_error) C.int32_t {
	dataset := cgo.Handle(handle).Value().(Dataset)
	maker, failed := openDataset(dataset, newWorkerInfo(info))
	if failed == nil {
		failed = sameKind(dataset, maker)
	}
	if failed != nil {
		report(err, &failure{failed, -1}, -1)
		return C.FEEDLANE_E_INIT
	}
	*own = C.uintptr_t(cgo.NewHandle(&opened{maker: maker}))
	return C.FEEDLANE_OK
}

// sameKind checks that Open returned a data set of the kind for which the table of callbacks was made.
func sameKind(dataset Dataset, maker *maker) error {
	_, byBatches := dataset.(Batcher)
	_, iterable := dataset.(Iterable)
	_, iterates := maker.dataset.(Iterable)
	_, saver := dataset.(Saver)
	_, saves := maker.dataset.(Saver)
	if byBatches && maker.batcher == nil || iterable != iterates || saver != saves {
		maker.close()
		return errors.New("Open returned a Dataset that differs from Config.Dataset in implementing Batcher, Iterable or Saver")
	}
	return nil
}

//export feedlaneGoClose
func feedlaneGoClose(handle C.uintptr_t) {
	d := openedOf(handle)
	d.finish()
	d.maker.close()
	cgo.Handle(handle).Delete()
}

//export feedlaneGoGet
func feedlaneGoGet(handle C.uintptr_t, row *C.feedlane_row, err *C.feedlane_error) C.int32_t {
	d := openedOf(handle)
	m := d.maker
	m.row = Row{int64(row.index), uint64(row.seed), d.of(row.task), uintptr(row.row)}
	if failed := m.get(); failed != nil {
		report(err, &failure{failed, -1}, m.row.Index)
		return C.FEEDLANE_E_SAMPLE
	}
	return C.FEEDLANE_OK
}

//export feedlaneGoFetch
func feedlaneGoFetch(handle C.uintptr_t, task *C.feedlane_task, err *C.feedlane_error) C.int32_t {
	d := openedOf(handle)
	t := newTask(task, nil)
	defer t.over.Store(true)
	if failed := d.maker.getBatch(t); failed != nil {
		report(err, &failure{failed, -1}, -1)
		return C.FEEDLANE_E_SAMPLE
	}
	*task.rows = C.uint64_t(t.rows)
	return C.FEEDLANE_OK
}

//export feedlaneGoSubstitute
func feedlaneGoSubstitute(handle C.uintptr_t, failed C.int64_t, seed C.uint64_t, tries C.uint32_t, other *C.int64_t) C.int32_t {
	d := openedOf(handle)
	substituter, _ := d.maker.dataset.(Substituter)
	d.maker.row.Index = int64(failed)
	index, ok := d.maker.substitute(substituter, uint64(seed), int(tries))
	if !ok {
		return C.FEEDLANE_E_SAMPLE
	}
	*other = C.int64_t(index)
	return C.FEEDLANE_OK
}

// answer turns the error of a shard's method into a status.
func answer(failed error, err *C.feedlane_error) C.int32_t {
	if failed == nil {
		return C.FEEDLANE_OK
	}
	report(err, &failure{failed, -1}, -1)
	return C.FEEDLANE_E_SAMPLE
}

//export feedlaneGoNext
func feedlaneGoNext(handle C.uintptr_t, row *C.feedlane_row, err *C.feedlane_error) C.int32_t {
	d := openedOf(handle)
	m := d.maker
	m.row = Row{int64(row.index), uint64(row.seed), d.of(row.task), uintptr(row.row)}
	failed := m.get()
	if errors.Is(failed, io.EOF) {
		return C.FEEDLANE_END
	}
	return answer(failed, err)
}

//export feedlaneGoRestart
func feedlaneGoRestart(handle C.uintptr_t, epoch C.int64_t, err *C.feedlane_error) C.int32_t {
	return answer(guarded(func() error {
		return openedOf(handle).maker.dataset.(Iterable).Restart(int64(epoch))
	}), err)
}

//export feedlaneGoSave
func feedlaneGoSave(handle C.uintptr_t, buffer unsafe.Pointer, room C.uint64_t, bytes *C.uint64_t, err *C.feedlane_error) C.int32_t {
	return answer(guarded(func() error {
		position, err := openedOf(handle).maker.dataset.(Saver).Save()
		if err == nil && uint64(len(position)) > uint64(room) {
			err = refuse(ErrLimit, "Save returned %d bytes, but at most %d are allowed", len(position), uint64(room))
		}
		if err == nil {
			*bytes = C.uint64_t(copy(unsafe.Slice((*byte)(buffer), int(room)), position))
		}
		return err
	}), err)
}

//export feedlaneGoLoad
func feedlaneGoLoad(handle C.uintptr_t, buffer unsafe.Pointer, bytes C.uint64_t, err *C.feedlane_error) C.int32_t {
	return answer(guarded(func() error {
		return openedOf(handle).maker.dataset.(Saver).Load(C.GoBytes(buffer, C.int(bytes)))
	}), err)
}

// callbackTable makes the table of callbacks for a data set, and the handle that keeps the data set alive.
func callbackTable(dataset Dataset, m *memory) (*C.feedlane_dataset, cgo.Handle) {
	handle := cgo.NewHandle(dataset)
	table := (*C.feedlane_dataset)(m.allocate(1, C.sizeof_feedlane_dataset))
	_, byBatches := dataset.(Batcher)
	_, iterable := dataset.(Iterable)
	_, saver := dataset.(Saver)
	C.feedlane_go_dataset(C.uintptr_t(handle), flag(byBatches), flag(iterable), flag(iterable && saver), table)
	return table, handle
}

// A kept is a handle that the loader shares with its worker goroutines. The last of them deletes it, because callbacks
// may run until then. A nil *kept has no handle.
type kept struct {
	handle cgo.Handle
	users  atomic.Int32
}

func keep(handle cgo.Handle) *kept {
	if handle == 0 {
		return nil
	}
	k := &kept{handle: handle}
	k.add()
	return k
}

func (k *kept) add() {
	if k != nil {
		k.users.Add(1)
	}
}

func (k *kept) release() {
	if k != nil && k.users.Add(-1) == 0 {
		k.handle.Delete()
	}
}
