// SPDX-License-Identifier: Apache-2.0

package feedlane_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"feedlane"
)

// A slice is the tensor's memory: what a worker writes last is what it shows, at the same address.
func TestZeroCopy(t *testing.T) {
	loader := newLoader(t, func(c *feedlane.Config) { c.WorkerConfig = []byte("rewritten") })
	must(t, loader.Begin(0))
	batch := next(t, loader)
	defer batch.Release()
	first, err := feedlane.View[float32](batch.Tensor(0))
	must(t, err)
	second, err := feedlane.View[float32](batch.Field("x"))
	must(t, err)
	if &first[0] != &second[0] || len(first) != rows*features || uintptr(unsafe.Pointer(&first[0]))%256 != 0 {
		t.Fatal("two slices of a tensor are not the same memory")
	}
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	if !inSegment(string(maps), uintptr(unsafe.Pointer(&first[0]))) {
		t.Fatal("the slice is not in the data segment")
	}
	for i, value := range first {
		if value < 0 || value > 1 {
			t.Fatal("element ", i, " is ", value, ", which the worker has written over")
		}
	}
	first[5] = 42
	if bytes, err := batch.Tensor(0).Bytes(); err != nil || *(*float32)(unsafe.Pointer(&bytes[20])) != 42 {
		t.Fatal("what is written is not what is read")
	}
}

func inSegment(maps string, address uintptr) bool {
	for _, line := range strings.Split(maps, "\n") {
		fields := strings.FieldsFunc(line, func(r rune) bool { return r == '-' || r == ' ' })
		if !strings.Contains(line, "feedlane") || len(fields) < 2 {
			continue
		}
		if from, to := hexadecimal(fields[0]), hexadecimal(fields[1]); from <= address && address < to {
			return true
		}
	}
	return false
}

func hexadecimal(s string) (n uintptr) {
	for _, c := range s {
		n = n<<4 + uintptr(strings.IndexRune("0123456789abcdef", c))
	}
	return n
}

// A failing sample arrives with text, traceback and sample, and the next batch is yielded.
func TestError(t *testing.T) {
	inModes(t, func(t *testing.T, mode func(*feedlane.Config)) {
		loader := newLoader(t, func(c *feedlane.Config) { mode(c); c.WorkerConfig = []byte("fail") })
		must(t, loader.Begin(0))
		next(t, loader).Release()
		_, err := loader.Next(context.Background())
		wants(t, err, feedlane.ErrSample)
		var e *feedlane.Error
		if !errors.As(err, &e) || e.Text != "sample 40 is broken" || e.Sample != 40 || e.Batch != 1 || !feedlane.MayContinue(err) {
			t.Fatalf("%+v", e)
		}
		_, err = loader.Next(context.Background())
		if !errors.As(err, &e) || e.Text != "panic: sample 80 panics" || e.Sample != 80 || !strings.Contains(e.Detail, "main_test.go") {
			t.Fatalf("%+v", e)
		}
		batch := next(t, loader)
		if batch.Number() != 3 {
			t.Fatal("batch ", batch.Number(), " after batch 2")
		}
		must(t, batch.Release())
	})
}

// A data set that cannot be opened is ErrInit, with its text.
func TestUnopenable(t *testing.T) {
	inModes(t, func(t *testing.T, mode func(*feedlane.Config)) {
		loader := newLoader(t, func(c *feedlane.Config) { mode(c); c.WorkerConfig = []byte("unopenable") })
		err := loader.Begin(0)
		if err == nil {
			_, err = loader.Next(context.Background())
		}
		wants(t, err, feedlane.ErrInit)
		if !strings.Contains(err.Error(), "the file is missing") {
			t.Fatal(err)
		}
	})
}

