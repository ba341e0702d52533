// SPDX-License-Identifier: Apache-2.0
//! `feedlane.h` in Rust: every struct, constant and exported function under its C name. `include/feedlane.h` and the
//! headers that it includes describe what each of them means. The crate `feedlane` wraps them in a safe interface.
//! `new()` of a struct does what `feedlane_init` does in C.
//!
//! The build script writes the constants and the structs of reports. The tests compare the crate with the record of the
//! interface, `capi/abi/interface.json`: names, values, prototypes, sizes, offsets and types.
#![allow(non_camel_case_types)]

#[macro_use]
mod layout;
mod constants {
    //! The constants of `feedlane.h`. build.rs writes them.
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}
mod arena;
mod dlpack;
mod error;
mod functions;
mod observe;
mod pool;
mod sampler;
mod share;
mod structs;

pub use arena::*;
pub use constants::*;
pub use dlpack::*;
pub use error::*;
pub use functions::*;
#[doc(hidden)]
pub use layout::Member;
pub use observe::*;
pub use pool::*;
pub use sampler::*;
pub use share::*;
pub use structs::*;

/// Visits every struct: its name, its size and its members.
#[doc(hidden)]
#[allow(clippy::type_complexity)] // a single type, which is named `Visit` in this crate
pub fn layouts(visit: &mut dyn FnMut(&'static str, usize, fn(&mut dyn FnMut(Member)))) {
    error::layouts(visit);
    structs::layouts(visit);
    pool::layouts(visit);
    observe::layouts(visit);
    sampler::layouts(visit);
    share::layouts(visit);
    arena::layouts(visit);
}
