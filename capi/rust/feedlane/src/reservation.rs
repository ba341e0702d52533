// SPDX-License-Identifier: Apache-2.0
//! Entries of an arena to make: memory to fill in place, and the right to make an entry that is missing.
use std::ptr::null;
use std::time::Duration;

use crate::args::nanoseconds;
use crate::batch::Batch;
use crate::element::Element;
use crate::error::{completed, Error, Status};
use crate::field::{c_fields, Field};
use crate::handle::Handle;
use crate::pool::NotReleased;
use crate::sys;
use crate::tensor::TensorMut;

/// An entry to put. Its contents are copied, so temporaries are allowed.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    key: Option<&'a [u8]>,
    fields: &'a [Field],
    metadata: &'a [u8],
    is_pinned: bool,
}

impl<'a> Put<'a> {
    /// An entry with these tensors, whose shapes are complete and have up to 7 dimensions. Without a
    /// [`key`](Put::key) it is sent, not stored.
    pub fn new(fields: &'a [Field]) -> Self {
        Put { key: None, fields, metadata: &[], is_pinned: false }
    }

    /// The entry is stored under this key, of 1 to 64 bytes, and replaces an earlier one.
    pub fn key(mut self, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.key = Some(key.as_ref());
        self
    }

    pub fn metadata(mut self, bytes: &'a [u8]) -> Self {
        self.metadata = bytes;
        self
    }

    /// True: the entry is never evicted, only dropped.
    pub fn pinned(mut self, is_pinned: bool) -> Self {
        self.is_pinned = is_pinned;
        self
    }
}

/// Drops an entry, or gives up the right to make it: see [`Arena::drop_key`](crate::Arena::drop_key).
pub(crate) fn drop_key(arena: &Handle, key: &[u8], timeout: Option<Duration>) -> Result<(), Error> {
    let (raw, data, bytes) = (arena.raw().as_ptr(), key.as_ptr().cast(), key.len() as u64);
    // SAFETY: the handle is valid; there are `bytes` bytes at `data`.
    match completed(|err| unsafe { sys::feedlane_arena_drop(raw, data, bytes, nanoseconds(timeout), err) })? {
        Status::OK => Ok(()),
        _ => Err(timed_out("the owner has not taken earlier requests in time")),
    }
}

/// The error of a wait that ended at its timeout.
pub(crate) fn timed_out(text: &str) -> Error {
    Error::new(Status::TIMEOUT, "", 0, 0, text.into())
}

/// The memory of an entry that is not published yet, so that no other process sees it. Dropping it gives the memory
/// back and, if it was made with a [`MakeRight`], gives that right up. It may outlive its [`Arena`](crate::Arena), but
/// can then not be published.
pub struct Reservation {
    entry: Batch,
    /// Dropped after the memory was given back.
    right: Option<MakeRight>,
}

impl Reservation {
    /// With a right, the entry has the key of the right.
    pub(crate) fn new(
        arena: &Handle,
        put: &Put<'_>,
        right: Option<MakeRight>,
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let (_names, fields) = c_fields(put.fields)?;
        let key = right.as_ref().map_or(put.key, |right| Some(&right.key));
        let mut raw = sys::feedlane_put::new();
        raw.key = key.map_or(null(), |key| key.as_ptr().cast());
        raw.key_bytes = key.map_or(0, |key| key.len() as u64);
        raw.fields = fields.as_ptr();
        raw.field_count = fields.len() as u64;
        raw.metadata = put.metadata.as_ptr().cast();
        raw.metadata_bytes = put.metadata.len() as u64;
        raw.pinned = put.is_pinned.into();
        let mut out = sys::feedlane_batch::new();
        // SAFETY: the handle is valid; the pointers of `raw` are valid during the call, which copies their contents.
        let status = completed(|err| unsafe {
            sys::feedlane_arena_reserve(arena.raw().as_ptr(), &raw, nanoseconds(timeout), &mut out, err)
        })?;
        if status != Status::OK {
            return Err(timed_out("there was no memory in time: drop batches, or drop entries by drop_key"));
        }
        // SAFETY: it was just yielded; the new batch takes over the reference. Its memory is writable.
        Ok(Reservation { entry: unsafe { Batch::new(arena.raw(), out, None, false) }, right })
    }

