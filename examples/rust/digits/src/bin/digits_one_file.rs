// SPDX-License-Identifier: Apache-2.0
//! The digits in one file: a data set, two workers that are this program started again, a small network. With --digest it
//! prints one number for ten epochs of bytes, as in every language; with --kill it kills a worker in epoch 3.
use std::process::{Command, ExitCode};

use feedlane::{Batch, Dataset, Failure, Loader, Random, Row, Sampler, WorkerInfo};

const HIDDEN: usize = 64;
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/optdigits-");

struct Digits(Vec<u8>, Vec<u8>);

impl Dataset for Digits {
    fn open(_: &WorkerInfo<'_>) -> Result<Self, Failure> {
        let read = |name: &str| std::fs::read(format!("{}{}-ubyte", FOLDER, name));
        Ok(Digits(read("images-idx3")?.split_off(16), read("labels-idx1")?.split_off(8)))
    }

    fn get(&mut self, row: &mut Row<'_>) -> Result<(), Failure> {
        let index = row.index() as usize;
        row.write(0, &self.0[64 * index..][..64])?;
        Ok(row.fill(1, i64::from(self.1[index]))?)
    }
}

struct Network(Vec<f32>, Vec<f32>); // pixels to hidden units, and those to classes; the last input of each is 1

impl Network {
    /// The most likely class; with a rate also a step that makes `label` more likely.
    fn see(&mut self, pixels: &[f32; 65], label: usize, rate: f32) -> usize {
        let mut hidden = [1f32; HIDDEN + 1];
        for (unit, weights) in hidden.iter_mut().zip(self.0.chunks(65)) {
            *unit = weights.iter().zip(pixels).map(|(w, x)| w * x).sum::<f32>().max(0.0);
        }
        let score = |weights: &[f32]| weights.iter().zip(&hidden).map(|(w, x)| w * x).sum::<f32>();
        let scores: Vec<f32> = self.1.chunks(HIDDEN + 1).map(score).collect();
        let best = (0..10).max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap_or(0);
        let total: f32 = scores.iter().map(|s| (s - scores[best]).exp()).sum();
        let mut back = [0f32; HIDDEN + 1];
        for (class, weights) in self.1.chunks_mut(HIDDEN + 1).enumerate() {
            let error = (scores[class] - scores[best]).exp() / total - f32::from(u8::from(class == label));
            for ((weight, unit), back) in weights.iter_mut().zip(&hidden).zip(&mut back) {
                *back += error * *weight;
                *weight -= rate * error * unit;
            }
        }
        for ((weights, error), _) in self.0.chunks_mut(65).zip(back).zip(hidden).filter(|(_, unit)| *unit > 0.0) {
            weights.iter_mut().zip(pixels).for_each(|(weight, x)| *weight -= rate * error * x);
        }
        best
    }

    /// Learns a batch's digits, but tries those that are held out: how many of them, and how many were right.
    fn batch(&mut self, batch: &Batch, rate: f32, score: &mut (usize, usize)) -> Result<(), Failure> {
        let (images, labels) = (batch.field("image")?.values::<u8>()?, batch.field("label")?.values::<i64>()?);
        for ((image, label), index) in images.chunks(64).zip(labels.iter()).zip(batch.indices()) {
            let (mut pixels, held_out) = ([1f32; 65], index % 5 == 0); // one in five isn't learned
            image.iter().zip(&mut pixels).for_each(|(byte, pixel)| *pixel = f32::from(byte) / 16.0);
            let class = self.see(&pixels, label as usize, if held_out { 0.0 } else { rate });
            *score = (score.0 + usize::from(held_out), score.1 + usize::from(held_out && class == label as usize));
        }
        Ok(())
    }
}

fn main() -> Result<ExitCode, Failure> {
    if let Some(code) = feedlane::worker_main::<Digits>() {
        return Ok(code); // it was a worker
    }
    let [digest, kill] = ["--digest", "--kill"].map(|name| std::env::args().any(|argument| argument == name));
    let order = Sampler::random(Random { length: 1797, seed: 1, ..Random::default() })?;
    let builder = Loader::builder().sampler(&order).field::<u8>("image", &[8, 8]).field::<i64>("label", &[]);
    let mut loader = builder.batch_size(64).seed(1).workers(2).keep_workers(true).build()?;
    let (monitor, mut hash, mut score) = (loader.monitor()?, 0xcbf2_9ce4_8422_2325, (0, 0));
    let start = |count| (0..count).map(|i| (feedlane::row_seed(1, 0, i) % 2001) as f32 / 1e4 - 0.1).collect();
    let mut network = Network(start(65 * HIDDEN as i64), start((HIDDEN as i64 + 1) * 10));
    for epoch in 0..if digest { 10 } else { 30 } {
        score = (0, 0);
        for batch in loader.epoch(epoch)? {
            let batch = batch?; // its memory goes back to the workers at the end of this round
            if kill && (epoch, batch.number()) == (3, 12) {
                let pid = monitor.workers()?[0].pid.ok_or("no worker to kill")?;
                Command::new("sh").args(["-c", &format!("kill -KILL {}", pid)]).status()?;
            }
            if digest {
                let bytes = batch.tensors().flat_map(|tensor| tensor.bytes().to_vec());
                hash = bytes.fold(hash, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
            } else {
                network.batch(&batch, 0.05 * 0.95f32.powi(epoch as i32), &mut score)?;
            }
        }
    }
    if digest {
        println!("digest: {:016x}", hash);
    } else {
        println!("test accuracy: {:.3}, restarts: {}", score.1 as f64 / score.0 as f64, monitor.stats()?.restarts);
    }
    Ok(loader.close().map(|()| ExitCode::SUCCESS)?)
}
