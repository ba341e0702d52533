// SPDX-License-Identifier: Apache-2.0
//! What any thread may do with a loader while another one is in it: interrupt, watch, work.
use std::ptr::NonNull;
use std::sync::{Arc, RwLock};

use crate::error::{call, check_abi, plain, text_of, Error, Status};
use crate::pool::Pool;
use crate::stager::Gate;
use crate::sys;
use crate::worker::Worker;

/// What there is of a loader as long as there is one.
#[derive(Clone)]
pub(crate) struct Live {
    pub raw: NonNull<sys::feedlane_loader>,
    pub pool: Option<Arc<Pool>>,
    /// Staged, with workers: it takes a thread that copies.
    pub is_copied: bool,
}

// SAFETY: only functions for any thread are called through it.
unsafe impl Send for Live {}
// SAFETY: as above.
unsafe impl Sync for Live {}

/// The lock is for the loader's end alone: who is in a call holds it shared. A stager is in its call all the time, and
/// must be there by the end: see `Gate`.
pub(crate) struct Shared {
    live: RwLock<Option<Live>>,
    pub gate: Gate,
}

impl Shared {
    pub(crate) fn new(live: Live) -> Arc<Self> {
        Arc::new(Shared { live: RwLock::new(Some(live)), gate: Gate::default() })
    }

    /// From here on nobody gets at the handle any more, and nobody is in a call with it but a stager, which the library
    /// knows of.
    pub(crate) fn close(&self) {
        *self.live.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
        self.gate.wait_until_there();
    }
}

/// A loader as other threads see it. It doesn't keep the loader: after its end every call says E_STATE.
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Handle { shared }
    }

    pub(crate) fn with_live<R>(&self, f: impl FnOnce(&Live) -> Result<R, Error>) -> Result<R, Error> {
        let guard = self.shared.live.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        match &*guard {
            Some(live) => f(live),
            None => Err(Error::new(Status::STATE, "loader", 0, 0, "the loader has ended".into())),
        }
    }

    fn with<R>(&self, f: impl FnOnce(*mut sys::feedlane_loader) -> Result<R, Error>) -> Result<R, Error> {
        self.with_live(|live| f(live.raw.as_ptr()))
    }

    /// Ends the present wait in `next`, or the following one, with INTERRUPTED. (Not for signal handlers: it takes a lock.)
    pub fn interrupt(&self) -> Result<(), Error> {
        // SAFETY: the handle lives as long as the lock is held; any thread.
        self.with(|loader| plain(unsafe { sys::feedlane_loader_interrupt(loader) }).map(drop))
    }

    pub fn stats(&self) -> Result<Stats, Error> {
        self.with(|loader| {
            let mut out = sys::feedlane_stats::new();
            // SAFETY: as above.
            plain(unsafe { sys::feedlane_loader_get_stats(loader, &mut out) })?;
            Ok(Stats::from_c(&out))
        })
    }

    /// Every worker, by its id.
    pub fn workers(&self) -> Result<Vec<WorkerStats>, Error> {
        // SAFETY: as above.
        self.with(|loader| all_workers(|id, out| unsafe { sys::feedlane_loader_get_worker_stats(loader, id, out) }))
    }

    /// The oldest event that nobody has read; none: there is none.
    pub fn event(&self) -> Result<Option<Event>, Error> {
        self.with(|loader| {
            let mut out = sys::feedlane_event::new();
            // SAFETY: as above.
            let status = plain(unsafe { sys::feedlane_loader_event(loader, &mut out) })?;
            Ok(Some(out).filter(|_| status == Status::OK).map(|raw| Event::from_c(&raw)))
        })
    }

    /// Thread mode: makes the calling thread a worker. None: none is missing. The loader's memory lives until it leaves.
    pub fn local_worker(&self) -> Result<Option<Worker>, Error> {
        check_abi()?;
        self.with_live(|live| {
            let mut raw = std::ptr::null_mut();
            // SAFETY: as above.
            call(|err| unsafe { sys::feedlane_loader_local_worker(live.raw.as_ptr(), &mut raw, err) })?;
            // SAFETY: a handle that is nobody else's, or NULL.
            Ok(NonNull::new(raw).map(|raw| unsafe { Worker::new(raw, live.pool.clone()) }))
        })
    }
}

pub(crate) fn all_workers(
    read: impl Fn(i32, *mut sys::feedlane_worker_stats) -> i32,
) -> Result<Vec<WorkerStats>, Error> {
    let mut all = Vec::new();
    loop {
        let mut out = sys::feedlane_worker_stats::new();
        if plain(read(all.len() as i32, &mut out))? != Status::OK {
            return Ok(all);
        }
        all.push(WorkerStats::from_c(&out));
    }
}

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
    /// Totals over a loader's life, then its state now; `rank_source` is a distributed sampler's.
    Stats, feedlane_stats {
        batches, samples, bytes, epochs,
        /// Time spent asleep in `next`.
        wait_ns,
        /// Workers that took the place of one that died.
        restarts,
        /// Tasks sent out again.
        redispatched,
        quarantined, invalid_results, late_results, slots, slots_free, slots_held, control_bytes, data_bytes,
        reserved_bytes, retried, substituted, skipped, hung,
        /// Of `data_bytes`, in huge pages.
        huge_bytes,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// Not there, or ended.
    None,
    /// Started or offered, not attached.
    Starting,
    /// Attached, setting up its data set.
    Opening,
    /// Takes tasks.
    Ready,
    Stopping,
    /// Its data set could not be opened.
    Failed,
    /// Of a later library.
    Other(i32),
}

/// One worker; its counters add up over its replacements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerStats {
    /// None: not known.
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
}

impl WorkerStats {
    fn from_c(raw: &sys::feedlane_worker_stats) -> Self {
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
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Warning,
    WorkerDied,
    /// A replacement of a dead one.
    WorkerStarted,
    /// External: [`Loader::open_worker`](crate::Loader::open_worker) has one to give.
    WorkerWanted,
    Quarantined,
    Invalid,
    SampleRetried,
    SampleSubstituted,
    SampleSkipped,
    WorkerHung,
    /// A stream failed with a release of a batch on it.
    DeviceFailed,
    /// Of a later library.
    Other(i32),
}

/// What must be told without being asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Events before this one that were overwritten.
    pub lost: u64,
    /// Who, where and in words; `status` 0 where nothing failed.
    pub what: Error,
}

impl Event {
    fn from_c(raw: &sys::feedlane_event) -> Self {
        let kind = match raw.kind {
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
            other => EventKind::Other(other),
        };
        let what = Error::from_c(raw.what.code, &raw.what, &[]);
        Event { kind, time_ns: raw.time_ns, lost: raw.lost, what }
    }
}
