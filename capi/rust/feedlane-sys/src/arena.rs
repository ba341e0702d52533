// SPDX-License-Identifier: Apache-2.0
//! The structs of `arena.h`, in the header's order.
use std::ffi::c_void;
use std::os::raw::c_char;

use crate::layout::Member;
use crate::structs::feedlane_field;

structs! {
    /// An arena.
    pub struct feedlane_arena_config {
        pub size: usize,
        pub bytes: u64,
        pub members: u32,
        pub entries: u32,
        pub leases: u32,
        pub when_full: i32,
        pub path: *const c_char,
    }

    /// An entry to put.
    pub struct feedlane_put {
        pub size: usize,
        pub key: *const c_void,
        pub key_bytes: u64,
        pub fields: *const feedlane_field,
        pub field_count: u64,
        pub metadata: *const c_void,
        pub metadata_bytes: u64,
        pub pinned: i32,
        pub reserved: i32,
    }

    /// The state of an arena, and of this process in it.
    pub struct feedlane_arena_stats {
        pub size: usize,
        pub owner: i64,
        pub bytes: u64,
        pub used_bytes: u64,
        pub free_bytes: u64,
        pub entries: u64,
        pub members: u64,
        pub leased: u64,
        pub waiting: u64,
        pub published: u64,
        pub evicted: u64,
        pub hits: u64,
        pub misses: u64,
        pub held: u64,
    }
}
