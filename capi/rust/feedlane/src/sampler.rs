// SPDX-License-Identifier: Apache-2.0
//! Which samples come in which order.
use std::ptr::{null_mut, NonNull};

use crate::error::{call, plain, text_of, Error, Status};
use crate::sys;

/// Yields the data set's indices, epoch by epoch. A loader takes a copy of its own.
pub struct Sampler {
    raw: NonNull<sys::feedlane_sampler>,
}

// SAFETY: a single-threaded object without ties to the thread that made it.
unsafe impl Send for Sampler {}

/// How a sampler shuffles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shuffle {
    /// Exactly as torch on CPU, its generator seeded with seed + epoch.
    #[default]
    Torch,
    /// Computed index by index, without memory.
    Feistel,
    /// Exactly as torch's DataLoader(shuffle=True) after torch.manual_seed(seed).
    TorchLoader,
}

impl Shuffle {
    fn to_c(self) -> i32 {
        match self {
            Shuffle::Torch => sys::FEEDLANE_SHUFFLE_TORCH,
            Shuffle::Feistel => sys::FEEDLANE_SHUFFLE_FEISTEL,
            Shuffle::TorchLoader => sys::FEEDLANE_SHUFFLE_TORCH_LOADER,
        }
    }
}

/// What [`Sampler::random`] shuffles.
#[derive(Clone, Copy, Debug, Default)]
pub struct Random {
    /// Size of the data set.
    pub length: i64,
    /// Epoch e is shuffled with seed + e.
    pub seed: u64,
    /// Indices in an epoch; 0: length.
    pub num_samples: i64,
    /// Every index is drawn from all of them, as often as it comes.
    pub replacement: bool,
    pub shuffle: Shuffle,
}

/// What [`Sampler::weighted`] draws.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weighted {
    /// Indices in an epoch; 0: as many as there are weights.
    pub num_samples: i64,
    pub seed: u64,
    /// Each index at most once.
    pub without_replacement: bool,
}

/// Which part of an order that all ranks share [`Sampler::distributed`] yields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Distributed {
    pub length: i64,
    /// Number of ranks; 0: both numbers from the launcher's environment, see [`Rank::detect`].
    pub world: i32,
    pub rank: i32,
    /// The same in every rank.
    pub seed: u64,
    /// In the data set's order.
    pub no_shuffle: bool,
    /// The list is cut until every rank gets as many indices; else it is repeated from its start.
    pub drop_last: bool,
    /// `Torch` or `Feistel`.
    pub shuffle: Shuffle,
    /// With `world` 0: rank 0 of 1, whatever the environment says.
    pub detect_off: bool,
}

/// Which batches [`Sampler::tokens`] yields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokens {
    /// Tokens in a batch, at most.
    pub max_tokens: i64,
    /// Samples in a batch, at most.
    pub max_rows: i64,
    /// The same in every rank.
    pub seed: u64,
    /// Shuffled samples that are sorted by length together; 0: 8192; 1: none are sorted.
    pub window: i64,
    /// A batch counts as rows * the longest length, not as the sum of the lengths.
    pub padded: bool,
    /// In the data set's order, except within windows.
    pub no_shuffle: bool,
    /// So that every rank gets as many batches, some are omitted; else some are split.
    pub drop_last: bool,
    /// Samples above `max_tokens` are omitted; else they are refused.
    pub drop_long: bool,
    /// Number of ranks; 0: both numbers from the launcher's environment, see [`Rank::detect`].
    pub world: i32,
    pub rank: i32,
    /// With `world` 0: rank 0 of 1, whatever the environment says.
    pub detect_off: bool,
}

/// Which indices [`Sampler::mixture`] yields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mixture<'a> {
    /// Indices in an epoch, of all ranks together; 0: the samples of all sources together.
    pub num_samples: i64,
    /// The same in every rank.
    pub seed: u64,
    /// Samples of the stream that are shuffled together; 0: 1024; 1: none.
    pub window: i64,
    /// The sample of the stream at which each stage begins: 0, and ascending. Empty: one stage.
    pub from: &'a [i64],
    /// Each source in its own order.
    pub no_shuffle: bool,
    /// The epoch is cut until every rank gets as many indices; else its start is repeated.
    pub drop_last: bool,
    /// Number of ranks; 0: both numbers from the launcher's environment, see [`Rank::detect`].
    pub world: i32,
    pub rank: i32,
    /// With `world` 0: rank 0 of 1, whatever the environment says.
    pub detect_off: bool,
}

