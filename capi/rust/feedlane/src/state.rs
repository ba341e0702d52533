// SPDX-License-Identifier: Apache-2.0
//! Saved states: what a checkpoint holds besides the model.
use std::ffi::c_void;
use std::ptr::null_mut;

use crate::error::{call, Error, Report, Status};
use crate::sys;

/// What a state of a loader says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateInfo {
    /// Which epoch goes on.
    pub epoch: i64,
    /// All batches before this one were yielded; iterable: how many.
    pub batch: i64,
    pub samples: i64,
    pub base_seed: u64,
    /// The epoch's end was seen: the next one is to begin.
    pub ended: bool,
    /// Of an iterable data set.
    pub iterable: bool,
}

impl StateInfo {
    /// Looks into what [`Loader::state`](crate::Loader::state) wrote. E_CORRUPT: damaged, or no state.
    pub fn read(state: &[u8]) -> Result<Self, Error> {
        let mut out = sys::feedlane_state_info::new();
        let bytes = state.len() as u64;
        // SAFETY: `bytes` bytes to read and a struct of ours to fill in.
        call(|err| unsafe { sys::feedlane_state_read(state.as_ptr().cast(), bytes, &mut out, err) })?;
        Ok(StateInfo {
            epoch: out.epoch,
            batch: out.batch,
            samples: out.samples,
            base_seed: out.base_seed,
            ended: out.ended != 0,
            iterable: out.iterable != 0,
        })
    }
}

/// Calls a function that writes as much as there is room for and says how much it has: with as much room as it takes.
pub(crate) fn written(
    mut write: impl FnMut(*mut c_void, u64, *mut u64, *mut sys::feedlane_error) -> i32,
) -> Result<Vec<u8>, Error> {
    let mut buffer: Vec<u8> = Vec::new();
    loop {
        let mut report = Report::new();
        let mut bytes = 0;
        let room = if buffer.is_empty() { null_mut() } else { buffer.as_mut_ptr().cast() };
        let status = write(room, buffer.len() as u64, &mut bytes, report.room());
        if status >= 0 {
            buffer.truncate(bytes as usize);
            return Ok(buffer);
        }
        // A state may have grown since it was asked for its size.
        if Status(status) != Status::LIMIT || bytes as usize <= buffer.len() {
            return Err(report.error(status));
        }
        buffer.resize(bytes as usize, 0);
    }
}
