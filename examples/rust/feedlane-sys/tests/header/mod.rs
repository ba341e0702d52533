// SPDX-License-Identifier: Apache-2.0
//! Reads `feedlane.h` as far as the tests need it, and this crate's own source.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub fn capi() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../capi")
}

pub fn source(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {}", path.display(), e))
}

/// The header without comments, every run of white space one space.
pub fn header() -> String {
    let text = fs::read_to_string(capi().join("feedlane.h")).expect("capi/feedlane.h");
    let mut bare = String::new();
    let mut rest = text.as_str();
    while let Some(start) = rest.find("/*") {
        bare.push_str(&rest[..start]);
        rest = &rest[start..];
        rest = &rest[rest.find("*/").expect("the comment's end") + 2..];
    }
    bare.push_str(rest);
    bare.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The names `FEEDLANE_...` that the header defines as numbers.
pub fn constants(header: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for define in header.split("#define ").skip(1) {
        let mut words = define.split([' ', '\\']).filter(|word| !word.is_empty());
        let (name, value) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let number = value.starts_with(|c: char| c.is_ascii_digit() || c == '(') || value == "INT64_MAX";
        if number && name.starts_with("FEEDLANE_") && !name.contains('(') {
            names.push(name.into());
        }
    }
    names
}

/// Each struct's members in order: "int32_t code" and so on.
pub fn structs(header: &str) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for part in header.split("typedef struct ").skip(1) {
        let end = part.find(';').expect("a declaration's end");
        if let Some(open) = part[..end].find('{') {
            let name = part[..open].trim().to_string();
            let body = &part[open + 1..part.find('}').expect("a struct's end")];
            let members = body.split(';').map(str::trim).filter(|m| !m.is_empty());
            found.insert(name, members.map(String::from).collect());
        }
    }
    found
}

/// A member's name: what stands before the brackets, or within the star of a function pointer.
pub fn member_name(declaration: &str) -> String {
    let up_to = match declaration.find("(*") {
        Some(star) => &declaration[star + 2..],
        None => declaration.rsplit([' ', '*']).next().unwrap_or(""),
    };
    up_to.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// Each function as Rust would write it: "pub fn name(a: *const b, ...) -> i32;".
pub fn prototypes(header: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for part in header.split("FEEDLANE_API ").skip(1) {
        let declaration = match part.find(';') {
            Some(end) => &part[..end],
            None => continue,
        };
        let (open, close) = match (declaration.find('('), declaration.rfind(')')) {
            (Some(open), Some(close)) => (open, close),
            _ => continue, // the macro's own definition
        };
        let (name, result) = parameter(&declaration[..open]);
        if !name.starts_with("feedlane_") {
            continue;
        }
        let list: Vec<String> = declaration[open + 1..close]
            .split(',')
            .map(str::trim)
            .filter(|p| *p != "void")
            .map(parameter)
            .map(|(name, kind)| format!("{}: {}", name, kind))
            .collect();
        let result = if result == "c_void" { String::new() } else { format!(" -> {}", result) };
        found.insert(name.clone(), format!("pub fn {}({}){};", name, list.join(", "), result));
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
