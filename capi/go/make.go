// SPDX-License-Identifier: Apache-2.0

// Makes the batches of tasks with a data set. The library decides what becomes of a sample that fails.

package feedlane

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"io"
	"runtime/cgo"
	"runtime/debug"
	"strings"
	"time"
)

// A maker makes batches of one data set in one worker.
type maker struct {
	dataset Dataset
	batcher Batcher // nil: sample by sample
	opened  bool
	row     Row
}

// A panicked is the error of a data set that panicked.
type panicked struct {
	value any
	stack string
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

func (p *panicked) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// guarded calls f and turns a panic into an error.
func guarded(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicked{value, string(debug.Stack())}
		}
	}()
	return f()
}

// openDataset opens the data set for a worker.
func openDataset(dataset Dataset, info *WorkerInfo) (*maker, error) {
	m := &maker{dataset: dataset}
	if opener, ok := dataset.(Opener); ok {
		err := guarded(func() (err error) {
			m.dataset, err = opener.Open(info)
			return err
		})
		if err != nil {
			return nil, err
		}
		m.opened = true
	}
	if m.dataset == nil {
		return nil, errors.New("the worker has no data set")
	}
	m.batcher, _ = m.dataset.(Batcher)
	return m, nil
}

func (m *maker) close() {
	if closer, ok := m.dataset.(io.Closer); ok && m.opened {
		_ = guarded(closer.Close)
	}
}

// A failure is the reason why a batch could not be made.
type failure struct {
	err      error
	position int // of the sample in the task; -1: none
}

// describe returns the text, the traceback, and whether a retry may succeed.
func describe(err error) (text, detail string, retry bool) {
	var p *panicked
	if errors.As(err, &p) {
		detail = p.stack
	} else if long := fmt.Sprintf("%+v", err); long != err.Error() {
		detail = long
	}
	var t transient
	return strings.ReplaceAll(err.Error(), "\n", "; "), detail, errors.As(err, &t)
}

// A pace determines before which rows of a task a maker checks whether the trainer has abandoned it. The check takes as
// long as a small sample. So up to maxStride rows are made between two checks, if they are quick; after a slow one,
// each row is checked.
type pace struct {
	next, stride int
	last         time.Time // of the last check
}

const (
	maxStride   = 16
	quickStride = 20 * time.Microsecond
)

func (p *pace) isDue(row int) bool {
	if row < p.next {
		return false
	}
	now := time.Now()
	if now.Sub(p.last) >= quickStride {
		p.stride = 1
	} else if p.stride < maxStride {
		p.stride *= 2
	}
	p.next, p.last = row+p.stride, now
	return true
}

// make writes the rows of a task and returns their number.
func (m *maker) make(task *Task) (int, *failure) {
	if m.batcher != nil {
		return m.makeBatch(task)
	}
	row, indices, seeds := 0, task.Indices(), task.Seeds()
	checks := pace{next: 1}
	for position := range indices {
		if checks.isDue(position) && task.Abandoned() {
			return 0, &failure{ErrAbandoned, -1}
		}
		m.row = Row{indices[position], seeds[position], task, uintptr(row)}
		err := m.get()
		if err == nil {
			row++
			continue
		}
		made, err := m.rescue(position, err)
		if err != nil {
			return 0, &failure{err, position}
		}
		if made {
			row++
		}
	}
	return row, nil
}

func (m *maker) makeBatch(task *Task) (int, *failure) {
	for {
		err := m.getBatch(task)
		if err == nil {
			return task.rows, nil
		}
		if status, _ := m.failed(task, wholeBatch, err); status != C.FEEDLANE_AGAIN {
			return 0, &failure{err, -1}
		}
	}
}

// getBatch makes the rows of a task, whose number is then in task.rows. It returns a panic as an error.
func (m *maker) getBatch(task *Task) error {
	err := guarded(func() error { return m.batcher.GetBatch(task) })
	if err == nil && task.rows < 0 { // the library would see a large number, or FEEDLANE_EXHAUSTED
		err = refuse(ErrArgument, "SetRows was called with %d: must not be negative", task.rows)
	}
	return err
}

// get makes the current row. It returns a panic as an error.
func (m *maker) get() (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicked{value, string(debug.Stack())}
		}
	}()
	return m.dataset.Get(&m.row)
}

// rescue handles the failure of the current row, and returns false if the sample is skipped.
func (m *maker) rescue(position int, err error) (bool, error) {
	for err != nil {
		status, index := m.failed(m.row.task, C.uint64_t(position), err)
		if status != C.FEEDLANE_AGAIN {
			if status == C.FEEDLANE_OK {
				err = nil
			}
			return false, err
		}
		m.row.Index = index
		err = m.get()
	}
	return true, nil
}

const wholeBatch C.uint64_t = C.FEEDLANE_WHOLE_BATCH

// failed lets the library decide on a failure. AGAIN: the sample with this index, or the batch, is to be tried now; the
// wait is over. OK: the sample is skipped.
func (m *maker) failed(task *Task, position C.uint64_t, err error) (C.int32_t, int64) {
	text, _, retry := describe(err)
	handle := cgo.NewHandle(&opened{maker: m})
	defer handle.Delete()
	var temporary memory
	defer temporary.free()
	var index, wait C.int64_t
	status := C.feedlane_go_sample_failed(task.c, position, temporary.string(text), C.uint64_t(len(text)), flag(retry),
		C.uintptr_t(handle), &index, &wait)
	if status == C.FEEDLANE_AGAIN {
		time.Sleep(time.Duration(wait))
	}
	return status, int64(index)
}

func (m *maker) substitute(s Substituter, seed uint64, tries int) (other int64, ok bool) {
	if s == nil {
		return 0, false
	}
	err := guarded(func() (err error) {
		other, err = s.Substitute(m.row.Index, seed, tries)
		return err
	})
	return other, err == nil
}

// report fills in the error struct of a callback.
func report(to *C.feedlane_error, failed *failure, sample int64) {
	text, detail, retry := describe(failed.err)
	var m memory
	defer m.free()
	C.feedlane_go_report(to, m.string(text), C.uint64_t(len(text)), m.string(detail), C.uint64_t(len(detail)),
		flag(retry), C.int64_t(sample))
}

// fail sends the failure of a task to the trainer.
func fail(task *C.feedlane_task, failed *failure) C.int32_t {
	text, detail, retry := describe(failed.err)
	var m memory
	defer m.free()
	return C.feedlane_task_fail(task, C.int64_t(failed.position), flag(retry), m.string(text), m.string(detail), nil)
}
