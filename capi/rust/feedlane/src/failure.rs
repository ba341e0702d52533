// SPDX-License-Identifier: Apache-2.0
//! Failures of data sets: turns errors and panics into texts for the library. No panic of a data set leaves this
//! module.
use std::any::Any;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};

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
