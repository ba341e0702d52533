// SPDX-License-Identifier: Apache-2.0
//! The data set itself, knowing nothing of Feedlane: 1,797 digits from two IDX files, split into a part to train on and a
//! part held out, and how one digit becomes numbers for the network.
use std::fs;

use crate::random::Random;

pub const SIDE: usize = 8;
pub const PIXELS: usize = SIDE * SIDE;
pub const CLASSES: usize = 10;
pub const DIGIT_COUNT: usize = 1797;
const HELD_OUT_COUNT: usize = 360;
pub const TRAIN_COUNT: usize = DIGIT_COUNT - HELD_OUT_COUNT;

/// Fixed: which digits are held out is no matter of --seed.
const SPLIT_SEED: u64 = 7;
const WHITE: f32 = 16.0;

pub struct Digits {
    images: Vec<u8>,
    labels: Vec<u8>,
    /// All digits, shuffled: first the held out ones, then those to train on.
    order: Vec<usize>,
}

/// The digits that the network never trains on.
pub struct HeldOut {
    pub images: Vec<f32>,
    pub labels: Vec<i64>,
}

impl Digits {
    /// Reads both files of a folder and splits them. An error says what is wrong.
    pub fn read(folder: &str) -> Result<Self, String> {
        let images = read_idx(&format!("{}/optdigits-images-idx3-ubyte", folder), &[DIGIT_COUNT, SIDE, SIDE])?;
        let labels = read_idx(&format!("{}/optdigits-labels-idx1-ubyte", folder), &[DIGIT_COUNT])?;
        if let Some(label) = labels.iter().find(|label| **label as usize >= CLASSES) {
            return Err(format!("{}: a label is {}", folder, label));
        }
        // Fisher-Yates.
        let mut order: Vec<usize> = (0..DIGIT_COUNT).collect();
        let mut random = Random::new(SPLIT_SEED);
        for last in (1..DIGIT_COUNT).rev() {
            order.swap(last, random.below(last + 1));
        }
        Ok(Digits { images, labels, order })
    }

    /// Sample `index` to train on, in [0, 1], moved by up to a pixel each way as `seed` says, and its label; none: there is
    /// no such sample.
    pub fn decode_train(&self, index: usize, seed: u64) -> Option<([f32; PIXELS], i64)> {
        let digit = *self.order.get(HELD_OUT_COUNT.checked_add(index)?)?;
        let mut random = Random::new(seed);
        let dx = random.below(3) as isize - 1;
        let dy = random.below(3) as isize - 1;
        Some(self.decode(digit, dx, dy))
    }

    /// Digit `index` of the files as it is there, and its label; none: there is no such digit.
    pub fn raw(&self, index: usize) -> Option<(&[u8], i64)> {
        let label = *self.labels.get(index)?;
        Some((&self.images[index * PIXELS..][..PIXELS], label.into()))
    }

    pub fn held_out(&self) -> HeldOut {
        let (mut images, mut labels) = (Vec::new(), Vec::new());
        for digit in &self.order[..HELD_OUT_COUNT] {
            let (image, label) = self.decode(*digit, 0, 0);
            images.extend_from_slice(&image);
            labels.push(label);
        }
        HeldOut { images, labels }
    }

    fn decode(&self, digit: usize, dx: isize, dy: isize) -> ([f32; PIXELS], i64) {
        let mut image = [0.0; PIXELS];
        let grey = &self.images[digit * PIXELS..][..PIXELS];
        let sides = 0..SIDE as isize;
        for (i, pixel) in image.iter_mut().enumerate() {
            let (x, y) = ((i % SIDE) as isize - dx, (i / SIDE) as isize - dy);
            let inside = sides.contains(&x) && sides.contains(&y);
            if inside {
                *pixel = grey[y as usize * SIDE + x as usize] as f32 / WHITE;
            }
        }
        (image, i64::from(self.labels[digit]))
    }
}

/// The values of an IDX file of unsigned bytes, which must be of this shape.
fn read_idx(path: &str, shape: &[usize]) -> Result<Vec<u8>, String> {
    let file = fs::read(path).map_err(|e| format!("{}: {}", path, e))?;
    let mut header = vec![0, 0, 8, shape.len() as u8];
    shape.iter().for_each(|extent| header.extend((*extent as u32).to_be_bytes()));
    let values = file.strip_prefix(header.as_slice());
    let values = values.ok_or_else(|| format!("{}: not an IDX file of bytes of the shape {:?}", path, shape))?;
    let total = shape.iter().product();
    let values = values.get(..total).ok_or_else(|| format!("{}: shorter than its {} values", path, total))?;
    Ok(values.to_vec())
}
