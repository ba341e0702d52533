// SPDX-License-Identifier: Apache-2.0
//! Memory registered with a device: buffers, the user's memory, and the memory of a loader's batches.
use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{null, null_mut, NonNull};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::args::{c_string, nanoseconds};
use crate::error::{bytes_at, call, check_abi, only_ok, plain, Error, Status};
use crate::sys;
use crate::tensor::slice_at_mut;

/// The device with which a pool registers memory, and the pool's buffers. Fields that are not set are 0, the default of
/// the C interface.
#[derive(Clone, Debug, Default)]
pub struct PoolOptions {
    /// "none", "mlock" or another name in `feedlane_pool_config`; empty: "none".
    pub backend: String,
    /// Ordinal of the device, for a backend with devices.
    pub device: i32,
    /// Number of buffers, created and registered at once; 0: none.
    /// [`LoaderBuilder::pinned`](crate::LoaderBuilder::pinned) needs none.
    pub buffers: u32,
    /// Size of each buffer; rounded up to whole pages.
    pub buffer_bytes: u64,
    /// Limit for all memory registered at the same time; 0: no limit.
    pub budget_bytes: u64,
}

/// The handle without ownership: dropping it has no effect.
struct Raw(NonNull<sys::feedlane_pool>);

// SAFETY: any thread may call all functions but destroy, and only the last owner calls destroy.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Raw {
    /// Destroys the pool. Returns false if it is still in use: by a release that waits for a stream, or by an exported
    /// DLPack tensor that this crate no longer owns.
    fn destroy(&mut self) -> bool {
        let mut raw = self.0.as_ptr();
        // SAFETY: the handle is valid, and nobody else uses it. If the call returns E_STATE, it has no effect.
        unsafe { sys::feedlane_pool_destroy(&mut raw) };
        raw.is_null()
    }
}

/// Registered memory. Loaders created with the pool, their batches, and its buffers each hold an `Arc` of it, which
/// keeps it alive.
pub struct Pool {
    raw: Raw,
}

/// Pools that were still in use by a device when their last `Arc` was dropped. Only the library knows when a stream has
/// finished, so destroying them is tried again whenever a pool is created or dropped.
static LEFT_OVER: Mutex<Vec<Raw>> = Mutex::new(Vec::new());

/// Tries again, and returns the pools that are still left.
fn left_over() -> MutexGuard<'static, Vec<Raw>> {
    let mut pools = LEFT_OVER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    pools.retain_mut(|pool| !pool.destroy());
    pools
}

/// A pool's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    pub buffers: u64,
    /// Buffers that callers and loaders hold now.
    pub in_use: u64,
    /// Buffers that were released on a stream which has not completed its work yet.
    pub pending: u64,
    /// Memory registered now: buffers, slots of loaders and the user's memory.
    pub registered_bytes: u64,
    /// Buffers acquired so far.
    pub acquired: u64,
    /// Time asleep in `acquire`.
    pub waited_ns: u64,
    /// Pending releases whose stream failed.
    pub failures: u64,
}

impl Pool {
    /// Creates a pool and its buffers.
    pub fn new(wanted: &PoolOptions) -> Result<Arc<Self>, Error> {
        Pool::made(wanted, null())
    }

    /// Creates a pool with a user-defined backend in place of `backend`, for devices that the library does not support.
    /// The functions are copied.
    ///
    /// # Safety
    /// The functions behave as the documentation of `feedlane_backend` in `feedlane/pool.h` requires. They may be
    /// called on any thread, also concurrently, until the pool and all users of its memory are gone. They do not
    /// unwind.
    pub unsafe fn with_backend(wanted: &PoolOptions, functions: &sys::feedlane_backend) -> Result<Arc<Self>, Error> {
        Pool::made(wanted, functions)
    }

    fn made(wanted: &PoolOptions, custom: *const sys::feedlane_backend) -> Result<Arc<Self>, Error> {
        check_abi()?;
        drop(left_over());
        let backend = c_string("backend", &wanted.backend)?;
        let mut config = sys::feedlane_pool_config::new();
        config.backend = if wanted.backend.is_empty() { null() } else { backend.as_ptr() };
        config.custom = custom;
        config.device = wanted.device;
        config.buffers = wanted.buffers;
        config.buffer_bytes = wanted.buffer_bytes;
        config.budget_bytes = wanted.budget_bytes;
        let mut raw = null_mut();
        // SAFETY: the configuration and the name are copied; `raw` is a local variable.
        call(|err| unsafe { sys::feedlane_pool_create(&config, &mut raw, err) })?;
        Ok(Arc::new(Pool { raw: Raw(NonNull::new(raw).expect("a handle on success")) }))
    }

    /// Waits for a buffer. No timeout means no limit. TIMEOUT and INTERRUPTED are errors here; after them, call again.
    pub fn acquire(self: &Arc<Self>, timeout: Option<Duration>) -> Result<Buffer, Error> {
        let mut raw = sys::feedlane_buffer::new();
        // SAFETY: the handle is valid; `raw` is a local struct.
        let status =
            call(|err| unsafe { sys::feedlane_pool_acquire(self.as_ptr(), nanoseconds(timeout), &mut raw, err) })?;
        only_ok(status)?;
        Ok(Buffer { pool: self.clone(), raw })
    }

