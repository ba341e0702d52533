// SPDX-License-Identifier: Apache-2.0
//! What of the C interface this crate wraps: all functions of the record but those listed here, each with its reason.
use std::fs;
use std::path::Path;

/// Not called by this crate.
const NOT_WRAPPED: &[(&str, &str)] =
    &[("feedlane_batch_retain", "Arc<Batch>; DLPack tensors hold the batch by themselves")];

#[test]
fn every_function_is_wrapped_or_says_why_not() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut source = String::new();
    for entry in fs::read_dir(here.join("src")).expect("the sources") {
        source += &fs::read_to_string(entry.expect("an entry").path()).expect("a source");
    }
    let record = fs::read_to_string(here.join("../../abi/interface.json")).expect("the record");
    let functions = record.split("\n  \"functions\": {").nth(1).expect("the functions");
    let names: Vec<&str> = functions.lines().filter_map(|l| l.strip_prefix("    \"")?.split('"').next()).collect();
    assert!(names.len() > 80, "{:?}", names);
    // Followed by what cannot be part of a longer name.
    let is_in = |text: &str, name: &str| {
        text.match_indices(name)
            .any(|(at, _)| !text[at + name.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };

    let unused: Vec<_> = names.iter().copied().filter(|name| !is_in(&source, &format!("sys::{}", name))).collect();
    assert_eq!(unused, {
        let mut listed: Vec<_> = NOT_WRAPPED.iter().map(|(name, _)| *name).collect();
        listed.sort_by_key(|name| names.iter().position(|n| n == name));
        listed
    });
}

#[test]
fn every_member_of_the_configuration_can_be_set() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let builder = fs::read_to_string(here.join("src/builder.rs")).expect("the builder");
    let structs = fs::read_to_string(here.join("../feedlane-sys/src/headers/loader.rs")).expect("the structs");
    let body = structs.split("pub struct feedlane_loader_config: ").nth(1).and_then(|rest| rest.split('}').next());
    for line in body.expect("the struct").lines().skip(1).filter(|l| !l.trim().is_empty()) {
        let name = line.split(": ").nth(1).expect("an offset, a name and a type");
        let is_set =
            builder.contains(&format!("config.{} = ", name)) || builder.contains(&format!("        {}: ", name));
        assert!(is_set || matches!(name, "size" | "reserved" | "share_reserved"), "{}", name);
    }
}
