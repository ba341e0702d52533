// SPDX-License-Identifier: Apache-2.0
//! User-defined samplers, and the C callbacks that call them.
use std::ffi::c_void;
use std::os::unix::io::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard};

use crate::callbacks::{answer, write_state};
use crate::error::{bytes_at, Error, Status};
use crate::failure::{let_go, Failure};
use crate::sampler::Sampler;
use crate::sys;
use crate::sys::feedlane_sampler_config as Config;
use crate::tensor::slice_at_mut;

/// A user-defined order, for [`Sampler::custom`]. All copies of the sampler, such as a loader's, share the order: use
/// only one copy at a time. An error or a panic becomes the error of the call that needed the order: the loader's
/// `begin`, `next` or `poll`. The next such call repeats the failed method.
pub trait Order: Send + 'static {
    /// [`Order::save`] and [`Order::load`] are implemented, so the loader's state can be saved.
    const SAVES: bool = false;

    /// Starts an epoch. `seed` is the loader's base seed, 0 without a loader.
    fn restart(&mut self, epoch: i64, seed: u64) -> Result<(), Failure>;

    /// Writes the next indices and returns their number, which may be less than the slice's length; 0 at the end of the
    /// epoch. A live order fails with an [`std::io::Error`] of kind `WouldBlock` if it has no index now. First it reads
    /// what made its descriptor readable, then it looks for indices.
    fn next(&mut self, indices: &mut [i64]) -> Result<usize, Failure>;

    /// Indices in an epoch, or batches if `batch_rows` returns a number. `None`: unknown. Called once.
    fn length(&self) -> Option<i64> {
        None
    }

    /// Each `next` writes one batch of at most this many rows. `None`: `next` does not write batches. Called once.
    fn batch_rows(&self) -> Option<i64> {
        None
    }

    /// The descriptor of a live order, open as long as the order exists: `next` is called again when it is readable, or
    /// earlier. `None`: the order always has indices, or the end. Called once.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The position in the epoch.
    fn save(&mut self) -> Result<Vec<u8>, Failure> {
        Ok(Vec::new())
    }

    /// Called after `restart`: continues from a saved position.
    fn load(&mut self, _state: &[u8]) -> Result<(), Failure> {
        Ok(())
    }
}

/// An order made of an iterator for each epoch.
struct Iterated<F, I> {
    begin: F,
    length: Option<i64>,
    now: Option<I>,
}

impl<F, I> Order for Iterated<F, I>
where
    F: FnMut(i64, u64) -> I + Send + 'static,
    I: Iterator<Item = i64> + Send + 'static,
{
    fn restart(&mut self, epoch: i64, seed: u64) -> Result<(), Failure> {
        self.now = Some((self.begin)(epoch, seed));
        Ok(())
    }

    fn next(&mut self, indices: &mut [i64]) -> Result<usize, Failure> {
        let begin = &mut self.begin;
        let now = self.now.get_or_insert_with(|| begin(0, 0)); // a new sampler is at the start of epoch 0
        Ok(indices.iter_mut().zip(now).map(|(to, index)| *to = index).count())
    }

    fn length(&self) -> Option<i64> {
        self.length
    }
}

impl Sampler {
    /// Yields the indices of `order`.
    pub fn custom<O: Order>(order: O) -> Result<Self, Error> {
        let mut table = table::<O>();
        let zero_if_unknown = |wanted: Option<i64>, name: &str| match wanted {
            Some(number) if number < 0 => {
                Err(Error::argument(name, format!("{} is {}: must not be negative", name, number)))
            }
            other => Ok(other.unwrap_or(0)),
        };
        table.length = zero_if_unknown(order.length(), "length")?;
        table.batch_rows = zero_if_unknown(order.batch_rows(), "batch_rows")?;
        table.wake_fd = order.wake_fd().map_or(0, |fd| fd.as_raw_fd());
        table.user_data = Box::into_raw(Box::new(Mutex::new(order))).cast();
        let config = Config { kind: sys::FEEDLANE_SAMPLER_CUSTOM, callbacks: &table, ..Config::new() };
        // SAFETY: the library copies the table. Its callbacks are for this user_data, which `drop` frees once.
        let made = unsafe { Sampler::create(&config) };
        if made.is_err() {
            // SAFETY: the library has not taken ownership of it.
            unsafe { drop_order::<O>(table.user_data) };
        }
        made
    }

