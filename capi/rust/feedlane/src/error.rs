// SPDX-License-Identifier: Apache-2.0
//! Errors, with all details that the library reports.
use std::ffi::{c_void, CStr};
use std::fmt;
use std::ops::Deref;
use std::os::raw::c_char;

use crate::sys;

/// An outcome's number. 0: done; above 0: another normal outcome; below 0: an error.
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
    ABSENT = FEEDLANE_ABSENT, ARGUMENT = FEEDLANE_E_ARGUMENT, STATE = FEEDLANE_E_STATE, BUSY = FEEDLANE_E_BUSY, FORKED = FEEDLANE_E_FORKED,
    STALE = FEEDLANE_E_STALE, MEMORY = FEEDLANE_E_MEMORY, LIMIT = FEEDLANE_E_LIMIT, OS = FEEDLANE_E_OS,
    ABI = FEEDLANE_E_ABI, CORRUPT = FEEDLANE_E_CORRUPT, PEER_DEAD = FEEDLANE_E_PEER_DEAD,
    SAMPLE = FEEDLANE_E_SAMPLE, INIT = FEEDLANE_E_INIT, HUNG = FEEDLANE_E_HUNG,
    QUARANTINED = FEEDLANE_E_QUARANTINED, RESTARTS = FEEDLANE_E_RESTARTS, DEVICE = FEEDLANE_E_DEVICE,
    UNSUPPORTED = FEEDLANE_E_UNSUPPORTED,
}

/// The text of a string that the library never frees.
///
/// # Safety
/// `text` is a terminated string that nobody changes or frees.
pub(crate) unsafe fn static_text(text: *const c_char) -> &'static str {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?")
}

impl Status {
    /// The name, such as "E_ARGUMENT"; "UNKNOWN" for a number that is not a status.
    pub fn name(self) -> &'static str {
        // SAFETY: static, never NULL.
        unsafe { static_text(sys::feedlane_status_name(self.0)) }
    }

    /// The meaning, in one line.
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

/// An error: its cause, its place, and the numbers that did not match. [`Details`] lists the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Boxed, to keep `Result` small.
    details: Box<Details>,
}

impl Deref for Error {
    type Target = Details;
    fn deref(&self) -> &Details {
        &self.details
    }
}

/// The fields of an [`Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    pub status: Status,
    /// errno of the failed system call, 0 if none.
    pub os_errno: i32,
    pub worker: Option<i32>,
    /// The attempt at the batch, from 0.
    pub attempt: Option<i32>,
    /// A retry may succeed.
    pub transient: bool,
    pub epoch: Option<i64>,
    /// The number of the batch in the epoch, from 0.
    pub batch: Option<i64>,
    /// The data set index.
    pub sample: Option<i64>,
    /// The number found, for errors about a number. `needed` is the number needed.
    pub found: i64,
    pub needed: i64,
    /// The offending argument, such as "config.batch_size"; empty if none.
    pub argument: String,
    /// The error message, in one line.
    pub text: String,
    /// Further text from a worker: a traceback, or the causes of the error.
    pub detail: String,
}

impl Error {
    /// An error of this crate.
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

    /// An error of which only the status is known.
    pub(crate) fn bare(status: Status) -> Self {
        Error::new(status, "", 0, 0, String::new())
    }

    /// An error for an index beyond the last valid one.
    pub(crate) fn beyond(argument: &str, index: usize, owner: &str, count: usize) -> Self {
        let text = format!("{} {} is out of range: the {} has {}", argument, index, owner, count);
        Error::new(Status::ARGUMENT, argument, index as i64, count as i64, text)
    }

    pub(crate) fn argument(argument: &str, text: String) -> Self {
        Error::new(Status::ARGUMENT, argument, 0, 0, text)
    }

    /// Whether the error concerns only one batch, so that the next call continues with the next batch.
    pub fn is_of_one_batch(&self) -> bool {
        matches!(self.status, Status::SAMPLE | Status::QUARANTINED)
    }

