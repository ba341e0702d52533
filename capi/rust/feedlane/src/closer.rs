// SPDX-License-Identifier: Apache-2.0
//! Closes a worker or an end of a ring from another thread than the one that uses it.
use std::ptr::NonNull;

use crate::error::{plain, Error};
use crate::sys;

/// The handle of which the closer has a reference.
enum Raw {
    Worker(NonNull<sys::feedlane_worker>),
    Receiver(NonNull<sys::feedlane_rx>),
    Sender(NonNull<sys::feedlane_tx>),
}

/// Ends the current wait of a [`Worker`](crate::Worker), [`Receiver`](crate::Receiver) or [`Sender`](crate::Sender)
/// with E_STATE; later calls return E_STATE. A task or messages that the closed object holds stay valid until that
/// object is dropped.
pub struct Closer {
    raw: Raw,
}

// SAFETY: only functions that any thread may call are called through it. Its reference keeps the handle valid.
unsafe impl Send for Closer {}
// SAFETY: as above.
unsafe impl Sync for Closer {}

impl Closer {
    /// # Safety
    /// In all three functions, the caller has a reference.
    pub(crate) unsafe fn of_worker(raw: NonNull<sys::feedlane_worker>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { sys::feedlane_worker_ref(raw.as_ptr()) };
        Closer { raw: Raw::Worker(raw) }
    }

    /// # Safety
    /// See `of_worker`.
    pub(crate) unsafe fn of_receiver(raw: NonNull<sys::feedlane_rx>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { sys::feedlane_rx_ref(raw.as_ptr()) };
        Closer { raw: Raw::Receiver(raw) }
    }

    /// # Safety
    /// See `of_worker`.
    pub(crate) unsafe fn of_sender(raw: NonNull<sys::feedlane_tx>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { sys::feedlane_tx_ref(raw.as_ptr()) };
        Closer { raw: Raw::Sender(raw) }
    }

    /// Closes the handle. Any thread may call this, any number of times.
    pub fn close(&self) -> Result<(), Error> {
        // SAFETY: this reference keeps the handle valid; any thread may call these functions.
        plain(unsafe {
            match self.raw {
                Raw::Worker(raw) => sys::feedlane_worker_close(raw.as_ptr()),
                Raw::Receiver(raw) => sys::feedlane_rx_close(raw.as_ptr()),
                Raw::Sender(raw) => sys::feedlane_tx_close(raw.as_ptr()),
            }
        })
        .map(drop)
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        // SAFETY: this closer's reference, released once.
        unsafe {
            match self.raw {
                Raw::Worker(raw) => sys::feedlane_worker_unref(raw.as_ptr()),
                Raw::Receiver(raw) => sys::feedlane_rx_unref(raw.as_ptr()),
                Raw::Sender(raw) => sys::feedlane_tx_unref(raw.as_ptr()),
            };
        }
    }
}
