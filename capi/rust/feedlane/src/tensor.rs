// SPDX-License-Identifier: Apache-2.0
//! Tensors in place: of a batch that the trainer holds, or of a task that a worker fills.
use std::ffi::CStr;
use std::marker::PhantomData;

use crate::element::{Dtype, Element};
use crate::error::{Error, Status};
use crate::sys;
use crate::values::{Values, ValuesMut};

/// A tensor to read in place, in memory that worker processes have mapped too: see [`Values`]. It cannot outlive its
/// batch or task.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    raw: &'a sys::feedlane_tensor,
}

// SAFETY: the memory stays mapped for 'a, and is only read through this value.
unsafe impl Send for Tensor<'_> {}
// SAFETY: as above.
unsafe impl Sync for Tensor<'_> {}

impl<'a> Tensor<'a> {
    /// # Safety
    /// The library filled in `raw`, and its pointers are valid for all of 'a.
    pub(crate) unsafe fn new(raw: &'a sys::feedlane_tensor) -> Self {
        Tensor { raw }
    }

    /// The name of the field.
    pub fn name(&self) -> &'a str {
        if self.raw.name.is_null() {
            return "";
        }
        // SAFETY: the library's terminated string, which is valid as long as the tensor.
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

    /// Offset of the tensor in the data segment, equal in the worker and the trainer. Staged: offset in its buffer.
    pub fn offset(&self) -> u64 {
        self.raw.offset
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.raw.data.cast()
    }

    /// The bytes of all rows, whatever the element type is.
    pub fn bytes(&self) -> Values<'a, u8> {
        // SAFETY: `bytes` bytes of the batch's or the task's memory, by `new`'s promise.
        unsafe { Values::new(self.raw.data.cast(), self.raw.bytes as usize) }
    }

    /// All rows as elements of type `T`, to be read or copied. E_ARGUMENT: the elements are not `T`s.
    pub fn values<T: Element>(&self) -> Result<Values<'a, T>, Error> {
        let count = elements::<T>(self.raw)?;
        // SAFETY: by `new`'s promise there are `count` aligned elements.
        Ok(unsafe { Values::new(self.raw.data.cast(), count) })
    }
}

/// A tensor to write in place: see [`ValuesMut`].
pub struct TensorMut<'a> {
    raw: sys::feedlane_tensor,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> TensorMut<'a> {
    /// # Safety
    /// The library filled in `raw`, its pointers are valid for all of 'a, and nothing else reaches the memory during
    /// 'a.
    pub(crate) unsafe fn new(raw: sys::feedlane_tensor) -> Self {
        TensorMut { raw, memory: PhantomData }
    }

    /// The same tensor, to read.
    pub fn as_tensor(&self) -> Tensor<'_> {
        Tensor { raw: &self.raw }
    }

    pub fn bytes_mut(&mut self) -> ValuesMut<'_, u8> {
        // SAFETY: `bytes` bytes that only this value reaches, by `new`'s promise.
        unsafe { ValuesMut::new(self.raw.data.cast(), self.raw.bytes as usize) }
    }

    /// All rows as elements of type `T`, to be written in place. E_ARGUMENT: the elements are not `T`s.
    pub fn values_mut<T: Element>(&mut self) -> Result<ValuesMut<'_, T>, Error> {
        let count = elements::<T>(&self.raw)?;
        // SAFETY: `count` aligned elements that only this value reaches.
        Ok(unsafe { ValuesMut::new(self.raw.data.cast(), count) })
    }

    /// As `values_mut`, but valid for the lifetime of the tensor's own borrow.
    pub fn into_values_mut<T: Element>(self) -> Result<ValuesMut<'a, T>, Error> {
        let count = elements::<T>(&self.raw)?;
        // SAFETY: `count` aligned elements. Only this value, which is consumed, reaches them during 'a.
        Ok(unsafe { ValuesMut::new(self.raw.data.cast(), count) })
    }
}

/// # Safety
/// There are `count` aligned elements, and nothing else reaches them during 'a.
pub(crate) unsafe fn slice_at_mut<'a, T>(data: *mut T, count: usize) -> &'a mut [T] {
    if data.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(data, count) }
}

/// The number of `T`s in a tensor. E_ARGUMENT: the elements are not `T`s.
fn elements<T: Element>(raw: &sys::feedlane_tensor) -> Result<usize, Error> {
    elements_of::<T>(raw.dtype, raw.data.cast(), raw.bytes, "tensor")
}

/// The number of `T`s in `bytes` bytes of `what`. E_ARGUMENT: the dtype differs, the address is not aligned, or a part
/// of an element is left.
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
        let text = format!("{} bytes at {:p} are not aligned elements of {} bytes", bytes, data, size);
        return Err(Error::new(Status::ARGUMENT, what, bytes as i64, size as i64, text));
    }
    Ok(bytes as usize / size)
}
