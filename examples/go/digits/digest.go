// SPDX-License-Identifier: Apache-2.0

// The program's other modes: a digest of ten epochs, which is the same in every language, and a worker that is killed.

package main

import (
	"context"
	"fmt"
	"syscall"

	"feedlane"
)

// printDigest prints 64-bit FNV-1a over all bytes of ten epochs, see examples/README.md.
func printDigest(ctx context.Context, loader *feedlane.Loader) error {
	hash := uint64(0xcbf29ce484222325)
	for epoch := int64(0); epoch < 10; epoch++ {
		for batch, err := range loader.Batches(ctx, epoch) {
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
		}
	}
	fmt.Printf("digest: %016x\n", hash)
	return nil
}

// kill ends a worker process without warning, to show that nothing is lost.
func kill(monitor *feedlane.Monitor) {
	workers, _ := monitor.Workers()
	for _, worker := range workers {
		if worker.PID != 0 && worker.State == feedlane.WorkerReady {
			_ = syscall.Kill(worker.PID, syscall.SIGKILL)
			return
		}
	}
}
