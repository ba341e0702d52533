// SPDX-License-Identifier: Apache-2.0

package feedlane_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"feedlane"
)

// backwards yields samples-1 ... 0, in pieces.
type backwards struct {
	left   int64
	failed bool
	fails  bool
}

func (b *backwards) Len() int64 { return samples }

func (b *backwards) Restart(epoch int64, seed uint64) error {
	b.left = samples
	return nil
}

func (b *backwards) Next(to []int64) (int, error) {
	if b.fails && b.left < samples/2 && !b.failed {
		b.failed = true
		return 0, errors.New("the index is unreadable")
	}
	count := 0
	for ; count < len(to) && count < 100 && b.left > 0; count++ {
		b.left--
		to[count] = b.left
	}
	if count == 0 {
		return 0, io.EOF
	}
	return count, nil
}

func (b *backwards) Save() ([]byte, error) {
	return binary.LittleEndian.AppendUint64(nil, uint64(b.left)), nil
}

func (b *backwards) Load(position []byte) error {
	b.left = int64(binary.LittleEndian.Uint64(position))
	return nil
}

// A sampler in Go: its order, its error, and a state of it.
func TestCustom(t *testing.T) {
	for _, fails := range []bool{false, true} {
		order := func(c *feedlane.Config) {
			var err error
			c.Sampler, err = feedlane.Custom(&backwards{fails: fails})
			must(t, err)
		}
		loader := newLoader(t, order)
		must(t, loader.Begin(0))
		last, failures := int64(samples), 0
		var state []byte
		for number := 0; number < batches; {
			batch, err := loader.Next(context.Background())
			if err != nil && failures == 0 && strings.Contains(err.Error(), "the index is unreadable") {
				failures++
				continue
			}
			must(t, err)
			list, err := batch.Indices()
			must(t, err)
			for _, index := range list {
				if index != last-1 {
					t.Fatal(index, " after ", last)
				}
				last = index
			}
			if number++; number == 20 && !fails {
				state, err = loader.State(batch)
				must(t, err)
			}
			must(t, batch.Release())
		}
		if fails != (failures == 1) || loader.Len() != batches {
			t.Fatal(failures, loader.Len())
		}
		if state != nil {
			rest := newLoader(t, func(c *feedlane.Config) { order(c); c.State = state })
			must(t, rest.Begin(0))
			list, err := next(t, rest).Indices()
			must(t, err)
			if list[0] != samples-1-20*rows {
				t.Fatal(list)
			}
		}
	}
	s, err := feedlane.CustomBatches(&backwards{}, 100)
	if list := make([]int64, 100); err == nil {
		must(t, s.Restart(0))
		got, err := s.Next(list)
		must(t, err)
		if got != 100 || !reflect.DeepEqual(list[:2], []int64{999, 998}) {
			t.Fatal(got, list)
		}
	}
	must(t, err)
	_, err = feedlane.Custom(nil)
	wants(t, err, feedlane.ErrArgument)
}

// pipeBytes yields the bytes of a pipe as indices.
type pipeBytes struct{ fd int }

func (p *pipeBytes) Len() int64                  { return 0 }
func (p *pipeBytes) Restart(int64, uint64) error { return nil }
func (p *pipeBytes) WakeFD() int                 { return p.fd }
func (p *pipeBytes) Next(to []int64) (int, error) {
	var bytes [1]byte
	switch got, err := syscall.Read(p.fd, bytes[:]); {
	case err == syscall.EAGAIN:
		return 0, nil
	case err != nil:
		return 0, err
	case got == 0:
		return 0, io.EOF
	}
	to[0] = int64(bytes[0])
	return 1, nil
}

// A live sampler in Go: the loader waits for its descriptor while it has no index.
func TestLiveOrder(t *testing.T) {
	inModes(t, func(t *testing.T, mode func(*feedlane.Config)) {
		var ends [2]int
		must(t, syscall.Pipe2(ends[:], syscall.O_NONBLOCK|syscall.O_CLOEXEC))
		t.Cleanup(func() { syscall.Close(ends[0]) })
		loader := newLoader(t, func(c *feedlane.Config) {
			mode(c)
			c.BatchSize = 2
			var err error
			c.Sampler, err = feedlane.Custom(&pipeBytes{ends[0]})
			must(t, err)
		})
		must(t, loader.Begin(0))
		written := make(chan error, 1)
		for _, wanted := range [][]byte{{7, 8}, {9, 9}} {
			wanted := wanted
			go func() { _, err := syscall.Write(ends[1], wanted); written <- err }()
			batch := next(t, loader)
			list, err := batch.Indices()
			must(t, err)
			if list[0] != int64(wanted[0]) || list[1] != int64(wanted[1]) {
				t.Fatal(list, wanted)
			}
			must(t, batch.Release())
			must(t, <-written)
		}
		must(t, syscall.Close(ends[1]))
		if _, err := loader.Next(context.Background()); err != io.EOF {
			t.Fatal(err)
		}
	})
}
