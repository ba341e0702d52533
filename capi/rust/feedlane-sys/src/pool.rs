// SPDX-License-Identifier: Apache-2.0
//! The structs of `pool.h`: memory registered with a device.
use std::ffi::c_void;
use std::os::raw::c_char;

use crate::error::feedlane_error;
use crate::layout::Member;

handles! { feedlane_pool }

structs! {
    /// A user-defined backend: registers memory with a device and uses its streams.
    pub struct feedlane_backend {
        pub size: usize,
        pub user_data: *mut c_void,
        pub register_memory: Option<
            unsafe extern "C" fn(
                user_data: *mut c_void,
                address: *mut c_void,
                bytes: u64,
                err: *mut feedlane_error,
            ) -> i32,
        >,
        pub unregister_memory: Option<
            unsafe extern "C" fn(
                user_data: *mut c_void,
                address: *mut c_void,
                bytes: u64,
                err: *mut feedlane_error,
            ) -> i32,
        >,
        pub copy: Option<
            unsafe extern "C" fn(
                user_data: *mut c_void,
                device_memory: *mut c_void,
                host: *const c_void,
                bytes: u64,
                stream: *mut c_void,
                err: *mut feedlane_error,
            ) -> i32,
        >,
        pub when_passed: Option<
            unsafe extern "C" fn(
                user_data: *mut c_void,
                stream: *mut c_void,
                notify: Option<unsafe extern "C" fn(cookie: *mut c_void, status: i32)>,
                cookie: *mut c_void,
                err: *mut feedlane_error,
            ) -> i32,
        >,
    }

    /// The device with which a pool registers memory, and the pool's buffers.
    pub struct feedlane_pool_config {
        pub size: usize,
        pub backend: *const c_char,
        pub custom: *const feedlane_backend,
        pub device: i32,
        pub buffers: u32,
        pub buffer_bytes: u64,
        pub budget_bytes: u64,
    }

    /// A buffer that the caller holds.
    pub struct feedlane_buffer {
        pub size: usize,
        pub token: u64,
        pub data: *mut c_void,
        pub bytes: u64,
    }

    /// A pool's counters.
    pub struct feedlane_pool_stats {
        pub size: usize,
        pub buffers: u64,
        pub in_use: u64,
        pub pending: u64,
        pub registered_bytes: u64,
        pub acquired: u64,
        pub waited_ns: u64,
        pub failures: u64,
    }
}