    /// Registers the caller's memory, including all of each page that contains a part of it, until the result is
    /// dropped. E_STATE: a part of these pages is already registered.
    pub fn register<'a, T>(self: &Arc<Self>, memory: &'a mut [T]) -> Result<Registered<'a, T>, Error> {
        let (address, bytes) = (memory.as_mut_ptr().cast(), std::mem::size_of_val(memory) as u64);
        // SAFETY: the range is memory of this process, mapped for all of 'a.
        call(|err| unsafe { sys::feedlane_pool_register(self.as_ptr(), address, bytes, err) })?;
        Ok(Registered { pool: self.clone(), memory })
    }

    /// Enqueues a copy of `host` to device memory: of a [`Buffer`], of [`Registered`] memory, or of other memory, which
    /// the driver may copy before this returns. For a batch's tensor see
    /// [`Batch::to_device`](crate::Batch::to_device).
    ///
    /// # Safety
    /// `stream` is a stream of the pool's device ("none" and "mlock" ignore it).
    /// `device_memory` is memory of that device ("none" and "mlock": memory of this process) with room for `host`.
    /// Until the stream has completed the copy, nobody else accesses that memory, and `host` is neither changed, freed
    /// nor unregistered: a [`Buffer`] or [`Registered`] that it belongs to is not dropped. A buffer may be released by
    /// [`Buffer::release_on`] with this stream.
    pub unsafe fn copy<T>(&self, device_memory: *mut c_void, host: &[T], stream: *mut c_void) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_at(device_memory, host.as_ptr().cast(), std::mem::size_of_val(host) as u64, stream) }
    }

    /// # Safety
    /// See `copy`. There are `bytes` bytes at `host`.
    pub(crate) unsafe fn copy_at(
        &self,
        device_memory: *mut c_void,
        host: *const c_void,
        bytes: u64,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        // SAFETY: the pool is valid. The caller promises the rest.
        call(|err| unsafe { sys::feedlane_pool_copy(self.as_ptr(), device_memory, host, bytes, stream, err) }).map(drop)
    }

    pub fn stats(&self) -> Result<PoolStats, Error> {
        let mut out = sys::feedlane_pool_stats::new();
        // SAFETY: the handle is valid; `out` is a local struct.
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

/// A page-aligned, registered buffer of a pool. Dropping it releases it.
pub struct Buffer {
    pool: Arc<Pool>,
    /// The token is 0 once the buffer was released.
    raw: sys::feedlane_buffer,
}

// SAFETY: any thread may release. All other memory is reached only through this buffer.
unsafe impl Send for Buffer {}
// SAFETY: shared references only read.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is mapped and initialised, and belongs to this buffer alone until the release.
        unsafe { bytes_at(self.raw.data, self.raw.bytes) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { slice_at_mut(self.raw.data.cast(), self.raw.bytes as usize) }
    }

    /// Enqueues a copy of the first `bytes` bytes to device memory.
    ///
    /// # Safety
    /// `stream` is a stream of the pool's device ("none" and "mlock" ignore it).
    /// `device_memory` is memory of that device ("none" and "mlock": memory of this process) with room for `bytes`
    /// bytes. Until the stream has completed the copy, nobody else accesses that memory, and this buffer is neither
    /// changed nor dropped. It may be released by [`release_on`](Buffer::release_on) with this stream.
    pub unsafe fn to_device(&self, device_memory: *mut c_void, bytes: usize, stream: *mut c_void) -> Result<(), Error> {
        let host = self.bytes().get(..bytes).ok_or_else(|| {
            let (found, needed) = (bytes as i64, self.raw.bytes as i64);
            let text = format!("cannot copy {} bytes from a buffer of {}", found, needed);
            Error::new(Status::ARGUMENT, "bytes", found, needed, text)
        })?;
        // SAFETY: the caller's promise.
        unsafe { self.pool.copy(device_memory, host, stream) }
    }

    /// Releases the buffer when `stream` has completed all work enqueued so far, or has failed.
    ///
    /// # Safety
    /// `stream` is a stream of the pool's device, and remains valid until it has completed this work.
    #[allow(clippy::result_large_err)] // the error contains the buffer
    pub unsafe fn release_on(mut self, stream: *mut c_void) -> Result<(), NotReleased<Self>> {
        let (pool, token) = (self.pool.as_ptr(), self.raw.token);
        // SAFETY: pool and buffer are valid. The caller promises the rest.
        match call(|err| unsafe { sys::feedlane_pool_release(pool, token, stream, err) }) {
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
            // SAFETY: this buffer's token, released once. In a forked child the call returns E_FORKED and has no
            // effect.
            unsafe {
                let (pool, token) = (self.pool.as_ptr(), self.raw.token);
                sys::feedlane_pool_release(pool, token, sys::FEEDLANE_NO_STREAM, null_mut())
            };
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("bytes", &self.raw.bytes).finish()
    }
}

/// The caller's memory, registered with a pool. Dropping it unregisters the memory.
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
        // SAFETY: this value registered the memory at this address, and unregisters it once. If the backend refuses,
        // the memory stays registered. This is harmless, because only unsafe code can make a device read it.
        unsafe { sys::feedlane_pool_unregister(self.pool.as_ptr(), address, null_mut()) };
    }
}

/// The error of a release on a stream, or of [`Reservation::publish`](crate::Reservation::publish). `held` is the batch
/// or buffer, which was not released, because the stream may be reading it; or the reservation, which was not published.
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

/// For `?`. Drops `held`.
impl<T> From<NotReleased<T>> for Error {
    fn from(failed: NotReleased<T>) -> Self {
        failed.error
    }
}
