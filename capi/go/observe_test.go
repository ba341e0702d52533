// SPDX-License-Identifier: Apache-2.0

package feedlane_test

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"feedlane"
)

func checkStamps(t *testing.T, s feedlane.Stamps) {
	t.Helper()
	if s.Dispatched == 0 || s.Begun < s.Dispatched || s.Committed < s.Begun || s.Swept < s.Committed || s.Yielded < s.Swept {
		t.Errorf("the stamps decrease: %+v", s)
	}
}

// Stamps of batches, their records in the trace, timings that add up, a diagnosis and a report.
func TestObserve(t *testing.T) {
	for name, change := range modes {
		t.Run(name, func(t *testing.T) {
			loader := newLoader(t, func(c *feedlane.Config) {
				change(c)
				c.Name, c.Trace = "digits", 100
			})
			must(t, loader.Begin(0))
			stamps := map[int64]feedlane.Stamps{}
			for range [batches]int{} {
				batch := next(t, loader)
				checkStamps(t, batch.Stamps())
				stamps[batch.Number()] = batch.Stamps()
				must(t, batch.Release())
			}
			_, err := loader.Next(context.Background())
			if err != io.EOF {
				t.Fatal(err)
			}
			monitor := monitorOf(t, loader)
			checkTrace(t, monitor, stamps)
			checkSums(t, monitor, stamps)
			checkReport(t, monitor)
			report, err := loader.Report()
			checkText(t, report, err)
		})
	}
}

func checkTrace(t *testing.T, monitor *feedlane.Monitor, stamps map[int64]feedlane.Stamps) {
	t.Helper()
	trace, err := monitor.Trace(1)
	if err != nil || len(trace) != batches {
		t.Fatal(len(trace), err)
	}
	for i, r := range trace {
		if r.Sequence != uint64(i)+1 || r.Stamps != stamps[r.Batch] || r.Released < r.Yielded || r.Status != 0 {
			t.Errorf("%+v, not %+v", r, stamps[r.Batch])
		}
	}
	if later, err := monitor.Trace(batches + 1); err != nil || len(later) != 0 {
		t.Error(later, err)
	}
}

func checkSums(t *testing.T, monitor *feedlane.Monitor, stamps map[int64]feedlane.Stamps) {
	t.Helper()
	timings, err := monitor.Timings(-1)
	must(t, err)
	var work time.Duration
	for _, s := range stamps {
		work += s.Committed - s.Begun
	}
	var counted uint64
	for _, count := range timings.Work.Buckets {
		counted += count
	}
	if timings.Work.Count != batches || counted != batches || timings.Work.Sum != work || timings.Start.Count != 1 {
		t.Errorf("%+v, not %v", timings.Work, work)
	}
	if _, err := monitor.Timings(100); err != io.EOF {
		t.Error(err)
	}
}

func checkReport(t *testing.T, monitor *feedlane.Monitor) {
	t.Helper()
	diagnosis, err := monitor.Diagnose()
	if err != nil || diagnosis.Batches != batches || diagnosis.Samples != samples || diagnosis.Text == "" {
		t.Errorf("%+v %v", diagnosis, err)
	}
	info, err := monitor.Info()
	if err != nil || info.Name != "digits" || info.Batch != batches || info.Batches != batches || info.InEpoch ||
		info.Pid != os.Getpid() || info.Trace != 100 || info.NextEpoch != -1 {
		t.Errorf("%+v %v", info, err)
	}
	report, err := monitor.Report()
	checkText(t, report, err)
}

func checkText(t *testing.T, report string, err error) {
	t.Helper()
	if err != nil || !strings.Contains(report, "digits") || !strings.Contains(report, "batches") ||
		!strings.Contains(report, "\nbound: ") {
		t.Error(report, err)
	}
}

// Slots shows the batches that are held, without a trace, and the last ones of the other slots.
func TestSlots(t *testing.T) {
	inModes(t, func(t *testing.T, mode func(*feedlane.Config)) {
		loader := newLoader(t, mode)
		must(t, loader.Begin(0))
		must(t, next(t, loader).Release())
		held := next(t, loader)
		monitor := monitorOf(t, loader)
		slots, err := monitor.Slots()
		must(t, err)
		stats, err := monitor.Stats()
		must(t, err)
		found := 0
		for i, r := range slots {
			if r.Task != 0 && r.Batch == held.Number() {
				found++
				if r.Slot != i || r.Sequence != 0 || r.Stamps != held.Stamps() || r.Rows != rows || r.Released != 0 {
					t.Errorf("slot %d: %+v, not %+v", i, r, held.Stamps())
				}
			}
		}
		if found != 1 || uint64(len(slots)) != stats.Slots {
			t.Errorf("%d of %d slots, not of %d", found, len(slots), stats.Slots)
		}
		must(t, held.Release())
	})
}

