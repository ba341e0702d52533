// SPDX-License-Identifier: Apache-2.0
//! The speed of a run: stamps, timings, the trace, distinct errors, and the bottleneck. All times are CLOCK_MONOTONIC
//! in nanoseconds.
use crate::error::{not_negative, text_of, Status};
use crate::event::EventKind;
use crate::sys;

/// When each step of a batch happened. The stamps of a batch never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// When the batch was sent to its worker.
    pub dispatched_ns: u64,
    /// When the worker began it.
    pub begun_ns: u64,
    /// When the worker committed it.
    pub committed_ns: u64,
    /// When the trainer read the result.
    pub swept_ns: u64,
    /// When `next` yielded it.
    pub yielded_ns: u64,
    /// A duration: how long `next` waited for the batch; 0: it was ready.
    pub exposed_ns: u64,
}

impl Stamps {
    pub(crate) fn of_batch(raw: &sys::feedlane_batch) -> Self {
        Stamps {
            dispatched_ns: raw.dispatched_ns,
            begun_ns: raw.begun_ns,
            committed_ns: raw.committed_ns,
            swept_ns: raw.swept_ns,
            yielded_ns: raw.yielded_ns,
            exposed_ns: raw.exposed_ns,
        }
    }
}

/// Facts about a loader, and its position in the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderInfo {
    /// Of the trainer, in the trainer's PID namespace.
    pub pid: i64,
    pub created_ns: u64,
    /// `sys::FEEDLANE_START_*`.
    pub start: i32,
    /// 0: inline.
    pub workers: i32,
    pub prefetch_factor: i32,
    pub held: i32,
    pub batch_size: i64,
    /// 0: none.
    pub task_timeout_ns: i64,
    pub iterable: bool,
    pub in_epoch: bool,
    /// The newest epoch. `None`: none has begun.
    pub epoch: Option<i64>,
    /// The number of the batch after the newest one yielded.
    pub batch: i64,
    /// Batches in the epoch. `None`: unknown.
    pub batches: Option<i64>,
    /// When the epoch began; 0: none has begun.
    pub begun_ns: u64,
    /// When the newest batch was yielded; 0: none was yielded.
    pub yielded_ns: u64,
    /// When the current wait for a batch began; 0: `next` is not waiting now.
    pub waiting_since_ns: u64,
    /// Records that the trace keeps; 0: off.
    pub trace: u64,
    pub name: String,
    pub version: String,
    /// On a consumer, the smallest epoch that [`Loader::begin`](crate::Loader::begin) accepts. Before the first `begin`
    /// this is the feeder's epoch at the time of the join, afterwards one more than the last epoch begun here.
    pub next_epoch: Option<i64>,
}

impl LoaderInfo {
    pub(crate) fn from_c(raw: &sys::feedlane_loader_info) -> Self {
        LoaderInfo {
            pid: raw.pid,
            created_ns: raw.created_ns,
            start: raw.start,
            workers: raw.workers,
            prefetch_factor: raw.prefetch_factor,
            held: raw.held,
            batch_size: raw.batch_size,
            task_timeout_ns: raw.task_timeout_ns,
            iterable: raw.iterable != 0,
            in_epoch: raw.in_epoch != 0,
            epoch: not_negative(raw.epoch),
            batch: raw.batch,
            batches: not_negative(raw.batches),
            begun_ns: raw.begun_ns,
            yielded_ns: raw.yielded_ns,
            waiting_since_ns: raw.waiting_since_ns,
            trace: raw.trace,
            name: text_of(&raw.name),
            version: text_of(&raw.version),
            next_epoch: not_negative(raw.next_epoch),
        }
    }
}

/// A histogram of durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The sum of all buckets.
    pub count: u64,
    /// The sum of all durations.
    pub sum_ns: u64,
    /// Bucket 0 counts durations of 0 ns, bucket b durations of 2^(b-1) to 2^b - 1 ns, the last bucket all longer
    /// durations.
    pub buckets: [u64; sys::FEEDLANE_HISTOGRAM_BUCKETS],
    /// The median, to within an eighth of the exact value; 0: there are no durations.
    pub p50_ns: u64,
    /// 90 % lasted no longer, to within an eighth.
    pub p90_ns: u64,
    /// 99 % lasted no longer, to within an eighth.
    pub p99_ns: u64,
}

impl Histogram {
    fn from_c(raw: &sys::feedlane_histogram, at: &sys::feedlane_percentiles) -> Self {
        Histogram {
            count: raw.count,
            sum_ns: raw.sum_ns,
            buckets: raw.buckets,
            p50_ns: at.p50_ns,
            p90_ns: at.p90_ns,
            p99_ns: at.p99_ns,
        }
    }
}

/// Durations of the steps of batches, over the loader's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// How long `next` waited for the batch, without the first batch of each epoch.
    pub exposed: Histogram,
    /// As `exposed`, for the first batch of each epoch.
    pub start: Histogram,
    /// From the batch's dispatch to a worker until the worker began it.
    pub queue: Histogram,
    /// From then until the worker committed the batch.
    pub work: Histogram,
    /// From then until `next` yielded the batch.
    pub ready: Histogram,
    /// From then until the slot was free; counted when the slot is reused or the epoch ends.
    pub hold: Histogram,
}

impl Timings {
    pub(crate) fn from_c(raw: &sys::feedlane_timings) -> Self {
        Timings {
            exposed: Histogram::from_c(&raw.exposed, &raw.exposed_percentiles),
            start: Histogram::from_c(&raw.start, &raw.start_percentiles),
            queue: Histogram::from_c(&raw.queue, &raw.queue_percentiles),
            work: Histogram::from_c(&raw.work, &raw.work_percentiles),
            ready: Histogram::from_c(&raw.ready, &raw.ready_percentiles),
            hold: Histogram::from_c(&raw.hold, &raw.hold_percentiles),
        }
    }
}

