// SPDX-License-Identifier: Apache-2.0
//! Durations, texts and descriptors of C functions.
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::io::BorrowedFd;
use std::time::Duration;

use crate::error::{plain, Error, Status};
use crate::sys;

/// `None`: no limit. A timeout of more than 292 years is no limit either.
pub(crate) fn nanoseconds(timeout: Option<Duration>) -> i64 {
    timeout.and_then(|t| i64::try_from(t.as_nanos()).ok()).unwrap_or(sys::FEEDLANE_FOREVER)
}

/// Limits a duration to at least 1 ns, because 0 means the default.
pub(crate) fn at_least_a_nanosecond(time: Duration) -> i64 {
    nanoseconds(Some(time)).max(1)
}

/// Calls a function that prepares to sleep. `None`: AGAIN. Otherwise the descriptor to sleep on.
///
/// # Safety
/// On OK, `arm` has written a descriptor that stays open for all of 'a.
pub(crate) unsafe fn armed<'a>(arm: impl FnOnce(*mut i32) -> i32) -> Result<Option<BorrowedFd<'a>>, Error> {
    let mut fd = -1;
    let status = plain(arm(&mut fd))?;
    // SAFETY: the caller's promise.
    Ok((status == Status::OK).then(|| unsafe { BorrowedFd::borrow_raw(fd) }))
}

/// A text or a path. E_ARGUMENT: there is a zero in it, which would end it early.
pub(crate) fn c_string(argument: &str, text: impl AsRef<OsStr>) -> Result<CString, Error> {
    let text = text.as_ref();
    CString::new(text.as_bytes()).map_err(|_| Error::argument(argument, format!("{:?} contains a zero byte", text)))
}

/// A text whose zeros are replaced.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).expect("no zero is left")
}
