// SPDX-License-Identifier: Apache-2.0

// Makes the batches of tasks with a data set. Retries, substitutes and samples left out are handled as the library does
// for callbacks.

package feedlane

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"time"
)

// Maximum number of substitutes tried for one sample.
const maxSubstitutes = 16

// Maximum wait before a retry.
const longestBackoff = time.Hour

// A maker makes batches of one data set in one worker.
type maker struct {
	info    *WorkerInfo
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
	m := &maker{info: info, dataset: dataset}
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

// make writes the rows of a task and returns their number.
func (m *maker) make(task *Task) (int, *failure) {
	if m.batcher != nil {
		return m.makeBatch(task)
	}
	row, indices, seeds := 0, task.Indices(), task.Seeds()
	for position := range indices {
		if position != 0 && task.Abandoned() {
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
	for try := 0; ; try++ {
		err := m.getBatch(task)
		if err == nil {
			return task.rows, nil
		}
		if _, _, retry := describe(err); !retry || try >= m.info.retries {
			return 0, &failure{err, -1}
		}
		m.pause(try)
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

// rescue handles the first failure of the current row: it retries, takes substitutes, or leaves the sample out, and
// then returns false. The library refuses to record an outcome that the trainer does not allow.
func (m *maker) rescue(position int, err error) (bool, error) {
	task, first, seed := m.row.task, m.row.Index, m.row.Seed
	substituter, _ := m.dataset.(Substituter)
	outcome, total, retries, substitutes := C.int32_t(C.FEEDLANE_SAMPLE_RETRIED), 0, 0, 0
	last := err
	for err != nil {
		last = err
		if _, _, retry := describe(err); retry && retries < m.info.retries {
			m.pause(retries)
			retries++
			total++
		} else if other, ok := m.substitute(substituter, seed, substitutes); ok {
			m.row.Index, outcome, retries = other, C.FEEDLANE_SAMPLE_SUBSTITUTED, 0
			substitutes++
		} else {
			if record(task, position, C.FEEDLANE_SAMPLE_SKIPPED, total, 0, last) == nil {
				return false, nil
			}
			return false, err
		}
		err = m.get()
	}
	if outcome == C.FEEDLANE_SAMPLE_RETRIED {
		m.row.Index = first
	}
	if refused := record(task, position, outcome, total, m.row.Index, last); refused != nil {
		return false, last
	}
	return true, nil
}

func (m *maker) substitute(s Substituter, seed uint64, tries int) (other int64, ok bool) {
	if s == nil || tries >= maxSubstitutes {
		return 0, false
	}
	err := guarded(func() (err error) {
		other, err = s.Substitute(m.row.Index, seed, tries)
		return err
	})
	return other, err == nil
}

// pause waits before a retry.
func (m *maker) pause(retry int) {
	pause := m.info.backoff
	for ; retry > 0 && pause < longestBackoff; retry-- {
		pause *= 2
	}
	if pause > longestBackoff {
		pause = longestBackoff
	}
	time.Sleep(pause)
}

// record reports the outcome of a failed sample to the trainer.
func record(task *Task, position int, outcome C.int32_t, retries int, other int64, failed error) error {
	text, _, _ := describe(failed)
	var m memory
	defer m.free()
	if status := C.feedlane_task_record(task.c, C.uint64_t(position), outcome, C.FEEDLANE_E_SAMPLE, C.uint32_t(retries),
		C.int64_t(other), m.string(text), nil); status != C.FEEDLANE_OK {
		return Status(status)
	}
	return nil
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
