// SPDX-License-Identifier: Apache-2.0
//! Tensors where they lie: of a batch in the trainer's hands, or of a task that a worker fills.
use std::ffi::CStr;
use std::marker::PhantomData;

use crate::element::{Dtype, Element};
use crate::error::{Error, Status};
use crate::sys;
use crate::values::{Values, ValuesMut};

/// A tensor to read, where it lies: in memory that worker processes have mapped too, see [`Values`]. Lives no longer than
/// what it is of.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    raw: &'a sys::feedlane_tensor,
}

// SAFETY: what it points to stays mapped for 'a, and is only read through it.
unsafe impl Send for Tensor<'_> {}
// SAFETY: as above.
unsafe impl Sync for Tensor<'_> {}

impl<'a> Tensor<'a> {
    /// # Safety
    /// The library filled `raw` in, and what it points to stays for all of 'a.
    pub(crate) unsafe fn new(raw: &'a sys::feedlane_tensor) -> Self {
        Tensor { raw }
    }

    /// The field's.
    pub fn name(&self) -> &'a str {
        if self.raw.name.is_null() {
            return "";
        }
        // SAFETY: the library's terminated string, which lives as long as the tensor.
        unsafe { CStr::from_ptr(self.raw.name) }.to_str().unwrap_or("?")
    }

    pub fn dtype(&self) -> Dtype {
        Dtype::from_c(self.raw.dtype)
    }

    /// `shape()[0]` is the number of rows.
    pub fn shape(&self) -> &'a [i64] {
        &self.raw.shape[..self.raw.ndim as usize]
    }

    /// In elements.
    pub fn strides(&self) -> &'a [i64] {
        &self.raw.strides[..self.raw.ndim as usize]
    }

    /// Where it lies in the data segment: the same in the worker and in the trainer.
    pub fn offset(&self) -> u64 {
        self.raw.offset
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.raw.data.cast()
    }

    /// All rows, whatever they are made of.
    pub fn bytes(&self) -> Values<'a, u8> {
        // SAFETY: `bytes` bytes of the batch's or the task's memory, by `new`'s promise.
        unsafe { Values::new(self.raw.data.cast(), self.raw.bytes as usize) }
    }

    /// All rows as `T`, to be read or copied from where they lie. E_ARGUMENT if it isn't made of `T`s.
    pub fn values<T: Element>(&self) -> Result<Values<'a, T>, Error> {
        let count = elements::<T>(self.raw)?;
        // SAFETY: `count` elements lie there, aligned, by `new`'s promise.
        Ok(unsafe { Values::new(self.raw.data.cast(), count) })
    }
}

/// A tensor to write, where it lies: see [`ValuesMut`].
pub struct TensorMut<'a> {
    raw: sys::feedlane_tensor,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> TensorMut<'a> {
    /// # Safety
    /// The library filled `raw` in, what it points to stays for all of 'a, and nothing else reaches it meanwhile.
    pub(crate) unsafe fn new(raw: sys::feedlane_tensor) -> Self {
        TensorMut { raw, memory: PhantomData }
    }

    /// The same, to read.
    pub fn as_tensor(&self) -> Tensor<'_> {
        Tensor { raw: &self.raw }
    }

    pub fn bytes_mut(&mut self) -> ValuesMut<'_, u8> {
        // SAFETY: as many bytes that are ours alone, by `new`'s promise.
        unsafe { ValuesMut::new(self.raw.data.cast(), self.raw.bytes as usize) }
    }

    /// All rows as `T`, to be written where they lie. E_ARGUMENT if it isn't made of `T`s.
    pub fn values_mut<T: Element>(&mut self) -> Result<ValuesMut<'_, T>, Error> {
        let count = elements::<T>(&self.raw)?;
        // SAFETY: `count` aligned elements that are ours alone.
        Ok(unsafe { ValuesMut::new(self.raw.data.cast(), count) })
    }

    /// As `values_mut`, for as long as the tensor itself was borrowed.
    pub fn into_values_mut<T: Element>(self) -> Result<ValuesMut<'a, T>, Error> {
        let count = elements::<T>(&self.raw)?;
        // SAFETY: `count` aligned elements that are ours alone for 'a, as `self` is given up.
        Ok(unsafe { ValuesMut::new(self.raw.data.cast(), count) })
    }
}

/// # Safety
/// `count` elements lie there, aligned, and nothing else reaches them during 'a.
pub(crate) unsafe fn slice_at_mut<'a, T>(data: *mut T, count: usize) -> &'a mut [T] {
    if data.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(data, count) }
}

/// How many `T`s a tensor holds; an error if it holds something else.
fn elements<T: Element>(raw: &sys::feedlane_tensor) -> Result<usize, Error> {
    elements_of::<T>(raw.dtype, raw.data.cast(), raw.bytes, "tensor")
}

/// How many `T`s lie in `bytes` bytes of `what`: whole, aligned ones, of this dtype.
pub(crate) fn elements_of<T: Element>(
    dtype: sys::feedlane_dtype,
    data: *const u8,
    bytes: u64,
    what: &str,
) -> Result<usize, Error> {
    let (found, wanted) = (Dtype::from_c(dtype), T::DTYPE);
    if found != wanted {
        let text = format!("the {}'s elements are {}, not {}", what, found, wanted);
        return Err(Error::new(Status::ARGUMENT, "dtype", found.bits.into(), wanted.bits.into(), text));
    }
    let size = std::mem::size_of::<T>();
    if bytes as usize % size != 0 || data as usize % std::mem::align_of::<T>() != 0 {
        let text = format!("{} bytes at {:p} are not whole elements of {} bytes", bytes, data, size);
        return Err(Error::new(Status::ARGUMENT, what, bytes as i64, size as i64, text));
    }
    Ok(bytes as usize / size)
}
