// SPDX-License-Identifier: Apache-2.0
//! What any thread may do with a loader while another thread drives it: interrupt, close, observe, and work for it.
use std::ptr::{null, null_mut, NonNull};
use std::sync::Arc;

use crate::error::{after_end, call, only_ok, plain, Error, Status};
use crate::event::Event;
use crate::monitor::Monitor;
use crate::pool::Pool;
use crate::sys;
use crate::worker::Worker;

/// A reference to a loader, for other threads. It does not keep workers or batches: after the loader's end every call
/// returns E_STATE.
pub struct Handle {
    raw: NonNull<sys::feedlane_loader>,
    /// The pool that the loader's memory is registered with. The last member, because the pool must be dropped after
    /// its loaders.
    pool: Option<Arc<Pool>>,
}

// SAFETY: only functions that any thread may call are called through it. Its reference keeps the loader valid. A data
// set or a sampler that is freed with the last reference is Send.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Clone for Handle {
    fn clone(&self) -> Self {
        // SAFETY: this handle holds a reference. In a forked child, both `ref` and `unref` have no effect.
        unsafe { Handle::of(self.raw, self.pool.clone()) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this handle's reference, released once. The call never waits.
        unsafe { sys::feedlane_loader_unref(self.raw.as_ptr()) };
    }
}

/// A status as a result, for functions that take no error struct.
fn spoken(status: i32) -> Result<Status, Error> {
    plain(status).map_err(|error| after_end(error, "loader"))
}

impl Handle {
    /// Takes another reference.
    ///
    /// # Safety
    /// The caller has a reference to `raw`, which was created with this pool.
    pub(crate) unsafe fn of(raw: NonNull<sys::feedlane_loader>, pool: Option<Arc<Pool>>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { sys::feedlane_loader_ref(raw.as_ptr()) };
        Handle { raw, pool }
    }

    pub(crate) fn raw(&self) -> NonNull<sys::feedlane_loader> {
        self.raw
    }

    fn as_ptr(&self) -> *mut sys::feedlane_loader {
        self.raw.as_ptr()
    }

    /// Ends the current or the next wait in `next` with INTERRUPTED.
    pub fn interrupt(&self) -> Result<(), Error> {
        // SAFETY: this reference keeps the loader valid; any thread may call these functions. So in all calls here.
        spoken(unsafe { sys::feedlane_loader_interrupt(self.as_ptr()) }).map(drop)
    }

    /// Ends the loader without waiting. The current call and all later ones return E_STATE, and workers are asked to
    /// end. Held batches stay valid.
    pub fn close(&self) -> Result<(), Error> {
        // SAFETY: as above.
        spoken(unsafe { sys::feedlane_loader_close(self.as_ptr()) }).map(drop)
    }

    /// A monitor of this loader. It stays usable after the loader's end.
    pub fn monitor(&self) -> Result<Monitor, Error> {
        let mut raw = null_mut();
        // SAFETY: as above; `raw` is a local variable.
        call(|err| unsafe { sys::feedlane_monitor_of(self.as_ptr(), &mut raw, err) })
            .map_err(|error| after_end(error, "loader"))?;
        // SAFETY: nobody else has this handle.
        Ok(unsafe { Monitor::new(NonNull::new(raw).expect("a handle on success"), self.pool.clone()) })
    }

    /// The oldest event that was not read yet, or `None`.
    pub fn event(&self) -> Result<Option<Event>, Error> {
        let mut out = sys::feedlane_event::new();
        // SAFETY: as above.
        let status = spoken(unsafe { sys::feedlane_loader_event(self.as_ptr(), &mut out) })?;
        Ok(Some(out).filter(|_| status == Status::OK).map(|raw| Event::from_c(&raw)))
    }

    /// Thread mode: makes the calling thread a worker. `None`: no worker is missing. The loader's memory remains until
    /// the worker leaves.
    pub fn local_worker(&self) -> Result<Option<Worker>, Error> {
        // SAFETY: as above. The loader's memory lies in this pool.
        unsafe { Worker::of(self.raw, self.pool.clone()) }
    }

    /// Thread mode: the calling thread runs the data set of [`LoaderBuilder::dataset`](crate::LoaderBuilder::dataset)
    /// or [`shards`](crate::LoaderBuilder::shards) until the trainer no longer needs this worker. False: no worker is
    /// missing.
    pub fn run_local(&self) -> Result<bool, Error> {
        // SAFETY: as above. Without a table, the loader's own data set runs.
        let status = call(|err| unsafe { sys::feedlane_worker_run(-1, self.as_ptr(), null(), err) })?;
        Ok(status == Status::OK)
    }

    /// The calling thread copies the batches of a [`staged`](crate::LoaderBuilder::staged) loader until the loader is
    /// closed. E_STATE: the loader is not staged, is inline or has ended, or another thread is in this call.
    pub fn run_stager(&self) -> Result<(), Error> {
        // SAFETY: as above.
        call(|err| unsafe { sys::feedlane_loader_run_stager(self.as_ptr(), err) }).and_then(only_ok)
    }
}