// Workers run where Config.WorkerCPUs says, with as many batches in flight as the library finds.
func TestPlacement(t *testing.T) {
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	_, allowed, _ := strings.Cut(string(status), "Cpus_allowed_list:\t")
	first, _, _ := strings.Cut(strings.FieldsFunc(allowed, func(r rune) bool { return r == '\n' || r == ',' })[0], "-")
	loader := newLoader(t, func(c *feedlane.Config) {
		c.Workers, c.Prefetch, c.ArenaBytes, c.WorkerCPUs, c.KeepWorkers = 1, feedlane.PrefetchAuto, 1<<20, first, true
	})
	must(t, loader.Begin(0))
	next(t, loader)
	workers, err := monitorOf(t, loader).Workers()
	must(t, err)
	status, err = os.ReadFile(fmt.Sprintf("/proc/%d/status", workers[0].PID))
	must(t, err)
	if !strings.Contains(string(status), "Cpus_allowed_list:\t"+first+"\n") {
		t.Fatalf("not on processor %s: %s", first, status)
	}
}

// Misuse is an error that names what is wrong.
func TestMisuse(t *testing.T) {
	config := baseConfig()
	config.BatchSize = -5
	_, err := feedlane.NewLoader(config)
	wants(t, err, feedlane.ErrArgument)
	var e *feedlane.Error
	if !errors.As(err, &e) || e.Argument != "config.batch_size" {
		t.Fatalf("%+v", err)
	}
	for _, change := range []func(*feedlane.Config){
		func(c *feedlane.Config) { c.Dataset, c.Workers = nil, 0 },
		func(c *feedlane.Config) { c.Dataset, c.Sampler = nil, nil },
		func(c *feedlane.Config) { c.Command = []string{} },
		func(c *feedlane.Config) { c.Start = feedlane.Forked },
		func(c *feedlane.Config) { c.Unbatched = true },
		func(c *feedlane.Config) { c.WorkerCPUs = "8000" },
		func(c *feedlane.Config) { c.MemoryNodes = "first" },
		func(c *feedlane.Config) { c.Prefetch = feedlane.PrefetchAuto }, // without a budget
		func(c *feedlane.Config) { c.Fields = []feedlane.Field{{Name: "x", Shape: make([]int64, 9)}} },
		func(c *feedlane.Config) { c.Fields = nil },
	} {
		config := baseConfig()
		change(&config)
		_, err := feedlane.NewLoader(config)
		wants(t, err, feedlane.ErrArgument)
	}

	loader := newLoader(t, nil)
	_, err = loader.Next(context.Background())
	wants(t, err, feedlane.ErrState) // no Begin
	must(t, loader.Begin(0))
	batch := next(t, loader)
	tensor := batch.Tensor(0)
	for _, wrong := range []feedlane.Tensor{tensor, batch.Tensor(9), batch.Tensor(-1), batch.Field("nothing"), {}} {
		_, err = feedlane.View[int32](wrong)
		wants(t, err, feedlane.ErrArgument)
	}
	must(t, batch.Release())
	wants(t, batch.Release(), feedlane.ErrStale)
	for _, stale := range []feedlane.Tensor{tensor, batch.Tensor(0), batch.Field("x")} {
		_, err = feedlane.View[float32](stale)
		wants(t, err, feedlane.ErrStale)
		if stale.Name() != "" || stale.Shape() != nil || stale.Len() != 0 {
			t.Fatal("a tensor of a released batch has properties")
		}
	}
	_, err = batch.Retain()
	wants(t, err, feedlane.ErrStale)
	_, err = batch.Indices()
	wants(t, err, feedlane.ErrStale)
	_, err = loader.State(batch)
	wants(t, err, feedlane.ErrStale)
	must(t, loader.Close())
	must(t, loader.Close())
	_, err = loader.Next(context.Background())
	wants(t, err, feedlane.ErrState)
	wants(t, loader.Begin(1), feedlane.ErrState)
	wants(t, loader.Interrupt(), feedlane.ErrState)
	_, err = loader.Monitor()
	wants(t, err, feedlane.ErrState)
	_, err = loader.Report()
	wants(t, err, feedlane.ErrState)
}

