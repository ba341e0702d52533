// SPDX-License-Identifier: Apache-2.0

package feedlane_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"sort"
	"syscall"
	"testing"

	"feedlane"
)

// counting is a shard of 100 numbers: shard s of n has s, s + n, ... It continues where it has saved.
type counting struct{ first, step, next int64 }

func (c *counting) Len() int64 { return 100 }

func (c *counting) Open(info *feedlane.WorkerInfo) (feedlane.Dataset, error) {
	return &counting{info.Shard, info.Shards, 0}, nil
}

func (c *counting) Restart(int64) error {
	c.next = c.first
	return nil
}

func (c *counting) Get(row *feedlane.Row) error {
	if c.next >= c.Len() {
		return io.EOF
	}
	defer func() { c.next += c.step }()
	if c.next == 30 {
		return errors.New("30 is broken")
	}
	return feedlane.Copy(row.Tensor(0), []int64{c.next})
}

func (c *counting) Save() ([]byte, error) {
	return binary.LittleEndian.AppendUint64(nil, uint64(c.next)), nil
}

func (c *counting) Load(position []byte) error {
	c.next = int64(binary.LittleEndian.Uint64(position))
	return nil
}

// Shards of an iterable data set, with a sample that is left out, with a death, and resumed.
func TestIterable(t *testing.T) {
	wanted := map[int][]int64{0: {}, 2: {}}
	inModes(t, func(t *testing.T, mode func(*feedlane.Config)) {
		config := func(c *feedlane.Config) {
			mode(c)
			c.Dataset, c.BatchSize, c.SkipBudget = &counting{}, 5, 1
			c.Fields = []feedlane.Field{feedlane.FieldOf[int64]("number")}
			if c.Start == feedlane.Processes && c.Workers != 0 {
				c.Env = append(syscall.Environ(), "FEEDLANE_GO_DATASET=counting")
			}
		}
		loader := newLoader(t, config)
		for epoch := int64(0); epoch < 2; epoch++ {
			must(t, loader.Begin(epoch))
			var numbers []int64
			var state []byte
			at := 0
			for {
				batch, err := loader.Next(context.Background())
				if err == io.EOF {
					break
				}
				must(t, err)
				list, err := feedlane.View[int64](batch.Tensor(0))
				must(t, err)
				numbers = append(numbers, list...)
				must(t, batch.Release())
				if batch.Number() == 7 {
					state, err = loader.State(nil)
					must(t, err)
					at = len(numbers)
					for _, pid := range pidsOf(t, loader) {
						must(t, syscall.Kill(pid, syscall.SIGKILL))
					}
				}
			}
			workers := 2
			if t.Name() == "TestIterable/inline" {
				workers = 0
			}
			if len(wanted[workers]) == 0 {
				wanted[workers] = numbers
			}
			if len(numbers) != 99 || !reflect.DeepEqual(numbers, wanted[workers]) {
				t.Fatal(len(numbers), numbers)
			}
			rest := newLoader(t, func(c *feedlane.Config) { config(c); c.State = state })
			if found := numbersOf(t, rest, epoch); !reflect.DeepEqual(found, numbers[at:]) {
				t.Fatal(found, " is not ", numbers[at:])
			}
		}
	})
}

// forgetful is a shard that cannot continue where a dead worker was: it saves nothing.
type forgetful struct{ numbers counting }

func (f *forgetful) Len() int64 { return 100 }

func (f *forgetful) Open(info *feedlane.WorkerInfo) (feedlane.Dataset, error) {
	return &forgetful{counting{info.Shard, info.Shards, 0}}, nil
}

func (f *forgetful) Restart(epoch int64) error { return f.numbers.Restart(epoch) }

func (f *forgetful) Get(row *feedlane.Row) error { return f.numbers.Get(row) }

func withLostShard(c *feedlane.Config) {
	c.Dataset, c.BatchSize, c.SkipBudget = &forgetful{}, 1, 1
	c.Fields = []feedlane.Field{feedlane.FieldOf[int64]("number")}
	c.Env = append(syscall.Environ(), "FEEDLANE_GO_DATASET=forgetful")
}

// A shard that is lost with its worker is one error; Next then yields what the other shard has.
func TestLostShard(t *testing.T) {
	loader := newLoader(t, withLostShard)
	must(t, loader.Begin(0))
	odd, lost := 0, 0
	for {
		batch, err := loader.Next(context.Background())
		if err == io.EOF {
			break
		}
		if err != nil {
			wants(t, err, feedlane.ErrPeerDead)
			if lost++; !feedlane.MayContinue(err) {
				t.Fatal(err)
			}
			continue
		}
		list, err := feedlane.View[int64](batch.Tensor(0))
		must(t, err)
		odd += int(list[0] % 2)
		if batch.Number() == 4 {
			must(t, syscall.Kill(pidsOf(t, loader)[0], syscall.SIGKILL))
		}
		must(t, batch.Release())
	}
	if odd != 50 || lost != 1 {
		t.Fatal(odd, " of the 50 numbers of the other shard, ", lost, " shards lost")
	}
}

func numbersOf(t *testing.T, loader *feedlane.Loader, epoch int64) (numbers []int64) {
	must(t, loader.Begin(epoch))
	for {
		batch, err := loader.Next(context.Background())
		if err == io.EOF {
			return numbers
		}
		must(t, err)
		list, err := feedlane.View[int64](batch.Tensor(0))
		must(t, err)
		numbers = append(numbers, list...)
		must(t, batch.Release())
	}
}

// Ranks share an iterable data set; their epochs end together.
func TestRanks(t *testing.T) {
	inModes(t, func(t *testing.T, mode func(*feedlane.Config)) {
		var numbers []int64
		for rank := 0; rank < 3; rank++ {
			config := func(c *feedlane.Config) {
				mode(c)
				c.Dataset, c.BatchSize, c.SkipBudget, c.World, c.Rank = &counting{}, 5, 1, 3, rank
				c.Fields = []feedlane.Field{feedlane.FieldOf[int64]("number")}
				if c.Start == feedlane.Processes && c.Workers != 0 {
					c.Env = append(syscall.Environ(), "FEEDLANE_GO_DATASET=counting")
				}
			}
			numbers = append(numbers, numbersOf(t, newLoader(t, config), 0)...)
			cut := newLoader(t, func(c *feedlane.Config) { config(c); c.MaxBatches = 3 })
			if found := numbersOf(t, cut, 0); len(found) != 15 {
				t.Fatal(rank, found)
			}
		}
		sort.Slice(numbers, func(i, j int) bool { return numbers[i] < numbers[j] })
		if len(numbers) != 99 || numbers[0] != 0 || numbers[29] != 29 || numbers[30] != 31 || numbers[98] != 99 {
			t.Fatal(numbers)
		}
	})
	config := feedlane.Config{Dataset: &counting{}, World: 2, Rank: 2}
	config.Fields = []feedlane.Field{feedlane.FieldOf[int64]("number")}
	_, err := feedlane.NewLoader(config)
	wants(t, err, feedlane.ErrArgument)
}

// A worker program whose data set is of the other kind is ErrInit.
func TestOtherKind(t *testing.T) {
	loader := newLoader(t, func(c *feedlane.Config) { c.Dataset, c.Iterable = nil, true })
	must(t, loader.Begin(0))
	_, err := loader.Next(context.Background())
	wants(t, err, feedlane.ErrInit)
}
