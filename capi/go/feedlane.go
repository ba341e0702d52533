// SPDX-License-Identifier: Apache-2.0

// Package feedlane feeds training loops through shared memory. Worker processes or goroutines make batches; the
// training loop reads them as typed slices, without a copy.
//
// A program implements a Dataset and iterates over the batches of a Loader. A worker process is the same program,
// started again, so main calls WorkerMain first.
package feedlane
