// SPDX-License-Identifier: Apache-2.0

package feedlane_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"sync/atomic"
	"testing"

	"feedlane"
)

// The checksum of examples/c/trainer, with the worker in Go, and of a trainer in Go with examples/c/worker.
func TestChecksum(t *testing.T) {
	worker, err := os.Executable()
	must(t, err)
	out, err := exec.Command(example(t, "trainer"), example(t, "worker")).Output()
	must(t, err)
	wanted := string(out)
	out, err = exec.Command(example(t, "trainer"), worker).Output()
	if err != nil || string(out) != wanted {
		t.Fatalf("a worker in Go: %q, not %q: %v", out, wanted, err)
	}
	loader := newLoader(t, func(c *feedlane.Config) { c.Shuffle, c.Command = true, []string{example(t, "worker")} })
	if found := fmt.Sprintf("checksum: %016x\n", digestOf(t, loader, 3)); found != wanted {
		t.Fatalf("a trainer in Go: %q, not %q", found, wanted)
	}
}

func digestOf(t *testing.T, loader *feedlane.Loader, epochs int64) uint64 {
	hash := uint64(0xcbf29ce484222325)
	for epoch := int64(0); epoch < epochs; epoch++ {
		must(t, loader.Begin(epoch))
		for n := loader.Len(); n > 0; n-- {
			batch := next(t, loader)
			var err error
			hash, err = hashOf(hash, batch)
			must(t, err)
			must(t, batch.Release())
		}
	}
	return hash
}

// digits are the handwritten digits as they are in the files.
type digits struct{ images, labels []byte }

func (d *digits) Len() int64 { return int64(len(d.labels)) }

// GetBatch makes a whole batch.
func (d *digits) GetBatch(task *feedlane.Task) error {
	images, err := feedlane.View[uint8](task.Field("image"))
	if err != nil {
		return err
	}
	labels, err := feedlane.View[int64](task.Field("label"))
	for row, index := range task.Indices() {
		copy(images[row*64:][:64], d.images[index*64:])
		labels[row] = int64(d.labels[index])
	}
	return err
}

func (d *digits) Get(*feedlane.Row) error { return errors.New("GetBatch is there") }

// The digest of ten epochs of digits is that of examples/c/digest.
func TestDigest(t *testing.T) {
	folder, err := filepath.Abs("../../examples/data")
	must(t, err)
	out, err := exec.Command(example(t, "digest"), folder).Output()
	must(t, err)
	images, err := os.ReadFile(filepath.Join(folder, "optdigits-images-idx3-ubyte"))
	must(t, err)
	labels, err := os.ReadFile(filepath.Join(folder, "optdigits-labels-idx1-ubyte"))
	must(t, err)
	for _, workers := range []int{0, 2} {
		loader := newLoader(t, func(c *feedlane.Config) {
			*c = feedlane.Config{Dataset: &digits{images[16:], labels[8:]}, Shuffle: true, Seed: 1, BatchSize: 64,
				Workers: workers, Start: feedlane.Goroutines,
				Fields: []feedlane.Field{feedlane.FieldOf[uint8]("image", 8, 8), feedlane.FieldOf[int64]("label")}}
			if workers == 0 {
				c.Start = feedlane.Processes
			}
		})
		if found := fmt.Sprintf("digest: %016x\n", digestOf(t, loader, 10)); found != string(out) {
			t.Fatalf("%d workers: %q, not %q", workers, found, out)
		}
	}
}

func indices(t *testing.T, s *feedlane.Sampler, err error, epoch int64) (list []int64) {
	t.Helper()
	must(t, err)
	must(t, s.Restart(epoch))
	for buffer := make([]int64, 7); ; {
		got, err := s.Next(buffer)
		must(t, err)
		if got == 0 {
			return list
		}
		list = append(list, buffer[:got]...)
	}
}

