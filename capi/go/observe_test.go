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
