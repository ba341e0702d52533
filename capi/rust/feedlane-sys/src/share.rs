// SPDX-License-Identifier: Apache-2.0
//! The structs of `share.h`, in the header's order.
use crate::layout::Member;

structs! {
    /// A consumer's place.
    pub struct feedlane_consumer_config {
        pub size: usize,
        pub id: i32,
        pub lag: i32,
        pub evict_after_ns: i64,
    }

    /// A consumer, as its feeder sees it.
    pub struct feedlane_consumer_stats {
        pub size: usize,
        pub id: i32,
        pub state: i32,
        pub pid: i64,
        pub lag: i32,
        pub reserved: i32,
        pub delivered: u64,
        pub taken_back: u64,
        pub waiting: u64,
        pub held: u64,
    }
}
