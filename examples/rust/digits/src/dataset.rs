// SPDX-License-Identifier: Apache-2.0
//! The digits as Feedlane sees them: what a worker runs, and the trainer itself when it has none.
use feedlane::{Dataset, Element, Failure, Row, WorkerInfo};

use crate::data::Digits;

/// In the order of declaration.
const IMAGE: usize = 0;
const LABEL: usize = 1;

pub struct DigitsDataset {
    digits: Digits,
    /// The trainer has declared images of bytes: it wants them as they are in the files.
    as_in_the_files: bool,
}

impl Dataset for DigitsDataset {
    /// A worker may be another process: it is told where the files are.
    fn open(info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        let digits = Digits::read(std::str::from_utf8(info.config())?)?;
        Ok(DigitsDataset { digits, as_in_the_files: info.fields()[IMAGE].dtype() == u8::DTYPE })
    }

    fn get(&mut self, row: &mut Row<'_>) -> Result<(), Failure> {
        let (index, seed) = (usize::try_from(row.index())?, row.seed());
        let none = || format!("there is no digit {}", index);
        let label = if self.as_in_the_files {
            let (image, label) = self.digits.raw(index).ok_or_else(none)?;
            row.write(IMAGE, image)?;
            label
        } else {
            let (image, label) = self.digits.decode_train(index, seed).ok_or_else(none)?;
            row.write(IMAGE, &image)?;
            label
        };
        row.fill::<i64>(LABEL, label)?;
        Ok(())
    }
}
