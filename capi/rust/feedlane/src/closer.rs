// SPDX-License-Identifier: Apache-2.0
//! Handles that another thread may close: workers, and the ends of rings.
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use crate::error::{plain, Error};

/// The owner of a handle. Dropping the last `Arc` of it destroys the handle, then drops `kept`.
pub(crate) struct Owner<T, K = ()> {
    raw: NonNull<T>,
    close: unsafe extern "C" fn(*mut T) -> i32,
    destroy: unsafe extern "C" fn(*mut *mut T) -> i32,
    _kept: K,
}

// SAFETY: a handle is not bound to a thread. A Closer calls only `close`, which any thread may call during other calls.
// All other calls go through the one Worker, Receiver or Sender that has this owner, and it admits one thread at a time:
// its calls take &mut self, or it is not Sync.
unsafe impl<T, K: Send> Send for Owner<T, K> {}
// SAFETY: as above.
unsafe impl<T, K: Sync> Sync for Owner<T, K> {}

impl<T: 'static, K: Send + Sync + 'static> Owner<T, K> {
    /// # Safety
    /// The handle is valid and belongs to nobody else. These are the functions that close and destroy it; any thread
    /// may call `close`.
    pub(crate) unsafe fn new(
        raw: NonNull<T>,
        close: unsafe extern "C" fn(*mut T) -> i32,
        destroy: unsafe extern "C" fn(*mut *mut T) -> i32,
        kept: K,
    ) -> Arc<Self> {
        Arc::new(Owner { raw, close, destroy, _kept: kept })
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }

    pub(crate) fn closer(self: &Arc<Self>) -> Closer {
        let shared: Arc<dyn Close + Send + Sync> = self.clone();
        Closer { owner: Arc::downgrade(&shared) }
    }
}

impl<T, K> Drop for Owner<T, K> {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the owner's handle, which is not used afterwards.
        unsafe { (self.destroy)(&mut raw) };
    }
}

trait Close {
    fn close(&self) -> i32;
}

impl<T, K> Close for Owner<T, K> {
    fn close(&self) -> i32 {
        // SAFETY: the handle is valid until the owner is dropped; any thread may call this.
        unsafe { (self.close)(self.raw.as_ptr()) }
    }
}

/// Ends the current wait of a [`Worker`](crate::Worker), [`Receiver`](crate::Receiver) or [`Sender`](crate::Sender)
/// with E_STATE; later calls return E_STATE. A task or messages that the closed object holds stay valid until that
/// object is dropped. A closer does not keep the object.
pub struct Closer {
    owner: Weak<dyn Close + Send + Sync>,
}

impl Closer {
    /// Closes the object. Any thread may call this, any number of times. It has no effect after the object was dropped.
    pub fn close(&self) -> Result<(), Error> {
        match self.owner.upgrade() {
            Some(owner) => plain(owner.close()).map(drop),
            None => Ok(()),
        }
    }
}
