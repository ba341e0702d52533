// SPDX-License-Identifier: Apache-2.0
//! This crate says what `feedlane.h` says: nothing is missing, and the C compiler lays out every struct as Rust does.
mod header;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::Write as _;
use std::process::{Command, Stdio};

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

/// Compiles and runs a C program that includes the header; the lines that it prints.
fn run_c(body: &str) -> Vec<String> {
    let folder = std::env::temp_dir().join(format!("feedlane-layout-{}-{}", std::process::id(), body.len()));
    std::fs::create_dir_all(&folder).expect("a folder of our own");
    let program = folder.join("layout");
    let text = format!(
        "#include <feedlane.h>\n#include <stdio.h>\n\
         #define KIND(x) _Generic((x), uint8_t: \"u8\", uint16_t: \"u16\", int32_t: \"i32\", int64_t: \"i64\", \
         uint32_t: \"u32\", uint64_t: \"u64\", default: \"other\")\n\
         #define MEMBER(s, m) printf(#s \".\" #m \" %zu %zu %s\\n\", offsetof(s, m), sizeof ((s *)0)->m, \
         KIND(((s *)0)->m))\n\
         int main(void) {{\n{}return 0;\n}}\n",
        body
    );
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut words = compiler.split_whitespace();
    let mut child = Command::new(words.next().expect("a compiler's name"))
        .args(words)
        .args(["-std=c11", "-x", "c", "-", "-I"])
        .arg(header::capi())
        .arg("-o")
        .arg(&program)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler: cc, or $CC");
    child.stdin.take().expect("its input").write_all(text.as_bytes()).expect("the program's text");
    assert!(child.wait().expect("its end").success(), "the C program doesn't compile:\n{}", text);
    let said = Command::new(&program).output().expect("the compiled program");
    std::fs::remove_dir_all(&folder).expect("the folder goes");
    String::from_utf8(said.stdout).expect("ASCII").lines().map(String::from).collect()
}

/// Shows the first line that differs, not hundreds that don't.
fn assert_same_lines(c: &[String], rust: &[String]) {
    for (theirs, ours) in c.iter().zip(rust) {
        assert_eq!(theirs, ours, "C says the one, Rust the other");
    }
    assert_eq!(c.len(), rust.len());
}

#[test]
fn every_struct_is_laid_out_as_in_c() {
    let (mut body, mut expected) = (String::new(), Vec::new());
    for (name, size, members) in layouts() {
        writeln!(body, "printf(\"{0} %zu\\n\", sizeof({0}));", name).unwrap();
        expected.push(format!("{} {}", name, size));
        for m in members {
            writeln!(body, "MEMBER({}, {});", name, m.name).unwrap();
            expected.push(format!("{}.{} {} {} {}", name, m.name, m.offset, m.size, kind(m.kind)));
        }
    }
    assert_same_lines(&run_c(&body), &expected);
}

#[test]
fn no_struct_and_no_member_is_missing() {
    let ours: Vec<(String, Vec<String>)> = layouts()
        .into_iter()
        .map(|(name, _, members)| (name.into(), members.iter().map(|m| m.name.into()).collect()))
        .collect();
    let theirs = header::structs(&header::header());
    assert_eq!(ours.len(), theirs.len());
    for (name, members) in ours {
        let declared: Vec<String> = theirs[&name].iter().map(|d| header::member_name(d)).collect();
        assert_eq!(members, declared, "{}", name);
    }
}

#[test]
fn the_sizes_are_those_of_the_manual() {
    let manual = std::fs::read_to_string(header::capi().join("../docs/integrating.md")).expect("docs/integrating.md");
    for (name, size, _) in layouts() {
        if let Some(cell) = manual.split(&format!("| `{}` | ", name)).nth(1) {
            let number: String = cell.chars().take_while(char::is_ascii_digit).collect();
            assert!(number.is_empty() || number == size.to_string(), "{}: {} here, {} there", name, size, number);
        }
    }
}

#[test]
fn every_constant_has_its_value() {
    let source = header::source("constants.rs");
    let (mut body, mut expected, mut ours) = (String::new(), Vec::new(), BTreeSet::new());
    for line in source.lines().filter_map(|l| l.strip_prefix("pub const ")) {
        let (name, rest) = line.split_once(':').expect("a type");
        let value =
            rest.split_once("= ").expect("a value").1.trim_end_matches(';').replace("i64::MAX", &i64::MAX.to_string());
        writeln!(body, "printf(\"{0} %lld\\n\", (long long)({0}));", name).unwrap();
        expected.push(format!("{} {}", name, value));
        ours.insert(name.to_string());
    }
    assert_same_lines(&run_c(&body), &expected);
    let theirs: BTreeSet<String> = header::constants(&header::header()).into_iter().collect();
    assert_eq!(ours, theirs);
}

#[test]
fn every_function_is_declared_as_in_the_header() {
    let source = header::source("functions.rs").split_whitespace().collect::<Vec<_>>().join(" ");
    let source = source.replace("( ", "(").replace(", )", ")");
    let prototypes = header::prototypes(&header::header());
    for prototype in prototypes.values() {
        assert!(source.contains(prototype.as_str()), "not declared so: {}", prototype);
    }
    let map = std::fs::read_to_string(header::capi().join("feedlane.map")).expect("capi/feedlane.map");
    let exported: BTreeSet<&str> =
        map.lines().filter_map(|l| l.trim().strip_suffix(';')).filter(|name| name.starts_with("feedlane_")).collect();
    let declared: BTreeSet<&str> = prototypes.keys().map(String::as_str).collect();
    assert_eq!(declared, exported);
    assert_eq!(source.matches("pub fn feedlane_").count(), exported.len());
}

#[test]
fn the_library_is_of_this_abi_and_its_initialiser_agrees() {
    // SAFETY: takes nothing, looks at nothing.
    assert_eq!(unsafe { feedlane_sys::feedlane_abi_version() }, feedlane_sys::FEEDLANE_ABI);
    let ours = feedlane_sys::feedlane_error::new();
    let mut theirs = feedlane_sys::feedlane_error { size: 1, worker: -1, ..ours };
    let place: *mut feedlane_sys::feedlane_error = &mut theirs;
    // SAFETY: `size` bytes of our own.
    unsafe { feedlane_sys::feedlane_init(place.cast(), std::mem::size_of_val(&ours)) };
    assert_eq!((ours.size, ours.worker), (theirs.size, theirs.worker));
    assert_eq!(ours.size, 544);
    assert_eq!(feedlane_sys::feedlane_span::new().stride, 0, "no size to set in here");
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
