// SPDX-License-Identifier: Apache-2.0
//! Events of a loader.
use crate::error::Error;
use crate::sys;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Warning,
    WorkerDied,
    /// A replacement of a dead worker was started.
    WorkerStarted,
    /// External: a worker is missing, call [`Loader::open_worker`](crate::Loader::open_worker).
    WorkerWanted,
    Quarantined,
    Invalid,
    SampleRetried,
    SampleSubstituted,
    SampleSkipped,
    WorkerHung,
    /// A stream failed while the release of a batch on it was pending.
    DeviceFailed,
    /// A consumer has left or ended.
    ConsumerLeft,
    /// The feeder waits for a consumer.
    ConsumerLags,
    ConsumerEvicted,
    /// An event of a later library.
    Other(i32),
}

impl EventKind {
    pub(crate) fn of(kind: i32) -> Self {
        match kind {
            sys::FEEDLANE_EVENT_WARNING => EventKind::Warning,
            sys::FEEDLANE_EVENT_WORKER_DIED => EventKind::WorkerDied,
            sys::FEEDLANE_EVENT_WORKER_STARTED => EventKind::WorkerStarted,
            sys::FEEDLANE_EVENT_WORKER_WANTED => EventKind::WorkerWanted,
            sys::FEEDLANE_EVENT_QUARANTINED => EventKind::Quarantined,
            sys::FEEDLANE_EVENT_INVALID => EventKind::Invalid,
            sys::FEEDLANE_EVENT_SAMPLE_RETRIED => EventKind::SampleRetried,
            sys::FEEDLANE_EVENT_SAMPLE_SUBSTITUTED => EventKind::SampleSubstituted,
            sys::FEEDLANE_EVENT_SAMPLE_SKIPPED => EventKind::SampleSkipped,
            sys::FEEDLANE_EVENT_WORKER_HUNG => EventKind::WorkerHung,
            sys::FEEDLANE_EVENT_DEVICE_FAILED => EventKind::DeviceFailed,
            sys::FEEDLANE_EVENT_CONSUMER_LEFT => EventKind::ConsumerLeft,
            sys::FEEDLANE_EVENT_CONSUMER_LAGS => EventKind::ConsumerLags,
            sys::FEEDLANE_EVENT_CONSUMER_EVICTED => EventKind::ConsumerEvicted,
            other => EventKind::Other(other),
        }
    }
}

/// Something that happened in a loader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Earlier events that were overwritten.
    pub lost: u64,
    /// Worker, batch, sample and description. `status` is 0 if nothing failed.
    pub what: Error,
}

impl Event {
    pub(crate) fn from_c(raw: &sys::feedlane_event) -> Self {
        let what = Error::from_c(raw.what.code, &raw.what, &[]);
        Event { kind: EventKind::of(raw.kind), time_ns: raw.time_ns, lost: raw.lost, what }
    }
}
