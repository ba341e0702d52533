// SPDX-License-Identifier: Apache-2.0

// Prints one number for the bytes of ten epochs of digits, as programs in other languages do, see examples/README.md. Its
// workers may be programs in other languages, and it may be the feeder or a consumer of such programs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"path/filepath"
	"strings"

	"feedlane"
)

const epochs = 10

var (
	workers   = flag.Int("workers", 2, "0: inline, in the trainer")
	threads   = flag.Bool("goroutines", false, "workers are goroutines of this process")
	folder    = flag.String("data", dataFolder(), "where the two optdigits files are")
	worker    = flag.String("worker", "", "start this command's words as workers, in any language (default: this program)")
	feed      = flag.String("feed", "", "deliver the epochs to other programs that join at this Unix socket")
	consumers = flag.Int("consumers", 1, "number of programs that join at -feed")
	join      = flag.String("join", "", "print the number of the batches of another program's -feed")
)

func newLoader(digits *Digits) (*feedlane.Loader, error) {
	if *join != "" {
		return feedlane.JoinPath(*join, feedlane.AnyPlace, feedlane.ConsumerConfig{}, 0)
	}
	path, err := filepath.Abs(*folder)
	if err != nil {
		return nil, err
	}
	config := feedlane.Config{Dataset: digits, Seed: 1, Shuffle: true, BatchSize: 64, Workers: *workers,
		KeepWorkers: *workers > 0, WorkerConfig: []byte(path), Fields: []feedlane.Field{
			feedlane.FieldOf[uint8]("image", 8, 8), feedlane.FieldOf[int64]("label")}}
	if *worker != "" {
		config.Command = strings.Fields(*worker)
	}
	if *threads {
		config.Start = feedlane.Goroutines
	}
	if *feed != "" {
		config.Share, config.Consumers, config.SharePath = feedlane.ShareEvery, *consumers, *feed
	}
	return feedlane.NewLoader(config)
}

// serve delivers the epochs to consumers.
func serve(ctx context.Context, loader *feedlane.Loader) error {
	fmt.Println("listening")
	if err := loader.Serve(ctx); err != nil { // until all consumers have joined
		return err
	}
	for epoch := int64(0); epoch < epochs; epoch++ {
		if err := loader.Begin(epoch); err != nil {
			return err
		}
		if err := loader.Serve(ctx); err != nil {
			return err
		}
	}
	return loader.Serve(ctx) // until the last consumer has left
}

// printDigest prints 64-bit FNV-1a over the bytes of all batches.
func printDigest(ctx context.Context, loader *feedlane.Loader) error {
	hash := uint64(0xcbf29ce484222325)
	for epoch := int64(0); epoch < epochs; epoch++ {
		if err := loader.Begin(epoch); err != nil {
			return err
		}
		for {
			batch, err := loader.Next(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			for i := 0; i < batch.Tensors(); i++ {
				bytes, err := batch.Tensor(i).Bytes()
				if err != nil {
					return err
				}
				for _, b := range bytes {
					hash = (hash ^ uint64(b)) * 0x100000001b3
				}
			}
			if err := batch.Release(); err != nil {
				return err
			}
		}
	}
	fmt.Printf("digest: %016x\n", hash)
	return nil
}

func run() error {
	digits, err := Open(*folder)
	if err != nil {
		return err
	}
	feedlane.WorkerMain(digits) // a worker doesn't return from here
	loader, err := newLoader(digits)
	if err != nil {
		return err
	}
	defer loader.Close()
	if *feed != "" {
		return serve(context.Background(), loader)
	}
	return printDigest(context.Background(), loader)
}

func main() {
	log.SetFlags(0)
	flag.Parse()
	if err := run(); err != nil {
		log.Fatal("digest: ", err)
	}
}