    /// A tensor by its number, to be written in place. Its elements may have any value before. E_ARGUMENT: there is no
    /// such tensor.
    pub fn tensor_mut(&mut self, index: usize) -> Result<TensorMut<'_>, Error> {
        self.entry.tensor_mut(index)
    }

    /// Copies `values` to all elements of a tensor. E_ARGUMENT: there is no such tensor, its elements are not `T`s, or
    /// their number differs.
    pub fn write<T: Element>(&mut self, index: usize, values: &[T]) -> Result<(), Error> {
        let mut elements = self.tensor_mut(index)?.into_values_mut::<T>()?;
        let (found, needed) = (values.len(), elements.len());
        if found != needed {
            let text = format!("{} values were passed for tensor {}, which has {} elements", found, index, needed);
            return Err(Error::new(Status::ARGUMENT, "values", found as i64, needed as i64, text));
        }
        elements.copy_from_slice(values);
        Ok(())
    }

    /// Publishes the entry, complete or not at all. The error contains the reservation, to publish it again or to drop
    /// it.
    ///  - TIMEOUT: the owner has not taken earlier requests in time.
    ///  - E_STATE: the arena was closed or dropped.
    ///  - E_PEER_DEAD, E_CORRUPT, INTERRUPTED: see [`Arena::reserve`](crate::Arena::reserve).
    #[allow(clippy::result_large_err)] // the error contains the reservation
    pub fn publish(mut self, timeout: Option<Duration>) -> Result<(), NotReleased<Self>> {
        let (arena, token) = (self.entry.loader().as_ptr(), self.entry.token());
        // SAFETY: the reservation is held, so handle and token are valid, even after the arena's end.
        match completed(|err| unsafe { sys::feedlane_arena_publish(arena, token, nanoseconds(timeout), err) }) {
            Ok(Status::OK) => {
                self.entry.forget();
                if let Some(right) = &mut self.right {
                    right.key.clear();
                }
                Ok(())
            }
            Ok(_) => {
                Err(NotReleased { held: self, error: timed_out("the owner has not taken earlier requests in time") })
            }
            Err(error) => Err(NotReleased { held: self, error }),
        }
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reservation").field("tensors", &self.entry.tensor_count()).field("right", &self.right).finish()
    }
}

/// How long dropping a right waits for an owner that has not taken earlier requests.
const GIVE_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// The right to make an entry that is missing, see [`Arena::get_or_make`](crate::Arena::get_or_make). Dropping it gives
/// the right up: the next process that wants to make the entry gets it. The drop waits up to 5 s if the owner has not
/// taken earlier requests. An entry that another process has put stays.
pub struct MakeRight {
    arena: Handle,
    /// Empty once the entry was published.
    key: Vec<u8>,
}

impl MakeRight {
    pub(crate) fn new(arena: Handle, key: &[u8]) -> Self {
        MakeRight { arena, key: key.into() }
    }

    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Reserves memory for the entry, which has the key of this right, whatever [`Put::key`] is. The reservation keeps
    /// the right until it is published or dropped. After an error the right is given up. Errors: see
    /// [`Arena::reserve`](crate::Arena::reserve).
    pub fn reserve(self, put: &Put<'_>, timeout: Option<Duration>) -> Result<Reservation, Error> {
        Reservation::new(&self.arena.clone(), put, Some(self), timeout)
    }
}

impl Drop for MakeRight {
    fn drop(&mut self) {
        if self.key.is_empty() {
            return;
        }
        // An interrupt is for other calls: the right would stay until the end of this process.
        while matches!(drop_key(&self.arena, &self.key, Some(GIVE_UP_TIMEOUT)), Err(e) if e.status == Status::INTERRUPTED)
        {
        }
    }
}

impl std::fmt::Debug for MakeRight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MakeRight").field("key", &String::from_utf8_lossy(&self.key)).finish()
    }
}
