// SPDX-License-Identifier: Apache-2.0
//! The constants of `feedlane.h`.
use std::ffi::c_void;

pub const FEEDLANE_VERSION_MAJOR: u32 = 0;
pub const FEEDLANE_VERSION_MINOR: u32 = 1;
pub const FEEDLANE_VERSION_PATCH: u32 = 0;
pub const FEEDLANE_VERSION: u32 = 100;
pub const FEEDLANE_ABI: u32 = 1;
pub const FEEDLANE_FOREVER: i64 = i64::MAX;
pub const FEEDLANE_MAX_NDIM: usize = 8;
pub const FEEDLANE_MAX_TENSORS: usize = 64;
pub const FEEDLANE_MAX_RECORDED_STREAMS: usize = 4;
pub const FEEDLANE_HISTOGRAM_BUCKETS: usize = 47;

// Statuses. 0: done; above 0: another normal outcome; below 0: an error.
pub const FEEDLANE_OK: i32 = 0;
pub const FEEDLANE_END: i32 = 1;
pub const FEEDLANE_TIMEOUT: i32 = 2;
pub const FEEDLANE_AGAIN: i32 = 3;
pub const FEEDLANE_INTERRUPTED: i32 = 4;
pub const FEEDLANE_SLOTS_HELD: i32 = 5;
pub const FEEDLANE_ABANDONED: i32 = 6;
pub const FEEDLANE_E_ARGUMENT: i32 = -1;
pub const FEEDLANE_E_STATE: i32 = -2;
pub const FEEDLANE_E_BUSY: i32 = -3;
pub const FEEDLANE_E_FORKED: i32 = -4;
pub const FEEDLANE_E_STALE: i32 = -5;
pub const FEEDLANE_E_MEMORY: i32 = -6;
pub const FEEDLANE_E_LIMIT: i32 = -7;
pub const FEEDLANE_E_OS: i32 = -8;
pub const FEEDLANE_E_ABI: i32 = -9;
pub const FEEDLANE_E_CORRUPT: i32 = -10;
pub const FEEDLANE_E_PEER_DEAD: i32 = -11;
pub const FEEDLANE_E_SAMPLE: i32 = -12;
pub const FEEDLANE_E_INIT: i32 = -13;
pub const FEEDLANE_E_HUNG: i32 = -14;
pub const FEEDLANE_E_QUARANTINED: i32 = -15;
pub const FEEDLANE_E_RESTARTS: i32 = -16;
pub const FEEDLANE_E_DEVICE: i32 = -17;
pub const FEEDLANE_E_UNSUPPORTED: i32 = -18;

// The kind of a sampler.
pub const FEEDLANE_SAMPLER_SEQUENTIAL: i32 = 0;
pub const FEEDLANE_SAMPLER_RANDOM: i32 = 1;
pub const FEEDLANE_SAMPLER_SUBSET: i32 = 2;
pub const FEEDLANE_SAMPLER_WEIGHTED: i32 = 3;
pub const FEEDLANE_SAMPLER_BATCH: i32 = 4;
pub const FEEDLANE_SAMPLER_DISTRIBUTED: i32 = 5;
pub const FEEDLANE_SAMPLER_TOKENS: i32 = 6;
pub const FEEDLANE_SAMPLER_MIXTURE: i32 = 7;
pub const FEEDLANE_SAMPLER_CUSTOM: i32 = 8;

// How a sampler shuffles.
pub const FEEDLANE_SHUFFLE_TORCH: i32 = 0;
pub const FEEDLANE_SHUFFLE_FEISTEL: i32 = 1;
pub const FEEDLANE_SHUFFLE_TORCH_LOADER: i32 = 2;

// The outcome of a sample that failed.
pub const FEEDLANE_SAMPLE_RETRIED: i32 = 1;
pub const FEEDLANE_SAMPLE_SUBSTITUTED: i32 = 2;
pub const FEEDLANE_SAMPLE_SKIPPED: i32 = 3;

// What `feedlane_task_store` stores.
pub const FEEDLANE_STORE_METADATA: i32 = 0;
pub const FEEDLANE_STORE_STATE: i32 = 1;

/// For `feedlane_task_commit`: the shard has no more samples in this epoch.
pub const FEEDLANE_EXHAUSTED: u64 = u64::MAX;

