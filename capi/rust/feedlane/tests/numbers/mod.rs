// SPDX-License-Identifier: Apache-2.0
//! The data set of the tests that take worker processes, a loader over it, and what its batches must be.
use feedlane::{Batch, Dataset, Error, Failure, Loader, LoaderBuilder, Row, Sampler, WorkerInfo};

use crate::checks::Checked;

pub const ROWS: usize = 8;
pub const LENGTH: i64 = 40;

/// Row i is [i, i + seed % 7] in field 0 and i in field 1. `config` says what goes wrong where.
pub struct Numbers {
    config: String,
}

/// A failure with a cause.
#[derive(Debug)]
struct Unreadable(std::num::ParseIntError);

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("eleven can't be read")
    }
}

impl std::error::Error for Unreadable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl Dataset for Numbers {
    fn open(info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        let config = String::from_utf8(info.config().to_vec())?;
        if config == "closed" {
            return Err("the numbers are closed".into());
        }
        assert_eq!(info.fields()[1].name(), "label");
        Ok(Numbers { config })
    }

    fn get(&mut self, row: &mut Row<'_>) -> Result<(), Failure> {
        let (index, seed) = (row.index(), row.seed());
        if index == 11 {
            match self.config.as_str() {
                "error" => Err("eleven is missing".to_string().parse::<i64>().map_err(Box::new).unwrap_err())?,
                "caused" => Err(Unreadable("eleven".parse::<i64>().unwrap_err()))?,
                "stuck" => std::thread::sleep(std::time::Duration::from_secs(100)),
                "panic" => panic!("eleven is too much"),
                "dtype" => row.fill::<f64>(0, 0.0)?,
                "beyond" => row.fill::<i64>(2, 0)?,
                _ => {}
            }
        }
        row.write(0, &[index as f32, (index + (seed % 7) as i64) as f32])?;
        row.fill::<i64>(1, index)?;
        Ok(())
    }
}

/// Yields the first `length` of them in order. Who makes its workers is up to `change`.
pub fn loader_of(
    length: i64,
    change: impl for<'a> FnOnce(LoaderBuilder<'a>) -> LoaderBuilder<'a>,
) -> Result<Loader, Error> {
    let order = Sampler::sequential(length)?;
    let builder = Loader::builder().sampler(&order).field::<f32>("x", &[2]).field::<i64>("label", &[]);
    change(builder.batch_size(ROWS as i64)).build()
}

pub fn check_batch(batch: &Batch, number: i64) -> Checked {
    assert_eq!((batch.number(), batch.rows()), (number, ROWS));
    let labels = batch.field("label")?.values::<i64>()?.to_vec();
    assert_eq!(labels, batch.indices());
    assert_eq!(labels[0], number * ROWS as i64);
    let x = batch.field("x")?;
    assert_eq!((x.shape(), x.strides(), x.name()), (&[ROWS as i64, 2][..], &[2, 1][..], "x"));
    for (row, pair) in x.values::<f32>()?.chunks(2).enumerate() {
        let index = labels[row];
        let seed = feedlane::row_seed(5, batch.epoch(), index);
        assert_eq!(pair.to_vec(), [index as f32, (index + (seed % 7) as i64) as f32]);
    }
    Ok(())
}