    /// Yields the indices of iterators. `begin` gets the number of an epoch and the loader's base seed, and returns the
    /// epoch's iterator. `length` is the number of indices in an epoch; `None`: unknown. The position cannot be saved;
    /// see [`Order`] for orders whose position can.
    ///
    /// ```
    /// # fn main() -> Result<(), feedlane::Error> {
    /// let evens = feedlane::Sampler::from_fn(Some(5), |epoch, _seed| (0..5).map(move |i| 2 * i + epoch))?;
    /// # drop(evens);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_fn<I>(length: Option<i64>, begin: impl FnMut(i64, u64) -> I + Send + 'static) -> Result<Self, Error>
    where
        I: Iterator<Item = i64> + Send + 'static,
    {
        Sampler::custom(Iterated { begin, length, now: None })
    }
}

/// The order behind a callback's `user_data`. All copies of a sampler share it, possibly on several threads. A call
/// that finds another one in progress is refused.
///
/// # Safety
/// `user_data` is the pointer of `Sampler::custom`, and is valid for 'a.
unsafe fn order_at<'a, O: Order>(user_data: *mut c_void) -> Result<MutexGuard<'a, O>, Failure> {
    // SAFETY: the caller's promise.
    let order = unsafe { &*user_data.cast::<Mutex<O>>() };
    match order.try_lock() {
        Ok(order) => Ok(order),
        Err(std::sync::TryLockError::Poisoned(order)) => Ok(order.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => Err("the order is in use by another copy of its sampler".into()),
    }
}

fn is_would_block(failure: &Failure) -> bool {
    failure.downcast_ref::<std::io::Error>().map_or(false, |e| e.kind() == std::io::ErrorKind::WouldBlock)
}

unsafe extern "C" fn restart_order<O: Order>(
    user_data: *mut c_void,
    epoch: i64,
    seed: u64,
    err: *mut sys::feedlane_error,
) -> i32 {
    // SAFETY: the library's arguments, and the pointer that `custom` passed.
    unsafe {
        answer(err, sys::FEEDLANE_E_SAMPLE, || {
            order_at::<O>(user_data)?.restart(epoch, seed).map(|()| sys::FEEDLANE_OK)
        })
    }
}

unsafe extern "C" fn next_indices<O: Order>(
    user_data: *mut c_void,
    indices: *mut i64,
    cap: u64,
    got: *mut u64,
    err: *mut sys::feedlane_error,
) -> i32 {
    // SAFETY: as above; there is room for `cap` indices, which only this process writes, and for their number.
    unsafe {
        answer(err, sys::FEEDLANE_E_SAMPLE, || {
            let room = slice_at_mut(indices, cap as usize);
            let made = match order_at::<O>(user_data)?.next(room) {
                Err(failure) if is_would_block(&failure) => return Ok(sys::FEEDLANE_AGAIN),
                made => made?,
            };
            if made as u64 > cap {
                return Err(format!("the order wrote {} indices, but there was room for only {}", made, cap).into());
            }
            *got = made as u64;
            Ok(if made == 0 { sys::FEEDLANE_END } else { sys::FEEDLANE_OK })
        })
    }
}

unsafe extern "C" fn save_order<O: Order>(
    user_data: *mut c_void,
    buffer: *mut c_void,
    cap: u64,
    bytes: *mut u64,
    err: *mut sys::feedlane_error,
) -> i32 {
    // SAFETY: as above; there is room for `cap` bytes and for their number.
    unsafe {
        answer(err, sys::FEEDLANE_E_SAMPLE, || {
            let state = order_at::<O>(user_data)?.save()?;
            let fits = write_state(&state, buffer, cap, bytes);
            Ok(if fits { sys::FEEDLANE_OK } else { Status::LIMIT.0 }) // LIMIT: the library calls again with more room
        })
    }
}

unsafe extern "C" fn load_order<O: Order>(
    user_data: *mut c_void,
    buffer: *const c_void,
    bytes: u64,
    err: *mut sys::feedlane_error,
) -> i32 {
    // SAFETY: as above; there are `bytes` bytes, in memory of this process alone.
    unsafe {
        answer(err, sys::FEEDLANE_E_SAMPLE, || {
            order_at::<O>(user_data)?.load(bytes_at(buffer, bytes)).map(|()| sys::FEEDLANE_OK)
        })
    }
}

unsafe extern "C" fn drop_order<O: Order>(user_data: *mut c_void) {
    // SAFETY: `custom` made it; it is freed once.
    let_go(unsafe { Box::from_raw(user_data.cast::<Mutex<O>>()) });
}

fn table<O: Order>() -> sys::feedlane_sampler_callbacks {
    let mut table = sys::feedlane_sampler_callbacks::new();
    table.user_data = null_mut();
    table.restart = Some(restart_order::<O>);
    table.next = Some(next_indices::<O>);
    if O::SAVES {
        table.save = Some(save_order::<O>);
        table.load = Some(load_order::<O>);
    }
    table.drop = Some(drop_order::<O>);
    table
}
