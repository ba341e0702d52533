// SPDX-License-Identifier: Apache-2.0
//! The checksum of examples/cpp/common/checksum.hpp: two runs have it in common only if they saw the same bytes in the
//! same order.
#[derive(Default)]
pub struct Checksum {
    value: u64,
}

fn mix(state: u64, word: u64) -> u64 {
    let state = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state ^ (state >> 29)
}

impl Checksum {
    pub fn value(&self) -> u64 {
        self.value
    }

    pub fn add_word(&mut self, word: u64) {
        self.value = mix(self.value, word);
    }

    /// Four chains over 32 bytes at a time; what is left over is padded with zeros.
    pub fn add(&mut self, bytes: &[u8]) {
        let mut lanes = [1u64, 2, 3, 4];
        let blocks = bytes.chunks_exact(32);
        let mut rest = [0; 32];
        rest[..blocks.remainder().len()].copy_from_slice(blocks.remainder());
        for block in blocks {
            for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
                *lane = mix(*lane, word_of(word));
            }
        }
        for (lane, word) in lanes.iter().zip(rest.chunks_exact(8)) {
            self.add_word(mix(*lane, word_of(word)));
        }
        self.add_word(bytes.len() as u64);
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("8 bytes"))
}
