// SPDX-License-Identifier: Apache-2.0
//! Ends a worker or a ring's end from another thread than the one that is in it.
use std::ptr::NonNull;

use crate::error::{plain, Error};
use crate::sys;

/// Which handle it has a reference to.
enum Raw {
    Worker(NonNull<sys::feedlane_worker>),
    Receiver(NonNull<sys::feedlane_rx>),
    Sender(NonNull<sys::feedlane_tx>),
}

/// Ends the present wait of a [`Worker`](crate::Worker), [`Receiver`](crate::Receiver) or [`Sender`](crate::Sender) with
/// E_STATE, and refuses its later calls. What it holds, a task or messages, stays until it is dropped.
pub struct Closer {
    raw: Raw,
}

// SAFETY: only functions for any thread are called through it, and its reference keeps what they use.
unsafe impl Send for Closer {}
// SAFETY: as above.
unsafe impl Sync for Closer {}

impl Closer {
    /// # Safety
    /// As in all three: the caller has a reference.
    pub(crate) unsafe fn of_worker(raw: NonNull<sys::feedlane_worker>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { sys::feedlane_worker_ref(raw.as_ptr()) };
        Closer { raw: Raw::Worker(raw) }
    }

    /// # Safety
    /// As above.
    pub(crate) unsafe fn of_receiver(raw: NonNull<sys::feedlane_rx>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { sys::feedlane_rx_ref(raw.as_ptr()) };
        Closer { raw: Raw::Receiver(raw) }
    }

    /// # Safety
    /// As above.
    pub(crate) unsafe fn of_sender(raw: NonNull<sys::feedlane_tx>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { sys::feedlane_tx_ref(raw.as_ptr()) };
        Closer { raw: Raw::Sender(raw) }
    }

    /// Does it; any thread, any number of times.
    pub fn close(&self) -> Result<(), Error> {
        // SAFETY: this reference keeps the handle; any thread.
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
        // SAFETY: this one's own reference, given back this once.
        unsafe {
            match self.raw {
                Raw::Worker(raw) => sys::feedlane_worker_unref(raw.as_ptr()),
                Raw::Receiver(raw) => sys::feedlane_rx_unref(raw.as_ptr()),
                Raw::Sender(raw) => sys::feedlane_tx_unref(raw.as_ptr()),
            };
        }
    }
}
