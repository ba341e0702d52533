// SPDX-License-Identifier: Apache-2.0

package feedlane_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"feedlane"
	"feedlane/internal/layout"
)

type record struct {
	Constants map[string]int64
	Structs   map[string]struct {
		Bytes  uintptr
		Fields []struct {
			Name   string
			Offset uintptr
			Bytes  uintptr
		}
	}
}

func readRecord(t *testing.T) (r record) {
	t.Helper()
	path := os.Getenv("FEEDLANE_RECORD")
	if path == "" {
		path = "../abi/interface.json"
	}
	bytes, err := os.ReadFile(path)
	must(t, err)
	var loose struct {
		Constants map[string]any
		Structs   json.RawMessage
	}
	must(t, json.Unmarshal(bytes, &loose))
	must(t, json.Unmarshal(loose.Structs, &r.Structs))
	r.Constants = map[string]int64{}
	for name, value := range loose.Constants {
		if number, ok := value.(float64); ok {
			r.Constants[name] = int64(number)
		}
	}
	return r
}

// Sizes and offsets of every struct, and the constants, are those of interface.json.
func TestRecord(t *testing.T) {
	r := readRecord(t)
	if layout.ABI != r.Constants["FEEDLANE_ABI"] {
		t.Errorf("ABI %d, the record has %d", layout.ABI, r.Constants["FEEDLANE_ABI"])
	}
	for name, found := range layout.Structs() {
		wanted, ok := r.Structs[name]
		if !ok || wanted.Bytes != found.Size() {
			t.Errorf("%s has %d bytes, the record %d", name, found.Size(), wanted.Bytes)
		}
		for _, field := range wanted.Fields {
			member, ok := found.FieldByName(field.Name)
			if !ok {
				t.Errorf("%s has no %s", name, field.Name)
			} else if member.Offset != field.Offset || member.Type.Size() != field.Bytes {
				t.Errorf("%s.%s: %d bytes at %d, the record %d at %d", name, field.Name, member.Type.Size(),
					member.Offset, field.Bytes, field.Offset)
			}
		}
	}
	checkConstants(t, r)
}

func checkConstants(t *testing.T, r record) {
	for name, value := range map[string]int64{
		"START_SPAWN": int64(feedlane.Processes), "START_THREAD": int64(feedlane.Goroutines),
		"START_EXTERNAL": int64(feedlane.External), "START_HOST": int64(feedlane.Host), "SHUFFLE_FEISTEL": int64(feedlane.ShuffleFeistel),
		"SHUFFLE_TORCH_LOADER": int64(feedlane.ShuffleTorchLoader), "WORKER_READY": int64(feedlane.WorkerReady),
		"WORKER_FAILED": int64(feedlane.WorkerFailed), "EVENT_WORKER_DIED": int64(feedlane.EventWorkerDied),
		"EVENT_SAMPLE_SKIPPED": int64(feedlane.EventSampleSkipped), "EVENT_DEVICE_FAILED": int64(feedlane.EventDeviceFailed),
		"BOUND_NOTHING": int64(feedlane.BoundNothing), "BOUND_STARTING": int64(feedlane.BoundStarting),
		"BOUND_PROCESSORS": int64(feedlane.BoundProcessors),
		"SHARE_EVERY":      int64(feedlane.ShareEvery), "SHARE_DEAL": int64(feedlane.ShareDeal),
		"LAG_EVICT": int64(feedlane.LagEvict), "LAG_OBSERVE": int64(feedlane.LagObserve),
		"CONSUMER_ATTACHED": int64(feedlane.ConsumerAttached), "CONSUMER_LEFT": int64(feedlane.ConsumerLeft),
		"EVENT_CONSUMER_LEFT": int64(feedlane.EventConsumerLeft), "EVENT_CONSUMER_EVICTED": int64(feedlane.EventConsumerEvicted),
		"HISTOGRAM_BUCKETS": int64(feedlane.HistogramBuckets),
		"DLPACK_PINNED":     int64(feedlane.DLPackPinned), "DLPACK_LEGACY": int64(feedlane.DLPackLegacy),
	} {
		if wanted, ok := r.Constants["FEEDLANE_"+name]; !ok || wanted != value {
			t.Errorf("%s is %d, the record has %d", name, value, wanted)
		}
	}
	statuses := 0
	for name, value := range r.Constants {
		if strings.HasPrefix(name, "FEEDLANE_E_") {
			statuses++
			if found := feedlane.Status(value).String(); "FEEDLANE_"+found != name {
				t.Errorf("status %d is %s, the record has %s", value, found, name)
			}
		}
	}
	if statuses != -int(feedlane.ErrUnsupported) {
		t.Errorf("%d errors in the record, the last one known is %d", statuses, feedlane.ErrUnsupported)
	}
}
