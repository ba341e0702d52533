// SPDX-License-Identifier: Apache-2.0
//! What any thread may do with a loader while another one is in it: interrupt, close, watch, work.
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{call, check_abi, only_ok, plain, text_of, Error, Status};
use crate::observe::{self, BatchRecord, Diagnosis, ErrorRecord, LoaderInfo, Timings};
use crate::pool::Pool;
use crate::sys;
use crate::worker::Worker;

/// A loader as other threads see it: one of its references. It keeps neither workers nor batches: after the loader's end
/// every call says E_STATE.
pub struct Handle {
    raw: NonNull<sys::feedlane_loader>,
    /// Which the loader's memory is registered with. After the rest: the pool ends after its loaders.
    pool: Option<Arc<Pool>>,
}

// SAFETY: only functions for any thread are called through it, and its reference keeps what they use. A data set and a
// sampler that end with the last reference are Send.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Clone for Handle {
    fn clone(&self) -> Self {
        // SAFETY: a handle of which this is one reference. In a forked child it refuses, as it refuses to take it back.
        unsafe { Handle::of(self.raw, self.pool.clone()) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this one's own reference, given back this once; it never waits.
        unsafe { sys::feedlane_loader_unref(self.raw.as_ptr()) };
    }
}

/// An outcome without words of the library's.
pub(crate) fn spoken(status: i32) -> Result<Status, Error> {
    plain(status).map_err(|error| match error.status {
        Status::STATE => Error::new(Status::STATE, "loader", 0, 0, "the loader has ended".into()),
        _ => error,
    })
}

impl Handle {
    /// Another reference.
    ///
    /// # Safety
    /// The caller has a reference to `raw`, which was made with this pool.
    pub(crate) unsafe fn of(raw: NonNull<sys::feedlane_loader>, pool: Option<Arc<Pool>>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { sys::feedlane_loader_ref(raw.as_ptr()) };
        Handle { raw, pool }
    }

    fn as_ptr(&self) -> *mut sys::feedlane_loader {
        self.raw.as_ptr()
    }

    /// Ends the present wait in `next`, or the following one, with INTERRUPTED.
    pub fn interrupt(&self) -> Result<(), Error> {
        // SAFETY: this reference keeps the loader; any thread. So in all calls here.
        spoken(unsafe { sys::feedlane_loader_interrupt(self.as_ptr()) }).map(drop)
    }

    /// Ends the loader without waiting: the present call and all later ones say E_STATE, and the workers are asked to
    /// end. Batches that are held stay as they are.
    pub fn close(&self) -> Result<(), Error> {
        // SAFETY: as above.
        spoken(unsafe { sys::feedlane_loader_close(self.as_ptr()) }).map(drop)
    }

    pub fn stats(&self) -> Result<Stats, Error> {
        let mut out = sys::feedlane_stats::new();
        // SAFETY: as above; a struct of ours to fill in.
        spoken(unsafe { sys::feedlane_loader_get_stats(self.as_ptr(), &mut out) })?;
        Ok(Stats::from_c(&out))
    }

    /// Every worker, by its id.
    pub fn workers(&self) -> Result<Vec<WorkerStats>, Error> {
        // SAFETY: as above.
        all_workers(|id, out| unsafe { sys::feedlane_loader_get_worker_stats(self.as_ptr(), id, out) })
    }

    /// The oldest event that nobody has read; none: there is none.
    pub fn event(&self) -> Result<Option<Event>, Error> {
        let mut out = sys::feedlane_event::new();
        // SAFETY: as above.
        let status = spoken(unsafe { sys::feedlane_loader_event(self.as_ptr(), &mut out) })?;
        Ok(Some(out).filter(|_| status == Status::OK).map(|raw| Event::from_c(&raw)))
    }

    /// What the loader is, and where its epoch is.
    pub fn info(&self) -> Result<LoaderInfo, Error> {
        // SAFETY: as above.
        observe::info(|out| unsafe { sys::feedlane_loader_get_info(self.as_ptr(), out) })
    }

    /// How long the steps of batches took: of those that one worker made, or of all. None: there are fewer workers.
    pub fn timings(&self, worker: Option<i32>) -> Result<Option<Timings>, Error> {
        let worker = worker.unwrap_or(-1);
        // SAFETY: as above.
        observe::timings(|out| unsafe { sys::feedlane_loader_get_timings(self.as_ptr(), worker, out) })
    }

    /// The batch in each slot, or the last one that was there.
    pub fn slots(&self) -> Result<Vec<BatchRecord>, Error> {
        // SAFETY: as above.
        observe::slots(|slot, out| unsafe { sys::feedlane_loader_get_slot(self.as_ptr(), slot, out) })
    }

