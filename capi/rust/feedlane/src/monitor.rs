// SPDX-License-Identifier: Apache-2.0
//! A look at another process's loader.
use std::ptr::NonNull;

use crate::error::{call, check_abi, plain, Error, Status};
use crate::handle::{all_workers, Stats, WorkerStats};
use crate::observe::{self, BatchRecord, Diagnosis, ErrorRecord, LoaderInfo, Timings};
use crate::sys;

/// A loader of another process of the same user: for reading only, without its help. What that loader
/// took of memory is not freed before the monitor is dropped too.
pub struct Monitor {
    raw: NonNull<sys::feedlane_monitor>,
}

// SAFETY: any thread may read; closing takes the value itself.
unsafe impl Send for Monitor {}
// SAFETY: as above.
unsafe impl Sync for Monitor {}

impl Monitor {
    /// The `nth` loader of process `pid`, from 0; none: it has no such one.
    pub fn open(pid: i64, nth: i32) -> Result<Option<Self>, Error> {
        check_abi()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: room of ours for the handle.
        let status = call(|err| unsafe { sys::feedlane_monitor_open(pid, nth, &mut raw, err) })?;
        Ok(NonNull::new(raw).filter(|_| status == Status::OK).map(|raw| Monitor { raw }))
    }

    pub fn stats(&self) -> Result<Stats, Error> {
        let mut out = sys::feedlane_stats::new();
        // SAFETY: the handle lives; any thread.
        plain(unsafe { sys::feedlane_monitor_get_stats(self.raw.as_ptr(), &mut out) })?;
        Ok(Stats::from_c(&out))
    }

    /// Every worker, by its id.
    pub fn workers(&self) -> Result<Vec<WorkerStats>, Error> {
        // SAFETY: the handle lives; any thread.
        all_workers(|id, out| unsafe { sys::feedlane_monitor_get_worker_stats(self.raw.as_ptr(), id, out) })
    }

    /// What the loader is, and where its epoch is.
    pub fn info(&self) -> Result<LoaderInfo, Error> {
        // SAFETY: the handle lives; any thread. So in all calls here.
        observe::info(|out| unsafe { sys::feedlane_monitor_get_info(self.raw.as_ptr(), out) })
    }

    /// See [`Handle::timings`](crate::Handle::timings).
    pub fn timings(&self, worker: Option<i32>) -> Result<Option<Timings>, Error> {
        let worker = worker.unwrap_or(-1);
        // SAFETY: as above.
        observe::timings(|out| unsafe { sys::feedlane_monitor_get_timings(self.raw.as_ptr(), worker, out) })
    }

    /// The batch in each slot, or the last one that was there.
    pub fn slots(&self) -> Result<Vec<BatchRecord>, Error> {
        // SAFETY: as above.
        observe::slots(|slot, out| unsafe { sys::feedlane_monitor_get_slot(self.raw.as_ptr(), slot, out) })
    }

    /// See [`Handle::trace`](crate::Handle::trace).
    pub fn trace(&self, from: u64) -> Result<Vec<BatchRecord>, Error> {
        let room = self.info()?.trace;
        observe::trace(room, |records, cap, count| {
            // SAFETY: as above; room of ours for `cap` records.
            unsafe { sys::feedlane_monitor_get_trace(self.raw.as_ptr(), from, records, cap, count) }
        })
    }

    /// Distinct errors, in the order of first occurrence.
    pub fn errors(&self) -> Result<Vec<ErrorRecord>, Error> {
        // SAFETY: as above.
        observe::errors(|index, out| unsafe { sys::feedlane_monitor_get_error(self.raw.as_ptr(), index, out) })
    }

    /// What bounded the loader since the last call; the first call: since it was opened.
    pub fn diagnose(&self) -> Result<Diagnosis, Error> {
        // SAFETY: as above.
        observe::diagnosis(|out| unsafe { sys::feedlane_monitor_diagnose(self.raw.as_ptr(), out) })
    }
}

/// A standalone ring of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingInfo {
    /// Of the receiver.
    pub pid: i64,
    /// Largest message.
    pub message_bytes: u64,
    /// Messages in a lane.
    pub capacity: u64,
    /// Senders at most.
    pub lanes: u64,
    /// Messages that the receiver has released, in all lanes.
    pub received: u64,
    pub control_bytes: u64,
}

impl RingInfo {
    /// The `nth` ring of process `pid`, from 0; none: it has no such one.
    pub fn read(pid: i64, nth: i32) -> Result<Option<Self>, Error> {
        check_abi()?;
        let mut out = sys::feedlane_ring_info::new();
        // SAFETY: a struct of ours to fill in.
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

impl Drop for Monitor {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the one handle, which nobody uses any more.
        unsafe { sys::feedlane_monitor_close(&mut raw) };
    }
}
