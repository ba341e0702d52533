// SPDX-License-Identifier: Apache-2.0

// A worker that is killed during the training.

package main

import (
	"syscall"

	"feedlane"
)

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
