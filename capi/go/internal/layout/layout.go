// SPDX-License-Identifier: Apache-2.0

// Package layout has the C structs as cgo lays them out, for the test that compares them with the record of the interface.
package layout

/*
#cgo pkg-config: feedlane
#include <feedlane.h>
*/
import "C"

import "reflect"

// ABI is the number of the header that this was built with.
const ABI = C.FEEDLANE_ABI

// Structs returns the Go type of every struct that the package uses, by its name in C.
func Structs() map[string]reflect.Type {
	return map[string]reflect.Type{
		"feedlane_ahead":             reflect.TypeOf(C.feedlane_ahead{}),
		"feedlane_arena_config":      reflect.TypeOf(C.feedlane_arena_config{}),
		"feedlane_arena_member":      reflect.TypeOf(C.feedlane_arena_member{}),
		"feedlane_arena_stats":       reflect.TypeOf(C.feedlane_arena_stats{}),
		"feedlane_batch":             reflect.TypeOf(C.feedlane_batch{}),
		"feedlane_batch_record":      reflect.TypeOf(C.feedlane_batch_record{}),
		"feedlane_buffer":            reflect.TypeOf(C.feedlane_buffer{}),
		"feedlane_consumer_config":   reflect.TypeOf(C.feedlane_consumer_config{}),
		"feedlane_consumer_stats":    reflect.TypeOf(C.feedlane_consumer_stats{}),
		"feedlane_dataset":           reflect.TypeOf(C.feedlane_dataset{}),
		"feedlane_diagnosis":         reflect.TypeOf(C.feedlane_diagnosis{}),
		"feedlane_dtype":             reflect.TypeOf(C.feedlane_dtype{}),
		"feedlane_error":             reflect.TypeOf(C.feedlane_error{}),
		"feedlane_error_record":      reflect.TypeOf(C.feedlane_error_record{}),
		"feedlane_event":             reflect.TypeOf(C.feedlane_event{}),
		"feedlane_field":             reflect.TypeOf(C.feedlane_field{}),
		"feedlane_histogram":         reflect.TypeOf(C.feedlane_histogram{}),
		"feedlane_loader_config":     reflect.TypeOf(C.feedlane_loader_config{}),
		"feedlane_loader_info":       reflect.TypeOf(C.feedlane_loader_info{}),
		"feedlane_pool_config":       reflect.TypeOf(C.feedlane_pool_config{}),
		"feedlane_pool_stats":        reflect.TypeOf(C.feedlane_pool_stats{}),
		"feedlane_put":               reflect.TypeOf(C.feedlane_put{}),
		"feedlane_rank":              reflect.TypeOf(C.feedlane_rank{}),
		"feedlane_ring_config":       reflect.TypeOf(C.feedlane_ring_config{}),
		"feedlane_ring_info":         reflect.TypeOf(C.feedlane_ring_info{}),
		"feedlane_row":               reflect.TypeOf(C.feedlane_row{}),
		"feedlane_sampler_callbacks": reflect.TypeOf(C.feedlane_sampler_callbacks{}),
		"feedlane_sampler_config":    reflect.TypeOf(C.feedlane_sampler_config{}),
		"feedlane_span":              reflect.TypeOf(C.feedlane_span{}),
		"feedlane_stats":             reflect.TypeOf(C.feedlane_stats{}),
		"feedlane_task":              reflect.TypeOf(C.feedlane_task{}),
		"feedlane_tensor":            reflect.TypeOf(C.feedlane_tensor{}),
		"feedlane_timings":           reflect.TypeOf(C.feedlane_timings{}),
		"feedlane_worker_info":       reflect.TypeOf(C.feedlane_worker_info{}),
		"feedlane_worker_stats":      reflect.TypeOf(C.feedlane_worker_stats{}),
	}
}
