// SPDX-License-Identifier: Apache-2.0
//! What data sets fail with: errors and panics, in words that the library can carry. Nothing of theirs unwinds from here.
use std::any::Any;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// What a data set fails with: anything that is an error, `"text".into()` too.
pub type Failure = Box<dyn std::error::Error>;

/// A failure that another try may undo: [`LoaderBuilder::retries`](crate::LoaderBuilder::retries) says how many it gets.
#[derive(Debug)]
pub struct Transient(pub String);

impl fmt::Display for Transient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Transient {}

/// What a panic said.
fn panic_text(payload: &(dyn Any + Send)) -> String {
    let said = payload.downcast_ref::<&str>().copied();
    let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", said.unwrap_or("with something that is no text"))
}

/// A failure in words.
pub(crate) struct Said {
    pub text: String,
    pub causes: String,
    pub transient: bool,
}

/// Takes a failure, whose own Display, source and Drop may panic, apart.
pub(crate) fn said(failure: Failure) -> Said {
    let safely = |words: &dyn Fn() -> String| guarded(|| Ok(words())).unwrap_or_else(|panicked| panicked.to_string());
    let text = safely(&|| failure.to_string());
    let causes = safely(&|| causes(&failure));
    let transient = failure.is::<Transient>();
    let_go(failure);
    Said { text, causes, transient }
}

/// More causes than anybody reads: one that is its own ends here.
const MOST_CAUSES: usize = 100;

/// What led to a failure, line by line.
fn causes(failure: &Failure) -> String {
    let (mut lines, mut cause) = (Vec::new(), failure.source());
    while let (Some(error), true) = (cause, lines.len() < MOST_CAUSES) {
        lines.push(format!("caused by: {}", error));
        cause = error.source();
    }
    lines.join("\n")
}

/// Drops what is a data set's. That may panic, and what it panicked with may do so again when dropped: it is left.
pub(crate) fn let_go<T>(theirs: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(theirs))) {
        std::mem::forget(payload);
    }
}

/// Runs `f`; its error and its panic both become a failure.
pub(crate) fn guarded<R>(f: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        let text = panic_text(&*payload);
        let_go(payload);
        Err(text.into())
    })
}
