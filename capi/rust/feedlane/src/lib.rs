// SPDX-License-Identifier: Apache-2.0
//! Feedlane for Rust: batches made by workers, read where they lie in shared memory.
//!
//! The trainer has a [`Sampler`], a [`Loader`] made by [`Loader::builder`], and iterates over [`Loader::epoch`]: an
//! iterator of `Result<Batch, Error>`. A [`Batch`] goes back to the workers when it is dropped; [`Tensor::as_slice`] is
//! its memory, not a copy. The workers run a [`Dataset`]: as a rule in this very program, started again, whose `main`
//! begins with [`worker_main`].
//!
//! What the C interface forbids doesn't compile: a tensor can't be used after its batch's release, no batch is released
//! twice, one thread at a time drives a loader. What only shows at run time is an [`Error`]: a tensor of another dtype
//! than asked for, a worker that died too often.
//!
//! One thing no type can promise: a worker process maps the same memory. Those that keep to the protocol never touch a
//! batch that the trainer holds; one that writes anywhere changes numbers under a `&[f32]`, as with every shared mapping.
#![deny(unsafe_op_in_unsafe_fn)]

mod batch;
mod builder;
mod callbacks;
mod dlpack;
mod element;
mod error;
mod failure;
mod handle;
mod loader;
mod monitor;
mod pool;
mod ring;
mod sampler;
mod stager;
mod state;
mod tensor;
mod worker;

pub use batch::Batch;
pub use builder::{Dispatch, Field, LoaderBuilder};
pub use callbacks::{Dataset, Row, Shard, WorkerInfo};
pub use dlpack::{DlpackLegacy, DlpackTensor};
pub use element::{Bf16, Bool8, Dtype, Element, F16};
pub use error::{Details, Error, Status};
pub use failure::{Failure, Transient};
pub use handle::{Event, EventKind, Handle, Stats, WorkerState, WorkerStats};
pub use loader::{Epoch, Loader, Next};
pub use monitor::Monitor;
pub use pool::{Buffer, NotReleased, Pool, PoolOptions, PoolStats};
pub use ring::{Received, Receiver, Reserved, RingConfig, Sender};
pub use sampler::{Distributed, Random, Rank, Sampler, Shuffle, Weighted};
pub use state::StateInfo;
pub use tensor::{Tensor, TensorMut};
pub use worker::{
    run_shard_worker, run_worker, shard_worker_main, worker_descriptor, worker_main, NextTask, Task, Work, Worker,
};

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
    moves::<Error>();
    is_shared::<Batch>();
    is_shared::<Tensor<'static>>();
    is_shared::<Handle>();
    is_shared::<Monitor>();
    is_shared::<Pool>();
    is_shared::<Buffer>();
    is_shared::<Error>();
};