// Batches kept beyond Held are ErrSlotsHeld, not a hang; beyond the loader's end they are still readable.
func TestKept(t *testing.T) {
	loader := newLoader(t, nil)
	must(t, loader.Begin(0))
	var kept []*feedlane.Batch
	var slices [][]int64
	for {
		batch, err := loader.Next(context.Background())
		if err != nil {
			wants(t, err, feedlane.ErrSlotsHeld)
			break
		}
		labels, err := feedlane.View[int64](batch.Field("label"))
		must(t, err)
		kept, slices = append(kept, batch), append(slices, labels)
	}
	if len(kept) < 2 || len(kept) >= batches {
		t.Fatal(len(kept), " batches until ErrSlotsHeld")
	}
	must(t, kept[0].Release())
	must(t, next(t, loader).Release())
	must(t, loader.Close())
	for i, batch := range kept[1:] {
		if labels := slices[i+1]; labels[0] != int64((i+1)*rows%10) {
			t.Fatal("a kept batch has changed: ", labels)
		}
		must(t, batch.Release())
	}
}

// Without slices the collector releases forgotten batches; with one, the batch stays readable.
func TestView(t *testing.T) {
	loader := newLoader(t, func(c *feedlane.Config) { c.Held = 2 })
	must(t, loader.Begin(0))
	labels := func() []int64 {
		labels, err := feedlane.View[int64](next(t, loader).Field("label"))
		must(t, err)
		return labels
	}()
	before := append([]int64(nil), labels...)
	for i := 1; i < batches; i++ {
		batch := next(t, loader) // forgotten, or released after a view
		if i%2 == 0 {
			_, err := feedlane.View[int64](batch.Field("label"))
			must(t, err)
			must(t, batch.Release())
		}
	}
	if _, err := loader.Next(context.Background()); err != io.EOF {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(labels, before) {
		t.Fatal("the memory of a slice that is in use has changed")
	}
	// A tensor keeps its batch.
	must(t, loader.Begin(1))
	tensor := next(t, loader).Field("label")
	for i := 0; i < 3; i++ {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	if _, err := feedlane.View[int64](tensor); err != nil {
		t.Fatal(err)
	}
}

// What a batch says of itself, and a reference of its own.
func TestBatch(t *testing.T) {
	inModes(t, func(t *testing.T, mode func(*feedlane.Config)) {
		loader := newLoader(t, mode)
		if loader.Len() != batches {
			t.Fatal(loader.Len())
		}
		must(t, loader.Begin(3))
		batch := next(t, loader)
		indices, err := batch.Indices()
		must(t, err)
		x := batch.Tensor(0)
		if batch.Epoch() != 3 || batch.Number() != 0 || batch.Rows() != rows || batch.Tensors() != 2 || indices[31] != 31 ||
			x.Name() != "x" || x.DType() != feedlane.Float32 || !reflect.DeepEqual(x.Shape(), []int64{rows, features}) ||
			x.Len() != rows*features*4 {
			t.Fatalf("%+v %v", batch, indices)
		}
		other, err := batch.Retain()
		must(t, err)
		must(t, batch.Release())
		if labels, err := feedlane.View[int64](other.Tensor(1)); err != nil || labels[13] != 3 {
			t.Fatal(labels, err)
		}
		must(t, other.Release())
	})
}

// Scratch memory is zero at the start of each task, in workers and inline.
func TestScratch(t *testing.T) {
	wanted, err := hashes(newLoader(t, nil), 0)
	must(t, err)
	inModes(t, func(t *testing.T, mode func(*feedlane.Config)) {
		found, err := hashes(newLoader(t, func(c *feedlane.Config) { mode(c); c.WorkerConfig = []byte("scratch") }), 0)
		must(t, err)
		if !reflect.DeepEqual(found, wanted) {
			t.Fatal("the batches differ")
		}
	})
}
