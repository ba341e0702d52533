// SPDX-License-Identifier: Apache-2.0
//! What any thread may do with a loader while another thread drives it: interrupt, close, observe, and work for it.
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{call, check_abi, only_ok, plain, text_of, Error, Status};
use crate::observe::{self, BatchRecord, Diagnosis, ErrorRecord, LoaderInfo, Timings};
use crate::pool::Pool;
use crate::sys;
use crate::worker::Worker;

/// A reference to a loader, for other threads. It does not keep workers or batches: after the loader's end every call
/// returns E_STATE.
pub struct Handle {
    raw: NonNull<sys::feedlane_loader>,
    /// The pool that the loader's memory is registered with. The last member, because the pool must be dropped after
    /// its loaders.
    pool: Option<Arc<Pool>>,
}

// SAFETY: only functions that any thread may call are called through it. Its reference keeps the loader valid. A data
// set or a sampler that is freed with the last reference is Send.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Clone for Handle {
    fn clone(&self) -> Self {
        // SAFETY: this handle holds a reference. In a forked child, both `ref` and `unref` have no effect.
        unsafe { Handle::of(self.raw, self.pool.clone()) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this handle's reference, released once. The call never waits.
        unsafe { sys::feedlane_loader_unref(self.raw.as_ptr()) };
    }
}

/// A status as a result. Adds a text to E_STATE, for functions that take no error struct.
pub(crate) fn spoken(status: i32) -> Result<Status, Error> {
    plain(status).map_err(|error| match error.status {
        Status::STATE => Error::new(Status::STATE, "loader", 0, 0, "the loader has ended".into()),
        _ => error,
    })
}

impl Handle {
    /// Takes another reference.
    ///
    /// # Safety
    /// The caller has a reference to `raw`, which was created with this pool.
    pub(crate) unsafe fn of(raw: NonNull<sys::feedlane_loader>, pool: Option<Arc<Pool>>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { sys::feedlane_loader_ref(raw.as_ptr()) };
        Handle { raw, pool }
    }

    fn as_ptr(&self) -> *mut sys::feedlane_loader {
        self.raw.as_ptr()
    }

    /// Ends the current or the next wait in `next` with INTERRUPTED.
    pub fn interrupt(&self) -> Result<(), Error> {
        // SAFETY: this reference keeps the loader valid; any thread may call these functions. So in all calls here.
        spoken(unsafe { sys::feedlane_loader_interrupt(self.as_ptr()) }).map(drop)
    }

    /// Ends the loader without waiting. The current call and all later ones return E_STATE, and workers are asked to
    /// end. Held batches stay valid.
    pub fn close(&self) -> Result<(), Error> {
        // SAFETY: as above.
        spoken(unsafe { sys::feedlane_loader_close(self.as_ptr()) }).map(drop)
    }

    pub fn stats(&self) -> Result<Stats, Error> {
        let mut out = sys::feedlane_stats::new();
        // SAFETY: as above; `out` is a local struct.
        spoken(unsafe { sys::feedlane_loader_get_stats(self.as_ptr(), &mut out) })?;
        Ok(Stats::from_c(&out))
    }

    /// All workers, in order of their ids.
    pub fn workers(&self) -> Result<Vec<WorkerStats>, Error> {
        // SAFETY: as above.
        all_workers(|id, out| unsafe { sys::feedlane_loader_get_worker_stats(self.as_ptr(), id, out) })
    }

    /// The oldest event that was not read yet, or `None`.
    pub fn event(&self) -> Result<Option<Event>, Error> {
        let mut out = sys::feedlane_event::new();
        // SAFETY: as above.
        let status = spoken(unsafe { sys::feedlane_loader_event(self.as_ptr(), &mut out) })?;
        Ok(Some(out).filter(|_| status == Status::OK).map(|raw| Event::from_c(&raw)))
    }

