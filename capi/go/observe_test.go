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
			checkTrace(t, loader, stamps)
			checkSums(t, loader, stamps)
			checkReport(t, loader)
		})
	}
}

func checkTrace(t *testing.T, loader *feedlane.Loader, stamps map[int64]feedlane.Stamps) {
	t.Helper()
	trace, err := loader.Trace(1)
	if err != nil || len(trace) != batches {
		t.Fatal(len(trace), err)
	}
	for i, r := range trace {
		if r.Sequence != uint64(i)+1 || r.Stamps != stamps[r.Batch] || r.Released < r.Yielded || r.Status != 0 {
			t.Errorf("%+v, not %+v", r, stamps[r.Batch])
		}
	}
	if later, err := loader.Trace(batches + 1); err != nil || len(later) != 0 {
		t.Error(later, err)
	}
}

func checkSums(t *testing.T, loader *feedlane.Loader, stamps map[int64]feedlane.Stamps) {
	t.Helper()
	timings, err := loader.Timings(-1)
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
	if _, err := loader.Timings(100); err != io.EOF {
		t.Error(err)
	}
}

func checkReport(t *testing.T, loader *feedlane.Loader) {
	t.Helper()
	diagnosis, err := loader.Diagnose()
	if err != nil || diagnosis.Batches != batches || diagnosis.Samples != samples || diagnosis.Text == "" {
		t.Errorf("%+v %v", diagnosis, err)
	}
	info, err := loader.Info()
	if err != nil || info.Name != "digits" || info.Batch != batches || info.Batches != batches || info.InEpoch ||
		info.Pid != os.Getpid() || info.Trace != 100 {
		t.Errorf("%+v %v", info, err)
	}
	report, err := loader.Report()
	if err != nil || !strings.Contains(report, "digits") || !strings.Contains(report, "batches") ||
		!strings.Contains(report, "\nbound: ") {
		t.Error(report, err)
	}
}

// Without a trace there is nothing to read.
func TestNoTrace(t *testing.T) {
	_, err := newLoader(t, nil).Trace(1)
	wants(t, err, feedlane.ErrState)
}
