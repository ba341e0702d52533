// SPDX-License-Identifier: Apache-2.0
//! Observes a loader, in this process or in another one.
use std::ptr::{null_mut, NonNull};
use std::sync::Arc;

use crate::error::{call, check_abi, plain, Error, Status};
use crate::observe::{BatchRecord, Diagnosis, ErrorRecord, LoaderInfo, Timings};
use crate::pool::Pool;
use crate::state::written;
use crate::stats::{Stats, WorkerStats};
use crate::sys;

/// Observes a loader of this process ([`Loader::monitor`](crate::Loader::monitor)), or of another process of the same
/// user ([`Monitor::open`]), without affecting it. Any thread may read. The monitor keeps the loader's memory: after the
/// loader's end it returns the last values.
///
/// Of a consumer of a shared loader only [`stats`](Monitor::stats) and [`info`](Monitor::info) are known; the other
/// functions return E_STATE.
pub struct Monitor {
    raw: NonNull<sys::feedlane_monitor>,
    /// The pool that the loader's memory is registered with. It is dropped after the monitor was destroyed.
    _pool: Option<Arc<Pool>>,
}

// SAFETY: any thread may read, and only the owner destroys.
unsafe impl Send for Monitor {}
// SAFETY: as above.
unsafe impl Sync for Monitor {}

/// Bytes for a report at first. More than most reports take, because a second call computes the report again.
const REPORT_ROOM: usize = 4096;

/// A status as a result. Adds a text to E_STATE, for functions that take no error struct.
fn read(status: i32) -> Result<Status, Error> {
    plain(status).map_err(|error| match error.status {
        Status::STATE => {
            let text = "a monitor of a consumer reads only stats and info; use a monitor of its feeder for the rest";
            Error::new(Status::STATE, "monitor", 0, 0, text.into())
        }
        _ => error,
    })
}

/// Reads a struct. `None`: END. `out` has the `size` that the library reads.
fn one<C, T>(mut out: C, get: impl FnOnce(*mut C) -> i32, from_c: fn(&C) -> T) -> Result<Option<T>, Error> {
    let status = read(get(&mut out))?;
    Ok(Some(out).filter(|_| status == Status::OK).map(|raw| from_c(&raw)))
}

/// Reads a struct that every loader has.
fn only<C, T>(out: C, get: impl FnOnce(*mut C) -> i32, from_c: fn(&C) -> T) -> Result<T, Error> {
    one(out, get, from_c)?.ok_or_else(|| Error::bare(Status::END))
}

/// Reads the structs with the indices 0, 1, 2 and so on, until there are no more.
fn all<C, T>(new: fn() -> C, get: impl Fn(i32, *mut C) -> i32, from_c: fn(&C) -> T) -> Result<Vec<T>, Error> {
    let mut all = Vec::new();
    while let Some(next) = one(new(), |out| get(all.len() as i32, out), from_c)? {
        all.push(next);
    }
    Ok(all)
}

impl Monitor {
    /// # Safety
    /// The handle is valid and belongs to nobody else. The loader's memory is registered with this pool.
    pub(crate) unsafe fn new(raw: NonNull<sys::feedlane_monitor>, pool: Option<Arc<Pool>>) -> Self {
        Monitor { raw, _pool: pool }
    }

    /// Opens loader number `nth`, from 0, of process `pid`. `None`: the process has no such loader.
    pub fn open(pid: i64, nth: i32) -> Result<Option<Self>, Error> {
        check_abi()?;
        let mut raw = null_mut();
        // SAFETY: `raw` is a local variable.
        call(|err| unsafe { sys::feedlane_monitor_open(pid, nth, &mut raw, err) })?;
        // SAFETY: nobody else has this handle, which is NULL if there is no such loader.
        Ok(NonNull::new(raw).map(|raw| unsafe { Monitor::new(raw, None) }))
    }

    fn as_ptr(&self) -> *mut sys::feedlane_monitor {
        self.raw.as_ptr()
    }

    /// The loader's counters.
    pub fn stats(&self) -> Result<Stats, Error> {
        let new = sys::feedlane_stats::new();
        // SAFETY: the handle is valid; any thread may call this. So in all calls here.
        only(new, |out| unsafe { sys::feedlane_monitor_get_stats(self.as_ptr(), out) }, Stats::from_c)
    }

    /// All workers, in order of their ids.
    pub fn workers(&self) -> Result<Vec<WorkerStats>, Error> {
        all(
            sys::feedlane_worker_stats::new,
            // SAFETY: as above.
            |id, out| unsafe { sys::feedlane_monitor_get_worker_stats(self.as_ptr(), id, out) },
            WorkerStats::from_c,
        )
    }

