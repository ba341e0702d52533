// SPDX-License-Identifier: Apache-2.0

package feedlane_test

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"testing"

	"feedlane"
)

// watching notes what it sees ahead, and writes whether a batch was among it.
type watching struct{ announced map[uint64]feedlane.Ahead }

func (w *watching) Len() int64 { return 80 }

func (w *watching) Open(*feedlane.WorkerInfo) (feedlane.Dataset, error) {
	return &watching{map[uint64]feedlane.Ahead{}}, nil
}

func (w *watching) Get(*feedlane.Row) error { return fmt.Errorf("GetBatch makes whole batches") }

func (w *watching) GetBatch(task *feedlane.Task) error {
	seen := make([]int64, task.Rows())
	if a, ok := w.announced[task.ID()]; ok {
		seen[0] = 1
		if a.Epoch != task.Epoch() || a.Batch != task.Batch() || !reflect.DeepEqual(a.Indices, task.Indices()) {
			return fmt.Errorf("%+v was not task %d", a, task.ID())
		}
	}
	for a, ok := task.Ahead(0); ok; a, ok = task.Ahead(a.ID) {
		if a.ID <= task.ID() {
			return fmt.Errorf("%+v is not behind task %d", a, task.ID())
		}
		w.announced[a.ID] = a
	}
	return feedlane.Copy(task.Tensor(0), seen)
}

// A data set sees the tasks behind the one in hand, and those come.
func TestAhead(t *testing.T) {
	for mode, wanted := range map[string]int64{"inline": 0, "goroutines": 4} {
		loader := newLoader(t, func(c *feedlane.Config) {
			c.Dataset, c.BatchSize, c.Sampler = &watching{}, 2, nil
			c.Fields = []feedlane.Field{feedlane.FieldOf[int64]("seen")}
			modes[mode](c)
			if c.Workers != 0 {
				c.Workers, c.Prefetch = 1, 5
			}
		})
		must(t, loader.Begin(0))
		var seen int64
		for {
			batch, err := loader.Next(context.Background())
			if err == io.EOF {
				break
			}
			must(t, err)
			values, err := feedlane.View[int64](batch.Tensor(0))
			must(t, err)
			seen += values[0]
			must(t, batch.Release())
		}
		if seen < wanted || (wanted == 0 && seen != 0) {
			t.Errorf("%s: %d batches were seen ahead", mode, seen)
		}
	}
}
