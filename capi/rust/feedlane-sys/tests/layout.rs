// SPDX-License-Identifier: Apache-2.0
//! This crate says what the record of `feedlane.h` says: nothing is missing, and Rust lays out every struct as C does.
mod record;

use std::collections::BTreeSet;

use feedlane_sys::Member;

/// (struct, its size, its members) as Rust has them.
fn layouts() -> Vec<(&'static str, usize, Vec<Member>)> {
    let mut all = Vec::new();
    feedlane_sys::layouts(&mut |name, size, members| {
        let mut list = Vec::new();
        members(&mut |member| list.push(member));
        all.push((name, size, list));
    });
    all
}

/// What C's numbers are called in Rust; anything else is compared by size alone.
fn kind(rust: &str) -> &str {
    match rust {
        "i32" | "i64" | "u8" | "u16" | "u32" | "u64" => rust,
        "usize" => "u64",
        _ => "other",
    }
}

/// Shows the first line that differs, not hundreds that don't.
fn assert_same_lines(c: &[String], rust: &[String]) {
    for (theirs, ours) in c.iter().zip(rust) {
        assert_eq!(theirs, ours, "C says the one, Rust the other");
    }
    assert_eq!(c.len(), rust.len());
}

#[test]
fn record() {
    every_struct_is_laid_out_as_in_c();
    every_constant_has_its_value();
    let abi = format!("FEEDLANE_ABI {}", feedlane_sys::FEEDLANE_ABI);
    assert!(record::constants(&record::record()).contains(&abi), "{}", abi);
}

fn every_struct_is_laid_out_as_in_c() {
    let mut ours = Vec::new();
    for (name, size, members) in layouts() {
        let member = |m: &Member| format!("{}.{} {} {} {}", name, m.name, m.offset, m.size, kind(m.kind));
        ours.push((format!("{} {}", name, size), members.iter().map(member).collect::<Vec<_>>()));
    }
    let theirs = record::layouts(&record::record());
    for (of_struct, members) in &ours {
        let at =
            theirs.iter().position(|line| line == of_struct).unwrap_or_else(|| panic!("not so in C: {}", of_struct));
        let end = theirs[at + 1..].iter().take_while(|line| line.contains('.')).count();
        assert_same_lines(&theirs[at + 1..at + 1 + end], members);
    }
    assert_eq!(ours.len(), theirs.iter().filter(|line| !line.contains('.')).count(), "a struct is missing");
}

#[test]
fn the_sizes_are_those_of_the_manual() {
    let manual = std::fs::read_to_string(record::capi().join("../docs/integrating.md")).expect("docs/integrating.md");
    for (name, size, _) in layouts() {
        if let Some(cell) = manual.split(&format!("| `{}` | ", name)).nth(1) {
            let number: String = cell.chars().take_while(char::is_ascii_digit).collect();
            assert!(number.is_empty() || number == size.to_string(), "{}: {} here, {} there", name, size, number);
        }
    }
}

fn every_constant_has_its_value() {
    let source = include_str!(concat!(env!("OUT_DIR"), "/constants.rs"));
    let mut ours = BTreeSet::new();
    for line in source.lines().filter_map(|l| l.strip_prefix("pub const ")) {
        let (name, rest) = line.split_once(':').expect("a type");
        let value = rest.split_once("= ").expect("a value").1.trim_end_matches(';');
        let value = match value {
            // All bits are set: the record has it as a signed number.
            "u64::MAX" | "usize::MAX as *mut std::ffi::c_void" => "-1".to_string(),
            number => number.to_string(),
        };
        ours.insert(format!("{} {}", name, value));
    }
    let theirs: BTreeSet<String> = record::constants(&record::record()).into_iter().collect();
    assert_eq!(ours, theirs);
}

#[test]
fn every_function_is_declared_as_in_the_record() {
    let source = record::source("functions.rs").split_whitespace().collect::<Vec<_>>().join(" ");
    let source = source.replace("( ", "(").replace(", )", ")");
    let prototypes = record::prototypes(&record::record());
    for prototype in prototypes.values() {
        assert!(source.contains(prototype.as_str()), "not declared so: {}", prototype);
    }
    let map = std::fs::read_to_string(record::capi().join("feedlane.map")).expect("capi/feedlane.map");
    let exported: BTreeSet<&str> =
        map.lines().filter_map(|l| l.trim().strip_suffix(';')).filter(|name| name.starts_with("feedlane_")).collect();
    let declared: BTreeSet<&str> = prototypes.keys().map(String::as_str).collect();
    assert_eq!(declared, exported);
    assert_eq!(source.matches("pub fn feedlane_").count(), exported.len());
}

#[test]
fn the_library_is_of_this_abi() {
    // SAFETY: takes nothing, looks at nothing.
    assert_eq!(unsafe { feedlane_sys::feedlane_abi_version() }, feedlane_sys::FEEDLANE_ABI);
}

#[test]
fn new_structs_are_zero_and_know_their_size() {
    let error = feedlane_sys::feedlane_error::new();
    assert_eq!((error.size, error.worker, error.detail.is_null()), (544, 0, true));
    assert_eq!(feedlane_sys::feedlane_span::new().stride, 0, "it has no size to set");
}

#[test]
fn dlpack_is_laid_out_as_its_documentation_says() {
    use feedlane_sys::*;
    use std::mem::size_of;
    assert_eq!((size_of::<DLDevice>(), size_of::<DLDataType>(), size_of::<DLPackVersion>()), (8, 4, 8));
    assert_eq!((size_of::<DLTensor>(), size_of::<DLManagedTensor>()), (48, 64));
    assert_eq!(size_of::<DLManagedTensorVersioned>(), 80);
    let place = std::mem::MaybeUninit::<DLManagedTensorVersioned>::uninit();
    let start = place.as_ptr();
    // SAFETY: addresses of members only; nothing is read.
    let ends = unsafe {
        [
            std::ptr::addr_of!((*start).deleter) as usize,
            std::ptr::addr_of!((*start).flags) as usize,
            std::ptr::addr_of!((*start).dl_tensor.shape) as usize,
            std::ptr::addr_of!((*start).dl_tensor.byte_offset) as usize,
        ]
    };
    assert_eq!(ends.map(|end| end - start as usize), [16, 24, 56, 72]);
}
