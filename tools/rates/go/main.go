// SPDX-License-Identifier: Apache-2.0

// Batches a second of one 4 KiB sample each, copied from memory that is there. See tools/bench/languages.py.
// Usage: rate BATCHES; a worker is this program, started again.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"time"

	"feedlane"
)

type ready struct {
	length int64
	sample []int64
}

func (r ready) Len() int64 { return r.length }

func (r ready) Get(row *feedlane.Row) error { return feedlane.Copy(row.Tensor(0), r.sample) }

func epoch(loader *feedlane.Loader, number int64) (batches int64, err error) {
	if err = loader.Begin(number); err != nil {
		return
	}
	sum := int64(0)
	for ; ; batches++ {
		batch, err := loader.Next(context.Background())
		if err == io.EOF {
			if sum != batches {
				log.Fatal("wrong contents")
			}
			return batches, nil
		}
		if err != nil {
			return batches, err
		}
		x, err := feedlane.View[int64](batch.Field("x"))
		if err != nil {
			return batches, err
		}
		sum += x[0]
		if err = batch.Release(); err != nil {
			return batches, err
		}
	}
}

func main() {
	data := ready{sample: make([]int64, 512)}
	data.sample[0] = 1
	if len(os.Args) > 1 {
		data.length, _ = strconv.ParseInt(os.Args[1], 10, 64)
	}
	feedlane.WorkerMain(data) // a worker doesn't return from here
	loader, err := feedlane.NewLoader(feedlane.Config{Dataset: data, BatchSize: 1, Workers: 1, Prefetch: 8, KeepWorkers: true,
		Fields: []feedlane.Field{feedlane.FieldOf[int64]("x", 512)}})
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	if _, err = epoch(loader, 0); err != nil { // the worker starts
		log.Fatal(err)
	}
	began := time.Now()
	batches, err := epoch(loader, 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.0f\n", float64(batches)/time.Since(began).Seconds())
}
