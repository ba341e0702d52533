// SPDX-License-Identifier: Apache-2.0
//! `feedlane.h` in Rust: every struct, constant and exported function under its C name. `include/feedlane.h` and the
//! headers that it includes describe what each of them means. The crate `feedlane` wraps them in a safe interface.
//! `new()` of a struct does what `feedlane_init` does in C.
//!
//! `gen/generate.py` writes `headers/` from the record of the interface, `capi/abi/interface.json`. `dlpack` is written by
//! hand because the record has only the names of DLPack's structs.
#![allow(non_camel_case_types)]

#[macro_use]
mod layout;
mod dlpack;
#[rustfmt::skip] // generated without rustfmt
mod headers;

pub use dlpack::*;
pub use headers::*;

/// The numbers of C are in the record, those of Rust come from the compiler.
#[test]
fn record() {
    headers::check_layouts();
    // SAFETY: takes nothing, looks at nothing.
    assert_eq!(unsafe { feedlane_abi_version() }, FEEDLANE_ABI, "the library is of another ABI");
    assert_eq!((FEEDLANE_EXHAUSTED, FEEDLANE_SLOTS, FEEDLANE_FOREVER), (u64::MAX, u64::MAX, i64::MAX));
    assert_eq!(FEEDLANE_NO_STREAM as usize, usize::MAX);
}

#[test]
fn new_structs_are_zero_and_know_their_size() {
    let error = feedlane_error::new();
    assert_eq!((error.size, error.worker, error.detail.is_null()), (544, 0, true));
    assert_eq!(feedlane_span::new().stride, 0, "it has no size to set");
}