    /// Facts about the loader, and its position in the epoch.
    pub fn info(&self) -> Result<LoaderInfo, Error> {
        // SAFETY: as above.
        observe::info(|out| unsafe { sys::feedlane_loader_get_info(self.as_ptr(), out) })
    }

    /// Durations of the steps of the batches that one worker made, or of all batches. `None`: there are fewer workers.
    pub fn timings(&self, worker: Option<i32>) -> Result<Option<Timings>, Error> {
        let worker = worker.unwrap_or(-1);
        // SAFETY: as above.
        observe::timings(|out| unsafe { sys::feedlane_loader_get_timings(self.as_ptr(), worker, out) })
    }

    /// For each slot, the batch in it, or the last one that was there.
    pub fn slots(&self) -> Result<Vec<BatchRecord>, Error> {
        // SAFETY: as above.
        observe::slots(|slot, out| unsafe { sys::feedlane_loader_get_slot(self.as_ptr(), slot, out) })
    }

    /// Records of the trace whose sequence is at least `from`, oldest first. E_STATE: the trace is off, see
    /// [`LoaderBuilder::trace`](crate::LoaderBuilder::trace).
    pub fn trace(&self, from: u64) -> Result<Vec<BatchRecord>, Error> {
        let room = self.info()?.trace;
        observe::trace(room, |records, cap, count| {
            // SAFETY: as above; there is room for `cap` records.
            unsafe { sys::feedlane_loader_get_trace(self.as_ptr(), from, records, cap, count) }
        })
    }

    /// Distinct errors, in the order of first occurrence.
    pub fn errors(&self) -> Result<Vec<ErrorRecord>, Error> {
        // SAFETY: as above.
        observe::errors(|index, out| unsafe { sys::feedlane_loader_get_error(self.as_ptr(), index, out) })
    }

    /// The bottleneck of the current epoch since its beginning, or of the newest epoch.
    pub fn diagnose(&self) -> Result<Diagnosis, Error> {
        // SAFETY: as above.
        observe::diagnosis(|out| unsafe { sys::feedlane_loader_diagnose(self.as_ptr(), out) })
    }

    /// A short report for people about the current or newest epoch: rates, each worker, the bottleneck, advice, and the
    /// errors that occurred.
    pub fn report(&self) -> Result<String, Error> {
        let text = crate::state::written(|buffer, cap, bytes, err| {
            // SAFETY: as above; there is room for `cap` bytes.
            unsafe { sys::feedlane_loader_report(self.as_ptr(), buffer.cast(), cap, bytes, err) }
        })?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Thread mode: makes the calling thread a worker. `None`: no worker is missing. The loader's memory remains until
    /// the worker leaves.
    pub fn local_worker(&self) -> Result<Option<Worker>, Error> {
        check_abi()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: as above.
        call(|err| unsafe { sys::feedlane_loader_local_worker(self.as_ptr(), &mut raw, err) })?;
        // SAFETY: nobody else has this handle, which may be NULL.
        Ok(NonNull::new(raw).map(|raw| unsafe { Worker::new(raw, self.pool.clone()) }))
    }

    /// Thread mode: the calling thread runs the data set of [`LoaderBuilder::dataset`](crate::LoaderBuilder::dataset)
    /// or [`shards`](crate::LoaderBuilder::shards) until the trainer no longer needs this worker. False: no worker is
    /// missing.
    pub fn run_local(&self) -> Result<bool, Error> {
        // SAFETY: as above.
        let status = call(|err| unsafe { sys::feedlane_loader_run_local(self.as_ptr(), err) })?;
        Ok(status == Status::OK)
    }

    /// The calling thread copies the batches of a [`staged`](crate::LoaderBuilder::staged) loader until the loader is
    /// closed. E_STATE: the loader is not staged, is inline or has ended, or another thread is in this call.
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
    fn from_c(raw: &sys::feedlane_event) -> Self {
        let what = Error::from_c(raw.what.code, &raw.what, &[]);
        Event { kind: EventKind::of(raw.kind), time_ns: raw.time_ns, lost: raw.lost, what }
    }
}
