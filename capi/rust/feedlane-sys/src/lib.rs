// SPDX-License-Identifier: Apache-2.0
//! `feedlane.h` in Rust: every struct, constant and function under its own name. What each means is said there, in
//! `include/feedlane.h` and the headers that it includes; what it takes to call them safely is in the crate `feedlane`.
//!
//! The tests beside this crate read the header and compare: names, values, prototypes, sizes, offsets, types.
#![allow(non_camel_case_types)]

#[macro_use]
mod layout;
mod constants;
mod dlpack;
mod functions;
mod observe;
mod pool;
mod sampler;
mod share;
mod structs;

pub use constants::*;
pub use dlpack::*;
pub use functions::*;
#[doc(hidden)]
pub use layout::Member;
pub use observe::*;
pub use pool::*;
pub use sampler::*;
pub use share::*;
pub use structs::*;

/// Every struct: its name, its size, its members.
#[doc(hidden)]
#[allow(clippy::type_complexity)] // it is one type, named `Visit` inside
pub fn layouts(visit: &mut dyn FnMut(&'static str, usize, fn(&mut dyn FnMut(Member)))) {
    structs::layouts(visit);
    pool::layouts(visit);
    observe::layouts(visit);
    sampler::layouts(visit);
    share::layouts(visit);
}
