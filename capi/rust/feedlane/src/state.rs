// SPDX-License-Identifier: Apache-2.0
//! Saved states, which belong in a checkpoint together with the model.
use std::ffi::c_void;
use std::ptr::null_mut;

use crate::error::{call, Error, Report, Status};
use crate::sys;

/// The contents of a loader's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateInfo {
    /// The epoch that continues.
    pub epoch: i64,
    /// All batches before this one were yielded; iterable: number of batches yielded.
    pub batch: i64,
    pub samples: i64,
    pub base_seed: u64,
    /// The epoch has ended: begin the next one.
    pub ended: bool,
    /// The data set is iterable.
    pub iterable: bool,
}

impl StateInfo {
    /// Reads a state that [`Loader::state`](crate::Loader::state) wrote. E_CORRUPT: the bytes are damaged, or are not a
    /// state.
    pub fn read(state: &[u8]) -> Result<Self, Error> {
        let mut out = sys::feedlane_state_info::new();
        let bytes = state.len() as u64;
        // SAFETY: there are `bytes` bytes to read; `out` is a local struct.
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

/// Calls a function that writes bytes and returns E_LIMIT with the length needed if there is too little room. Repeats
/// the call until there is enough room. The first call has room for `room` bytes.
pub(crate) fn written(
    room: usize,
    mut write: impl FnMut(*mut c_void, u64, *mut u64, *mut sys::feedlane_error) -> i32,
) -> Result<Vec<u8>, Error> {
    let mut buffer = vec![0; room];
    loop {
        let mut report = Report::new();
        let mut bytes = 0;
        let room = if buffer.is_empty() { null_mut() } else { buffer.as_mut_ptr().cast() };
        let status = write(room, buffer.len() as u64, &mut bytes, report.room());
        if status >= 0 {
            buffer.truncate(bytes as usize);
            return Ok(buffer);
        }
        // A state may have grown since the call that returned its length.
        if Status(status) != Status::LIMIT || bytes as usize <= buffer.len() {
            return Err(report.error(status));
        }
        buffer.resize(bytes as usize, 0);
    }
}
