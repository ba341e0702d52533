// SPDX-License-Identifier: Apache-2.0

package feedlane_test

import (
	"context"
	"errors"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"feedlane"
)

// The batches do not depend on who makes them.
func TestModes(t *testing.T) {
	var wanted []uint64
	inModes(t, func(t *testing.T, mode func(*feedlane.Config)) {
		loader := newLoader(t, func(c *feedlane.Config) { mode(c); c.Shuffle = true })
		for epoch := int64(0); epoch < 3; epoch++ {
			list, err := hashes(loader, epoch)
			must(t, err)
			if epoch != 2 {
				continue
			}
			if wanted == nil {
				wanted = list
			}
			if len(list) != batches || !reflect.DeepEqual(list, wanted) {
				t.Fatal("the batches differ")
			}
		}
		must(t, loader.Stop())
		list, err := hashes(loader, 2)
		must(t, err)
		if !reflect.DeepEqual(list, wanted) {
			t.Fatal("the batches differ after Stop")
		}
	})
}

// Worker goroutines that are about to end when the next epoch begins are not missed.
func TestStops(t *testing.T) {
	loader := newLoader(t, func(c *feedlane.Config) { c.Start = feedlane.Goroutines })
	for epoch := int64(0); epoch < 300; epoch++ {
		list, err := hashes(loader, epoch)
		must(t, err)
		if len(list) != batches {
			t.Fatal("batches are missing")
		}
		must(t, loader.Stop())
	}
}

// A second goroutine in Next gets ErrBusy. Batches may be released by any goroutine.
func TestBusy(t *testing.T) {
	loader := newLoader(t, func(c *feedlane.Config) { c.WorkerConfig = []byte("stuck") })
	must(t, loader.Begin(0))
	must(t, next(t, loader).Release())
	must(t, next(t, loader).Release())
	ended := waitInNext(loader, context.Background())
	_, err := loader.Next(context.Background())
	wants(t, err, feedlane.ErrBusy)
	wants(t, loader.Begin(1), feedlane.ErrBusy)
	must(t, loader.Interrupt())
	wants(t, <-ended, feedlane.ErrInterrupted)
	other := newLoader(t, nil)
	must(t, other.Begin(0))
	var group sync.WaitGroup
	for i := 0; i < batches; i++ {
		batch := next(t, other)
		group.Add(1)
		go func() {
			defer group.Done()
			if _, err := feedlane.View[float32](batch.Tensor(0)); err != nil {
				t.Error(err)
			}
			if err := batch.Release(); err != nil {
				t.Error(err)
			}
		}()
		if i%3 == 0 {
			group.Wait()
		}
	}
	group.Wait()
	must(t, other.Begin(1))
	releasedByFinalizer(t, next(t, other))
	if stats, err := monitorOf(t, other).Stats(); err != nil || stats.SlotsHeld != 0 {
		t.Fatalf("%+v %v", stats, err)
	}
}

// releasedByFinalizer releases a batch in a finalizer, which runs in the runtime's own goroutine.
func releasedByFinalizer(t *testing.T, batch *feedlane.Batch) {
	t.Helper()
	released := make(chan error, 1)
	runtime.SetFinalizer(new([64]byte), func(*[64]byte) { released <- batch.Release() })
	for i := 0; i < 1000; i++ {
		runtime.GC()
		select {
		case err := <-released:
			must(t, err)
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatal("the finalizer has not run")
}

// waitInNext begins a Next in a goroutine, and returns once it is there.
func waitInNext(loader *feedlane.Loader, ctx context.Context) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := loader.Next(ctx)
		for errors.Is(err, feedlane.ErrBusy) { // the Poll below was in
			_, err = loader.Next(ctx)
		}
		ended <- err
	}()
	for {
		if _, err := loader.Poll(); errors.Is(err, feedlane.ErrBusy) {
			time.Sleep(5 * time.Millisecond)
			return ended
		}
		time.Sleep(time.Millisecond)
	}
}

// Close ends the Next of another goroutine; statistics are read while the loader ends.
func TestClose(t *testing.T) {
	for round := 0; round < 10; round++ {
		config := baseConfig()
		config.Start, config.Workers = feedlane.External, 1
		if round%2 == 0 {
			config.Start = feedlane.Goroutines
			config.WorkerConfig = []byte("slow")
		}
		loader, err := feedlane.NewLoader(config)
		must(t, err)
		must(t, loader.Begin(0))
		if round%2 == 1 {
			_, socket, err := loader.OpenWorker(-1)
			must(t, err)
			defer socket.Close()
		}
		ended := waitInNext(loader, context.Background())
		stop := make(chan struct{})
		var group sync.WaitGroup
		for i := 0; i < 3; i++ {
			group.Add(1)
			go func() {
				defer group.Done()
				for {
					select {
					case <-stop:
						return
					default:
						if monitor, err := loader.Monitor(); err == nil {
							_, _ = monitor.Stats()
							_, _ = monitor.Workers()
							_ = monitor.Close()
						}
						_, _ = loader.Report()
						_ = loader.Len()
					}
				}
			}()
		}
		must(t, loader.Close())
		select {
		case err = <-ended:
		case <-time.After(5 * time.Second):
			t.Fatal("Next is still there")
		}
		if err != nil {
			wants(t, err, feedlane.ErrState)
		}
		close(stop)
		group.Wait()
	}
}

// closing is a data set that closes its own loader.
type closing struct {
	numbers
	loader *feedlane.Loader
	err    error
}

