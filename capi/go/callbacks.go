// SPDX-License-Identifier: Apache-2.0

// The data set of an inline loader: the library calls it in the goroutine that calls Next.

package feedlane

// #include "shim.h"
import "C"

import (
	"runtime/cgo"
)

// An inline is what the callbacks of an inline loader find.
type inline struct {
	dataset Dataset
	maker   *maker // while it is open
	task    *Task
}

func inlineOf(handle C.uintptr_t) *inline { return cgo.Handle(handle).Value().(*inline) }

// of returns the Go object of the task, the same for all its rows.
func (d *inline) of(c *C.feedlane_task) *Task {
	if d.task == nil || d.task.over.Load() || d.task.c != c || d.task.Batch() != int64(c.batch) {
		d.finish()
		d.task = newTask(c, nil)
	}
	return d.task
}

// finish ends the lease of the present task.
func (d *inline) finish() {
	if d.task != nil {
		d.task.over.Store(true)
	}
}

//export feedlaneGoOpen
func feedlaneGoOpen(handle C.uintptr_t, info *C.feedlane_worker_info, err *C.feedlane_error) C.int32_t {
	d := inlineOf(handle)
	maker, failed := openDataset(d.dataset, newWorkerInfo(info))
	if failed != nil {
		report(err, &failure{failed, -1}, -1)
		return C.FEEDLANE_E_INIT
	}
	if _, byBatches := d.dataset.(Batcher); byBatches && maker.batcher == nil {
		report(err, &failure{refuse(ErrInit, "Open of a Batcher returned a Dataset that is none"), -1}, -1)
		maker.close()
		return C.FEEDLANE_E_INIT
	}
	d.maker = maker
	return C.FEEDLANE_OK
}

//export feedlaneGoClose
func feedlaneGoClose(handle C.uintptr_t) {
	d := inlineOf(handle)
	d.finish()
	if d.maker != nil {
		d.maker.close()
	}
	d.maker = nil
}

//export feedlaneGoGet
func feedlaneGoGet(handle C.uintptr_t, row *C.feedlane_row, err *C.feedlane_error) C.int32_t {
	d := inlineOf(handle)
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
	d := inlineOf(handle)
	t := newTask(task, nil)
	defer t.over.Store(true)
	failed := guarded(func() error { return d.maker.batcher.GetBatch(t) })
	if failed == nil && t.rows != t.Rows() {
		if status := C.feedlane_task_rows(task, C.uint64_t(t.rows), err); status != C.FEEDLANE_OK {
			return status
		}
	}
	if failed != nil {
		report(err, &failure{failed, -1}, -1)
		return C.FEEDLANE_E_SAMPLE
	}
	return C.FEEDLANE_OK
}

//export feedlaneGoSubstitute
func feedlaneGoSubstitute(handle C.uintptr_t, failed C.int64_t, seed C.uint64_t, tries C.uint32_t, other *C.int64_t) C.int32_t {
	d := inlineOf(handle)
	substituter, _ := d.maker.dataset.(Substituter)
	d.maker.row.Index = int64(failed)
	index, ok := d.maker.substitute(substituter, uint64(seed), int(tries))
	if !ok {
		return C.FEEDLANE_E_SAMPLE
	}
	*other = C.int64_t(index)
	return C.FEEDLANE_OK
}

// inlineTable makes the table of callbacks for a data set, and the handle that keeps it.
func inlineTable(dataset Dataset, m *memory) (*C.feedlane_dataset, cgo.Handle) {
	handle := cgo.NewHandle(&inline{dataset: dataset})
	table := (*C.feedlane_dataset)(m.allocate(1, C.sizeof_feedlane_dataset))
	_, byBatches := dataset.(Batcher)
	C.feedlane_go_dataset(C.uintptr_t(handle), flag(byBatches), table)
	return table, handle
}
