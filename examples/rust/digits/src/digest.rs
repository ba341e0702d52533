// SPDX-License-Identifier: Apache-2.0
//! One number for ten epochs of bytes, the same in every language: `--digest`. The digits are read as they are in the
//! files, all of them, in torch's order; 64-bit FNV-1a goes over each batch's tensors in the order of declaration.
use std::path::Path;

use feedlane::{ConsumerOptions, Failure, Loader, Random, Sampler, Share};

use crate::data::DIGIT_COUNT;
use crate::dataset::DigitsDataset;
use crate::options::Options;

const BATCH: i64 = 64;
const EPOCHS: i64 = 10;

fn fnv1a(hash: u64, bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn make_loader(options: &Options) -> Result<Loader, Failure> {
    let order = Sampler::random(Random { length: DIGIT_COUNT as i64, seed: options.seed, ..Random::default() })?;
    // A worker in another language may have another working directory.
    let folder = std::env::current_dir()?.join(Path::new(&options.data));
    let mut builder = Loader::builder()
        .sampler(&order)
        .dataset::<DigitsDataset>()
        .field::<u8>("image", &[8, 8]) // bytes: as they are in the file
        .field::<i64>("label", &[])
        .batch_size(BATCH)
        .seed(options.seed)
        .workers(options.workers)
        .keep_workers(options.workers > 0)
        .worker_config(folder.display().to_string());
    if let Some(command) = &options.worker {
        builder = builder.argv(command.split_whitespace());
    }
    if let Some(path) = &options.feed {
        builder = builder.share(Share::Every).consumers(options.consumers).share_path(path);
    }
    Ok(builder.build()?)
}

/// Delivers the epochs to programs that join at `--feed`.
fn feed(loader: &mut Loader) -> Result<(), Failure> {
    println!("listening");
    loader.serve(None)?; // until all consumers have joined
    for epoch in 0..EPOCHS {
        loader.begin(epoch)?;
        loader.serve(None)?;
    }
    loader.serve(None)?; // until the last consumer has left
    Ok(())
}

pub fn digest(options: &Options) -> Result<(), Failure> {
    let mut loader = match &options.join {
        Some(path) => Loader::join_path(path, &ConsumerOptions::default(), None)?,
        None => make_loader(options)?,
    };
    if options.feed.is_some() {
        return feed(&mut loader);
    }
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for epoch in 0..EPOCHS {
        for batch in loader.epoch(epoch)? {
            hash = batch?.tensors().fold(hash, |hash, tensor| fnv1a(hash, tensor.bytes().iter()));
        }
    }
    println!("digest: {:016x}", hash);
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_hash_is_fnv_1a() {
        // Of the test vectors published with it.
        assert_eq!(super::fnv1a(0xcbf2_9ce4_8422_2325, b"".iter().copied()), 0xcbf2_9ce4_8422_2325);
        assert_eq!(super::fnv1a(0xcbf2_9ce4_8422_2325, b"a".iter().copied()), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(super::fnv1a(0xcbf2_9ce4_8422_2325, b"foobar".iter().copied()), 0x8594_4171_f739_67e8);
    }
}