func (c *closing) Open(*feedlane.WorkerInfo) (feedlane.Dataset, error) { return c, nil }

func (c *closing) Get(row *feedlane.Row) error {
	if row.Index == 0 {
		c.err = c.loader.Close()
	}
	return c.numbers.Get(row)
}

func TestCloseInDataset(t *testing.T) {
	config := baseConfig()
	dataset := &closing{}
	config.Dataset, config.Workers, config.KeepWorkers = dataset, 0, false
	loader, err := feedlane.NewLoader(config)
	must(t, err)
	dataset.loader = loader
	must(t, loader.Begin(0))
	if batch, err := loader.Next(context.Background()); err == nil {
		must(t, batch.Release())
	}
	wants(t, dataset.err, feedlane.ErrBusy)
	_, err = loader.Next(context.Background())
	wants(t, err, feedlane.ErrState)
}

// A forgotten loader's goroutines end.
func TestForgottenGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	for i := 0; i < 5; i++ {
		config := baseConfig()
		config.Start = feedlane.Goroutines
		loader, err := feedlane.NewLoader(config)
		must(t, err)
		must(t, loader.Begin(0))
		must(t, next(t, loader).Release())
	}
	for i := 0; runtime.NumGoroutine() > before; i++ {
		if i == 200 {
			t.Fatal(runtime.NumGoroutine()-before, " goroutines are left")
		}
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
}

// waiting is a loader whose Next waits for a worker that never attaches.
func waiting(t testing.TB) *feedlane.Loader {
	loader := newLoader(t, func(c *feedlane.Config) { c.Start, c.Workers = feedlane.External, 1 })
	must(t, loader.Begin(0))
	_, socket, err := loader.OpenWorker(-1)
	must(t, err)
	t.Cleanup(func() { socket.Close() })
	return loader
}

// A context ends a wait, and nothing is lost.
func TestContext(t *testing.T) {
	loader := waiting(t)
	for i := 0; i < 3; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		begin := time.Now()
		_, err := loader.Next(ctx)
		if cancel(); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 2*time.Second {
			t.Fatal(err, time.Since(begin))
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := waitInNext(loader, ctx)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := loader.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	slow := newLoader(t, func(c *feedlane.Config) { c.WorkerConfig = []byte("pause") })
	must(t, slow.Begin(0))
	number := int64(0)
	for number < 10 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		batch, err := slow.Next(ctx)
		cancel()
		if err != nil {
			continue
		}
		if batch.Number() != number {
			t.Fatal("batch ", batch.Number(), " is not ", number)
		}
		number++
		must(t, batch.Release())
	}
}

func threads(t testing.TB) int {
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	for _, line := range strings.Split(string(status), "\n") {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "Threads:" {
			n, err := strconv.Atoi(fields[1])
			must(t, err)
			return n
		}
	}
	return 0
}

// Waits block no thread, and other goroutines go on.
func TestNoThreadWaits(t *testing.T) {
	const loaders = 24
	var ends []<-chan error
	var all []*feedlane.Loader
	before := threads(t)
	for i := 0; i < loaders; i++ {
		loader := waiting(t)
		all = append(all, loader)
		ends = append(ends, waitInNext(loader, context.Background()))
	}
	if more := threads(t) - before; more > loaders/2 {
		t.Errorf("%d threads more for %d goroutines that wait", more, loaders)
	}
	longest, last := time.Duration(0), time.Now()
	for begin := last; time.Since(begin) < 200*time.Millisecond; {
		runtime.Gosched()
		now := time.Now()
		if pause := now.Sub(last); pause > longest {
			longest = pause
		}
		last = now
	}
	t.Logf("longest pause of a goroutine beside %d that wait: %v", loaders, longest)
	for i, loader := range all {
		must(t, loader.Interrupt())
		wants(t, <-ends[i], feedlane.ErrInterrupted)
	}
}

// A stopping is a data set of one batch of epoch 0, which stops before the middle of it.
type stopping struct {
	pause   time.Duration // of each row
	stopped func()
	open    chan struct{}
	made    *int
}

func (stopping) Len() int64 { return 100 }

func (d stopping) Get(row *feedlane.Row) error {
	if row.Task().Epoch() == 0 {
		*d.made++
		if row.Index == 41 {
			d.stopped()
			<-d.open
		}
		time.Sleep(d.pause)
	}
	return feedlane.Copy(row.Tensor(0), []int64{row.Index})
}

// A worker makes no more rows of an abandoned batch if they take long, and at most 15 more if they are quick.
func TestAbandonedBatch(t *testing.T) {
	for pause, most := range map[time.Duration]int{0: 42 + 15, time.Millisecond: 42} {
		made := 0
		ctx, cancel := context.WithCancel(context.Background())
		data := stopping{pause, cancel, make(chan struct{}), &made}
		loader := newLoader(t, func(c *feedlane.Config) {
			c.Dataset, c.BatchSize, c.Workers, c.Start = data, 100, 1, feedlane.Goroutines
			c.Fields = []feedlane.Field{feedlane.FieldOf[int64]("index")}
		})
		must(t, loader.Begin(0))
		if _, err := loader.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		must(t, loader.Begin(1))
		close(data.open)
		batch, err := loader.Next(context.Background())
		must(t, err)
		must(t, batch.Release())
		if made < 42 || made > most {
			t.Fatalf("%d rows of the abandoned batch were made, not 42 to %d", made, most)
		}
	}
}