func TestSamplers(t *testing.T) {
	s, err := feedlane.Sequential(10)
	if list := indices(t, s, err, 0); !reflect.DeepEqual(list, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) || s.Len() != 10 {
		t.Fatal(list)
	}
	for _, shuffle := range []feedlane.Shuffle{feedlane.ShuffleTorch, feedlane.ShuffleFeistel, feedlane.ShuffleTorchLoader} {
		s, err = feedlane.Random(feedlane.RandomConfig{Length: 100, Seed: 3, Shuffle: shuffle})
		list, other := indices(t, s, err, 0), indices(t, s, err, 1)
		if reflect.DeepEqual(list, other) {
			t.Fatal("two epochs are the same")
		}
		sort.Slice(list, func(i, j int) bool { return list[i] < list[j] })
		if len(list) != 100 || list[0] != 0 || list[99] != 99 {
			t.Fatal(list)
		}
	}
	s, err = feedlane.InOrder([]int64{5, 3, 9})
	if list := indices(t, s, err, 0); !reflect.DeepEqual(list, []int64{5, 3, 9}) {
		t.Fatal(list)
	}
	s, err = feedlane.Subset([]int64{5, 3, 9}, 1)
	if list := indices(t, s, err, 0); len(list) != 3 {
		t.Fatal(list)
	}
	s, err = feedlane.Weighted([]float64{0, 1, 0, 1}, feedlane.WeightedConfig{NumSamples: 50})
	for _, index := range indices(t, s, err, 0) {
		if index%2 == 0 {
			t.Fatal("an index of weight 0")
		}
	}
	s, err = feedlane.Distributed(feedlane.DistributedConfig{Length: 10, World: 2, Rank: 1, NoShuffle: true})
	if list := indices(t, s, err, 0); !reflect.DeepEqual(list, []int64{1, 3, 5, 7, 9}) {
		t.Fatal(list)
	}
	b, err := feedlane.BatchSampler(s, 2, true)
	must(t, err)
	if b.Len() != 2 {
		t.Fatal(b.Len())
	}
	_, err = feedlane.Weighted([]float64{-1}, feedlane.WeightedConfig{})
	wants(t, err, feedlane.ErrArgument)
	tokens := feedlane.TokensConfig{MaxTokens: 10, MaxRows: 4, World: 1}
	s, err = feedlane.Tokens([]int64{9, 1, 5, 5}, tokens)
	must(t, err)
	rows := 0
	for room := make([]int64, 4); ; {
		got, err := s.Next(room)
		must(t, err)
		if got == 0 {
			break
		}
		rows += got
	}
	if rows != 4 {
		t.Fatal(rows)
	}
	_, err = feedlane.Tokens([]int64{11}, tokens)
	wants(t, err, feedlane.ErrArgument)
	stages := feedlane.MixtureConfig{NumSamples: 6, Window: 1, From: []int64{0, 4}, NoShuffle: true, World: 1}
	s, err = feedlane.Mixture([]int64{5, 2}, []float64{1, 0, 0, 1}, stages)
	must(t, err)
	mixed := make([]int64, 6)
	if got, err := s.Next(mixed); err != nil || got != 6 || mixed[3] != 3 || mixed[4] != 5 {
		t.Fatal(mixed, err)
	}
	_, err = feedlane.Mixture([]int64{5, 2}, []float64{1, 0}, stages)
	wants(t, err, feedlane.ErrArgument)
	if rank, err := feedlane.DetectRank(); err != nil || rank.World < 1 {
		t.Fatal(rank, err)
	}
}

// A loader created with a state continues with the remaining batches.
func TestState(t *testing.T) {
	wanted, err := hashes(newLoader(t, nil), 0)
	must(t, err)
	loader := newLoader(t, nil)
	must(t, loader.Begin(0))
	for i := 0; i < 9; i++ {
		must(t, next(t, loader).Release())
	}
	batch := next(t, loader)
	next(t, loader)
	state, err := loader.State(batch)
	must(t, err)
	must(t, batch.Release())
	again := newLoader(t, func(c *feedlane.Config) { c.State, c.Workers = state, 1 })
	rest, err := hashes(again, 0)
	must(t, err)
	if !reflect.DeepEqual(rest, wanted[10:]) {
		t.Fatal("the remaining batches differ")
	}
}

// Retries and skipped samples, by processes and inline.
func TestPolicies(t *testing.T) {
	inModes(t, func(t *testing.T, mode func(*feedlane.Config)) {
		loader := newLoader(t, func(c *feedlane.Config) {
			mode(c)
			c.WorkerConfig, c.SkipBudget = []byte("fail"), 2
		})
		must(t, loader.Begin(0))
		rows := 0
		var skipped []int64
		for i := 0; i < batches; i++ {
			batch := next(t, loader)
			left, err := batch.Skipped()
			must(t, err)
			rows, skipped = rows+batch.Rows(), append(skipped, left...)
			must(t, batch.Release())
		}
		if rows != samples-2 || !reflect.DeepEqual(skipped, []int64{40, 80}) {
			t.Fatal(rows, skipped)
		}
		event, err := loader.Event()
		if err != nil || event.Kind != feedlane.EventSampleSkipped || !strings.Contains(event.What.Text, "broken") {
			t.Fatalf("%+v %v", event, err)
		}
	})
	loader := newLoader(t, func(c *feedlane.Config) { c.WorkerConfig, c.Retries = []byte("flaky"), 1 })
	list, err := hashes(loader, 0)
	must(t, err)
	stats, err := monitorOf(t, loader).Stats()
	if err != nil || len(list) != batches || stats.Retried != 10 {
		t.Fatalf("%+v %v", stats, err)
	}
}

