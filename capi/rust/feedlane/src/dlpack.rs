// SPDX-License-Identifier: Apache-2.0
//! Exports a batch's tensors to other libraries, in place, with DLPack.
use std::ptr::NonNull;
use std::sync::Arc;

use crate::batch::Batch;
use crate::error::{call, Error};
use crate::pool::Pool;
use crate::sys;

macro_rules! exports {
    ($(#[$about:meta])* $name:ident, $raw:ident, $form:expr, $method:ident, $pinned:ident) => {
        $(#[$about])*
        pub struct $name {
            raw: NonNull<sys::$raw>,
            /// The pool that the memory is registered with, if there is one.
            pool: Option<Arc<Pool>>,
        }

        // SAFETY: any thread may call the deleter, and the pointer leads to nothing else.
        unsafe impl Send for $name {}

        impl $name {
            fn exported(batch: &Batch, flags: i32) -> Result<Vec<Self>, Error> {
                let export = |tensor: usize| {
                    let mut out = std::ptr::null_mut();
                    // SAFETY: the batch is held, so handle and token are valid.
                    call(|err| unsafe {
                        let (loader, token) = (batch.loader().as_ptr(), batch.token());
                        sys::feedlane_batch_dlpack(loader, token, tensor as i32, $form | flags, &mut out, err)
                    })?;
                    let raw = NonNull::new(out.cast::<sys::$raw>()).expect("a struct on success");
                    Ok($name { raw, pool: batch.pool() })
                };
                (0..batch.tensor_count()).map(export).collect()
            }

            pub fn as_ptr(&self) -> *const sys::$raw {
                self.raw.as_ptr()
            }

            /// The caller takes over the pointer and must call its deleter once, on any thread.
            pub fn into_raw(mut self) -> *mut sys::$raw {
                let raw = self.raw.as_ptr();
                drop(self.pool.take());
                std::mem::forget(self);
                raw
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the library's struct, which nobody else has. Its deleter is called once, here.
                unsafe {
                    if let Some(deleter) = self.raw.as_ref().deleter {
                        deleter(self.raw.as_ptr());
                    }
                }
            }
        }

        impl Batch {
            /// Exports all tensors of the batch, in order, to other libraries. The method consumes the batch, so that
            /// no slice shows tensors to which other libraries may write. When the last tensor is dropped, the memory
            /// goes back to the workers.
            pub fn $method(self) -> Result<Vec<$name>, Error> {
                $name::exported(&self, 0)
            }

            /// As the export without `pinned`, but the tensors' device type is that of the pool's backend: with "cuda",
            /// kDLCUDAHost. E_STATE: the memory is not registered with a device that DLPack has a type for.
            pub fn $pinned(self) -> Result<Vec<$name>, Error> {
                $name::exported(&self, sys::FEEDLANE_DLPACK_PINNED)
            }
        }
    };
}

exports! {
    /// A tensor in the form of DLPack 1.0, for a capsule named "dltensor_versioned". Dropping it calls its deleter.
    DlpackTensor, DLManagedTensorVersioned, 0, into_dlpack, into_dlpack_pinned
}

exports! {
    /// A tensor in the form used before DLPack 1.0, for a capsule named "dltensor". Dropping it calls its deleter.
    DlpackLegacy, DLManagedTensor, sys::FEEDLANE_DLPACK_LEGACY, into_dlpack_legacy, into_dlpack_legacy_pinned
}