/// One batch of the trace, or in a slot. A stamp of 0: the step has not happened yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRecord {
    /// Number of the record in the trace, from 1; 0: read from a slot.
    pub sequence: u64,
    /// Unique in the loader, also among attempts; 0: the slot has not been used yet or is being reused.
    pub task: u64,
    pub epoch: i64,
    pub batch: i64,
    /// `None`: made inline.
    pub worker: Option<i32>,
    pub attempt: i32,
    pub slot: i32,
    /// OK, or the error that `next` returned for the batch.
    pub status: Status,
    pub rows: u64,
    pub bytes: u64,
    pub stamps: Stamps,
    /// When the slot became free.
    pub released_ns: u64,
}

impl BatchRecord {
    pub(crate) fn from_c(raw: &sys::feedlane_batch_record) -> Self {
        BatchRecord {
            sequence: raw.sequence,
            task: raw.task,
            epoch: raw.epoch,
            batch: raw.batch,
            worker: not_negative(raw.worker),
            attempt: raw.attempt,
            slot: raw.slot,
            status: Status(raw.status),
            rows: raw.rows,
            bytes: raw.bytes,
            stamps: Stamps {
                dispatched_ns: raw.dispatched_ns,
                begun_ns: raw.begun_ns,
                committed_ns: raw.committed_ns,
                swept_ns: raw.swept_ns,
                yielded_ns: raw.yielded_ns,
                exposed_ns: raw.exposed_ns,
            },
            released_ns: raw.released_ns,
        }
    }
}

/// Errors or events of one kind whose texts differ only in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorRecord {
    /// `None`: an error that `next` returned.
    pub kind: Option<EventKind>,
    /// An error of the library, or the result of the data set's callback; 0: nothing failed.
    pub code: i32,
    /// Worker, batch and sample of the newest occurrence, or `None`.
    pub worker: Option<i32>,
    pub batch: Option<i64>,
    pub sample: Option<i64>,
    pub count: u64,
    pub first_ns: u64,
    pub last_ns: u64,
    /// The beginning of the newest occurrence's text.
    pub text: String,
}

impl ErrorRecord {
    pub(crate) fn from_c(raw: &sys::feedlane_error_record) -> Self {
        ErrorRecord {
            kind: Some(raw.kind).filter(|k| *k != 0).map(EventKind::of),
            code: raw.code,
            worker: not_negative(raw.worker),
            batch: not_negative(raw.batch),
            sample: not_negative(raw.sample),
            count: raw.count,
            first_ns: raw.first_ns,
            last_ns: raw.last_ns,
            text: text_of(&raw.text),
        }
    }
}

/// The bottleneck of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Unknown: no epoch is in progress, or too little has happened.
    Nothing,
    /// The trainer: batches were ready when it requested them.
    Trainer,
    /// The data set: workers were busy, and the trainer waited.
    Data,
    /// One worker, which is slow, stopped or stuck.
    Worker,
    /// Memory: the trainer holds the slots that workers would need.
    Slots,
    /// Start: workers are starting or opening their data sets.
    Starting,
    /// Processors: processes that were ready to run did not run, or workers idled while the trainer waited.
    Processors,
    /// A bottleneck of a later library.
    Other(i32),
}

/// The bottleneck of a run in an interval, with figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    pub bound: Bound,
    /// With [`Bound::Worker`]: the worker's id.
    pub worker: Option<i32>,
    /// Length of the interval, to which the fields that follow refer.
    pub interval_ns: u64,
    pub batches: u64,
    pub samples: u64,
    pub bytes: u64,
    /// Time that `next` waited.
    pub exposed_ns: u64,
    /// Part of `exposed_ns` that was spent waiting for the first batch of an epoch.
    pub start_ns: u64,
    /// Time with a task in hand, summed over all workers.
    pub busy_ns: u64,
    /// Batches that were ready when `next` was called, without the first batch of each epoch.
    pub ready: u64,
    /// All batches requested, without the first batch of each epoch.
    pub asked: u64,
    /// The bottleneck in one or two sentences.
    pub text: String,
    /// Suggested change, or empty.
    pub advice: String,
}

impl Diagnosis {
    pub(crate) fn from_c(raw: &sys::feedlane_diagnosis) -> Self {
        Diagnosis {
            bound: match raw.bound {
                sys::FEEDLANE_BOUND_NOTHING => Bound::Nothing,
                sys::FEEDLANE_BOUND_TRAINER => Bound::Trainer,
                sys::FEEDLANE_BOUND_DATA => Bound::Data,
                sys::FEEDLANE_BOUND_WORKER => Bound::Worker,
                sys::FEEDLANE_BOUND_SLOTS => Bound::Slots,
                sys::FEEDLANE_BOUND_STARTING => Bound::Starting,
                sys::FEEDLANE_BOUND_PROCESSORS => Bound::Processors,
                other => Bound::Other(other),
            },
            worker: not_negative(raw.worker),
            interval_ns: raw.interval_ns,
            batches: raw.batches,
            samples: raw.samples,
            bytes: raw.bytes,
            exposed_ns: raw.exposed_ns,
            start_ns: raw.start_ns,
            busy_ns: raw.busy_ns,
            ready: raw.ready,
            asked: raw.asked,
            text: text_of(&raw.text),
            advice: text_of(&raw.advice),
        }
    }
}
