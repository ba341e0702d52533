// SPDX-License-Identifier: Apache-2.0
//! The struct of `status.h`.
use std::os::raw::c_char;

use crate::layout::Member;

structs! {
    /// An error.
    pub struct feedlane_error {
        pub size: usize,
        pub code: i32,
        pub os_errno: i32,
        pub worker: i32,
        pub attempt: i32,
        pub transient: i32,
        pub reserved: i32,
        pub epoch: i64,
        pub batch: i64,
        pub sample: i64,
        pub found: i64,
        pub needed: i64,
        pub argument: [c_char; 64],
        pub text: [c_char; 384],
        pub detail: *mut c_char,
        pub detail_cap: u64,
        pub detail_len: u64,
    }
}
