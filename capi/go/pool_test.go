// SPDX-License-Identifier: Apache-2.0

// Pools, batches in registered memory, and DLPack. Device memory is memory of this process.

package feedlane_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"feedlane"
	"feedlane/internal/device"
)

const bufferBytes = 1 << 20

func newPool(t testing.TB, buffers uint32) *feedlane.Pool {
	t.Helper()
	config := feedlane.PoolConfig{Backend: "none", Buffers: buffers}
	if buffers != 0 {
		config.BufferBytes = bufferBytes
	}
	return poolOf(t, config)
}

func poolOf(t testing.TB, config feedlane.PoolConfig) *feedlane.Pool {
	t.Helper()
	pool, err := feedlane.NewPool(config)
	must(t, err)
	t.Cleanup(func() {
		err := pool.Close()
		for deadline := time.Now().Add(patience); errors.Is(err, feedlane.ErrState) && time.Now().Before(deadline); err = pool.Close() {
			time.Sleep(time.Millisecond) // worker goroutines of a closed loader are about to end
		}
		must(t, err)
	})
	return pool
}

func poolStats(t testing.TB, pool *feedlane.Pool) feedlane.PoolStats {
	t.Helper()
	stats, err := pool.Stats()
	must(t, err)
	return stats
}

func bytesOf(t testing.TB, memory interface{ Bytes() ([]byte, error) }) []byte {
	t.Helper()
	list, err := memory.Bytes()
	must(t, err)
	return list
}

func address(list []byte) uintptr { return uintptr(unsafe.Pointer(&list[0])) }

// staged starts RunStager.
func staged(t testing.TB, loader *feedlane.Loader) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- loader.RunStager() }()
	return ended
}

// Batches in registered memory, and in buffers of a pool, are those of any loader.
func TestPinned(t *testing.T) {
	inModes(t, func(t *testing.T, mode func(*feedlane.Config)) {
		wanted, err := hashes(newLoader(t, mode), 1)
		must(t, err)
		slots, buffers := newPool(t, 0), newPool(t, 3)
		loader := newLoader(t, func(c *feedlane.Config) { mode(c); c.Pinned = slots })
		if stats := poolStats(t, slots); stats.Registered == 0 {
			t.Fatalf("%+v", stats)
		}
		found, err := hashes(loader, 1)
		must(t, err)
		if !reflect.DeepEqual(found, wanted) {
			t.Error("pinned batches differ")
		}
		must(t, loader.Close())
		loader = newLoader(t, func(c *feedlane.Config) { mode(c); c.Pinned, c.Staged = buffers, 3 })
		var ended <-chan error
		if pool := poolStats(t, buffers); pool.InUse != 3 {
			t.Fatalf("%+v", pool)
		}
		if strings.HasSuffix(t.Name(), "inline") {
			wants(t, loader.RunStager(), feedlane.ErrState)
		} else {
			ended = staged(t, loader)
		}
		if found, err = hashes(loader, 1); err != nil || !reflect.DeepEqual(found, wanted) {
			t.Error("staged batches differ: ", err)
		}
		must(t, loader.Close())
		if ended != nil {
			if err := <-ended; err != nil && !errors.Is(err, feedlane.ErrState) { // closed before it began
				t.Error(err)
			}
		}
	})
}

// Pools end after everything in them, in any order. The pool says what it waits for.
func TestPoolInUse(t *testing.T) {
	pool := newPool(t, 0)
	loader := newLoader(t, func(c *feedlane.Config) { c.Pinned = pool })
	must(t, loader.Begin(0))
	batch := next(t, loader)
	content := bytesOf(t, batch.Tensor(0))
	before := append([]byte(nil), content...)
	tensor, err := batch.DLPack(0, 0)
	must(t, err)
	wants(t, pool.Close(), feedlane.ErrState)
	must(t, loader.Close())
	wants(t, pool.Close(), feedlane.ErrState)
	must(t, batch.Release())
	wants(t, pool.Close(), feedlane.ErrState)
	if !bytes.Equal(content, before) {
		t.Error("an exported tensor has changed")
	}
	feedlane.DeleteDLPack(tensor, 0)
	must(t, pool.Close())
	must(t, pool.Close())
	_, err = pool.Stats()
	wants(t, err, feedlane.ErrState)
	_, err = pool.Acquire(always)
	wants(t, err, feedlane.ErrState)
	_, err = feedlane.NewLoader(feedlane.Config{Dataset: numbers{}, Fields: baseConfig().Fields, Pinned: pool})
	wants(t, err, feedlane.ErrState)
}

