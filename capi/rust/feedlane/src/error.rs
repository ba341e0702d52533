// SPDX-License-Identifier: Apache-2.0
//! What goes wrong, with everything that the library knows of it.
use std::ffi::{c_void, CStr};
use std::fmt;
use std::ops::Deref;
use std::os::raw::c_char;

use crate::sys;

/// An outcome's number: 0 done, above it another normal one, below it an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub i32);

macro_rules! statuses {
    ($($name:ident = $number:ident),* $(,)?) => {
        impl Status { $(pub const $name: Status = Status(sys::$number);)* }
    };
}

statuses! {
    OK = FEEDLANE_OK, END = FEEDLANE_END, TIMEOUT = FEEDLANE_TIMEOUT, AGAIN = FEEDLANE_AGAIN,
    INTERRUPTED = FEEDLANE_INTERRUPTED, SLOTS_HELD = FEEDLANE_SLOTS_HELD, ABANDONED = FEEDLANE_ABANDONED,
    ARGUMENT = FEEDLANE_E_ARGUMENT, STATE = FEEDLANE_E_STATE, BUSY = FEEDLANE_E_BUSY, FORKED = FEEDLANE_E_FORKED,
    STALE = FEEDLANE_E_STALE, MEMORY = FEEDLANE_E_MEMORY, LIMIT = FEEDLANE_E_LIMIT, OS = FEEDLANE_E_OS,
    ABI = FEEDLANE_E_ABI, CORRUPT = FEEDLANE_E_CORRUPT, PEER_DEAD = FEEDLANE_E_PEER_DEAD,
    SAMPLE = FEEDLANE_E_SAMPLE, INIT = FEEDLANE_E_INIT, HUNG = FEEDLANE_E_HUNG,
    QUARANTINED = FEEDLANE_E_QUARANTINED, RESTARTS = FEEDLANE_E_RESTARTS, DEVICE = FEEDLANE_E_DEVICE,
    UNSUPPORTED = FEEDLANE_E_UNSUPPORTED,
}

/// The text of a string that the library keeps for ever.
///
/// # Safety
/// `text` is a terminated string that nobody changes or frees.
pub(crate) unsafe fn static_text(text: *const c_char) -> &'static str {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?")
}

impl Status {
    /// "E_ARGUMENT" and so on; "UNKNOWN" for a number that is none.
    pub fn name(self) -> &'static str {
        // SAFETY: static, never NULL.
        unsafe { static_text(sys::feedlane_status_name(self.0)) }
    }

    /// What it means, one line.
    pub fn text(self) -> &'static str {
        // SAFETY: static, never NULL.
        unsafe { static_text(sys::feedlane_status_text(self.0)) }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What went wrong, where, and the numbers that did not fit together: see [`Details`] for what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Apart, so that a `Result` stays small.
    details: Box<Details>,
}

impl Deref for Error {
    type Target = Details;
    fn deref(&self) -> &Details {
        &self.details
    }
}

/// All that an [`Error`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    pub status: Status,
    /// errno of the system call that failed, 0 if none did.
    pub os_errno: i32,
    pub worker: Option<i32>,
    /// Which attempt at the batch, from 0.
    pub attempt: Option<i32>,
    /// Another try may help.
    pub transient: bool,
    pub epoch: Option<i64>,
    /// Its number in the epoch, from 0.
    pub batch: Option<i64>,
    /// The data set's index.
    pub sample: Option<i64>,
    /// The number found, and the number needed, in every refusal that has numbers.
    pub found: i64,
    pub needed: i64,
    /// The offending argument, such as "config.batch_size"; empty if none.
    pub argument: String,
    /// What went wrong, one line.
    pub text: String,
    /// What a worker said besides: a traceback, the causes of an error.
    pub detail: String,
}

impl Error {
    /// One of this crate's own.
    pub(crate) fn new(status: Status, argument: &str, found: i64, needed: i64, text: String) -> Self {
        let details = Details {
            status,
            os_errno: 0,
            worker: None,
            attempt: None,
            transient: false,
            epoch: None,
            batch: None,
            sample: None,
            found,
            needed,
            argument: argument.into(),
            text,
            detail: String::new(),
        };
        Error { details: Box::new(details) }
    }

    /// One of which nothing but the outcome is known.
    pub(crate) fn bare(status: Status) -> Self {
        Error::new(status, "", 0, 0, String::new())
    }

    /// Of a number beyond the last one that there is.
    pub(crate) fn beyond(argument: &str, index: usize, owner: &str, count: usize) -> Self {
        let text = format!("{} is {}, the {} has {}", argument, index, owner, count);
        Error::new(Status::ARGUMENT, argument, index as i64, count as i64, text)
    }

    pub(crate) fn argument(argument: &str, text: String) -> Self {
        Error::new(Status::ARGUMENT, argument, 0, 0, text)
    }

    /// Whether it concerns one batch alone, so that the following call goes on with the following one.
    pub fn is_of_one_batch(&self) -> bool {
        matches!(self.status, Status::SAMPLE | Status::QUARANTINED)
    }

