// SPDX-License-Identifier: Apache-2.0
//! SplitMix64, as the C++ trainer draws with it, so that a seed means the same numbers in both.
pub struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Random { state: seed }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In 0 .. bound.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// From -limit up to, but without, limit: 24 random bits, which a float holds exactly.
    pub fn symmetric(&mut self, limit: f32) -> f32 {
        let unit = (self.next() >> 40) as f32 * (1.0 / 16_777_216.0);
        (2.0 * unit - 1.0) * limit
    }
}
