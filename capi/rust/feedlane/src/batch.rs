// SPDX-License-Identifier: Apache-2.0
//! A batch that the trainer holds.
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{call, slice_at, Error, Status};
use crate::observe::Stamps;
use crate::pool::{NotReleased, Pool};
use crate::sys;
use crate::tensor::{Tensor, TensorMut};
use crate::values::Values;

/// A batch that the trainer holds, in shared memory, or an entry that a process of an [`Arena`](crate::Arena) holds.
/// Dropping it gives its memory back to the workers, or to the arena. If the trainer
/// holds more than [`LoaderBuilder::held`](crate::LoaderBuilder::held) batches, fewer are prepared; if it holds a batch
/// in every slot, `next` returns SLOTS_HELD. A batch may outlive its loader.
pub struct Batch {
    loader: NonNull<sys::feedlane_loader>,
    /// The token is 0 once the batch was released.
    raw: sys::feedlane_batch,
    /// The pool that the memory is registered with, if there is one. It is dropped after the batch was released.
    pool: Option<Arc<Pool>>,
    /// The loader is a consumer, or an arena: the kernel refuses writes to the tensors.
    is_read_only: bool,
}

// SAFETY: any thread may release; a release works with a copy of the handle even after the loader's end. All other
// memory is reached only through this batch.
unsafe impl Send for Batch {}
// SAFETY: shared references only read.
unsafe impl Sync for Batch {}

impl Batch {
    /// # Safety
    /// `loader` has just yielded `raw`. The new batch takes over the reference.
    pub(crate) unsafe fn new(
        loader: NonNull<sys::feedlane_loader>,
        raw: sys::feedlane_batch,
        pool: Option<Arc<Pool>>,
        is_read_only: bool,
    ) -> Self {
        Batch { loader, raw, pool, is_read_only }
    }

    pub fn epoch(&self) -> i64 {
        self.raw.epoch
    }

    /// The number of the batch in its epoch, from 0.
    pub fn number(&self) -> i64 {
        self.raw.batch
    }

    /// The worker that made the batch. `None`: it was made inline, in the trainer.
    pub fn worker(&self) -> Option<i32> {
        Some(self.raw.worker).filter(|w| *w != -1)
    }

    /// The attempt that made the batch, from 0. The next attempt begins when a worker that was sent the batch dies or
    /// is stuck.
    pub fn attempt(&self) -> i32 {
        self.raw.attempt
    }

    pub fn rows(&self) -> usize {
        self.raw.count as usize
    }

    /// Number of batches just before this one that the feeder revoked, on a consumer with
    /// [`Lag::Observe`](crate::Lag::Observe).
    pub fn missed(&self) -> u64 {
        self.raw.missed
    }

    /// When each step of the batch happened.
    pub fn stamps(&self) -> Stamps {
        Stamps::of_batch(&self.raw)
    }

    /// The data set indices, one per row; empty for an iterable data set.
    pub fn indices(&self) -> &[i64] {
        // SAFETY: NULL, or `count` indices that live as long as the batch. Only this process can write to them or, on a
        // consumer, the feeder, which does not change them.
        unsafe { slice_at(self.raw.indices, self.raw.count) }
    }

    /// The data set indices of samples that were left out; empty for an iterable data set.
    pub fn skipped(&self) -> &[i64] {
        // SAFETY: see `indices`.
        unsafe { slice_at(self.raw.skipped, self.raw.skipped_count) }
    }

