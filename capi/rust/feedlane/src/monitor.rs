// SPDX-License-Identifier: Apache-2.0
//! Observes a loader of another process.
use std::ptr::NonNull;

use crate::error::{call, check_abi, plain, Error, Status};
use crate::handle::{all_workers, Stats, WorkerStats};
use crate::observe::{self, BatchRecord, Diagnosis, ErrorRecord, LoaderInfo, Timings};
use crate::sys;

/// A loader of another process of the same user, for reading only. Reading does not involve that process. The monitor
/// keeps the loader's memory alive.
pub struct Monitor {
    raw: NonNull<sys::feedlane_monitor>,
}

// SAFETY: any thread may read. Closing consumes the value.
unsafe impl Send for Monitor {}
// SAFETY: as above.
unsafe impl Sync for Monitor {}

impl Monitor {
    /// Opens loader number `nth`, from 0, of process `pid`. `None`: the process has no such loader.
    pub fn open(pid: i64, nth: i32) -> Result<Option<Self>, Error> {
        check_abi()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a local variable.
        let status = call(|err| unsafe { sys::feedlane_monitor_open(pid, nth, &mut raw, err) })?;
        Ok(NonNull::new(raw).filter(|_| status == Status::OK).map(|raw| Monitor { raw }))
    }

    pub fn stats(&self) -> Result<Stats, Error> {
        let mut out = sys::feedlane_stats::new();
        // SAFETY: the handle is valid; any thread may call this.
        plain(unsafe { sys::feedlane_monitor_get_stats(self.raw.as_ptr(), &mut out) })?;
        Ok(Stats::from_c(&out))
    }

    /// All workers, in order of their ids.
    pub fn workers(&self) -> Result<Vec<WorkerStats>, Error> {
        // SAFETY: the handle is valid; any thread may call this.
        all_workers(|id, out| unsafe { sys::feedlane_monitor_get_worker_stats(self.raw.as_ptr(), id, out) })
    }

    /// Facts about the loader, and its position in the epoch.
    pub fn info(&self) -> Result<LoaderInfo, Error> {
        // SAFETY: the handle is valid; any thread may call this. So in all calls here.
        observe::info(|out| unsafe { sys::feedlane_monitor_get_info(self.raw.as_ptr(), out) })
    }

    /// See [`Handle::timings`](crate::Handle::timings).
    pub fn timings(&self, worker: Option<i32>) -> Result<Option<Timings>, Error> {
        let worker = worker.unwrap_or(-1);
        // SAFETY: as above.
        observe::timings(|out| unsafe { sys::feedlane_monitor_get_timings(self.raw.as_ptr(), worker, out) })
    }

    /// For each slot, the batch in it, or the last one that was there.
    pub fn slots(&self) -> Result<Vec<BatchRecord>, Error> {
        // SAFETY: as above.
        observe::slots(|slot, out| unsafe { sys::feedlane_monitor_get_slot(self.raw.as_ptr(), slot, out) })
    }

    /// See [`Handle::trace`](crate::Handle::trace).
    pub fn trace(&self, from: u64) -> Result<Vec<BatchRecord>, Error> {
        let room = self.info()?.trace;
        observe::trace(room, |records, cap, count| {
            // SAFETY: as above; there is room for `cap` records.
            unsafe { sys::feedlane_monitor_get_trace(self.raw.as_ptr(), from, records, cap, count) }
        })
    }

    /// Distinct errors, in the order of first occurrence.
    pub fn errors(&self) -> Result<Vec<ErrorRecord>, Error> {
        // SAFETY: as above.
        observe::errors(|index, out| unsafe { sys::feedlane_monitor_get_error(self.raw.as_ptr(), index, out) })
    }

    /// The bottleneck of the loader since the last call; the first call: since the monitor was opened.
    pub fn diagnose(&self) -> Result<Diagnosis, Error> {
        // SAFETY: as above.
        observe::diagnosis(|out| unsafe { sys::feedlane_monitor_diagnose(self.raw.as_ptr(), out) })
    }
}

/// A standalone ring of another process.
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

impl Drop for Monitor {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the monitor's handle, which is not used afterwards.
        unsafe { sys::feedlane_monitor_close(&mut raw) };
    }
}
