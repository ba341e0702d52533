// SPDX-License-Identifier: Apache-2.0
//! A batch's tensors for other libraries, in place, by DLPack.
use std::ptr::NonNull;
use std::sync::Arc;

use crate::batch::Batch;
use crate::error::{call, Error};
use crate::pool::Pool;
use crate::sys;

macro_rules! exports {
    ($(#[$about:meta])* $name:ident, $raw:ident, $function:ident, $method:ident, $pinned:ident) => {
        $(#[$about])*
        pub struct $name {
            raw: NonNull<sys::$raw>,
            /// Where it lies, if the loader has one.
            pool: Option<Arc<Pool>>,
        }

        // SAFETY: the deleter may be called on any thread, and nothing else is behind it.
        unsafe impl Send for $name {}

        impl $name {
            fn exported(batch: &Batch, flags: i32) -> Result<Vec<Self>, Error> {
                let export = |tensor: usize| {
                    let mut raw: *mut sys::$raw = std::ptr::null_mut();
                    // SAFETY: the batch is held, so handle and token are valid.
                    call(|err| unsafe {
                        let (loader, token) = (batch.loader().as_ptr(), batch.token());
                        sys::$function(loader, token, tensor as i32, flags, &mut raw, err)
                    })?;
                    Ok($name { raw: NonNull::new(raw).expect("a struct on success"), pool: batch.pool() })
                };
                (0..batch.tensor_count()).map(export).collect()
            }

            pub fn as_ptr(&self) -> *const sys::$raw {
                self.raw.as_ptr()
            }

            /// The caller that takes the pointer must call its deleter, once, on any thread.
            pub fn into_raw(mut self) -> *mut sys::$raw {
                let raw = self.raw.as_ptr();
                drop(self.pool.take());
                std::mem::forget(self);
                raw
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the library's own struct, which nobody else has; its deleter is called this once.
                unsafe {
                    if let Some(deleter) = self.raw.as_ref().deleter {
                        deleter(self.raw.as_ptr());
                    }
                }
            }
        }

        impl Batch {
            /// All its tensors, in order, for other libraries. The batch is given up: what they may write is nobody
            /// else's to read as a slice. Its memory goes back with the last of them.
            pub fn $method(self) -> Result<Vec<$name>, Error> {
                $name::exported(&self, 0)
            }

            /// The same, but its device is CUDA's pinned host memory. E_STATE: it isn't registered with CUDA.
            pub fn $pinned(self) -> Result<Vec<$name>, Error> {
                $name::exported(&self, sys::FEEDLANE_DLPACK_CUDA_HOST)
            }
        }
    };
}

exports! {
    /// A tensor by DLPack 1.0, for a capsule named "dltensor_versioned". Dropping it calls its deleter.
    DlpackTensor, DLManagedTensorVersioned, feedlane_batch_dlpack, into_dlpack, into_dlpack_cuda_host
}

exports! {
    /// A tensor in the form before DLPack 1.0, for a capsule named "dltensor". Dropping it calls its deleter.
    DlpackLegacy, DLManagedTensor, feedlane_batch_dlpack_legacy, into_dlpack_legacy,
    into_dlpack_legacy_cuda_host
}
