// SPDX-License-Identifier: Apache-2.0

// The data set: 1,797 digits as they are in two IDX files.

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"feedlane"
)

const (
	pixels = 8 * 8
	count  = 1797
)

// Digits is the data set. Its fields: image, label.
type Digits struct {
	images, labels []byte
}

// dataFolder is examples/data of the source tree.
func dataFolder() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "data")
}

// Open reads both files of a folder.
func Open(folder string) (*Digits, error) {
	images, err := read(filepath.Join(folder, "optdigits-images-idx3-ubyte"), 16, count*pixels)
	if err != nil {
		return nil, err
	}
	labels, err := read(filepath.Join(folder, "optdigits-labels-idx1-ubyte"), 8, count)
	return &Digits{images, labels}, err
}

func read(path string, header, length int) ([]byte, error) {
	bytes, err := os.ReadFile(path)
	if err == nil && len(bytes) != header+length {
		err = fmt.Errorf("%s: %d bytes, not %d", path, len(bytes), header+length)
	}
	if err != nil {
		return nil, err
	}
	return bytes[header:], nil
}

// Len is the number of digits.
func (d *Digits) Len() int64 { return count }

// Get writes one digit into its row of the batch. Runs in a worker.
func (d *Digits) Get(row *feedlane.Row) error {
	if err := feedlane.Copy(row.Tensor(0), d.images[row.Index*pixels:][:pixels]); err != nil {
		return err
	}
	return feedlane.Copy(row.Tensor(1), []int64{int64(d.labels[row.Index])})
}
