// SPDX-License-Identifier: Apache-2.0
//! Writes the constants and the reports of the record of `feedlane.h`, and says where libfeedlane.so is: in
//! $FEEDLANE_LIB_DIR, else where pkg-config says, else where the linker looks by itself.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=interface.json");
    let record = fs::read_to_string("interface.json").expect("interface.json");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets it"));
    fs::write(out.join("constants.rs"), constants(&record)).expect("in OUT_DIR");
    fs::write(out.join("reports.rs"), reports(&record)).expect("in OUT_DIR");
    find_library();
}

/// The constants of the record, one per line there: `"NAME": value,`. Their type is i32, unless `typed` says otherwise.
fn constants(record: &str) -> String {
    let lines = record
        .lines()
        .skip_while(|line| !line.contains("\"constants\""))
        .skip(1)
        .take_while(|line| !line.contains('}'));
    let mut code = String::new();
    for line in lines {
        let (name, value) = line.trim().trim_end_matches(',').split_once(": ").expect("a name and a value");
        let name = name.trim_matches('"');
        let (kind, value) = typed(name, value);
        code += &format!("pub const {name}: {kind} = {value};\n");
    }
    code
}

fn typed<'a>(name: &str, value: &'a str) -> (&'static str, &'a str) {
    match name.trim_start_matches("FEEDLANE_") {
        "VERSION_MAJOR" | "VERSION_MINOR" | "VERSION_PATCH" | "VERSION" | "ABI" => ("u32", value),
        "MAX_NDIM" | "MAX_TENSORS" | "MAX_RECORDED_STREAMS" | "HISTOGRAM_BUCKETS" => ("usize", value),
        "FOREVER" | "UNBATCHED" => ("i64", value),
        "EXHAUSTED" | "SLOTS" => ("u64", "u64::MAX"), // all bits are set: the record has it as a signed number
        "NO_STREAM" => ("*mut std::ffi::c_void", "usize::MAX as *mut std::ffi::c_void"),
        _ => ("i32", value),
    }
}

/// The structs of `monitor.h` and `observe.h`, which come last in the record and have one line per member there.
fn reports(record: &str) -> String {
    let lines =
        record.lines().skip_while(|line| !line.contains("\"feedlane_stats\": {")).take_while(|line| *line != "  },");
    let mut code = String::from("structs! {\n");
    for line in lines.map(str::trim) {
        code += &if line.starts_with('{') {
            let name = text(line, "\"name\": \"", '"').expect("a name");
            let c = text(line, "\"type\": \"", '"').expect("a type");
            let kind = rust_type(c);
            match text(line, "\"length\": ", '}') {
                Some(length) => format!("pub {name}: [{kind}; {length}],\n"),
                None => format!("pub {name}: {kind},\n"),
            }
        } else if line.starts_with(']') {
            "}\n".into()
        } else {
            format!("pub struct {} {{\n", text(line, "\"", '"').expect("a struct"))
        };
    }
    code + "}\n"
}

/// What is between `before` and `end`.
fn text<'a>(line: &'a str, before: &str, end: char) -> Option<&'a str> {
    line.split_once(before)?.1.split(end).next()
}

fn rust_type(c: &str) -> &str {
    match c {
        "int32_t" => "i32",
        "uint32_t" => "u32",
        "int64_t" => "i64",
        "uint64_t" => "u64",
        "size_t" => "usize",
        "char" => "c_char",
        structure => structure,
    }
}

fn find_library() {
    println!("cargo:rerun-if-env-changed=FEEDLANE_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    println!("cargo:rustc-link-lib=dylib=feedlane");
    if let Some(folder) = env::var_os("FEEDLANE_LIB_DIR") {
        let library = Path::new(&folder).join("libfeedlane.so");
        if !library.exists() {
            panic!("FEEDLANE_LIB_DIR: {} does not exist", library.display());
        }
        println!("cargo:rustc-link-search=native={}", Path::new(&folder).display());
        return;
    }
    match pkg_config_folders() {
        Some(folders) => folders.iter().for_each(|folder| println!("cargo:rustc-link-search=native={}", folder)),
        // It may be in a folder of the linker's own all the same.
        None => println!(
            "cargo:warning=pkg-config doesn't know feedlane: install the library, or set PKG_CONFIG_PATH to the folder of \
             feedlane.pc or FEEDLANE_LIB_DIR to that of libfeedlane.so"
        ),
    }
}

/// Empty for a library in the linker's own folders; none where there is no pkg-config or it doesn't know the library.
fn pkg_config_folders() -> Option<Vec<String>> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let said = Command::new(program).args(["--libs-only-L", "feedlane"]).output().ok()?;
    let flags = String::from_utf8(said.stdout).ok().filter(|_| said.status.success())?;
    Some(flags.split_whitespace().filter_map(|flag| flag.strip_prefix("-L").map(String::from)).collect())
}
