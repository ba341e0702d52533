// SPDX-License-Identifier: Apache-2.0
//! Samplers: the order of the indices of an epoch.
use std::ptr::{null, null_mut, NonNull};

use crate::error::{call, not_negative, plain, text_of, Error, Status};
use crate::state::written;
use crate::sys;
use crate::sys::feedlane_sampler_config as Config;

/// Yields the data set's indices, epoch by epoch. A loader copies its definition.
pub struct Sampler {
    raw: NonNull<sys::feedlane_sampler>,
}

// SAFETY: a single-threaded object that is not bound to the thread that created it.
unsafe impl Send for Sampler {}

/// How a sampler shuffles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shuffle {
    /// Exactly as torch on CPU, with its generator seeded with seed + epoch.
    #[default]
    Torch,
    /// Computed index by index. Takes no memory.
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

/// Configuration of [`Sampler::random`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Random {
    /// Size of the data set.
    pub length: i64,
    /// Epoch e is shuffled with seed + e.
    pub seed: u64,
    /// Indices in an epoch; 0: length.
    pub num_samples: i64,
    /// Draws every index from the full range, with repetitions.
    pub replacement: bool,
    pub shuffle: Shuffle,
}

/// Configuration of [`Sampler::weighted`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Weighted {
    /// Indices in an epoch; 0: the number of weights.
    pub num_samples: i64,
    pub seed: u64,
    /// Yields each index at most once.
    pub without_replacement: bool,
}

/// Configuration of [`Sampler::distributed`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Distributed {
    pub length: i64,
    /// Number of ranks; 0: [`Rank::detect`] finds world and rank.
    pub world: i32,
    pub rank: i32,
    /// Must be equal in all ranks.
    pub seed: u64,
    /// The data set's own order.
    pub no_shuffle: bool,
    /// Cuts the list; otherwise repeats its start, so that all ranks get the same number of indices.
    pub drop_last: bool,
    /// `Torch` or `Feistel`.
    pub shuffle: Shuffle,
    /// With `world` 0: this is rank 0 of 1, and the environment is ignored.
    pub detect_off: bool,
}

/// Configuration of [`Sampler::tokens`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokens {
    /// Maximum number of tokens in a batch.
    pub max_tokens: i64,
    /// Maximum number of samples in a batch.
    pub max_rows: i64,
    /// Must be equal in all ranks.
    pub seed: u64,
    /// Number of shuffled samples that are sorted by length together; 0: 8192; 1: no sorting.
    pub window: i64,
    /// Tokens are counted as rows * the longest length, not as the sum of the lengths.
    pub padded: bool,
    /// Windows follow the data set's own order, and batches are not shuffled.
    pub no_shuffle: bool,
    /// Omits batches; otherwise splits batches, so that all ranks get the same number of batches.
    pub drop_last: bool,
    /// Omits samples with more than `max_tokens` tokens; otherwise refuses them.
    pub drop_long: bool,
    /// Number of ranks; 0: [`Rank::detect`] finds world and rank.
    pub world: i32,
    pub rank: i32,
    /// With `world` 0: this is rank 0 of 1, and the environment is ignored.
    pub detect_off: bool,
}

/// Configuration of [`Sampler::mixture`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Mixture<'a> {
    /// Indices in an epoch over all ranks; 0: the number of samples in all sources.
    pub num_samples: i64,
    /// Must be equal in all ranks.
    pub seed: u64,
    /// Number of samples of the stream that are shuffled together; 0: 1024; 1: no shuffling.
    pub window: i64,
    /// The sample of the stream at which each stage begins. The first is 0, the others ascend. Empty: one stage.
    pub from: &'a [i64],
    /// Each source's samples come in their own order.
    pub no_shuffle: bool,
    /// Cuts the epoch; otherwise repeats its start, so that all ranks get the same number of indices.
    pub drop_last: bool,
    /// Number of ranks; 0: [`Rank::detect`] finds world and rank.
    pub world: i32,
    pub rank: i32,
    /// With `world` 0: this is rank 0 of 1, and the environment is ignored.
    pub detect_off: bool,
}

/// The rank of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank {
    pub rank: i32,
    pub world: i32,
    /// "feedlane", "torchrun", "openmpi", "mvapich", "pmi", "flux" or "slurm"; "none": rank 0 of 1.
    pub source: String,
    /// Names another source that disagrees; empty if none does.
    pub warning: String,
}