// Buffers are handed out once, keep their contents on the way to a device, and come back.
func TestBuffers(t *testing.T) {
	pool, host := newPool(t, 2), newPool(t, 1)
	first, err := pool.Acquire(always)
	must(t, err)
	second, err := pool.TryAcquire()
	must(t, err)
	_, err = pool.TryAcquire()
	wants(t, err, feedlane.ErrTimeout)
	list := bytesOf(t, first)
	if len(list) != bufferBytes || address(list)%uintptr(os.Getpagesize()) != 0 {
		t.Fatal(len(list), address(list))
	}
	copy(list, "abc")
	target, err := host.Acquire(always)
	must(t, err)
	there := bytesOf(t, target)
	must(t, pool.Copy(address(there), list[:3], 0))
	if string(there[:4]) != "abc\x00" {
		t.Fatal(there[:4])
	}
	ctx, cancel := context.WithCancel(always)
	third := make(chan *feedlane.Buffer)
	acquire := func(ctx context.Context) error {
		buffer, err := pool.Acquire(ctx)
		third <- buffer
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- acquire(ctx) }()
	cancel()
	if <-third != nil || <-ended != context.Canceled {
		t.Fatal("not cancelled")
	}
	go func() { ended <- acquire(limited(t)) }()
	must(t, first.ReleaseOn(0))
	buffer := <-third
	must(t, <-ended)
	wants(t, first.Release(), feedlane.ErrStale)
	_, err = first.Bytes()
	wants(t, err, feedlane.ErrStale)
	stats := poolStats(t, pool)
	stats.Waited = 0
	if wanted := (feedlane.PoolStats{Buffers: 2, InUse: 2, Registered: 2 * bufferBytes, Acquired: 3}); stats != wanted {
		t.Errorf("%+v, not %+v", stats, wanted)
	}
	wants(t, pool.Close(), feedlane.ErrState)
	for _, buffer := range []*feedlane.Buffer{second, buffer, target} {
		must(t, buffer.Release())
	}
}

// What a pool refuses names the cause.
func TestPoolMisuse(t *testing.T) {
	for status, config := range map[feedlane.Status]feedlane.PoolConfig{
		feedlane.ErrUnsupported: {Backend: "abacus"},
		feedlane.ErrArgument:    {Buffers: 1},
		feedlane.ErrLimit:       {Buffers: 2, BufferBytes: bufferBytes, BudgetBytes: bufferBytes},
	} {
		_, err := feedlane.NewPool(config)
		wants(t, err, status)
	}
	pool := newPool(t, 0)
	_, err := pool.Acquire(always)
	wants(t, err, feedlane.ErrState)
	buffer, err := newPool(t, 1).Acquire(always)
	must(t, err)
	memory := bytesOf(t, buffer)
	must(t, pool.Register(memory[:1]))
	if stats := poolStats(t, pool); stats.Registered != uint64(os.Getpagesize()) {
		t.Errorf("%+v", stats)
	}
	wants(t, pool.Register(memory[1:2]), feedlane.ErrState)
	must(t, pool.Unregister(memory))
	wants(t, pool.Unregister(memory), feedlane.ErrArgument)
	wants(t, pool.Register(nil), feedlane.ErrArgument)
	must(t, buffer.Release())
	loader := newLoader(t, nil)
	must(t, loader.Begin(0))
	batch := next(t, loader)
	for _, err := range []error{batch.ReleaseOn(0), batch.RecordStream(0)} {
		var e *feedlane.Error
		if !errors.As(err, &e) || e.Status != feedlane.ErrState || e.Argument != "config.pinned" {
			t.Error(err)
		}
	}
	must(t, batch.Release()) // it is still held
	wants(t, batch.ReleaseOn(0), feedlane.ErrStale)
	wants(t, batch.RecordStream(0), feedlane.ErrStale)
	wants(t, loader.RunStager(), feedlane.ErrState)
}

