// SPDX-License-Identifier: Apache-2.0
//! One batch in the trainer's hands.
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{call, slice_at, Error, Status};
use crate::observe::Stamps;
use crate::pool::{NotReleased, Pool};
use crate::sys;
use crate::tensor::{Tensor, TensorMut};
use crate::values::Values;

/// A batch, where it lies in shared memory. Dropping it gives the memory back to the workers. Who keeps more than
/// [`LoaderBuilder::held`](crate::LoaderBuilder::held) of them has fewer made ahead; who keeps all that there is room for is
/// told SLOTS_HELD. It may outlive its loader.
pub struct Batch {
    loader: NonNull<sys::feedlane_loader>,
    /// Its token is 0 once it was given back.
    raw: sys::feedlane_batch,
    /// Where it lies, if the loader has one. After the rest: the pool ends after its batches.
    pool: Option<Arc<Pool>>,
    /// A consumer's: the kernel refuses writes to its tensors.
    is_read_only: bool,
}

// SAFETY: any thread may release, which takes a copy of the handle even after the loader's end; the rest is memory that only
// this batch reaches.
unsafe impl Send for Batch {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Batch {}

impl Batch {
    /// # Safety
    /// `raw` was just yielded by `loader`, and its reference is the new batch's.
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

    /// Its number in the epoch, from 0.
    pub fn number(&self) -> i64 {
        self.raw.batch
    }

    /// Who made it; none: inline, in the trainer.
    pub fn worker(&self) -> Option<i32> {
        Some(self.raw.worker).filter(|w| *w != -1)
    }

    /// Which attempt made it, from 0: each death of a worker that had it in hand makes one more.
    pub fn attempt(&self) -> i32 {
        self.raw.attempt
    }

    pub fn rows(&self) -> usize {
        self.raw.count as usize
    }

    /// Batches just before it that the feeder took back: of a consumer with [`Lag::Observe`](crate::Lag::Observe).
    pub fn missed(&self) -> u64 {
        self.raw.missed
    }

    /// When each of its steps happened.
    pub fn stamps(&self) -> Stamps {
        Stamps::of_batch(&self.raw)
    }

    /// What its rows are; empty for an iterable data set.
    pub fn indices(&self) -> &[i64] {
        // SAFETY: `count` indices that live as long as the batch, in memory that only this process can write, or
        // a consumer's feeder, which keeps it; NULL if there are none.
        unsafe { slice_at(self.raw.indices, self.raw.count) }
    }

    /// Indices that were left out; empty for an iterable data set.
    pub fn skipped(&self) -> &[i64] {
        // SAFETY: as above.
        unsafe { slice_at(self.raw.skipped, self.raw.skipped_count) }
    }

    /// What the data set gave along.
    pub fn metadata(&self) -> Values<'_, u8> {
        // SAFETY: as many bytes, which are mapped as long as the batch lives.
        unsafe { Values::new(self.raw.metadata.cast(), self.raw.metadata_bytes as usize) }
    }

    pub fn tensor_count(&self) -> usize {
        self.raw.tensor_count as usize
    }

    fn raw_tensors(&self) -> &[sys::feedlane_tensor] {
        // SAFETY: as many descriptors, which live as long as the batch.
        unsafe { slice_at(self.raw.tensors, self.raw.tensor_count) }
    }