    /// Whether a following call of the same kind may do better. What it tells of may be lost all the same: a batch, or the
    /// rest of a shard.
    pub fn may_go_on(&self) -> bool {
        // Who hangs in its start ends the epoch; a thread that hangs in a task is one of several, or may come back.
        let is_of_tasks = self.status == Status::HUNG && self.argument != "config.start_timeout_ns";
        self.is_of_one_batch()
            || is_of_tasks
            || matches!(self.status, Status::INTERRUPTED | Status::SLOTS_HELD | Status::PEER_DEAD)
            || matches!(self.status, Status::OS | Status::MEMORY)
    }

    /// Takes over what the library has written. `detail`: the room that it was given.
    pub(crate) fn from_c(status: i32, raw: &sys::feedlane_error, detail: &[u8]) -> Self {
        let known = |number: i64| Some(number).filter(|n| *n != -1);
        let fitted = (raw.detail_len as usize).min(detail.len());
        let details = Details {
            status: Status(status),
            os_errno: raw.os_errno,
            worker: Some(raw.worker).filter(|n| *n != -1),
            attempt: Some(raw.attempt).filter(|n| *n != -1),
            transient: raw.transient != 0,
            epoch: known(raw.epoch),
            batch: known(raw.batch),
            sample: known(raw.sample),
            found: raw.found,
            needed: raw.needed,
            argument: text_of(&raw.argument),
            text: text_of(&raw.text),
            detail: String::from_utf8_lossy(&detail[..fitted]).into_owned(),
        };
        Error { details: Box::new(details) }
    }
}

/// A terminated text within an array; all of the array if it isn't.
pub(crate) fn text_of(array: &[c_char]) -> String {
    let bytes: Vec<u8> = array.iter().map(|c| *c as u8).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.text.is_empty() { self.status.text() } else { &self.text };
        write!(f, "{}: {}", self.status, text)?;
        let mut places = Vec::new();
        if !self.argument.is_empty() {
            places.push(format!("{}: found {}, needed {}", self.argument, self.found, self.needed));
        }
        let mut place = |name: &str, number: Option<i64>| {
            if let Some(number) = number {
                places.push(format!("{} {}", name, number));
            }
        };
        place("worker", self.worker.map(i64::from));
        place("epoch", self.epoch);
        place("batch", self.batch);
        place("sample", self.sample);
        if places.is_empty() {
            return Ok(());
        }
        write!(f, " ({})", places.join(", "))
    }
}

impl std::error::Error for Error {}

/// Room for a traceback: longer ones are cut.
const DETAIL_BYTES: usize = 16 * 1024;

/// The room that a call writes its error to.
pub(crate) struct Report {
    raw: sys::feedlane_error,
    detail: Vec<u8>,
}

impl Report {
    pub(crate) fn new() -> Self {
        Report { raw: sys::feedlane_error::new(), detail: Vec::new() }
    }

    /// With room for a traceback.
    pub(crate) fn with_detail() -> Self {
        Report { raw: sys::feedlane_error::new(), detail: vec![0; DETAIL_BYTES] }
    }

    /// The pointer to give to one call.
    pub(crate) fn room(&mut self) -> *mut sys::feedlane_error {
        self.raw = sys::feedlane_error::new();
        if !self.detail.is_empty() {
            self.raw.detail = self.detail.as_mut_ptr().cast();
            self.raw.detail_cap = self.detail.len() as u64;
        }
        &mut self.raw
    }

    pub(crate) fn error(&self, status: i32) -> Error {
        Error::from_c(status, &self.raw, &self.detail)
    }
}

/// Makes one call with room for its error. A negative status is an error; what else it may be is the caller's to tell.
pub(crate) fn call(f: impl FnOnce(*mut sys::feedlane_error) -> i32) -> Result<Status, Error> {
    let mut report = Report::new();
    match f(report.room()) {
        status if status < 0 => Err(report.error(status)),
        status => Ok(Status(status)),
    }
}

/// For functions without an error's room.
pub(crate) fn plain(status: i32) -> Result<Status, Error> {
    if status >= 0 {
        return Ok(Status(status));
    }
    Err(Error::bare(Status(status)))
}

/// For functions whose other normal outcomes are errors here.
pub(crate) fn only_ok(status: Status) -> Result<(), Error> {
    if status == Status::OK {
        return Ok(());
    }
    Err(Error::bare(status))
}

/// That the library in use is of the ABI that this crate is written for.
pub(crate) fn check_abi() -> Result<(), Error> {
    // SAFETY: takes nothing, looks at nothing.
    let (found, needed) = (unsafe { sys::feedlane_abi_version() }, sys::FEEDLANE_ABI);
    if found == needed {
        return Ok(());
    }
    let text = format!("the library is of ABI {}, this program of {}", found, needed);
    Err(Error::new(Status::ABI, "library", found.into(), needed.into(), text))
}

/// Bytes behind a pointer that may be NULL when there are none.
///
/// # Safety
/// `bytes` bytes are readable there for all of `'a`.
pub(crate) unsafe fn bytes_at<'a>(data: *const c_void, bytes: u64) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { slice_at(data.cast(), bytes) }
}

/// Elements behind a pointer that may be NULL when there are none.
///
/// # Safety
/// `count` elements are readable there for all of `'a`, and aligned.
pub(crate) unsafe fn slice_at<'a, T>(data: *const T, count: u64) -> &'a [T] {
    if data.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, count as usize) }
}
