// SPDX-License-Identifier: Apache-2.0
//! Memory registered with a device: buffers of one's own, and what a loader's batches lie in.
use std::ffi::{c_void, CString};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{null, null_mut, NonNull};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::error::{bytes_at, call, check_abi, only_ok, plain, Error};
use crate::loader::nanoseconds;
use crate::sys;
use crate::tensor::slice_at_mut;

/// What a pool registers, with whom. What isn't said is 0: the C interface's default.
#[derive(Clone, Debug, Default)]
pub struct PoolOptions {
    /// "none" or empty: nothing is pinned, the device is this memory; "mlock": the same, but pages stay resident; "cuda".
    pub backend: String,
    /// "cuda": ordinal.
    pub device: i32,
    /// Made and registered at once; 0: none, which does for [`LoaderBuilder::pinned`](crate::LoaderBuilder::pinned).
    pub buffers: u32,
    /// Of each; rounded up to whole pages.
    pub buffer_bytes: u64,
    /// Registered at a time at most, whatever for; 0: any number.
    pub budget_bytes: u64,
}

/// The handle alone: dropping it does nothing.
struct Raw(NonNull<sys::feedlane_pool>);

// SAFETY: all functions but destroy are for any thread, and destroy is called with the last owner's.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Raw {
    /// Whether it is gone. It isn't while a stream is to give something back, or a DLPack tensor without its owner here.
    fn destroy(&mut self) -> bool {
        let mut raw = self.0.as_ptr();
        // SAFETY: the handle lives, and nobody else uses it. With E_STATE nothing happens to it.
        unsafe { sys::feedlane_pool_destroy(&mut raw) };
        raw.is_null()
    }
}

/// Registered memory. Its users keep it: loaders made with it, their batches, and its buffers each have the `Arc`.
pub struct Pool {
    raw: Raw,
}

/// Pools that a device was still reading from when the last `Arc` went. What waits for a stream is known to the library
/// alone, so their end is tried again whenever a pool is made or dropped.
static LEFT_OVER: Mutex<Vec<Raw>> = Mutex::new(Vec::new());

/// Those that are left after another try.
fn left_over() -> MutexGuard<'static, Vec<Raw>> {
    let mut pools = LEFT_OVER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    pools.retain_mut(|pool| !pool.destroy());
    pools
}

/// A pool's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    pub buffers: u64,
    /// Now: in callers' hands, loaders' too.
    pub in_use: u64,
    /// Now: released on a stream that hasn't come so far.
    pub pending: u64,
    /// Now: buffers and loaders' slots.
    pub registered_bytes: u64,
    /// Buffers handed out so far.
    pub acquired: u64,
    /// Time spent asleep in `acquire`.
    pub waited_ns: u64,
    /// Streams that failed before a release on them was due.
    pub failures: u64,
}

impl Pool {
    /// Makes a pool and its buffers.
    pub fn new(wanted: &PoolOptions) -> Result<Arc<Self>, Error> {
        Pool::made(wanted, null())
    }

    /// With functions of a device that the library doesn't know, in place of `backend`. They are copied.
    ///
    /// # Safety
    /// The functions do what `feedlane_backend` says in `feedlane/pool.h`, on any thread, several at the same time, until
    /// the pool and everything in it is gone; nothing unwinds out of them.
    pub unsafe fn with_backend(wanted: &PoolOptions, functions: &sys::feedlane_backend) -> Result<Arc<Self>, Error> {
        Pool::made(wanted, functions)
    }

    fn made(wanted: &PoolOptions, custom: *const sys::feedlane_backend) -> Result<Arc<Self>, Error> {
        check_abi()?;
        drop(left_over());
        let backend = CString::new(wanted.backend.as_str());
        let backend =
            backend.map_err(|_| Error::argument("backend", format!("{:?} has a zero in it", wanted.backend)))?;
        let mut config = sys::feedlane_pool_config::new();
        config.backend = if wanted.backend.is_empty() { null() } else { backend.as_ptr() };
        config.custom = custom;
        config.device = wanted.device;
        config.buffers = wanted.buffers;
        config.buffer_bytes = wanted.buffer_bytes;
        config.budget_bytes = wanted.budget_bytes;
        let mut raw = null_mut();
        // SAFETY: the configuration and the name are copied; room of ours for the handle.
        call(|err| unsafe { sys::feedlane_pool_create(&config, &mut raw, err) })?;
        Ok(Arc::new(Pool { raw: Raw(NonNull::new(raw).expect("a handle on success")) }))
    }

    /// Waits for a buffer, for ever without a timeout. TIMEOUT and INTERRUPTED are errors here; nothing is lost with them.
    pub fn acquire(self: &Arc<Self>, timeout: Option<Duration>) -> Result<Buffer, Error> {
        let mut raw = sys::feedlane_buffer::new();
        // SAFETY: the handle lives; a struct of ours to fill in.
        let status =
            call(|err| unsafe { sys::feedlane_pool_acquire(self.as_ptr(), nanoseconds(timeout), &mut raw, err) })?;
        only_ok(status)?;
        Ok(Buffer { pool: self.clone(), raw })
    }

