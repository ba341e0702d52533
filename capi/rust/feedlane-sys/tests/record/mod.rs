// SPDX-License-Identifier: Apache-2.0
//! Reads the record of `feedlane.h` as far as the tests need it, and this crate's own source.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub fn capi() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn source(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {}", path.display(), e))
}

/// $FEEDLANE_RECORD, as one that is installed, or capi/abi/interface.json, which is compared with the header elsewhere: an
/// entry a line.
pub fn record() -> String {
    let path = std::env::var_os("FEEDLANE_RECORD").map_or_else(|| capi().join("abi/interface.json"), PathBuf::from);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {}", path.display(), e))
}

/// The lines of a table, each with its key.
fn entries<'a>(record: &'a str, table: &str) -> Vec<(&'a str, &'a str)> {
    let start = format!("  \"{}\": {{", table);
    let lines = record.lines().skip_while(|line| *line != start).skip(1).take_while(|line| !line.starts_with("  }"));
    let found: Vec<_> = lines.map(|line| (line.trim_start().split('"').nth(1).unwrap_or(""), line)).collect();
    assert!(!found.is_empty(), "no {} in the record", table);
    found
}

/// The value behind the first `"key": "` of a line.
fn text<'a>(line: &'a str, key: &str) -> &'a str {
    let value = line.split(&format!("\"{}\": \"", key)).nth(1).unwrap_or_else(|| panic!("no {} in {}", key, line));
    value.split('"').next().unwrap_or("")
}

fn number(line: &str, key: &str) -> usize {
    let value = line.split(&format!("\"{}\": ", key)).nth(1).unwrap_or_else(|| panic!("no {} in {}", key, line));
    let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|e| panic!("{}: {}", line, e))
}

/// "NAME value" each.
pub fn constants(record: &str) -> Vec<String> {
    let lines = entries(record, "constants").into_iter();
    lines
        .map(|(name, line)| format!("{} {}", name, line.rsplit(": ").next().unwrap_or("").trim_end_matches(',')))
        .collect()
}

/// "struct bytes" and "struct.member offset bytes type" each; the type of what is no single number is "other".
pub fn layouts(record: &str) -> Vec<String> {
    let (mut found, mut current) = (Vec::new(), "");
    for (key, line) in entries(record, "structs") {
        match key {
            "" => {} // the struct's end
            "name" => {
                let kind = if line.contains("\"length\": ") { "other" } else { number_name(text(line, "type")) };
                let (name, offset, bytes) = (text(line, "name"), number(line, "offset"), number(line, "bytes"));
                found.push(format!("{}.{} {} {} {}", current, name, offset, bytes, kind));
            }
            name => {
                current = name;
                found.push(format!("{} {}", name, number(line, "bytes")));
            }
        }
    }
    found
}

fn number_name(c: &str) -> &str {
    match c {
        "uint8_t" => "u8",
        "uint16_t" => "u16",
        "int32_t" | "int64_t" | "uint32_t" | "uint64_t" => rust_name(c),
        "size_t" => "u64",
        _ => "other",
    }
}

/// Each function as Rust would write it: "pub fn name(a: *const b, ...) -> i32;".
pub fn prototypes(record: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (name, line) in entries(record, "functions") {
        let list = line.split("\"arguments\": [").nth(1).and_then(|l| l.split(']').next()).unwrap_or("");
        let list: Vec<String> = list
            .split('{')
            .skip(1)
            .map(|a| parameter(&format!("{} {}", text(a, "type"), text(a, "name"))))
            .map(|(name, kind)| format!("{}: {}", name, kind))
            .collect();
        let (_, result) = parameter(&format!("{} result", text(line, "returns")));
        let result = if result == "c_void" { String::new() } else { format!(" -> {}", result) };
        found.insert(name.to_string(), format!("pub fn {}({}){};", name, list.join(", "), result));
    }
    found
}

/// "const char *text" is ("text", "*const c_char").
fn parameter(declaration: &str) -> (String, String) {
    let spaced = declaration.replace('*', " * ");
    let mut words: Vec<&str> = spaced.split_whitespace().filter(|w| *w != "struct").collect();
    let name = words.pop().expect("a name").to_string();
    let (mut kind, mut constant) = (String::new(), false);
    for word in words {
        match word {
            "const" => constant = true,
            "*" => {
                kind = format!("*{} {}", if constant { "const" } else { "mut" }, kind);
                constant = false;
            }
            other => kind = rust_name(other).into(),
        }
    }
    (name, kind)
}

fn rust_name(c: &str) -> &str {
    match c {
        "int32_t" => "i32",
        "int64_t" => "i64",
        "uint32_t" => "u32",
        "uint64_t" => "u64",
        "size_t" => "usize",
        "double" => "f64",
        "char" => "c_char",
        "void" => "c_void",
        other => other,
    }
}