    /// Facts about the loader, and its position in the epoch.
    pub fn info(&self) -> Result<LoaderInfo, Error> {
        let new = sys::feedlane_loader_info::new();
        // SAFETY: as above.
        only(new, |out| unsafe { sys::feedlane_monitor_get_info(self.as_ptr(), out) }, LoaderInfo::from_c)
    }

    /// Durations of the steps of the batches that one worker made, or of all batches. `None`: there are fewer workers.
    pub fn timings(&self, worker: Option<i32>) -> Result<Option<Timings>, Error> {
        let (new, worker) = (sys::feedlane_timings::new(), worker.unwrap_or(-1));
        // SAFETY: as above.
        one(new, |out| unsafe { sys::feedlane_monitor_get_timings(self.as_ptr(), worker, out) }, Timings::from_c)
    }

    /// For each slot, the batch in it, or the last one that was there.
    pub fn slots(&self) -> Result<Vec<BatchRecord>, Error> {
        self.records(sys::FEEDLANE_SLOTS, self.stats()?.slots)
    }

    /// Records of the trace whose sequence is at least `from`, oldest first. E_STATE: the trace is off, see
    /// [`LoaderBuilder::trace`](crate::LoaderBuilder::trace).
    pub fn trace(&self, from: u64) -> Result<Vec<BatchRecord>, Error> {
        let info = self.info()?;
        if info.trace == 0 && info.next_epoch.is_none() {
            return Err(Error::new(Status::STATE, "config.trace", 0, 1, "the loader records no trace".into()));
        }
        self.records(from, info.trace)
    }

    /// Up to `room` records.
    fn records(&self, from: u64, room: u64) -> Result<Vec<BatchRecord>, Error> {
        let mut records = vec![sys::feedlane_batch_record::new(); room as usize];
        let mut count = 0;
        // SAFETY: as above; there is room for so many records.
        let status = read(unsafe {
            sys::feedlane_monitor_get_trace(self.as_ptr(), from, records.as_mut_ptr(), room, &mut count)
        })?;
        records.truncate(if status == Status::OK { count as usize } else { 0 });
        Ok(records.iter().map(BatchRecord::from_c).collect())
    }

    /// Distinct errors, in the order of first occurrence.
    pub fn errors(&self) -> Result<Vec<ErrorRecord>, Error> {
        all(
            sys::feedlane_error_record::new,
            // SAFETY: as above.
            |index, out| unsafe { sys::feedlane_monitor_get_error(self.as_ptr(), index, out) },
            ErrorRecord::from_c,
        )
    }

    /// The bottleneck. Of a loader of this process: in the current epoch since its beginning, or in the newest epoch.
    /// Of a loader of another process: since the last call, at first since the monitor was opened.
    pub fn diagnose(&self) -> Result<Diagnosis, Error> {
        let new = sys::feedlane_diagnosis::new();
        // SAFETY: as above.
        only(new, |out| unsafe { sys::feedlane_monitor_diagnose(self.as_ptr(), out) }, Diagnosis::from_c)
    }

    /// A short report for people about the interval of [`diagnose`](Monitor::diagnose): rates, each worker, the
    /// bottleneck, advice, and the errors that occurred.
    pub fn report(&self) -> Result<String, Error> {
        let text = written(REPORT_ROOM, |buffer, cap, bytes, err| {
            // SAFETY: as above; there is room for `cap` bytes.
            unsafe { sys::feedlane_monitor_report(self.as_ptr(), buffer.cast(), cap, bytes, err) }
        })?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let mut raw = self.as_ptr();
        // SAFETY: the monitor's handle, which is not used afterwards.
        unsafe { sys::feedlane_monitor_destroy(&mut raw) };
    }
}

/// A standalone ring of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingInfo {
    /// The process that was passed: the receiver.
    pub pid: i64,
    /// Size of a message.
    pub message_bytes: u64,
    /// Messages in a lane.
    pub capacity: u64,
    /// Maximum number of senders at the same time.
    pub lanes: u64,
    /// Messages that the receiver has released, in all lanes.
    pub received: u64,
    pub control_bytes: u64,
}

impl RingInfo {
    /// Reads ring number `nth`, from 0, of process `pid`. `None`: the process has no such ring.
    pub fn read(pid: i64, nth: i32) -> Result<Option<Self>, Error> {
        check_abi()?;
        let mut out = sys::feedlane_ring_info::new();
        // SAFETY: `out` is a local struct.
        let status = call(|err| unsafe { sys::feedlane_monitor_ring(pid, nth, &mut out, err) })?;
        Ok(Some(out).filter(|_| status == Status::OK).map(|raw| RingInfo {
            pid: raw.pid,
            message_bytes: raw.message_bytes,
            capacity: raw.capacity,
            lanes: raw.lanes,
            received: raw.received,
            control_bytes: raw.control_bytes,
        }))
    }
}
