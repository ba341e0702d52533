// SPDX-License-Identifier: Apache-2.0

//go:build go1.23

package feedlane_test

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"feedlane"
)

// A range loop gets every batch, which is released when it moves on, and goes on after the error of a batch.
func TestBatches(t *testing.T) {
	loader := newLoader(t, func(c *feedlane.Config) { c.WorkerConfig = []byte("fail") })
	for epoch := int64(0); epoch < 2; epoch++ {
		seen, failed := 0, 0
		var last *feedlane.Batch
		for batch, err := range loader.Batches(context.Background(), epoch) {
			if last != nil {
				if _, err := last.Retain(); !errors.Is(err, feedlane.ErrStale) {
					t.Fatal("the batch before is not released")
				}
			}
			if last = batch; err != nil {
				wants(t, err, feedlane.ErrSample)
				failed++
				continue
			}
			seen++
		}
		if seen != batches-2 || failed != 2 {
			t.Fatal(seen, failed)
		}
	}
	for batch, err := range loader.Batches(context.Background(), 2) {
		must(t, err)
		defer func() { wants(t, batch.Release(), feedlane.ErrStale) }()
		break
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	count := 0
	for _, err := range loader.Batches(ctx, 3) {
		if count++; count == 1 {
			cancel()
		} else if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if count != 2 {
		t.Fatal(count)
	}
	for _, err := range loader.Batches(context.Background(), -1) {
		wants(t, err, feedlane.ErrArgument)
	}
}

// A range loop continues after a lost shard too.
func TestBatchesAfterLostShard(t *testing.T) {
	loader := newLoader(t, withLostShard)
	odd, lost := 0, 0
	for batch, err := range loader.Batches(context.Background(), 0) {
		if err != nil {
			wants(t, err, feedlane.ErrPeerDead)
			lost++
			continue
		}
		list, err := feedlane.View[int64](batch.Tensor(0))
		must(t, err)
		odd += int(list[0] % 2)
		if batch.Number() == 4 {
			must(t, syscall.Kill(pidsOf(t, loader)[0], syscall.SIGKILL))
		}
	}
	if odd != 50 || lost != 1 {
		t.Fatal(odd, " of the 50 numbers of the other shard, ", lost, " shards lost")
	}
}