impl Rank {
    /// Finds the rank in the launcher's environment variables.
    pub fn detect() -> Result<Rank, Error> {
        let mut out = sys::feedlane_rank::new();
        // SAFETY: `out` is a local struct.
        call(|err| unsafe { sys::feedlane_rank_detect(&mut out, err) })?;
        Ok(Rank { rank: out.rank, world: out.world, source: text_of(&out.source), warning: text_of(&out.warning) })
    }
}

impl Sampler {
    /// Creates a sampler of any kind.
    ///
    /// # Safety
    /// The pointers that `config.kind` reads are valid, and `count` and `stages` fit them. The library copies their
    /// contents, except `user_data` of callbacks.
    pub(crate) unsafe fn create(config: &Config) -> Result<Self, Error> {
        let mut raw = null_mut();
        // SAFETY: the caller's promise; `raw` is a local variable.
        call(|err| unsafe { sys::feedlane_sampler_create(config, &mut raw, err) })?;
        Ok(Sampler { raw: NonNull::new(raw).expect("a handle on success") })
    }

    /// Yields 0, 1, ... length - 1.
    pub fn sequential(length: i64) -> Result<Self, Error> {
        let config = Config { kind: sys::FEEDLANE_SAMPLER_SEQUENTIAL, length, ..Config::new() };
        // SAFETY: the kind reads no pointer.
        unsafe { Sampler::create(&config) }
    }

    /// Yields a permutation of 0 .. length - 1, or draws with replacement; the order differs in each epoch.
    pub fn random(wanted: Random) -> Result<Self, Error> {
        let config = Config {
            kind: sys::FEEDLANE_SAMPLER_RANDOM,
            length: wanted.length,
            seed: wanted.seed,
            num_samples: wanted.num_samples,
            replacement: wanted.replacement.into(),
            shuffle: wanted.shuffle.to_c(),
            ..Config::new()
        };
        // SAFETY: the kind reads no pointer.
        unsafe { Sampler::create(&config) }
    }

    /// Yields these indices, in a different order in each epoch, or with `no_shuffle` in the given order.
    pub fn subset(indices: &[i64], no_shuffle: bool, seed: u64) -> Result<Self, Error> {
        let config = Config {
            kind: sys::FEEDLANE_SAMPLER_SUBSET,
            indices: indices.as_ptr(),
            count: indices.len() as u64,
            no_shuffle: no_shuffle.into(),
            seed,
            ..Config::new()
        };
        // SAFETY: there are `count` indices.
        unsafe { Sampler::create(&config) }
    }

    /// Yields indices of `weights`, with probabilities in proportion to the weights.
    pub fn weighted(weights: &[f64], wanted: Weighted) -> Result<Self, Error> {
        let config = Config {
            kind: sys::FEEDLANE_SAMPLER_WEIGHTED,
            weights: weights.as_ptr(),
            count: weights.len() as u64,
            num_samples: wanted.num_samples,
            seed: wanted.seed,
            without_replacement: wanted.without_replacement.into(),
            ..Config::new()
        };
        // SAFETY: there are `count` weights.
        unsafe { Sampler::create(&config) }
    }

    /// Yields batches of the indices of a copy of this sampler. Leave the loader's `batch_size` unset then.
    pub fn batches(&self, batch_size: i64, drop_last: bool) -> Result<Self, Error> {
        let config = Config {
            kind: sys::FEEDLANE_SAMPLER_BATCH,
            inner: self.as_ptr(),
            batch_size,
            drop_last: drop_last.into(),
            ..Config::new()
        };
        // SAFETY: `inner` is valid.
        unsafe { Sampler::create(&config) }
    }

    /// Yields every world-th index, starting with the rank-th, of an order that all ranks share.
    pub fn distributed(wanted: Distributed) -> Result<Self, Error> {
        let config = Config {
            kind: sys::FEEDLANE_SAMPLER_DISTRIBUTED,
            length: wanted.length,
            world: wanted.world,
            rank: wanted.rank,
            seed: wanted.seed,
            no_shuffle: wanted.no_shuffle.into(),
            drop_last: wanted.drop_last.into(),
            shuffle: wanted.shuffle.to_c(),
            detect_off: wanted.detect_off.into(),
            ..Config::new()
        };
        // SAFETY: the kind reads no pointer.
        unsafe { Sampler::create(&config) }
    }

