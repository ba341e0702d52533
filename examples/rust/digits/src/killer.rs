// SPDX-License-Identifier: Apache-2.0
//! Kills a worker in mid-training, to show that the run recovers: `--kill-worker-at-batch`.
use feedlane::{Error, Monitor, WorkerState};

extern "C" {
    /// POSIX.
    fn kill(pid: i32, signal: i32) -> i32;
}
const SIGKILL: i32 = 9;

pub struct Killer {
    at: Option<i64>,
    batches: i64,
    monitor: Monitor,
}

impl Killer {
    /// `at`: a batch, counted from 0 over all epochs.
    pub fn new(at: Option<i64>, monitor: Monitor) -> Self {
        Killer { at, batches: 0, monitor }
    }

    /// One more batch is here. Kills a worker if that is the one, or the first one after it for which there is a worker.
    pub fn batch_is_here(&mut self) -> Result<(), Error> {
        self.batches += 1;
        if self.at.map_or(true, |at| self.batches <= at) {
            return Ok(());
        }
        let ready = self.monitor.workers()?.into_iter().find(|worker| worker.state == WorkerState::Ready);
        if let Some(pid) = ready.and_then(|worker| worker.pid) {
            // SAFETY: numbers only. The process is a child of this one which it has not waited for: the pid is its own.
            if unsafe { kill(pid as i32, SIGKILL) } == 0 {
                self.at = None;
            }
        }
        Ok(())
    }
}