    /// The bytes that the data set attached to the batch.
    pub fn metadata(&self) -> Values<'_, u8> {
        // SAFETY: `metadata_bytes` bytes, mapped as long as the batch lives.
        unsafe { Values::new(self.raw.metadata.cast(), self.raw.metadata_bytes as usize) }
    }

    pub fn tensor_count(&self) -> usize {
        self.raw.tensor_count as usize
    }

    fn raw_tensors(&self) -> &[sys::feedlane_tensor] {
        // SAFETY: `tensor_count` descriptors that live as long as the batch.
        unsafe { slice_at(self.raw.tensors, self.raw.tensor_count) }
    }

    /// A tensor by its number, in declaration order. E_ARGUMENT: there is no such tensor.
    pub fn tensor(&self, index: usize) -> Result<Tensor<'_>, Error> {
        let raw = self.raw_tensors().get(index).ok_or_else(|| self.no_tensor(index))?;
        // SAFETY: the library's descriptor; its memory belongs to the batch, which is borrowed.
        Ok(unsafe { Tensor::new(raw) })
    }

    /// The tensor of the field with this name.
    pub fn field(&self, name: &str) -> Result<Tensor<'_>, Error> {
        let found = self.tensors().find(|t| t.name() == name);
        found.ok_or_else(|| Error::argument("name", format!("the batch has no tensor {:?}", name)))
    }

    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        // SAFETY: see `tensor`.
        self.raw_tensors().iter().map(|raw| unsafe { Tensor::new(raw) })
    }

    /// A tensor to change in place: to normalise, mask or shuffle it. E_STATE: the loader is a consumer, or the batch is
    /// an entry of an arena, whose tensors are read-only.
    pub fn tensor_mut(&mut self, index: usize) -> Result<TensorMut<'_>, Error> {
        if self.is_read_only {
            let text = "the tensors of a consumer and of an arena are read-only: change a copy".into();
            return Err(Error::new(Status::STATE, "batch", 0, 0, text));
        }
        let raw = *self.raw_tensors().get(index).ok_or_else(|| self.no_tensor(index))?;
        // SAFETY: only this batch, which is borrowed mutably, reaches the memory.
        Ok(unsafe { TensorMut::new(raw) })
    }

    fn no_tensor(&self, index: usize) -> Error {
        Error::beyond("tensor", index, "batch", self.tensor_count())
    }

    /// Releases the batch, as dropping it does. The method consumes the batch, so it cannot be used or released again.
    pub fn release(self) {}

    /// Enqueues a copy of a tensor to `device_memory`, which has `bytes` bytes. E_STATE: the loader was created without
    /// [`pinned`](crate::LoaderBuilder::pinned).
    ///
    /// # Safety
    /// `stream` is a stream of the pool's device ("none" and "mlock" ignore it).
    /// `device_memory` is memory of that device ("none" and "mlock": memory of this process) with room for `bytes`
    /// bytes. Until the stream has completed the copy, nobody else accesses that memory, and this batch is neither
    /// changed nor dropped. It may be released by [`release_on`](Batch::release_on) with this stream.
    pub unsafe fn to_device(
        &self,
        tensor: usize,
        device_memory: *mut c_void,
        bytes: usize,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let raw = self.raw_tensors().get(tensor).ok_or_else(|| self.no_tensor(tensor))?;
        let pool = self.pool.as_ref().ok_or_else(|| {
            let text = "the loader has no pool".into();
            Error::new(Status::STATE, "config.pinned", 0, 1, text)
        })?;
        if (bytes as u64) < raw.bytes {
            let text = format!("the destination has {} bytes, but the tensor has {}", bytes, raw.bytes);
            return Err(Error::new(Status::ARGUMENT, "bytes", bytes as i64, raw.bytes as i64, text));
        }
        // SAFETY: the tensor is memory of this batch, which is held. The caller promises the rest.
        unsafe { pool.copy_at(device_memory, raw.data, raw.bytes, stream) }
    }

    /// Releases the batch when `stream` has completed all work enqueued so far, or has failed
    /// ([`EventKind::DeviceFailed`](crate::EventKind::DeviceFailed)). `next` waits for such slots.
    ///
    /// # Safety
    /// `stream` is a stream of the pool's device, and remains valid until it has completed this work.
    #[allow(clippy::result_large_err)] // the error contains the batch
    pub unsafe fn release_on(mut self, stream: *mut c_void) -> Result<(), NotReleased<Self>> {
        let (loader, token) = (self.loader.as_ptr(), self.raw.token);
        // SAFETY: the batch is held, so handle and token are valid. The caller promises the rest.
        match call(|err| unsafe { sys::feedlane_batch_release_on(loader, token, stream, err) }) {
            Ok(_) => {
                self.raw.token = 0;
                Ok(())
            }
            Err(error) => Err(NotReleased { held: self, error }),
        }
    }

    /// Records that `stream` uses the batch. After the batch and all tensors exported from it were released, the slot
    /// is kept until `stream` has completed all work enqueued before the last release. Intended for copies that other
    /// libraries enqueue. Up to four streams.
    ///
    /// # Safety
    /// `stream` is a stream of the pool's device, and remains valid until then.
    pub unsafe fn record_stream(&self, stream: *mut c_void) -> Result<(), Error> {
        let (loader, token) = (self.loader.as_ptr(), self.raw.token);
        // SAFETY: the batch is held, so handle and token are valid. The caller promises the rest.
        call(|err| unsafe { sys::feedlane_batch_record_stream(loader, token, stream, err) }).map(drop)
    }

    pub(crate) fn pool(&self) -> Option<Arc<Pool>> {
        self.pool.clone()
    }

    pub(crate) fn loader(&self) -> NonNull<sys::feedlane_loader> {
        self.loader
    }

    pub(crate) fn token(&self) -> u64 {
        self.raw.token
    }

    /// The library has taken the reference back.
    pub(crate) fn forget(&mut self) {
        self.raw.token = 0;
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.raw.token != 0 {
            // SAFETY: this batch's reference, released once. In a forked child the call returns E_FORKED and has no
            // effect.
            unsafe { sys::feedlane_batch_release(self.loader.as_ptr(), self.raw.token) };
        }
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Batch");
        shown.field("epoch", &self.epoch()).field("number", &self.number()).field("rows", &self.rows()).finish()
    }
}