/// Which process of how many this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank {
    pub rank: i32,
    pub world: i32,
    /// "feedlane", "torchrun", "openmpi", "mvapich", "pmi", "flux", "slurm"; "none": 0 of 1.
    pub source: String,
    /// Another source that says something else; empty if none does.
    pub warning: String,
}

impl Rank {
    /// By the launcher's environment.
    pub fn detect() -> Result<Rank, Error> {
        let mut out = sys::feedlane_rank::new();
        // SAFETY: a struct of ours to be filled in.
        call(|err| unsafe { sys::feedlane_rank_detect(&mut out, err) })?;
        Ok(Rank { rank: out.rank, world: out.world, source: text_of(&out.source), warning: text_of(&out.warning) })
    }
}

impl Sampler {
    pub(crate) fn made(
        make: impl FnOnce(*mut *mut sys::feedlane_sampler, *mut sys::feedlane_error) -> i32,
    ) -> Result<Self, Error> {
        let mut raw = null_mut();
        call(|err| make(&mut raw, err))?;
        Ok(Sampler { raw: NonNull::new(raw).expect("a handle on success") })
    }

    /// 0, 1, ... length - 1.
    pub fn sequential(length: i64) -> Result<Self, Error> {
        // SAFETY: `out` and `err` are room of ours, here and below.
        Sampler::made(|out, err| unsafe { sys::feedlane_sampler_sequential(length, out, err) })
    }

    /// Permutations of 0 .. length, another one for each epoch, or draws with replacement.
    pub fn random(wanted: Random) -> Result<Self, Error> {
        let mut config = sys::feedlane_random_config::new();
        config.length = wanted.length;
        config.seed = wanted.seed;
        config.num_samples = wanted.num_samples;
        config.replacement = wanted.replacement.into();
        config.shuffle = wanted.shuffle.to_c();
        // SAFETY: the configuration is copied.
        Sampler::made(|out, err| unsafe { sys::feedlane_sampler_random(&config, out, err) })
    }

    /// These indices, in another order for each epoch, or `in_order`.
    pub fn subset(indices: &[i64], in_order: bool, seed: u64) -> Result<Self, Error> {
        let count = indices.len() as u64;
        Sampler::made(|out, err| {
            // SAFETY: `count` indices, which are copied.
            unsafe { sys::feedlane_sampler_subset(indices.as_ptr(), count, in_order.into(), seed, out, err) }
        })
    }

    /// Indices of `weights`, each as likely as its weight says.
    pub fn weighted(weights: &[f64], wanted: Weighted) -> Result<Self, Error> {
        let mut config = sys::feedlane_weighted_config::new();
        config.num_samples = wanted.num_samples;
        config.seed = wanted.seed;
        config.without_replacement = wanted.without_replacement.into();
        let count = weights.len() as u64;
        // SAFETY: `count` weights and the configuration, which are copied.
        Sampler::made(|out, err| unsafe { sys::feedlane_sampler_weighted(weights.as_ptr(), count, &config, out, err) })
    }

    /// Batches of indices of a copy of this one: the loader's own batch size is then left alone.
    pub fn batches(&self, batch_size: i64, drop_last: bool) -> Result<Self, Error> {
        let inner = self.as_ptr();
        // SAFETY: `inner` lives, and is copied.
        Sampler::made(|out, err| unsafe { sys::feedlane_sampler_batch(inner, batch_size, drop_last.into(), out, err) })
    }

    /// Every world-th index of an order that all ranks share.
    pub fn distributed(wanted: Distributed) -> Result<Self, Error> {
        let mut config = sys::feedlane_distributed_config::new();
        config.length = wanted.length;
        config.world = wanted.world;
        config.rank = wanted.rank;
        config.seed = wanted.seed;
        config.no_shuffle = wanted.no_shuffle.into();
        config.drop_last = wanted.drop_last.into();
        config.shuffle = wanted.shuffle.to_c();
        config.detect_off = wanted.detect_off.into();
        // SAFETY: the configuration is copied.
        Sampler::made(|out, err| unsafe { sys::feedlane_sampler_distributed(&config, out, err) })
    }

