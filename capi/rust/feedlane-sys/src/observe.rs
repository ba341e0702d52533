// SPDX-License-Identifier: Apache-2.0
//! The structs of `monitor.h` and `observe.h`. build.rs writes them.
use std::os::raw::c_char;

use crate::error::feedlane_error;
use crate::layout::Member;

include!(concat!(env!("OUT_DIR"), "/reports.rs"));
