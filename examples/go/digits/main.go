// SPDX-License-Identifier: Apache-2.0

// Trains a small network on handwritten digits that worker processes decode: this program, started again.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"

	"feedlane"
)

var (
	epochs  = flag.Int64("epochs", 60, "")
	workers = flag.Int("workers", 2, "0: inline, in the trainer")
	threads = flag.Bool("goroutines", false, "workers are goroutines of this process")
	folder  = flag.String("data", dataFolder(), "where the two optdigits files are")
	killAt  = flag.Int64("kill-worker-at-batch", -1, "SIGKILL a worker when this batch, counted over all epochs, is here")
)

// train is the training loop: it feeds the batches of all epochs to the network.
func train(ctx context.Context, loader *feedlane.Loader, held *Digits) error {
	monitor, err := loader.Monitor()
	if err != nil {
		return err
	}
	defer monitor.Close()
	network, length := NewNetwork(1), float64(loader.Len())
	batches, rate, accuracy := int64(0), float32(0.2), 0.0
	for epoch := int64(0); epoch < *epochs; epoch++ {
		loss := 0.0
		for batch, err := range loader.Batches(ctx, epoch) { // the batch is released when the loop moves on
			if err != nil {
				return err
			}
			images, labels, err := tensors(batch)
			if err != nil {
				return err
			}
			if batches++; batches == *killAt {
				kill(monitor)
			}
			loss += network.Learn(images, labels, rate) / length
		}
		rate *= 0.96
		accuracy = network.Accuracy(held)
		fmt.Printf("epoch %3d  loss %.4f  test accuracy %.3f\n", epoch, loss, accuracy)
	}
	stats, err := monitor.Stats()
	fmt.Printf("restarts: %d\ntest accuracy: %.3f\n", stats.Restarts, accuracy)
	return err
}

func run(digits *Digits) error {
	config := feedlane.Config{Dataset: digits, Seed: 1, Shuffle: true, Workers: *workers, KeepWorkers: *workers > 0,
		BatchSize: 32, Fields: []feedlane.Field{
			feedlane.FieldOf[float32]("image", 8, 8), feedlane.FieldOf[int64]("label")}}
	if *threads {
		config.Start = feedlane.Goroutines
	}
	loader, err := feedlane.NewLoader(config)
	if err != nil {
		return err
	}
	defer loader.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt) // Ctrl-C ends the loop
	defer stop()
	return train(ctx, loader, digits)
}

func main() {
	log.SetFlags(0)
	flag.Parse()
	digits, err := Open(*folder)
	if err == nil {
		feedlane.WorkerMain(digits) // a worker doesn't return from here
		err = run(digits)
	}
	if err != nil {
		log.Fatal("digits: ", err)
	}
}