    /// Yields batches of samples whose lengths together stay within a budget of tokens. `lengths` has the number of
    /// tokens of each sample.
    pub fn tokens(lengths: &[i64], wanted: Tokens) -> Result<Self, Error> {
        let config = Config {
            kind: sys::FEEDLANE_SAMPLER_TOKENS,
            lengths: lengths.as_ptr(),
            count: lengths.len() as u64,
            max_tokens: wanted.max_tokens,
            max_rows: wanted.max_rows,
            seed: wanted.seed,
            window: wanted.window,
            padded: wanted.padded.into(),
            no_shuffle: wanted.no_shuffle.into(),
            drop_last: wanted.drop_last.into(),
            drop_long: wanted.drop_long.into(),
            world: wanted.world,
            rank: wanted.rank,
            detect_off: wanted.detect_off.into(),
            ..Config::new()
        };
        // SAFETY: there are `count` lengths.
        unsafe { Sampler::create(&config) }
    }

    /// Mixes sources in proportion to weights. Source i has `lengths[i]` indices, which follow those of source i - 1.
    /// `weights` has one row of `lengths.len()` numbers per stage.
    pub fn mixture(lengths: &[i64], weights: &[f64], wanted: Mixture) -> Result<Self, Error> {
        let stages = wanted.from.len().max(1);
        if weights.len() != lengths.len() * stages {
            let text = format!(
                "{} weights for {stages} stages of {} sources: each stage must have one weight per source",
                weights.len(),
                lengths.len()
            );
            let (found, needed) = (weights.len() as i64, (lengths.len() * stages) as i64);
            return Err(Error::new(Status::ARGUMENT, "weights", found, needed, text));
        }
        let config = Config {
            kind: sys::FEEDLANE_SAMPLER_MIXTURE,
            lengths: lengths.as_ptr(),
            count: lengths.len() as u64,
            weights: weights.as_ptr(),
            from: if wanted.from.is_empty() { null() } else { wanted.from.as_ptr() },
            stages: wanted.from.len() as u64,
            num_samples: wanted.num_samples,
            seed: wanted.seed,
            window: wanted.window,
            no_shuffle: wanted.no_shuffle.into(),
            drop_last: wanted.drop_last.into(),
            world: wanted.world,
            rank: wanted.rank,
            detect_off: wanted.detect_off.into(),
            ..Config::new()
        };
        // SAFETY: there are `count` lengths, `count` weights per stage and `stages` starts.
        unsafe { Sampler::create(&config) }
    }

    /// Starts an epoch from its beginning.
    pub fn restart(&mut self, epoch: i64) -> Result<(), Error> {
        // SAFETY: the handle is valid, and one thread at a time uses it.
        call(|err| unsafe { sys::feedlane_sampler_restart(self.raw.as_ptr(), epoch, err) }).map(drop)
    }

    /// Writes the next indices and returns their number; 0 at the end of the epoch. A batch sampler writes one batch.
    /// 0 also if a live order has too few indices now; the sampler keeps them.
    pub fn next_indices(&mut self, indices: &mut [i64]) -> Result<usize, Error> {
        let (raw, cap) = (self.raw.as_ptr(), indices.len() as u64);
        let mut got = 0;
        // SAFETY: there is room for `cap` indices.
        let status = call(|err| unsafe { sys::feedlane_sampler_next(raw, indices.as_mut_ptr(), cap, &mut got, err) })?;
        Ok(if status == Status::OK { got as usize } else { 0 })
    }

    /// Indices in an epoch, or batches of a batch sampler. `None`: unknown.
    pub fn length(&self) -> Result<Option<i64>, Error> {
        let mut length = -1;
        // SAFETY: the handle is valid.
        plain(unsafe { sys::feedlane_sampler_length(self.as_ptr(), &mut length) })?;
        Ok(not_negative(length))
    }

    /// The position in the epoch.
    pub fn save(&mut self) -> Result<Vec<u8>, Error> {
        let raw = self.raw.as_ptr();
        written(0, |buffer, cap, bytes, err| {
            // SAFETY: there is room for `cap` bytes.
            unsafe { sys::feedlane_sampler_save(raw, buffer, cap, bytes, err) }
        })
    }

    /// Continues after a saved position. Call it after `restart` of the state's epoch.
    pub fn load(&mut self, state: &[u8]) -> Result<(), Error> {
        let (raw, bytes) = (self.raw.as_ptr(), state.len() as u64);
        // SAFETY: there are `bytes` bytes, which are only read.
        call(|err| unsafe { sys::feedlane_sampler_load(raw, state.as_ptr().cast(), bytes, err) }).map(drop)
    }

    pub(crate) fn as_ptr(&self) -> *const sys::feedlane_sampler {
        self.raw.as_ptr()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the sampler's handle, which is not used afterwards.
        unsafe { sys::feedlane_sampler_destroy(&mut raw) };
    }
}
