// SPDX-License-Identifier: Apache-2.0
//! The structs of `feedlane.h`, in the header's order, except the ones of `status.h`, `pool.h`, `sampler.h`, `monitor.h`,
//! `observe.h` and `share.h`. Handles are opaque: they exist behind pointers only.
use std::ffi::c_void;
use std::os::raw::c_char;

use crate::constants::FEEDLANE_MAX_NDIM;
use crate::error::feedlane_error;
use crate::layout::Member;
use crate::pool::feedlane_pool;
use crate::sampler::feedlane_sampler;

/// The type of `feedlane_dataset.substitute`.
pub type feedlane_dataset_substitute_fn = Option<
    unsafe extern "C" fn(
        this: *mut c_void,
        failed: i64,
        seed: u64,
        tries: u32,
        other: *mut i64,
        err: *mut feedlane_error,
    ) -> i32,
>;

handles! { feedlane_loader feedlane_worker feedlane_rx feedlane_tx feedlane_monitor }

structs! {
    /// A standalone ring.
    pub struct feedlane_ring_config {
        pub size: usize,
        pub message_bytes: u32,
        pub capacity: u32,
        pub lanes: u32,
        pub reserved: u32,
        pub path: *const c_char,
    }

    /// Messages that are read or written in place.
    pub struct feedlane_span {
        pub data: *mut c_void,
        pub stride: u64,
        pub count: u32,
        pub lane: u32,
    }

    /// An element's type in DLPack's numbers.
    pub struct feedlane_dtype {
        pub code: u8,
        pub bits: u8,
        pub lanes: u16,
    }

    /// A field of a sample, as the trainer declares it.
    pub struct feedlane_field {
        pub size: usize,
        pub name: *const c_char,
        pub dtype: feedlane_dtype,
        pub ndim: i32,
        pub shape: [i64; FEEDLANE_MAX_NDIM],
    }

    /// A tensor in place.
    pub struct feedlane_tensor {
        pub name: *const c_char,
        pub data: *mut c_void,
        pub bytes: u64,
        pub offset: u64,
        pub dtype: feedlane_dtype,
        pub ndim: i32,
        pub shape: [i64; FEEDLANE_MAX_NDIM],
        pub strides: [i64; FEEDLANE_MAX_NDIM],
    }

    /// One batch to make.
    pub struct feedlane_task {
        pub size: usize,
        pub id: u64,
        pub epoch: i64,
        pub batch: i64,
        pub attempt: i32,
        pub tensor_count: i32,
        pub indices: *const i64,
        pub count: u64,
        pub seeds: *const u64,
        pub tensors: *const feedlane_tensor,
        pub worker: *mut feedlane_worker,
        pub first: i32,
        pub reserved: i32,
        pub delivered: u64,
        pub state: *const c_void,
        pub state_bytes: u64,
        pub rows: *mut u64,
        pub library: *mut c_void,
    }

    /// The place of one sample.
    pub struct feedlane_row {
        pub size: usize,
        pub index: i64,
        pub seed: u64,
        pub fields: *const *mut c_void,
        pub bytes: *const u64,
        pub task: *const feedlane_task,
        pub row: u64,
    }

    /// A task that is queued behind the current one.
    pub struct feedlane_ahead {
        pub size: usize,
        pub id: u64,
        pub epoch: i64,
        pub batch: i64,
        pub indices: *const i64,
        pub count: u64,
    }

    /// A worker's identity and configuration.
    pub struct feedlane_worker_info {
        pub size: usize,
        pub id: i32,
        pub count: i32,
        pub generation: i32,
        pub iterable: i32,
        pub seed: u64,
        pub config: *const c_void,
        pub config_bytes: u64,
        pub fields: *const feedlane_field,
        pub field_count: u64,
        pub retries: i32,
        pub reserved: i32,
        pub retry_backoff_ns: i64,
        pub epoch: i64,
        pub rank: i32,
        pub world: i32,
        pub shard: i64,
        pub shards: i64,
    }

    /// The callbacks of a data set.
    pub struct feedlane_dataset {
        pub size: usize,
        pub user_data: *mut c_void,
        pub open: Option<
            unsafe extern "C" fn(
                user_data: *mut c_void,
                info: *const feedlane_worker_info,
                this: *mut *mut c_void,
                err: *mut feedlane_error,
            ) -> i32,
        >,
        pub get:
            Option<unsafe extern "C" fn(this: *mut c_void, row: *const feedlane_row, err: *mut feedlane_error) -> i32>,
        pub fetch: Option<
            unsafe extern "C" fn(
                this: *mut c_void,
                task: *const feedlane_task,
                err: *mut feedlane_error,
            ) -> i32,
        >,
        pub close: Option<unsafe extern "C" fn(this: *mut c_void)>,
        pub next:
            Option<unsafe extern "C" fn(this: *mut c_void, row: *const feedlane_row, err: *mut feedlane_error) -> i32>,
        pub restart: Option<unsafe extern "C" fn(this: *mut c_void, epoch: i64, err: *mut feedlane_error) -> i32>,
        pub save: Option<
            unsafe extern "C" fn(
                this: *mut c_void,
                buffer: *mut c_void,
                cap: u64,
                bytes: *mut u64,
                err: *mut feedlane_error,
            ) -> i32,
        >,
        pub load: Option<
            unsafe extern "C" fn(
                this: *mut c_void,
                buffer: *const c_void,
                bytes: u64,
                err: *mut feedlane_error,
            ) -> i32,
        >,
        pub substitute: feedlane_dataset_substitute_fn,
    }

    /// The configuration of a loader: its data, its workers, and how it handles failures.
    pub struct feedlane_loader_config {
        pub size: usize,
        pub sampler: *const feedlane_sampler,
        pub dataset: *const feedlane_dataset,
        pub fields: *const feedlane_field,
        pub field_count: u64,
        pub batch_size: i64,
        pub iterable_length: i64,
        pub drop_last: i32,
        pub iterable: i32,
        pub deterministic: i32,
        pub out_of_order: i32,
        pub seed: u64,
        pub state: *const c_void,
        pub state_bytes: u64,
        pub has_seed: i32,
        pub reserved: i32,
        pub workers: i32,
        pub start: i32,
        pub prefetch_factor: i32,
        pub dispatch: i32,
        pub keep_workers: i32,
        pub no_lifeline: i32,
        pub argv: *const *const c_char,
        pub envp: *const *const c_char,
        pub worker_config: *const c_void,
        pub worker_config_bytes: u64,
        pub start_timeout_ns: i64,
        pub stop_timeout_ns: i64,
        pub term_timeout_ns: i64,
        pub task_timeout_ns: i64,
        pub max_restarts: i32,
        pub max_kills_per_batch: i32,
        pub retries: i32,
        pub substitute: i32,
        pub retry_backoff_ns: i64,
        pub skip_budget: i64,
        pub slot_bytes: u64,
        pub arena_bytes: u64,
        pub pinned: *mut feedlane_pool,
        pub held: i32,
        pub staged: i32,
        pub name: *const c_char,
        pub trace: u64,
        pub world: i32,
        pub rank: i32,
        pub max_batches: i64,
        pub share: i32,
        pub consumers: i32,
        pub share_path: *const c_char,
        pub share_tail: i32,
        pub share_reserved: i32,
        pub worker_cpus: *const c_char,
        pub memory_nodes: *const c_char,
    }

    /// A batch that the trainer holds.
    pub struct feedlane_batch {
        pub size: usize,
        pub token: u64,
        pub epoch: i64,
        pub batch: i64,
        pub worker: i32,
        pub attempt: i32,
        pub tensors: *const feedlane_tensor,
        pub tensor_count: u64,
        pub indices: *const i64,
        pub count: u64,
        pub skipped: *const i64,
        pub skipped_count: u64,
        pub metadata: *const c_void,
        pub metadata_bytes: u64,
        pub dispatched_ns: u64,
        pub begun_ns: u64,
        pub committed_ns: u64,
        pub swept_ns: u64,
        pub yielded_ns: u64,
        pub exposed_ns: u64,
        pub missed: u64,
    }

    /// The contents of a state.
    pub struct feedlane_state_info {
        pub size: usize,
        pub epoch: i64,
        pub batch: i64,
        pub samples: i64,
        pub base_seed: u64,
        pub ended: i32,
        pub iterable: i32,
    }
}