    /// Batches of samples within a budget of tokens; `lengths` has the number of tokens of each sample.
    pub fn tokens(lengths: &[i64], wanted: Tokens) -> Result<Self, Error> {
        let mut config = sys::feedlane_tokens_config::new();
        config.max_tokens = wanted.max_tokens;
        config.max_rows = wanted.max_rows;
        config.seed = wanted.seed;
        config.window = wanted.window;
        config.padded = wanted.padded.into();
        config.no_shuffle = wanted.no_shuffle.into();
        config.drop_last = wanted.drop_last.into();
        config.drop_long = wanted.drop_long.into();
        config.world = wanted.world;
        config.rank = wanted.rank;
        config.detect_off = wanted.detect_off.into();
        let count = lengths.len() as u64;
        // SAFETY: `count` lengths and the configuration, which are copied.
        Sampler::made(|out, err| unsafe { sys::feedlane_sampler_tokens(lengths.as_ptr(), count, &config, out, err) })
    }

    /// Sources in proportion to weights. Source i has the `lengths[i]` indices behind those of source i - 1. `weights` has as many
    /// numbers as `lengths` for each stage.
    pub fn mixture(lengths: &[i64], weights: &[f64], wanted: Mixture) -> Result<Self, Error> {
        let stages = wanted.from.len().max(1);
        if weights.len() != lengths.len() * stages {
            let text = format!("{} weights, wanted are {stages} stages of {} sources", weights.len(), lengths.len());
            let (found, needed) = (weights.len() as i64, (lengths.len() * stages) as i64);
            return Err(Error::new(Status::ARGUMENT, "weights", found, needed, text));
        }
        let mut config = sys::feedlane_mixture_config::new();
        config.num_samples = wanted.num_samples;
        config.seed = wanted.seed;
        config.window = wanted.window;
        if !wanted.from.is_empty() {
            config.from = wanted.from.as_ptr();
            config.stages = stages as u64;
        }
        config.no_shuffle = wanted.no_shuffle.into();
        config.drop_last = wanted.drop_last.into();
        config.world = wanted.world;
        config.rank = wanted.rank;
        config.detect_off = wanted.detect_off.into();
        let count = lengths.len() as u64;
        // SAFETY: `count` lengths, as many weights for each stage, and the configuration with its stages, which are copied.
        Sampler::made(|out, err| unsafe {
            sys::feedlane_sampler_mixture(lengths.as_ptr(), count, weights.as_ptr(), &config, out, err)
        })
    }

    /// Starts an epoch over.
    pub fn restart(&mut self, epoch: i64) -> Result<(), Error> {
        // SAFETY: the handle lives, and one thread has it.
        call(|err| unsafe { sys::feedlane_sampler_restart(self.raw.as_ptr(), epoch, err) }).map(drop)
    }

    /// Writes the next indices; how many, which is 0 at the end of the epoch. A batch sampler writes one batch.
    pub fn next_indices(&mut self, indices: &mut [i64]) -> Result<usize, Error> {
        let (raw, cap) = (self.raw.as_ptr(), indices.len() as u64);
        let mut got = 0;
        // SAFETY: room for `cap` indices.
        let status = call(|err| unsafe { sys::feedlane_sampler_next(raw, indices.as_mut_ptr(), cap, &mut got, err) })?;
        Ok(if status == Status::OK { got as usize } else { 0 })
    }

    /// Indices in an epoch, batches of a batch sampler; none: unknown.
    pub fn length(&self) -> Result<Option<i64>, Error> {
        let mut length = -1;
        // SAFETY: the handle lives.
        plain(unsafe { sys::feedlane_sampler_length(self.as_ptr(), &mut length) })?;
        Ok(Some(length).filter(|n| *n >= 0))
    }

    /// Where it stands in its epoch.
    pub fn save(&mut self) -> Result<Vec<u8>, Error> {
        let raw = self.raw.as_ptr();
        crate::state::written(|buffer, cap, bytes, err| {
            // SAFETY: `cap` bytes of room.
            unsafe { sys::feedlane_sampler_save(raw, buffer, cap, bytes, err) }
        })
    }

    /// After `restart` of the state's epoch: goes on behind what was saved.
    pub fn load(&mut self, state: &[u8]) -> Result<(), Error> {
        let (raw, bytes) = (self.raw.as_ptr(), state.len() as u64);
        // SAFETY: `bytes` bytes, which are only read.
        call(|err| unsafe { sys::feedlane_sampler_load(raw, state.as_ptr().cast(), bytes, err) }).map(drop)
    }

    pub(crate) fn as_ptr(&self) -> *const sys::feedlane_sampler {
        self.raw.as_ptr()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the one handle, which nobody uses any more.
        unsafe { sys::feedlane_sampler_destroy(&mut raw) };
    }
}