    /// Tensors in the order of declaration. E_ARGUMENT beyond the last one.
    pub fn tensor(&self, index: usize) -> Result<Tensor<'_>, Error> {
        let raw = self.raw_tensors().get(index).ok_or_else(|| self.no_tensor(index))?;
        // SAFETY: the library's descriptor of memory that is the batch's as long as it is borrowed.
        Ok(unsafe { Tensor::new(raw) })
    }

    /// The tensor of a field by its name.
    pub fn field(&self, name: &str) -> Result<Tensor<'_>, Error> {
        let found = self.tensors().find(|t| t.name() == name);
        found.ok_or_else(|| Error::argument("name", format!("the batch has no tensor {:?}", name)))
    }

    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        // SAFETY: as in `tensor`.
        self.raw_tensors().iter().map(|raw| unsafe { Tensor::new(raw) })
    }

    /// A tensor to write to, in place: normalise, mask, shuffle. E_STATE: the loader is a consumer, whose tensors are
    /// read-only.
    pub fn tensor_mut(&mut self, index: usize) -> Result<TensorMut<'_>, Error> {
        if self.is_read_only {
            let text = "the tensors of a consumer are read-only".into();
            return Err(Error::new(Status::STATE, "batch", 0, 0, text));
        }
        let raw = *self.raw_tensors().get(index).ok_or_else(|| self.no_tensor(index))?;
        // SAFETY: the batch's memory, which is this batch's alone and borrowed mutably.
        Ok(unsafe { TensorMut::new(raw) })
    }

    fn no_tensor(&self, index: usize) -> Error {
        Error::beyond("tensor", index, "batch", self.tensor_count())
    }

    /// Gives it back: what dropping does. It takes the batch, so nothing can be used or released again.
    pub fn release(self) {}

    /// Enqueues a copy of a tensor to device memory, of which there are `bytes`. E_STATE: the loader was made without
    /// [`pinned`](crate::LoaderBuilder::pinned).
    ///
    /// # Safety
    /// `stream` is a stream of the pool's device ("cuda": a CUstream or cudaStream_t; "none", "mlock": not looked at) and
    /// `device_memory` memory there ("none", "mlock": in this process) with room for `bytes` bytes. Until the stream has
    /// come so far nobody else touches that memory, and this batch is neither written to nor dropped: it may go back by
    /// [`release_on`](Batch::release_on) the same stream.
    pub unsafe fn to_device(
        &self,
        tensor: usize,
        device_memory: *mut c_void,
        bytes: usize,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let number = i32::try_from(tensor).map_err(|_| self.no_tensor(tensor))?;
        let (loader, token, bytes) = (self.loader.as_ptr(), self.raw.token, bytes as u64);
        // SAFETY: the batch is held, so handle and token are valid; the rest is the caller's promise.
        call(|err| unsafe { sys::feedlane_batch_to_device(loader, token, number, device_memory, bytes, stream, err) })
            .map(drop)
    }

    /// Gives it back when `stream` has done all that is enqueued now, or has failed
    /// ([`EventKind::DeviceFailed`](crate::EventKind::DeviceFailed)). `next` waits for that.
    ///
    /// # Safety
    /// `stream` is a stream of the pool's device, and stays one until it has come so far.
    #[allow(clippy::result_large_err)] // the error has the batch
    pub unsafe fn release_on(mut self, stream: *mut c_void) -> Result<(), NotReleased<Self>> {
        let (loader, token) = (self.loader.as_ptr(), self.raw.token);
        // SAFETY: the batch is held, so handle and token are valid; the rest is the caller's promise.
        match call(|err| unsafe { sys::feedlane_batch_release_on(loader, token, stream, err) }) {
            Ok(_) => {
                self.raw.token = 0;
                Ok(())
            }
            Err(error) => Err(NotReleased { held: self, error }),
        }
    }

    /// `stream` uses the batch: its memory isn't free before the stream has done all that is enqueued when the last of this
    /// and the tensors exported from it is gone. For copies that others enqueue; up to four streams.
    ///
    /// # Safety
    /// `stream` is a stream of the pool's device, and stays one until then.
    pub unsafe fn record_stream(&self, stream: *mut c_void) -> Result<(), Error> {
        let (loader, token) = (self.loader.as_ptr(), self.raw.token);
        // SAFETY: the batch is held, so handle and token are valid; the rest is the caller's promise.
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
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.raw.token != 0 {
            // SAFETY: the token's one reference that is ours. In a forked child it answers E_FORKED and does nothing.
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
