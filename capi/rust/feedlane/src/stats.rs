// SPDX-License-Identifier: Apache-2.0
//! The counters of a loader and of its workers.
use crate::error::{not_negative, text_of};
use crate::sys;

macro_rules! counters {
    ($(#[$about:meta])* $name:ident, $raw:ident { $($(#[$what:meta])* $field:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$what])* pub $field: u64,)* pub rank_source: String }

        impl $name {
            pub(crate) fn from_c(raw: &sys::$raw) -> Self {
                $name { $($field: raw.$field,)* rank_source: text_of(&raw.rank_source) }
            }
        }
    };
}

counters! {
    /// Totals over a loader's life, and its current state. `rank_source` is the source of a distributed sampler's rank.
    Stats, feedlane_stats {
        batches, samples, bytes, epochs,
        /// Time in `next` without a batch to yield.
        wait_ns,
        /// Part of `wait_ns` that was spent waiting for the first batch of each epoch.
        start_wait_ns,
        /// Workers that replaced a dead one.
        restarts,
        /// This and the next four are parts of `restarts`. The replaced worker was killed by a signal; exited by
        /// itself; exceeded a deadline; sent invalid data; ended before it attached.
        restarts_signal, restarts_exit, restarts_hung, restarts_invalid, restarts_unattached,
        /// Tasks sent out again.
        redispatched,
        quarantined, invalid_results, late_results, slots, slots_free, slots_held, control_bytes, data_bytes,
        reserved_bytes, retried, substituted, skipped, hung,
        /// Part of `data_bytes` that is in huge pages.
        huge_bytes,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// Does not exist, or has ended.
    None,
    /// Started or offered, but not attached yet.
    Starting,
    /// Attached, and opening its data set.
    Opening,
    /// Accepts tasks.
    Ready,
    Stopping,
    /// Its data set could not be opened.
    Failed,
    /// A state of a later library.
    Other(i32),
}

/// One worker. Its replacements add to the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStats {
    /// `None`: unknown.
    pub pid: Option<i64>,
    pub state: WorkerState,
    /// 0, and one more for each replacement.
    pub generation: i32,
    pub tasks: u64,
    pub samples: u64,
    pub bytes: u64,
    pub errors: u64,
    pub work_ns: u64,
    pub wait_ns: u64,
    /// When it entered this state, CLOCK_MONOTONIC.
    pub state_since_ns: u64,
    /// When it got its current task. `None`: it has no task.
    pub task_since_ns: Option<u64>,
    /// The epoch of the current task. `batch` is its batch.
    pub epoch: Option<i64>,
    pub batch: Option<i64>,
    /// The row of this batch that is in progress.
    pub row: Option<i64>,
}

impl WorkerStats {
    pub(crate) fn from_c(raw: &sys::feedlane_worker_stats) -> Self {
        WorkerStats {
            pid: Some(raw.pid).filter(|pid| *pid > 0),
            state: match raw.state {
                sys::FEEDLANE_WORKER_NONE => WorkerState::None,
                sys::FEEDLANE_WORKER_STARTING => WorkerState::Starting,
                sys::FEEDLANE_WORKER_OPENING => WorkerState::Opening,
                sys::FEEDLANE_WORKER_READY => WorkerState::Ready,
                sys::FEEDLANE_WORKER_STOPPING => WorkerState::Stopping,
                sys::FEEDLANE_WORKER_FAILED => WorkerState::Failed,
                other => WorkerState::Other(other),
            },
            generation: raw.generation,
            tasks: raw.tasks,
            samples: raw.samples,
            bytes: raw.bytes,
            errors: raw.errors,
            work_ns: raw.work_ns,
            wait_ns: raw.wait_ns,
            state_since_ns: raw.state_since_ns,
            task_since_ns: Some(raw.task_since_ns).filter(|ns| *ns != 0),
            epoch: not_negative(raw.epoch),
            batch: not_negative(raw.batch),
            row: not_negative(raw.row),
        }
    }
}
