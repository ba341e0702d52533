// SPDX-License-Identifier: Apache-2.0
//! Feedlane for Rust: batches made by workers, read where they lie in shared memory.
//!
//! The trainer has a [`Sampler`], a [`Loader`] made by [`Loader::builder`], and iterates over [`Loader::epoch`]: an
//! iterator of `Result<Batch, Error>`. A [`Batch`] goes back to the workers when it is dropped. The workers run a
//! [`Dataset`]: as a rule in this very program, started again, whose `main` begins with [`worker_main`].
//!
//! What the C interface forbids doesn't compile: a tensor can't be used after its batch's release, no batch is released
//! twice, one thread at a time drives a loader. What only shows at run time is an [`Error`]: a tensor of another dtype
//! than asked for, a worker that died too often.
//!
//! # Memory that other processes can write
//!
//! Worker processes have the memory of all batches mapped for writing, also while the trainer holds one. Those that keep
//! to the protocol don't touch it then; one with a stray pointer, or a hostile one, may at any time, and nothing short of
//! a copy prevents it. Rust may assume that nobody writes to what a `&[T]` shows: it may read an element twice and rely on
//! getting the same, after a check of bounds for one. So safe code gets no such slice:
//!
//! - [`Values`], of [`Tensor::values`] and [`Tensor::bytes`], reads elements, or copies all of them to memory of one's own,
//!   as volatile accesses. Whatever another process does meanwhile, what comes of it is some value of the type.
//! - [`ValuesMut`], of [`Row::field_mut`] and [`TensorMut::values_mut`], writes in the same way.
//! - [`Values::as_slice`] and [`ValuesMut::as_mut_slice`] are the memory itself, without a copy, and `unsafe`: they take
//!   the promise that no other process writes there meanwhile. Who trusts the worker programs can give it.
//!
//! [`Batch::indices`], [`Work::indices`] and the like are slices: they lie where only the trainer can write, and a worker
//! trusts its trainer. Names, shapes and errors are the process's own copies. A pool's buffers are no other process's.
#![deny(unsafe_op_in_unsafe_fn)]

mod batch;
mod builder;
mod callbacks;
mod closer;
mod dlpack;
mod element;
mod error;
mod failure;
mod handle;
mod loader;
mod monitor;
mod observe;
mod order;
mod pool;
mod ring;
mod sampler;
mod share;
mod state;
mod task;
mod tensor;
mod values;
mod worker;

pub use batch::Batch;
pub use builder::{Dispatch, Field, LoaderBuilder, PREFETCH_AUTO};
pub use callbacks::{Dataset, Row, Shard, WorkerInfo};
pub use closer::Closer;
pub use dlpack::{DlpackLegacy, DlpackTensor};
pub use element::{Bf16, Bool8, Dtype, Element, F16};
pub use error::{Details, Error, Status};
pub use failure::{Failure, Transient};
pub use handle::{Event, EventKind, Handle, Stats, WorkerState, WorkerStats};
pub use loader::{Epoch, Loader, Next};
pub use monitor::{Monitor, RingInfo};
pub use observe::{BatchRecord, Bound, Diagnosis, ErrorRecord, Histogram, LoaderInfo, Stamps, Timings};
pub use order::Order;
pub use pool::{Buffer, NotReleased, Pool, PoolOptions, PoolStats, Registered};
pub use ring::{Copied, Received, Receiver, Reserved, RingConfig, Sender};
pub use sampler::{Distributed, Mixture, Random, Rank, Sampler, Shuffle, Tokens, Weighted};
pub use share::{ConsumerOptions, ConsumerState, ConsumerStats, Lag, Served, Share};
pub use state::StateInfo;
pub use task::{Ahead, Outcome, Record, Task, Work};
pub use tensor::{Tensor, TensorMut};
pub use values::{Values, ValuesMut};
pub use worker::{run_shard_worker, run_worker, shard_worker_main, worker_descriptor, worker_main, NextTask, Worker};

/// The C interface as it is, for what this crate has no words for.
pub use feedlane_sys as sys;

/// The version of the library in use, "major.minor.patch".
pub fn version() -> &'static str {
    // SAFETY: returns a static, terminated string.
    unsafe { error::static_text(sys::feedlane_version()) }
}

/// The seed of the sample at `position` of an epoch's order: what rows carry. Pure.
pub fn row_seed(base_seed: u64, epoch: i64, position: i64) -> u64 {
    // SAFETY: numbers only.
    unsafe { sys::feedlane_row_seed(base_seed, epoch, position) }
}

/// The base seed that torch's DataLoader(shuffle=True) draws for `epoch` after `torch.manual_seed(manual_seed)`: torch seeds
/// worker w with it and w. Pure. E_ARGUMENT: no epoch that it can be drawn for.
pub fn torch_base_seed(manual_seed: u64, epoch: i64) -> Result<u64, Error> {
    let mut seed = 0;
    // SAFETY: room of ours for a number.
    error::call(|err| unsafe { sys::feedlane_torch_base_seed(manual_seed, epoch, &mut seed, err) })?;
    Ok(seed)
}

/// Compiles only where a type may go to another thread: these may.
const _: fn() = || {
    fn moves<T: Send>() {}
    fn is_shared<T: Sync>() {}
    moves::<Sampler>();
    moves::<Loader>();
    moves::<Epoch<'static>>();
    moves::<Batch>();
    moves::<Handle>();
    moves::<Worker>();
    moves::<DlpackTensor>();
    moves::<Monitor>();
    moves::<Receiver>();
    moves::<Sender>();
    moves::<Pool>();
    moves::<Buffer>();
    moves::<Registered<'static, f32>>();
    moves::<Closer>();
    moves::<Error>();
    is_shared::<Batch>();
    is_shared::<Tensor<'static>>();
    is_shared::<Handle>();
    is_shared::<Monitor>();
    is_shared::<Pool>();
    is_shared::<Buffer>();
    is_shared::<Closer>();
    is_shared::<Error>();
};
