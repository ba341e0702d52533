// SPDX-License-Identifier: Apache-2.0
//! Feedlane for Rust: workers make batches, and the trainer reads them in place, in shared memory.
//!
//! The trainer creates a [`Sampler`], and a [`Loader`] with [`Loader::builder`]. It iterates over [`Loader::epoch`],
//! which yields `Result<Batch, Error>`. Dropping a [`Batch`] gives its memory back to the workers. The workers run a
//! [`Dataset`]. By default a worker is this program, started again; its `main` begins with [`worker_main`].
//!
//! Uses that the C interface forbids do not compile: a tensor used after its batch's release, a batch released twice, a
//! loader driven by two threads at a time. Failures that show only at run time are an [`Error`]: a tensor of another
//! dtype than requested, a worker that died too often.
//!
//! # Memory that other processes can write
//!
//! Worker processes have the memory of all batches mapped for writing, even while the trainer holds a batch. Workers
//! that follow the protocol do not touch a batch that the trainer holds. A worker with a stray pointer, or a hostile
//! one, may write to it; only a copy prevents that. Rust assumes that nobody writes to the memory of a `&[T]`: the
//! compiler may read an element again after a bounds check and rely on the first value. Safe code therefore gets no
//! slice of memory that another process can write:
//!
//! - [`Values`], from [`Tensor::values`] and [`Tensor::bytes`], reads single elements, or copies all of them to private
//!   memory, with volatile accesses. Whatever another process writes at that time, each element read is a valid value
//!   of its type.
//! - [`ValuesMut`], from [`Row::field_mut`] and [`TensorMut::values_mut`], writes with volatile accesses.
//! - [`Values::as_slice`] and [`ValuesMut::as_mut_slice`] return the memory itself, without a copy. They are `unsafe`:
//!   the caller promises that no other process writes to the memory while the slice lives. Code that trusts its worker
//!   programs can promise this.
//!
//! [`Batch::indices`], [`Work::indices`] and similar methods return slices, because only the trainer can write to that
//! memory, and a worker trusts its trainer. Names, shapes and errors are private copies of this process. A pool's
//! buffers belong to this process alone.
#![deny(unsafe_op_in_unsafe_fn)]

mod arena;
mod arena_info;
mod args;
mod batch;
mod builder;
mod callbacks;
mod closer;
mod dlpack;
mod element;
mod error;
mod event;
mod failure;
mod field;
mod handle;
mod loader;
mod monitor;
mod observe;
mod order;
mod pool;
mod reservation;
mod ring;
mod sampler;
mod share;
mod state;
mod stats;
mod task;
mod tensor;
mod values;
mod worker;

pub use arena::{Arena, ArenaOptions, Full, GetOrMake};
pub use arena_info::{ArenaInfo, ArenaMember, ArenaStats};
pub use batch::Batch;
pub use builder::{Dispatch, LoaderBuilder, PREFETCH_AUTO};
pub use callbacks::{Dataset, Row, Shard, WorkerInfo};
pub use closer::Closer;
pub use dlpack::{DlpackLegacy, DlpackTensor};
pub use element::{Bf16, Bool8, Dtype, Element, F16};
pub use error::{Details, Error, Status};
pub use event::{Event, EventKind};
pub use failure::{Failure, Transient};
pub use field::Field;
pub use handle::Handle;
pub use loader::{Epoch, Loader, Next};
pub use monitor::{Monitor, RingInfo};
pub use observe::{BatchRecord, Bound, Diagnosis, ErrorRecord, Histogram, LoaderInfo, Stamps, Timings};
pub use order::Order;
pub use pool::{Buffer, NotReleased, Pool, PoolOptions, PoolStats, Registered};
pub use reservation::{MakeRight, Put, Reservation};
pub use ring::{Copied, Received, Receiver, Reserved, RingConfig, Sender};
pub use sampler::{Distributed, Mixture, Random, Rank, Sampler, Shuffle, Tokens, Weighted};
pub use share::{ConsumerOptions, ConsumerState, ConsumerStats, Lag, Served, Share};
pub use state::StateInfo;
pub use stats::{Stats, WorkerState, WorkerStats};
pub use task::{Ahead, Retry, Task, Work};
pub use tensor::{Tensor, TensorMut};
pub use values::{Values, ValuesMut};
pub use worker::{run_shard_worker, run_worker, shard_worker_main, worker_descriptor, worker_main, NextTask, Worker};

/// The C interface itself, for functions that this crate does not wrap.
pub use feedlane_sys as sys;

/// The version of the library in use, "major.minor.patch".
pub fn version() -> &'static str {
    // SAFETY: returns a static, terminated string.
    unsafe { error::static_text(sys::feedlane_version()) }
}

/// The seed of the sample at `position` of an epoch's order, which rows carry. A pure function: `feedlane_row_seed` in
/// `feedlane/dataset.h`.
pub fn row_seed(base_seed: u64, epoch: i64, position: i64) -> u64 {
    const G: u64 = 0x9e37_79b9_7f4a_7c15;
    let added = [G, (epoch as u64).wrapping_mul(G), (position as u64).wrapping_add(1).wrapping_mul(G)];
    added.iter().fold(base_seed, |seed, step| {
        let mut x = seed.wrapping_add(*step);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    })
}

/// Compiles only if these types may move to another thread, or be shared with one.
const _: fn() = || {
    fn moves<T: Send>() {}
    fn is_shared<T: Sync>() {}
    moves::<Arena>();
    moves::<Reservation>();
    moves::<MakeRight>();
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
    is_shared::<Arena>();
    is_shared::<Batch>();
    is_shared::<Tensor<'static>>();
    is_shared::<Handle>();
    is_shared::<Monitor>();
    is_shared::<Pool>();
    is_shared::<Buffer>();
    is_shared::<Closer>();
    is_shared::<Error>();
};
