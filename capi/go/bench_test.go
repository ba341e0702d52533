// SPDX-License-Identifier: Apache-2.0

package feedlane_test

import (
	"context"
	"io"
	"testing"

	"feedlane"
)

// touched is a data set of 4 KiB samples, of which it writes one element.
type touched struct{}

func (touched) Len() int64 { return 100_000 }

func (touched) Get(row *feedlane.Row) error {
	x, err := feedlane.View[int64](row.Tensor(0))
	if err == nil {
		x[0] = row.Index
	}
	return err
}

// Batches of one sample of 4 KiB, by a process, goroutines, or inline.
func BenchmarkNext(b *testing.B) { benchmarkNext(b, 1, 512) }

// Batches of 1000 samples of one number.
func BenchmarkRows(b *testing.B) { benchmarkNext(b, 1000, 1) }

func benchmarkNext(b *testing.B, rows int, numbers int64) {
	for name, mode := range modes {
		mode := mode
		b.Run(name, func(b *testing.B) {
			loader := newLoader(b, func(c *feedlane.Config) {
				mode(c)
				if c.Workers != 0 {
					c.Workers, c.Prefetch = 1, 8
				}
				c.Dataset, c.BatchSize, c.WorkerConfig = touched{}, rows, []byte("touched")
				c.Fields = []feedlane.Field{feedlane.FieldOf[int64]("x", numbers)}
			})
			b.SetBytes(int64(rows) * numbers * 8)
			b.ReportAllocs()
			b.ResetTimer()
			epoch := int64(-1)
			for i := 0; i < b.N; {
				if epoch++; loader.Begin(epoch) != nil {
					b.Fatal("Begin failed")
				}
				for ; i < b.N; i++ {
					batch, err := loader.Next(context.Background())
					if err == io.EOF {
						break
					}
					must(b, err)
					must(b, batch.Release())
				}
			}
		})
	}
}