// Values of a loader's configuration.
pub const FEEDLANE_UNBATCHED: i64 = -1;
pub const FEEDLANE_PREFETCH_AUTO: i32 = -1;
pub const FEEDLANE_DISPATCH_LEAST_LOADED: i32 = 0;
pub const FEEDLANE_DISPATCH_ROUND_ROBIN: i32 = 1;
pub const FEEDLANE_SHARE_NONE: i32 = 0;
pub const FEEDLANE_SHARE_EVERY: i32 = 1;
pub const FEEDLANE_SHARE_DEAL: i32 = 2;
pub const FEEDLANE_START_SPAWN: i32 = 0;
pub const FEEDLANE_START_FORK: i32 = 1;
pub const FEEDLANE_START_THREAD: i32 = 2;
pub const FEEDLANE_START_EXTERNAL: i32 = 3;

pub const FEEDLANE_DLPACK_CUDA_HOST: i32 = 1;
pub const FEEDLANE_DLPACK_LEGACY: i32 = 2;

/// For `feedlane_pool_release`: the buffer is free at once.
pub const FEEDLANE_NO_STREAM: *mut c_void = usize::MAX as *mut c_void;

/// For `feedlane_monitor_get_trace`: the batches in the slots.
pub const FEEDLANE_SLOTS: u64 = u64::MAX;

// A worker's state.
pub const FEEDLANE_WORKER_NONE: i32 = 0;
pub const FEEDLANE_WORKER_STARTING: i32 = 1;
pub const FEEDLANE_WORKER_OPENING: i32 = 2;
pub const FEEDLANE_WORKER_READY: i32 = 3;
pub const FEEDLANE_WORKER_STOPPING: i32 = 4;
pub const FEEDLANE_WORKER_FAILED: i32 = 5;

// Kinds of events.
pub const FEEDLANE_EVENT_WARNING: i32 = 1;
pub const FEEDLANE_EVENT_WORKER_DIED: i32 = 2;
pub const FEEDLANE_EVENT_WORKER_STARTED: i32 = 3;
pub const FEEDLANE_EVENT_WORKER_WANTED: i32 = 4;
pub const FEEDLANE_EVENT_QUARANTINED: i32 = 5;
pub const FEEDLANE_EVENT_INVALID: i32 = 6;
pub const FEEDLANE_EVENT_SAMPLE_RETRIED: i32 = 7;
pub const FEEDLANE_EVENT_SAMPLE_SUBSTITUTED: i32 = 8;
pub const FEEDLANE_EVENT_SAMPLE_SKIPPED: i32 = 9;
pub const FEEDLANE_EVENT_WORKER_HUNG: i32 = 10;
pub const FEEDLANE_EVENT_DEVICE_FAILED: i32 = 11;
pub const FEEDLANE_EVENT_CONSUMER_LEFT: i32 = 12;
pub const FEEDLANE_EVENT_CONSUMER_LAGS: i32 = 13;
pub const FEEDLANE_EVENT_CONSUMER_EVICTED: i32 = 14;

// How a feeder acts when it has no free slot because of a consumer.
pub const FEEDLANE_LAG_BLOCK: i32 = 0;
pub const FEEDLANE_LAG_EVICT: i32 = 1;
pub const FEEDLANE_LAG_OBSERVE: i32 = 2;

// A consumer's state.
pub const FEEDLANE_CONSUMER_NONE: i32 = 0;
pub const FEEDLANE_CONSUMER_OFFERED: i32 = 1;
pub const FEEDLANE_CONSUMER_ATTACHED: i32 = 2;
pub const FEEDLANE_CONSUMER_EVICTED: i32 = 3;
pub const FEEDLANE_CONSUMER_LEFT: i32 = 4;

// The bottleneck of a run.
pub const FEEDLANE_BOUND_NOTHING: i32 = 0;
pub const FEEDLANE_BOUND_TRAINER: i32 = 1;
pub const FEEDLANE_BOUND_DATA: i32 = 2;
pub const FEEDLANE_BOUND_WORKER: i32 = 3;
pub const FEEDLANE_BOUND_SLOTS: i32 = 4;
pub const FEEDLANE_BOUND_STARTING: i32 = 5;
pub const FEEDLANE_BOUND_PROCESSORS: i32 = 6;
