// SPDX-License-Identifier: Apache-2.0

//go:build go1.23

// Epochs as sequences, for range loops.

package feedlane

import (
	"context"
	"errors"
	"iter"
)

// Batches begins an epoch and yields its batches:
//
//	for batch, err := range loader.Batches(ctx, epoch) {
//		if err != nil { return err }
//		...
//	}
//
// A batch is released when the loop moves on; Batch.Retain keeps it. The sequence ends with the epoch, or after an
// error after which the epoch cannot continue. After any other error (see MayContinue), a loop that does not break gets
// the next batch.
func (l *Loader) Batches(ctx context.Context, epoch int64) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		if err := l.Begin(epoch); err != nil {
			yield(nil, err)
			return
		}
		for {
			batch, err := l.Next(ctx)
			if isEnd(err) {
				return
			}
			if err != nil {
				if !yield(nil, err) || !MayContinue(err) || l.consumer && isEndOfConsumer(err) {
					return
				}
			} else if !lend(batch, yield) {
				return
			}
		}
	}
}

// isEndOfConsumer reports whether the feeder has ended, or has evicted this consumer.
func isEndOfConsumer(err error) bool { return errors.Is(err, ErrPeerDead) || errors.Is(err, ErrHung) }

// lend yields a batch and then releases it, unless the loop has released it.
func lend(batch *Batch, yield func(*Batch, error) bool) bool {
	defer batch.Release() // also when the loop's body panics
	return yield(batch, nil)
}