// A batch that fails as a whole is retried as a whole, and the retry is recorded.
type hesitant struct {
	numbers
	failed *atomic.Bool
}

func (h hesitant) Open(*feedlane.WorkerInfo) (feedlane.Dataset, error) { return h, nil }

func (h hesitant) GetBatch(task *feedlane.Task) error {
	if task.Batch() == 1 && !h.failed.Swap(true) {
		return feedlane.Transient(errors.New("not yet"))
	}
	return nil
}

func TestWholeBatchRetried(t *testing.T) {
	for _, workers := range []int{0, 1} {
		loader := newLoader(t, func(c *feedlane.Config) {
			c.Dataset, c.Workers, c.KeepWorkers, c.Retries = hesitant{failed: new(atomic.Bool)}, workers, false, 1
			if workers != 0 {
				c.Start = feedlane.Goroutines
			}
		})
		must(t, loader.Begin(0))
		for i := 0; i < 2; i++ {
			must(t, next(t, loader).Release())
		}
		event, err := loader.Event()
		if err != nil || event.Kind != feedlane.EventSampleRetried || event.What.Batch != 1 || event.What.Found != 1 {
			t.Fatalf("%d workers: %+v %v", workers, event, err)
		}
	}
}

// A number of rows that the task does not have fails the batch, and the worker makes the next one.
type miscounted struct{ numbers }

func (m miscounted) Open(*feedlane.WorkerInfo) (feedlane.Dataset, error) { return m, nil }

func (miscounted) GetBatch(task *feedlane.Task) error {
	if made := []int{-1, 0, rows + 1}; task.Batch() < int64(len(made)) {
		task.SetRows(made[task.Batch()])
	}
	return nil
}

func TestRowsMade(t *testing.T) {
	for _, workers := range []int{0, 1} {
		loader := newLoader(t, func(c *feedlane.Config) {
			c.Dataset, c.Workers, c.KeepWorkers = miscounted{}, workers, false
			if workers != 0 {
				c.Start = feedlane.Goroutines
			}
		})
		must(t, loader.Begin(0))
		for range [3]int{} {
			_, err := loader.Next(context.Background())
			wants(t, err, feedlane.ErrSample)
		}
		batch := next(t, loader)
		if batch.Number() != 3 || batch.Rows() != rows {
			t.Fatal(batch.Number(), batch.Rows())
		}
		must(t, batch.Release())
	}
}

// A batch's bytes beside its tensors, and tensors of other shapes.
type shapes struct{ numbers }

func (s shapes) Open(*feedlane.WorkerInfo) (feedlane.Dataset, error) { return s, nil }

func (s shapes) GetBatch(task *feedlane.Task) error {
	tensor, err := task.NewTensor(0, feedlane.FieldOf[uint16]("", 3, 2))
	if err != nil {
		return err
	}
	if err := feedlane.Copy(tensor, []uint16{1, 2, 3, 4, 5, 6}); err != nil {
		return err
	}
	task.SetRows(3)
	return task.SetMetadata([]byte("what lies beside"))
}

func TestShapes(t *testing.T) {
	for _, workers := range []int{0, 1} {
		loader := newLoader(t, func(c *feedlane.Config) {
			c.Dataset, c.Workers, c.KeepWorkers = shapes{}, workers, false
			if workers != 0 {
				c.Start = feedlane.Goroutines
			}
			c.Fields = []feedlane.Field{feedlane.FieldOf[uint16]("image", 2)}
		})
		must(t, loader.Begin(0))
		batch := next(t, loader)
		image, err := feedlane.View[uint16](batch.Tensor(0))
		metadata, failed := batch.Metadata()
		if err != nil || failed != nil || batch.Rows() != 3 || len(image) != 6 || image[5] != 6 ||
			string(metadata) != "what lies beside" {
			t.Fatal(image, err, string(metadata), batch.Rows())
		}
		must(t, batch.Release())
	}
}

func TestContextOfNext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := newLoader(t, nil).Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
