// SPDX-License-Identifier: Apache-2.0

// The data set: 1,797 digits from two IDX files, split into a part to train on and a part held out.

package main

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"

	"feedlane"
)

const (
	side    = 8
	pixels  = side * side
	count   = 1797
	heldOut = 360
)

// Digits is the data set as Feedlane sees it. Its fields: image, label.
type Digits struct {
	images, labels []byte
	order          []int // shuffled: first those that are held out, then those to train on
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
	return &Digits{images, labels, rand.New(rand.NewSource(7)).Perm(count)}, err
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

// Len is the number of digits to train on.
func (d *Digits) Len() int64 { return count - heldOut }

// Get writes one digit into its row of the batch. Runs in a worker.
func (d *Digits) Get(row *feedlane.Row) error {
	image, err := feedlane.View[float32](row.Tensor(0))
	if err != nil {
		return err
	}
	digit := d.order[heldOut+row.Index]
	d.decode(image, digit, int(row.Seed%3)-1, int(row.Seed/3%3)-1)
	return feedlane.Copy(row.Tensor(1), []int64{int64(d.labels[digit])})
}

// decode writes a digit in [0, 1], moved by dx and dy pixels.
func (d *Digits) decode(image []float32, digit, dx, dy int) {
	grey := d.images[digit*pixels:][:pixels]
	for i := range image {
		x, y := i%side-dx, i/side-dy
		image[i] = 0
		if x >= 0 && x < side && y >= 0 && y < side {
			image[i] = float32(grey[y*side+x]) / 16
		}
	}
}

// tensors returns the memory of a batch itself, without a copy.
func tensors(batch *feedlane.Batch) ([]float32, []int64, error) {
	images, err := feedlane.View[float32](batch.Field("image"))
	if err != nil {
		return nil, nil, err
	}
	labels, err := feedlane.View[int64](batch.Field("label"))
	return images, labels, err
}
