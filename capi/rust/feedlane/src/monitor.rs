// SPDX-License-Identifier: Apache-2.0
//! A look at another process's loader.
use std::ptr::NonNull;

use crate::error::{call, check_abi, plain, Error, Status};
use crate::handle::{all_workers, Stats, WorkerStats};
use crate::sys;

/// The counters of a loader of another process of the same user: for reading only, without its help. What that loader
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
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the one handle, which nobody uses any more.
        unsafe { sys::feedlane_monitor_close(&mut raw) };
    }
}
