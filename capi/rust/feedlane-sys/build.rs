// SPDX-License-Identifier: Apache-2.0
//! Says where libfeedlane.so is: in $FEEDLANE_LIB_DIR, else where pkg-config says, else where the linker looks by itself.
use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=FEEDLANE_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    println!("cargo:rustc-link-lib=dylib=feedlane");
    if let Some(folder) = env::var_os("FEEDLANE_LIB_DIR") {
        let library = Path::new(&folder).join("libfeedlane.so");
        if !library.exists() {
            panic!("FEEDLANE_LIB_DIR: there is no {}", library.display());
        }
        println!("cargo:rustc-link-search=native={}", Path::new(&folder).display());
        return;
    }
    for folder in pkg_config_folders() {
        println!("cargo:rustc-link-search=native={}", folder);
    }
}

/// None for a library in the linker's own folders, and where there is no pkg-config or it doesn't know the library.
fn pkg_config_folders() -> Vec<String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let answer = Command::new(program).args(["--libs-only-L", "feedlane"]).output();
    match answer {
        Ok(said) if said.status.success() => String::from_utf8_lossy(&said.stdout)
            .split_whitespace()
            .filter_map(|flag| flag.strip_prefix("-L").map(String::from))
            .collect(),
        _ => Vec::new(),
    }
}
