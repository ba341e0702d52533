// SPDX-License-Identifier: Apache-2.0
//! Trains a small network on handwritten digits. The batches are made by worker processes: this very program, started
//! again. Read train() for the trainer's side, dataset.rs for the worker's.
mod data;
mod dataset;
mod digest;
mod killer;
mod losses;
mod network;
mod options;
mod random;

use std::process::ExitCode;

use feedlane::{Failure, Loader, Random, Sampler};

use crate::data::{Digits, TRAIN_COUNT};
use crate::dataset::DigitsDataset;
use crate::digest::digest;
use crate::killer::Killer;
use crate::losses::Losses;
use crate::network::{Network, Score};
use crate::options::{Options, Parsed};

const BATCH: i64 = 32;

fn loader(options: &Options) -> Result<Loader, Failure> {
    let order = Sampler::random(Random { length: TRAIN_COUNT as i64, seed: options.seed, ..Random::default() })?;
    Ok(Loader::builder()
        .sampler(&order)
        .dataset::<DigitsDataset>() // for --workers 0; a worker says it in main()
        .field::<f32>("image", &[8, 8])
        .field::<i64>("label", &[])
        .batch_size(BATCH)
        .seed(options.seed)
        .workers(options.workers)
        .keep_workers(options.workers > 0)
        .worker_config(options.data.clone())
        .build()?)
}

fn train(options: &Options) -> Result<(), Failure> {
    let held_out = Digits::read(&options.data)?.held_out();
    let mut loader = loader(options)?;
    let mut killer = Killer::new(options.kill_worker_at, loader.monitor()?);
    let mut losses = Losses::create(options.losses.as_deref())?;
    let mut network = Network::new(1);
    let (mut rate, mut test) = (0.2, Score::default());
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    for epoch in 0..options.epochs {
        let mut score = Score::default();
        for batch in loader.epoch(epoch)? {
            let batch = batch?; // its memory goes back to the workers at the end of this round
            killer.batch_is_here()?;
            batch.field("image")?.values::<f32>()?.copy_to_vec(&mut images);
            batch.field("label")?.values::<i64>()?.copy_to_vec(&mut labels);
            score.add(&network.learn(&images, &labels, rate));
        }
        test = network.evaluate(&held_out.images, &held_out.labels);
        losses.write(epoch, score.mean_loss())?;
        if !options.quiet {
            println!("epoch {:3}  loss {:.4}  test accuracy {:.3}", epoch, score.mean_loss(), test.accuracy());
        }
        rate *= 0.96;
    }
    if !options.quiet {
        println!("restarts: {}", loader.monitor()?.stats()?.restarts);
    }
    println!("test accuracy: {:.3}", test.accuracy());
    Ok(())
}

fn main() -> ExitCode {
    // First of all: was this process started as a worker? Its arguments don't matter then.
    if let Some(code) = feedlane::worker_main::<DigitsDataset>() {
        return code;
    }
    match Options::parse(std::env::args().skip(1)) {
        Parsed::Help(usage) => print!("{}", usage),
        Parsed::Wrong(complaint) => return options::complain(&complaint, 2),
        Parsed::Run(options) => {
            if let Err(error) = if options.digest { digest(&options) } else { train(&options) } {
                return options::complain(&error.to_string(), 1);
            }
        }
    }
    ExitCode::SUCCESS
}
