// SPDX-License-Identifier: Apache-2.0
//! Says where libfeedlane.so is: in $FEEDLANE_LIB_DIR, else where pkg-config says, else where the linker looks by itself.
use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
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
