// SPDX-License-Identifier: Apache-2.0
//! Failures of data sets: turns errors and panics into texts for the library. No panic of a data set leaves this
//! module.
use std::any::Any;
use std::fmt;
use std::os::raw::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::sys;

/// The failure of a data set: any error type, or `"text".into()`.
pub type Failure = Box<dyn std::error::Error>;

/// A failure after which a retry may succeed. [`LoaderBuilder::retries`](crate::LoaderBuilder::retries) sets the number
/// of retries.
#[derive(Debug)]
pub struct Transient(pub String);

impl fmt::Display for Transient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Transient {}

/// The message of a panic.
fn panic_text(payload: &(dyn Any + Send)) -> String {
    let said = payload.downcast_ref::<&str>().copied();
    let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", said.unwrap_or("with a value that is not a string"))
}

/// A failure as text.
pub(crate) struct Said {
    pub text: String,
    pub causes: String,
    pub transient: bool,
}

/// Converts a failure to text. Its Display, source and Drop may panic.
pub(crate) fn said(failure: Failure) -> Said {
    let safely = |words: &dyn Fn() -> String| guarded(|| Ok(words())).unwrap_or_else(|panicked| panicked.to_string());
    let text = safely(&|| failure.to_string());
    let causes = safely(&|| causes(&failure));
    let transient = failure.is::<Transient>();
    let_go(failure);
    Said { text, causes, transient }
}

/// Reports a failure to the library.
///
/// # Safety
/// `err` is NULL or valid, with `detail_cap` bytes at `detail` if that is not NULL.
pub(crate) unsafe fn say(err: *mut sys::feedlane_error, said: &Said) {
    // SAFETY: the caller's promise.
    if let Some(err) = unsafe { err.as_mut() } {
        let room = err.text.len() - 1;
        for (to, from) in err.text[..room].iter_mut().zip(said.text.bytes()) {
            *to = from as c_char;
        }
        err.transient = said.transient.into();
        let detail = &said.causes;
        if !err.detail.is_null() {
            let fits = detail.len().min(err.detail_cap as usize);
            // SAFETY: `detail_cap` bytes of room.
            unsafe { std::ptr::copy_nonoverlapping(detail.as_ptr(), err.detail.cast::<u8>(), fits) };
            err.detail_len = detail.len() as u64;
        }
    }
}

/// Maximum number of causes listed. The limit also ends a chain in which an error is its own cause.
const MOST_CAUSES: usize = 100;

/// The causes of a failure, one per line.
fn causes(failure: &Failure) -> String {
    let (mut lines, mut cause) = (Vec::new(), failure.source());
    while let (Some(error), true) = (cause, lines.len() < MOST_CAUSES) {
        lines.push(format!("caused by: {}", error));
        cause = error.source();
    }
    lines.join("\n")
}

/// Drops a value of a data set. If the drop panics, the panic's payload is leaked, because dropping it may panic again.
pub(crate) fn let_go<T>(theirs: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(theirs))) {
        std::mem::forget(payload);
    }
}

/// Runs `f` and turns its error or its panic into a failure.
pub(crate) fn guarded<R>(f: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        let text = panic_text(&*payload);
        let_go(payload);
        Err(text.into())
    })
}
