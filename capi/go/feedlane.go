// SPDX-License-Identifier: Apache-2.0

// Package feedlane feeds training loops through shared memory: worker processes or goroutines make batches, and the
// training loop gets them as typed slices, without a copy.
//
// A program implements a Dataset, calls WorkerMain first in main, because a worker process is the same program again, and
// iterates over the batches of a Loader.
package feedlane
