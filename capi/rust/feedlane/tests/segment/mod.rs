// SPDX-License-Identifier: Apache-2.0
//! Finds the shared memory behind a tensor by what the system says of this process.
use std::fs;

use feedlane::{Failure, Tensor};

/// Where a mapping of the loader's data segment and a descriptor of it are.
pub fn data_segment(tensor: &Tensor<'_>) -> Result<(u64, String), Failure> {
    let address = tensor.as_ptr() as u64;
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = words[0].split_once('-').ok_or("no range")?;
        let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
        if !(start..end).contains(&address) {
            continue;
        }
        assert!(words[5].starts_with("/memfd:"), "the tensor lies in {}", line);
        let inode: u64 = words[4].parse()?;
        let offset = address - start + u64::from_str_radix(words[2], 16)?;
        for entry in fs::read_dir("/proc/self/fd")? {
            let path = entry?.path();
            let same = fs::metadata(&path).map(|m| std::os::unix::fs::MetadataExt::ino(&m) == inode).unwrap_or(false);
            if same {
                let number = path.file_name().and_then(|n| n.to_str()).ok_or("a number")?.to_string();
                return Ok((offset, format!("/proc/{}/fd/{}", std::process::id(), number)));
            }
        }
    }
    Err("the tensor lies in no mapping of a memfd".into())
}