// A stream keeps batches and buffers until it has completed its work.
func TestStreams(t *testing.T) {
	path := os.Getenv("FEEDLANE_THREAD_DEVICE")
	if path == "" {
		t.Skip("FEEDLANE_THREAD_DEVICE is not the path of libthread-device.so")
	}
	threads, err := device.Open(path)
	must(t, err)
	t.Cleanup(threads.Close)
	stream := feedlane.Stream(threads.Stream())
	pool := poolOf(t, feedlane.PoolConfig{Custom: threads.Backend(), Buffers: 1, BufferBytes: bufferBytes})
	loader := newLoader(t, func(c *feedlane.Config) { c.Pinned = pool })
	if threads.Registrations() < 2 {
		t.Fatal(threads.Registrations(), " registrations: the buffer, and each slot")
	}
	must(t, loader.Begin(0))
	buffer, err := pool.Acquire(always)
	must(t, err)
	there := bytesOf(t, buffer)
	threads.Hold()
	released, recorded := next(t, loader), next(t, loader)
	content := bytesOf(t, released.Tensor(0))
	must(t, pool.Copy(address(there), content, stream))
	must(t, released.ReleaseOn(stream))
	wants(t, released.Release(), feedlane.ErrStale)
	must(t, recorded.RecordStream(stream))
	must(t, recorded.Release())
	must(t, buffer.ReleaseOn(stream))
	if stats := poolStats(t, pool); stats.Pending != 1 {
		t.Errorf("%+v", stats)
	}
	_, err = pool.TryAcquire()
	wants(t, err, feedlane.ErrTimeout)
	monitor := monitorOf(t, loader)
	if stats, err := monitor.Stats(); err != nil || stats.SlotsHeld != 2 || bytes.Equal(there[:len(content)], content) {
		t.Errorf("%+v %v: the stream has not passed", stats, err)
	}
	before := append([]byte(nil), content...)
	threads.Continue()
	if buffer, err = pool.Acquire(limited(t)); err != nil {
		t.Fatal(err)
	}
	if stats, err := monitor.Stats(); err != nil || stats.SlotsHeld != 0 || !bytes.Equal(there[:len(before)], before) {
		t.Errorf("%+v %v: the stream has passed", stats, err)
	}
	must(t, buffer.Release())
	must(t, monitor.Close())
}

// The garbage collector closes a forgotten pool, but not before everything in it is gone.
func TestPoolForgotten(t *testing.T) {
	data, batch := func() (uintptr, *feedlane.Batch) {
		pool, err := feedlane.NewPool(feedlane.PoolConfig{Buffers: 3, BufferBytes: bufferBytes})
		must(t, err)
		config := baseConfig()
		config.Pinned, config.Staged = pool, 3
		loader, err := feedlane.NewLoader(config)
		must(t, err)
		_ = staged(t, loader)
		must(t, loader.Begin(0))
		batch := next(t, loader)
		must(t, loader.Close())
		return address(bytesOf(t, batch.Tensor(0))), batch
	}()
	for i := 0; i < 5; i++ {
		runtime.GC()
		time.Sleep(time.Millisecond) // for finalizers
	}
	if !isMapped(t, data) {
		t.Fatal("the pool is gone, but the batch is held")
	}
	must(t, batch.Release())
	for deadline := time.Now().Add(patience); isMapped(t, data); runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatal("the pool is not closed")
		}
	}
}

// isMapped reports whether there is memory at an address.
func isMapped(t testing.TB, address uintptr) bool {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	for _, line := range strings.Split(string(maps), "\n") {
		var from, to uintptr
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err == nil && from <= address && address < to {
			return true
		}
	}
	return false
}

// dataOf returns the data pointer of an exported tensor, at the offset that DLPack fixes.
func dataOf(tensor unsafe.Pointer, flags feedlane.DLPackFlags) unsafe.Pointer {
	if flags&feedlane.DLPackLegacy != 0 {
		return *(*unsafe.Pointer)(tensor)
	}
	return *(*unsafe.Pointer)(unsafe.Add(tensor, 32))
}

// An exported tensor is the batch's memory, and keeps it until the deleter is called.
func TestDLPack(t *testing.T) {
	for _, flags := range []feedlane.DLPackFlags{0, feedlane.DLPackLegacy} {
		loader := newLoader(t, nil)
		must(t, loader.Begin(0))
		batch := next(t, loader)
		labels := bytesOf(t, batch.Field("label"))
		tensor, err := batch.DLPack(1, flags)
		must(t, err)
		if data := dataOf(tensor, flags); data != unsafe.Pointer(&labels[0]) {
			t.Fatal(data, " is not the address of ", &labels[0])
		}
		must(t, batch.Release())
		monitor := monitorOf(t, loader)
		if stats, err := monitor.Stats(); err != nil || stats.SlotsHeld != 1 {
			t.Fatalf("%+v %v", stats, err)
		}
		feedlane.DeleteDLPack(tensor, flags)
		if stats, err := monitor.Stats(); err != nil || stats.SlotsHeld != 0 {
			t.Fatalf("%+v %v", stats, err)
		}
		_, err = batch.DLPack(1, flags)
		wants(t, err, feedlane.ErrStale)
		batch = next(t, loader)
		for _, i := range []int{-1, 2} {
			_, err = batch.DLPack(i, flags)
			wants(t, err, feedlane.ErrArgument)
		}
		_, err = batch.DLPack(0, flags|64)
		wants(t, err, feedlane.ErrArgument)
		_, err = batch.DLPack(0, flags|feedlane.DLPackPinned)
		wants(t, err, feedlane.ErrState)
		must(t, batch.Release())
	}
}
