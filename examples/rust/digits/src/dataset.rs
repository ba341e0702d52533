// SPDX-License-Identifier: Apache-2.0
//! The digits as Feedlane sees them: what a worker runs, and the trainer itself when it has none.
use feedlane::{Dataset, Failure, Row, WorkerInfo};

use crate::data::{Digits, TRAIN_COUNT};

/// In the order of declaration.
const IMAGE: usize = 0;
const LABEL: usize = 1;

impl Dataset for Digits {
    /// A worker may be another process: it is told where the files are.
    fn open(info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        Ok(Digits::read(std::str::from_utf8(info.config())?)?)
    }

    fn get(&mut self, row: &mut Row<'_>) -> Result<(), Failure> {
        let (index, seed) = (usize::try_from(row.index())?, row.seed());
        if index >= TRAIN_COUNT {
            return Err(format!("there is no digit {}", index).into());
        }
        let label = self.decode_train(index, seed, row.field_mut::<f32>(IMAGE)?);
        row.fill::<i64>(LABEL, label)?;
        Ok(())
    }
}
