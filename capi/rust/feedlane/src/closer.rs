// SPDX-License-Identifier: Apache-2.0
//! Handles that another thread may close: workers, and the ends of rings.
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{plain, Error};
use crate::sys;

/// A handle that any thread may close during other calls.
pub(crate) trait Closable: 'static {
    const CLOSE: unsafe extern "C" fn(*mut Self) -> i32;
    const DESTROY: unsafe extern "C" fn(*mut *mut Self) -> i32;
}

macro_rules! closable {
    ($($handle:path: $close:path, $destroy:path;)*) => { $(
        impl Closable for $handle {
            const CLOSE: unsafe extern "C" fn(*mut Self) -> i32 = $close;
            const DESTROY: unsafe extern "C" fn(*mut *mut Self) -> i32 = $destroy;
        }
    )* };
}

closable! {
    sys::feedlane_worker: sys::feedlane_worker_close, sys::feedlane_worker_destroy;
    sys::feedlane_rx: sys::feedlane_rx_close, sys::feedlane_rx_destroy;
    sys::feedlane_tx: sys::feedlane_tx_close, sys::feedlane_tx_destroy;
}

/// The owner of a handle. Dropping the last `Arc` of it destroys the handle, then drops `kept`.
pub(crate) struct Owner<T: Closable, K = ()> {
    raw: NonNull<T>,
    _kept: K,
}

// SAFETY: a handle is not bound to a thread. A Closer calls only `CLOSE`, which any thread may call during other calls.
// All other calls go through the one Worker, Receiver or Sender that has this owner, and it admits one thread at a time:
// its calls take &mut self, or it is not Sync.
unsafe impl<T: Closable, K: Send> Send for Owner<T, K> {}
// SAFETY: as above.
unsafe impl<T: Closable, K: Sync> Sync for Owner<T, K> {}

impl<T: Closable, K: Send + Sync + 'static> Owner<T, K> {
    /// # Safety
    /// The handle is valid and belongs to nobody else.
    pub(crate) unsafe fn new(raw: NonNull<T>, kept: K) -> Arc<Self> {
        Arc::new(Owner { raw, _kept: kept })
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }

    pub(crate) fn closer(self: &Arc<Self>) -> Closer {
        let owner = Arc::downgrade(self);
        // SAFETY: the handle is valid until the owner is dropped; any thread may call this.
        Closer { close: Box::new(move || owner.upgrade().map_or(0, |owner| unsafe { T::CLOSE(owner.as_ptr()) })) }
    }
}

impl<T: Closable, K> Drop for Owner<T, K> {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the owner's handle, which is not used afterwards.
        unsafe { T::DESTROY(&mut raw) };
    }
}

/// Ends the current wait of a [`Worker`](crate::Worker), [`Receiver`](crate::Receiver) or [`Sender`](crate::Sender)
/// with E_STATE; later calls return E_STATE. A task or messages that the closed object holds stay valid until that
/// object is dropped. A closer does not keep the object.
pub struct Closer {
    close: Box<dyn Fn() -> i32 + Send + Sync>,
}

impl Closer {
    /// Closes the object. Any thread may call this, any number of times. It has no effect after the object was dropped.
    pub fn close(&self) -> Result<(), Error> {
        plain((self.close)()).map(drop)
    }
}