// Errors whose texts differ only in numbers are one record, in the order of first occurrence.
func TestErrors(t *testing.T) {
	inModes(t, func(t *testing.T, mode func(*feedlane.Config)) {
		loader := newLoader(t, func(c *feedlane.Config) { mode(c); c.WorkerConfig = []byte("fail") })
		monitor := monitorOf(t, loader)
		if list, err := monitor.Errors(); err != nil || len(list) != 0 {
			t.Fatal(list, err)
		}
		for epoch := int64(0); epoch < 2; epoch++ {
			must(t, loader.Begin(epoch))
			for failed := 0; failed < 2; {
				batch, err := loader.Next(context.Background())
				if err != nil {
					wants(t, err, feedlane.ErrSample)
					failed++
				} else {
					must(t, batch.Release())
				}
			}
		}
		list, err := monitor.Errors()
		must(t, err)
		if len(list) != 2 {
			t.Fatalf("%+v", list)
		}
		for i, text := range []string{"sample 40 is broken", "sample 80 panics"} {
			r := list[i]
			if r.Kind != 0 || r.Code != feedlane.ErrSample || r.Count != 2 || r.Sample != int64(40*(i+1)) ||
				r.Batch != r.Sample/rows || r.Last <= r.First || !strings.Contains(r.Text, text) {
				t.Errorf("%+v", r)
			}
		}
	})
}

// Without a trace there is nothing to read.
func TestNoTrace(t *testing.T) {
	_, err := monitorOf(t, newLoader(t, nil)).Trace(1)
	wants(t, err, feedlane.ErrState)
}

// Counters as another process sees them.
func TestMonitor(t *testing.T) {
	loader := newLoader(t, func(c *feedlane.Config) { c.Name, c.Trace = "digits", 100 })
	must(t, loader.Begin(0))
	must(t, next(t, loader).Release())
	for nth := 0; ; nth++ { // other tests' loaders may be there
		monitor, err := feedlane.OpenMonitor(os.Getpid(), nth)
		must(t, err)
		isOurs := checkWorkers(t, monitor)
		if isOurs {
			_, err = hashes(loader, 1)
			must(t, err)
			if trace, err := monitor.Trace(1); err != nil || len(trace) < batches {
				t.Error(len(trace), err)
			}
			report, err := monitor.Report()
			checkText(t, report, err)
		}
		must(t, monitor.Close())
		if isOurs {
			return
		}
	}
}

// checkWorkers reports whether the monitor is that of TestMonitor's loader.
func checkWorkers(t *testing.T, monitor *feedlane.Monitor) bool {
	t.Helper()
	stats, err := monitor.Stats()
	must(t, err)
	workers, err := monitor.Workers()
	must(t, err)
	info, err := monitor.Info()
	must(t, err)
	if info.Pid != os.Getpid() || info.Workers != len(workers) {
		t.Errorf("%+v", info)
	}
	return stats.Batches == 1 && len(workers) == 2
}

// A monitor keeps the last values of its loader, until it is closed itself.
func TestMonitorOfEndedLoader(t *testing.T) {
	loader := newLoader(t, nil)
	_, err := hashes(loader, 0)
	must(t, err)
	monitor, err := loader.Monitor()
	must(t, err)
	must(t, loader.Close())
	stats, err := monitor.Stats()
	if err != nil || stats.Batches != batches {
		t.Errorf("%+v %v", stats, err)
	}
	workers, err := monitor.Workers()
	if err != nil || len(workers) != 2 || workers[0].Tasks+workers[1].Tasks != batches {
		t.Errorf("%+v %v", workers, err)
	}
	must(t, monitor.Close())
	must(t, monitor.Close())
	_, err = monitor.Stats()
	wants(t, err, feedlane.ErrState)
	_, err = monitor.Info()
	wants(t, err, feedlane.ErrState)
	_ = refusesFigures(t, monitor)
}

// Any process sees a ring and its counts.
func TestReadRing(t *testing.T) {
	receiver := newRing(t, func(c *feedlane.RingConfig) { c.MessageBytes, c.Capacity = 1000, 16 })
	sender := attach(t, receiver)
	_, err := sender.Send(always, make([]byte, 3000))
	must(t, err)
	_, _, err = receiver.Receive(always, make([]byte, 2000))
	must(t, err)
	for nth := 0; ; nth++ { // other tests' rings may be there
		info, err := feedlane.ReadRing(os.Getpid(), nth)
		must(t, err)
		if info.MessageBytes == 1000 {
			if info.PID != os.Getpid() || info.Capacity != 16 || info.Lanes != 3 || info.Received != 2 || info.ControlBytes == 0 {
				t.Errorf("%+v", info)
			}
			break
		}
	}
	_, err = feedlane.ReadRing(os.Getpid(), 1000)
	if err != io.EOF {
		t.Error(err)
	}
	_, err = feedlane.ReadRing(os.Getpid(), -1)
	wants(t, err, feedlane.ErrArgument)
	_, err = feedlane.ReadRing(1<<30, 0)
	wants(t, err, feedlane.ErrPeerDead)
}