    /// Records of the trace with a sequence of at least `from`, oldest first. E_STATE: it is off, see
    /// [`LoaderBuilder::trace`](crate::LoaderBuilder::trace).
    pub fn trace(&self, from: u64) -> Result<Vec<BatchRecord>, Error> {
        let room = self.info()?.trace;
        observe::trace(room, |records, cap, count| {
            // SAFETY: as above; room of ours for `cap` records.
            unsafe { sys::feedlane_loader_get_trace(self.as_ptr(), from, records, cap, count) }
        })
    }

    /// Distinct errors, in the order of first occurrence.
    pub fn errors(&self) -> Result<Vec<ErrorRecord>, Error> {
        // SAFETY: as above.
        observe::errors(|index, out| unsafe { sys::feedlane_loader_get_error(self.as_ptr(), index, out) })
    }

    /// What bounded the present epoch since it began, or the newest one.
    pub fn diagnose(&self) -> Result<Diagnosis, Error> {
        // SAFETY: as above.
        observe::diagnosis(|out| unsafe { sys::feedlane_loader_diagnose(self.as_ptr(), out) })
    }

    /// A short text for people about the present epoch, or the newest one: rates, each worker, what bounded it, what to
    /// change, and the errors that occurred.
    pub fn report(&self) -> Result<String, Error> {
        let text = crate::state::written(|buffer, cap, bytes, err| {
            // SAFETY: as above; `cap` bytes of room.
            unsafe { sys::feedlane_loader_report(self.as_ptr(), buffer.cast(), cap, bytes, err) }
        })?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Thread mode: makes the calling thread a worker. None: none is missing. The loader's memory lives until it leaves.
    pub fn local_worker(&self) -> Result<Option<Worker>, Error> {
        check_abi()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: as above.
        call(|err| unsafe { sys::feedlane_loader_local_worker(self.as_ptr(), &mut raw, err) })?;
        // SAFETY: a handle that is nobody else's, or NULL.
        Ok(NonNull::new(raw).map(|raw| unsafe { Worker::new(raw, self.pool.clone()) }))
    }

    /// Thread mode: runs the data set of [`LoaderBuilder::dataset`](crate::LoaderBuilder::dataset) or
    /// [`shards`](crate::LoaderBuilder::shards) on the calling thread, until the trainer wants no more. False: no worker
    /// is missing.
    pub fn run_local(&self) -> Result<bool, Error> {
        // SAFETY: as above.
        let status = call(|err| unsafe { sys::feedlane_loader_run_local(self.as_ptr(), err) })?;
        Ok(status == Status::OK)
    }

    /// Copies the batches of a [`staged`](crate::LoaderBuilder::staged) loader on the calling thread until its end.
    /// E_STATE: not staged, inline, ended, or another thread does.
    pub fn run_stager(&self) -> Result<(), Error> {
        // SAFETY: as above.
        call(|err| unsafe { sys::feedlane_loader_run_stager(self.as_ptr(), err) }).and_then(only_ok)
    }
}

pub(crate) fn all_workers(
    read: impl Fn(i32, *mut sys::feedlane_worker_stats) -> i32,
) -> Result<Vec<WorkerStats>, Error> {
    let mut all = Vec::new();
    loop {
        let mut out = sys::feedlane_worker_stats::new();
        if spoken(read(all.len() as i32, &mut out))? != Status::OK {
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
        /// Time in `next` without a batch to yield.
        wait_ns,
        /// Of `wait_ns`, that for the first batch of each epoch.
        start_wait_ns,
        /// Workers that took the place of one that died.
        restarts,
        /// Of `restarts`: killed by a signal, ended by itself, exceeded a deadline, sent something invalid, ended before it
        /// attached.
        restarts_signal, restarts_exit, restarts_hung, restarts_invalid, restarts_unattached,
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
    /// Since when it has been in this state, CLOCK_MONOTONIC.
    pub state_since_ns: u64,
    /// Since when it has its present task in hand; none: it has none.
    pub task_since_ns: Option<u64>,
    /// Of the task in hand.
    pub epoch: Option<i64>,
    pub batch: Option<i64>,
    /// Its row in progress.
    pub row: Option<i64>,
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
            state_since_ns: raw.state_since_ns,
            task_since_ns: Some(raw.task_since_ns).filter(|ns| *ns != 0),
            epoch: Some(raw.epoch).filter(|n| *n >= 0),
            batch: Some(raw.batch).filter(|n| *n >= 0),
            row: Some(raw.row).filter(|n| *n >= 0),
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
    /// A consumer has left or ended.
    ConsumerLeft,
    /// The feeder waits for a consumer.
    ConsumerLags,
    ConsumerEvicted,
    /// Of a later library.
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
        let what = Error::from_c(raw.what.code, &raw.what, &[]);
        Event { kind: EventKind::of(raw.kind), time_ns: raw.time_ns, lost: raw.lost, what }
    }
}
