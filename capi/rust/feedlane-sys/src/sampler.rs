// SPDX-License-Identifier: Apache-2.0
//! The structs of `sampler.h`.
use std::ffi::c_void;
use std::os::raw::c_char;

use crate::error::feedlane_error;
use crate::layout::Member;

handles! { feedlane_sampler }

structs! {
    /// The rank of this process.
    pub struct feedlane_rank {
        pub size: usize,
        pub rank: i32,
        pub world: i32,
        pub source: [c_char; 16],
        pub warning: [c_char; 384],
    }

    /// A user-defined sampler.
    pub struct feedlane_sampler_callbacks {
        pub size: usize,
        pub user_data: *mut c_void,
        pub restart: Option<
            unsafe extern "C" fn(
                user_data: *mut c_void,
                epoch: i64,
                seed: u64,
                err: *mut feedlane_error,
            ) -> i32,
        >,
        pub next: Option<
            unsafe extern "C" fn(
                user_data: *mut c_void,
                indices: *mut i64,
                cap: u64,
                got: *mut u64,
                err: *mut feedlane_error,
            ) -> i32,
        >,
        pub save: Option<
            unsafe extern "C" fn(
                user_data: *mut c_void,
                buffer: *mut c_void,
                cap: u64,
                bytes: *mut u64,
                err: *mut feedlane_error,
            ) -> i32,
        >,
        pub load: Option<
            unsafe extern "C" fn(
                user_data: *mut c_void,
                buffer: *const c_void,
                bytes: u64,
                err: *mut feedlane_error,
            ) -> i32,
        >,
        pub drop: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
        pub length: i64,
        pub batch_rows: i64,
        pub wake_fd: i32,
        pub reserved: i32,
    }

    /// What a sampler yields.
    pub struct feedlane_sampler_config {
        pub size: usize,
        pub kind: i32,
        pub shuffle: i32,
        pub length: i64,
        pub seed: u64,
        pub num_samples: i64,
        pub replacement: i32,
        pub without_replacement: i32,
        pub no_shuffle: i32,
        pub drop_last: i32,
        pub world: i32,
        pub rank: i32,
        pub detect_off: i32,
        pub padded: i32,
        pub drop_long: i32,
        pub reserved: i32,
        pub batch_size: i64,
        pub max_tokens: i64,
        pub max_rows: i64,
        pub window: i64,
        pub indices: *const i64,
        pub lengths: *const i64,
        pub weights: *const f64,
        pub count: u64,
        pub from: *const i64,
        pub stages: u64,
        pub inner: *const feedlane_sampler,
        pub callbacks: *const feedlane_sampler_callbacks,
    }
}