    /// Registers memory of one's own, the whole pages that contain it, for as long as the result is there. E_STATE: a part
    /// of these pages is registered.
    pub fn register<'a, T>(self: &Arc<Self>, memory: &'a mut [T]) -> Result<Registered<'a, T>, Error> {
        let (address, bytes) = (memory.as_mut_ptr().cast(), std::mem::size_of_val(memory) as u64);
        // SAFETY: memory of this process, which is mapped for all of 'a and a range of its own.
        call(|err| unsafe { sys::feedlane_pool_register(self.as_ptr(), address, bytes, err) })?;
        Ok(Registered { pool: self.clone(), memory })
    }

    pub fn stats(&self) -> Result<PoolStats, Error> {
        let mut out = sys::feedlane_pool_stats::new();
        // SAFETY: the handle lives; a struct of ours to fill in.
        plain(unsafe { sys::feedlane_pool_get_stats(self.as_ptr(), &mut out) })?;
        Ok(PoolStats {
            buffers: out.buffers,
            in_use: out.in_use,
            pending: out.pending,
            registered_bytes: out.registered_bytes,
            acquired: out.acquired,
            waited_ns: out.waited_ns,
            failures: out.failures,
        })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::feedlane_pool {
        self.raw.0.as_ptr()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut pools = left_over();
        let mut raw = Raw(self.raw.0);
        if !raw.destroy() {
            pools.push(raw);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.stats()).finish()
    }
}

/// A buffer of a pool, page-aligned and registered. Dropping it gives it back.
pub struct Buffer {
    pool: Arc<Pool>,
    /// Its token is 0 once it was given back.
    raw: sys::feedlane_buffer,
}

// SAFETY: any thread may release; the rest is memory that only this buffer reaches.
unsafe impl Send for Buffer {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: zeros or what was written since, mapped and this buffer's alone until it is given back.
        unsafe { bytes_at(self.raw.data, self.raw.bytes) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { slice_at_mut(self.raw.data.cast(), self.raw.bytes as usize) }
    }

    /// Enqueues a copy of the first `bytes` bytes to device memory.
    ///
    /// # Safety
    /// `stream` is a stream of the pool's device ("cuda": a CUstream or cudaStream_t; "none", "mlock": not looked at) and
    /// `device_memory` memory there ("none", "mlock": in this process) with room for `bytes` bytes. Until the stream has
    /// come so far nobody else touches that memory, and this buffer is neither written to nor dropped: it may go back by
    /// [`release_on`](Buffer::release_on) the same stream.
    pub unsafe fn to_device(&self, device_memory: *mut c_void, bytes: usize, stream: *mut c_void) -> Result<(), Error> {
        let (pool, token) = (self.pool.as_ptr(), self.raw.token);
        // SAFETY: pool and buffer are there; the rest is the caller's promise.
        call(|err| unsafe { sys::feedlane_pool_to_device(pool, token, device_memory, bytes as u64, stream, err) })
            .map(drop)
    }

    /// Gives it back when `stream` has done all that is enqueued now, or has failed.
    ///
    /// # Safety
    /// `stream` is a stream of the pool's device, and stays one until it has come so far.
    #[allow(clippy::result_large_err)] // the error has the buffer
    pub unsafe fn release_on(mut self, stream: *mut c_void) -> Result<(), NotReleased<Self>> {
        let (pool, token) = (self.pool.as_ptr(), self.raw.token);
        // SAFETY: pool and buffer are there; the rest is the caller's promise.
        match call(|err| unsafe { sys::feedlane_pool_release_on(pool, token, stream, err) }) {
            Ok(_) => {
                self.raw.token = 0;
                Ok(())
            }
            Err(error) => Err(NotReleased { held: self, error }),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.raw.token != 0 {
            // SAFETY: this buffer's token, given back once. In a forked child it answers E_FORKED and does nothing.
            unsafe { sys::feedlane_pool_release(self.pool.as_ptr(), self.raw.token) };
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("bytes", &self.raw.bytes).finish()
    }
}

/// Memory of one's own that is registered with a pool. Dropping it unregisters it.
pub struct Registered<'a, T> {
    pool: Arc<Pool>,
    memory: &'a mut [T],
}

impl<T> Deref for Registered<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.memory
    }
}

impl<T> DerefMut for Registered<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.memory
    }
}

impl<T> Drop for Registered<'_, T> {
    fn drop(&mut self) {
        let address = self.memory.as_mut_ptr().cast();
        // SAFETY: what was registered at this address, this once. What a backend refuses stays registered, which harms
        // nobody: only unsafe code makes a device read it.
        unsafe { sys::feedlane_pool_unregister(self.pool.as_ptr(), address, null_mut()) };
    }
}

/// Why something wasn't released on a stream. It is in here, still held: the stream may be reading it.
#[derive(Debug)]
pub struct NotReleased<T> {
    pub held: T,
    pub error: Error,
}

impl<T> fmt::Display for NotReleased<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for NotReleased<T> {}