    /// Whether another call of the same function may succeed. A batch, or the rest of a shard, may be lost
    /// nevertheless.
    pub fn may_go_on(&self) -> bool {
        // A worker that does not start in time ends the epoch. After a hang in a task, it or other workers may
        // continue.
        let is_of_tasks = self.status == Status::HUNG && self.argument != "config.start_timeout_ns";
        self.is_of_one_batch()
            || is_of_tasks
            || matches!(self.status, Status::INTERRUPTED | Status::SLOTS_HELD | Status::PEER_DEAD)
            || matches!(self.status, Status::OS | Status::MEMORY | Status::DEVICE)
    }

    /// Converts the struct that the library filled in. `detail` is the buffer that it was given.
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

/// `None`: the number is negative.
pub(crate) fn not_negative<N: PartialOrd + Default>(number: N) -> Option<N> {
    Some(number).filter(|n| *n >= N::default())
}

/// The terminated text in an array, or all of the array if there is no terminator.
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

/// Size of the buffer for a traceback; longer ones are truncated.
const DETAIL_BYTES: usize = 16 * 1024;

/// The struct that a call writes its error to.
pub(crate) struct Report {
    raw: sys::feedlane_error,
    detail: Vec<u8>,
}

impl Report {
    pub(crate) fn new() -> Self {
        Report { raw: sys::feedlane_error::new(), detail: Vec::new() }
    }

    /// With a buffer for a traceback.
    pub(crate) fn with_detail() -> Self {
        Report { raw: sys::feedlane_error::new(), detail: vec![0; DETAIL_BYTES] }
    }

    /// The pointer to pass to one call.
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

/// Calls `f` with an error struct. A negative status becomes an error; the caller handles the other outcomes.
pub(crate) fn call(f: impl FnOnce(*mut sys::feedlane_error) -> i32) -> Result<Status, Error> {
    let mut report = Report::new();
    match f(report.room()) {
        status if status < 0 => Err(report.error(status)),
        status => Ok(Status(status)),
    }
}

/// As `call`, for functions after whose INTERRUPTED and SLOTS_HELD nothing is done: these are errors too.
pub(crate) fn completed(f: impl FnOnce(*mut sys::feedlane_error) -> i32) -> Result<Status, Error> {
    let mut report = Report::new();
    match Status(f(report.room())) {
        status if status.0 < 0 || matches!(status, Status::INTERRUPTED | Status::SLOTS_HELD) => {
            Err(report.error(status.0))
        }
        status => Ok(status),
    }
}

/// Adds a text to the E_STATE of a call after the end of `what`.
pub(crate) fn after_end(error: Error, what: &str) -> Error {
    match error.status {
        Status::STATE => Error::new(Status::STATE, what, 0, 0, format!("the {} has ended", what)),
        _ => error,
    }
}

/// For functions that take no error struct.
pub(crate) fn plain(status: i32) -> Result<Status, Error> {
    if status >= 0 {
        return Ok(Status(status));
    }
    Err(Error::bare(Status(status)))
}

/// For functions whose other normal outcomes are errors in this crate.
pub(crate) fn only_ok(status: Status) -> Result<(), Error> {
    if status == Status::OK {
        return Ok(());
    }
    Err(Error::bare(status))
}

/// Checks that the library has the ABI that this crate was written for.
pub(crate) fn check_abi() -> Result<(), Error> {
    // SAFETY: the function has no arguments and reads no memory.
    let (found, needed) = (unsafe { sys::feedlane_abi_version() }, sys::FEEDLANE_ABI);
    if found == needed {
        return Ok(());
    }
    let text = format!("the library has ABI {}, but this program needs ABI {}", found, needed);
    Err(Error::new(Status::ABI, "library", found.into(), needed.into(), text))
}

/// The bytes at a pointer, which may be NULL if there are none.
///
/// # Safety
/// `bytes` bytes are readable there for all of `'a`.
pub(crate) unsafe fn bytes_at<'a>(data: *const c_void, bytes: u64) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { slice_at(data.cast(), bytes) }
}

/// The elements at a pointer, which may be NULL if there are none.
///
/// # Safety
/// `count` aligned elements are readable there for all of `'a`.
pub(crate) unsafe fn slice_at<'a, T>(data: *const T, count: u64) -> &'a [T] {
    if data.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, count as usize) }
}
