// SPDX-License-Identifier: Apache-2.0
//! The structs of `observe.h`, in the header's order.
use std::os::raw::c_char;

use crate::constants::FEEDLANE_HISTOGRAM_BUCKETS;
use crate::layout::Member;

structs! {
    /// Facts about a loader, and its position in the epoch.
    pub struct feedlane_loader_info {
        pub size: usize,
        pub pid: i64,
        pub created_ns: u64,
        pub start: i32,
        pub workers: i32,
        pub prefetch_factor: i32,
        pub held: i32,
        pub batch_size: i64,
        pub task_timeout_ns: i64,
        pub iterable: i32,
        pub in_epoch: i32,
        pub epoch: i64,
        pub batch: i64,
        pub batches: i64,
        pub begun_ns: u64,
        pub yielded_ns: u64,
        pub waiting_since_ns: u64,
        pub trace: u64,
        pub name: [c_char; 64],
        pub version: [c_char; 16],
        pub next_epoch: i64,
    }

    /// A histogram of durations.
    pub struct feedlane_histogram {
        pub count: u64,
        pub sum_ns: u64,
        pub buckets: [u64; FEEDLANE_HISTOGRAM_BUCKETS],
    }

    /// Percentiles of durations.
    pub struct feedlane_percentiles {
        pub p50_ns: u64,
        pub p90_ns: u64,
        pub p99_ns: u64,
    }

    /// Durations of the steps of batches.
    pub struct feedlane_timings {
        pub size: usize,
        pub exposed: feedlane_histogram,
        pub start: feedlane_histogram,
        pub queue: feedlane_histogram,
        pub work: feedlane_histogram,
        pub ready: feedlane_histogram,
        pub hold: feedlane_histogram,
        pub exposed_percentiles: feedlane_percentiles,
        pub start_percentiles: feedlane_percentiles,
        pub queue_percentiles: feedlane_percentiles,
        pub work_percentiles: feedlane_percentiles,
        pub ready_percentiles: feedlane_percentiles,
        pub hold_percentiles: feedlane_percentiles,
    }

    /// One batch and its stamps.
    pub struct feedlane_batch_record {
        pub size: usize,
        pub sequence: u64,
        pub task: u64,
        pub epoch: i64,
        pub batch: i64,
        pub worker: i32,
        pub attempt: i32,
        pub slot: i32,
        pub status: i32,
        pub rows: u64,
        pub bytes: u64,
        pub dispatched_ns: u64,
        pub begun_ns: u64,
        pub committed_ns: u64,
        pub swept_ns: u64,
        pub yielded_ns: u64,
        pub released_ns: u64,
        pub exposed_ns: u64,
    }

    /// Errors or events of one kind.
    pub struct feedlane_error_record {
        pub size: usize,
        pub kind: i32,
        pub code: i32,
        pub worker: i32,
        pub reserved: i32,
        pub batch: i64,
        pub sample: i64,
        pub count: u64,
        pub first_ns: u64,
        pub last_ns: u64,
        pub text: [c_char; 192],
    }

    /// The bottleneck of a run.
    pub struct feedlane_diagnosis {
        pub size: usize,
        pub bound: i32,
        pub worker: i32,
        pub interval_ns: u64,
        pub batches: u64,
        pub samples: u64,
        pub bytes: u64,
        pub exposed_ns: u64,
        pub start_ns: u64,
        pub busy_ns: u64,
        pub ready: u64,
        pub asked: u64,
        pub text: [c_char; 512],
        pub advice: [c_char; 512],
    }

    /// A standalone ring of a process.
    pub struct feedlane_ring_info {
        pub size: usize,
        pub pid: i64,
        pub message_bytes: u64,
        pub capacity: u64,
        pub lanes: u64,
        pub received: u64,
        pub control_bytes: u64,
    }
}
