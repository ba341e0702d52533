// SPDX-License-Identifier: Apache-2.0
//! Elements in memory that other processes have mapped for writing.
//!
//! Rust assumes that nobody writes to the memory of a `&[T]`. So a `&[T]` of memory that another process can write
//! needs a promise of the caller. Without the promise, this module reads and writes the memory by volatile accesses:
//! one per element, or one per 16 bytes of a copy. If another process writes at the same time, the result is a mixture
//! of old and new elements.
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use crate::element::Element;

#[cfg(target_arch = "x86_64")]
type Block = std::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Block = u64;

const BLOCK: usize = std::mem::size_of::<Block>();
const AT_ONCE: usize = 4;

/// The number of the `count` elements before the first block in shared memory, and the number of blocks that follow.
fn blocks<T>(shared: usize, count: usize) -> (usize, usize) {
    let size = std::mem::size_of::<T>();
    if size == 0 || BLOCK % size != 0 {
        return (count, 0);
    }
    let before = (shared.wrapping_neg() % BLOCK / size).min(count);
    (before, (count - before) * size / BLOCK)
}

/// Copies from shared memory to private memory.
///
/// # Safety
/// There are `count` aligned elements at `from`, and room for as many at `to`. The ranges do not overlap.
unsafe fn copy_out<T: Element>(from: *const T, to: *mut T, count: usize) {
    let (before, whole) = blocks::<T>(from as usize, count);
    // SAFETY: all accesses are within the ranges. Blocks are aligned at `from`, and every bit pattern is a valid
    // element.
    unsafe {
        for i in 0..before {
            to.add(i).write(from.add(i).read_volatile());
        }
        let (source, target) = (from.add(before).cast::<Block>(), to.add(before).cast::<Block>());
        let mut i = 0;
        while i + AT_ONCE <= whole {
            let read = [
                source.add(i).read_volatile(),
                source.add(i + 1).read_volatile(),
                source.add(i + 2).read_volatile(),
                source.add(i + 3).read_volatile(),
            ];
            target.add(i).cast::<[Block; AT_ONCE]>().write_unaligned(read);
            i += AT_ONCE;
        }
        while i < whole {
            target.add(i).write_unaligned(source.add(i).read_volatile());
            i += 1;
        }
        for i in before + whole * BLOCK / std::mem::size_of::<T>().max(1)..count {
            to.add(i).write(from.add(i).read_volatile());
        }
    }
}

/// Copies from private memory to shared memory.
///
/// # Safety
/// There are `count` elements at `from`, and room for as many aligned elements at `to`. The ranges do not overlap.
unsafe fn copy_in<T: Element>(from: *const T, to: *mut T, count: usize) {
    let (before, whole) = blocks::<T>(to as usize, count);
    // SAFETY: all accesses are within the ranges. Blocks are aligned at `to`, and elements have no uninitialised bytes.
    unsafe {
        for i in 0..before {
            to.add(i).write_volatile(from.add(i).read());
        }
        let (source, target) = (from.add(before).cast::<Block>(), to.add(before).cast::<Block>());
        let mut i = 0;
        while i + AT_ONCE <= whole {
            let read = source.add(i).cast::<[Block; AT_ONCE]>().read_unaligned();
            target.add(i).write_volatile(read[0]);
            target.add(i + 1).write_volatile(read[1]);
            target.add(i + 2).write_volatile(read[2]);
            target.add(i + 3).write_volatile(read[3]);
            i += AT_ONCE;
        }
        while i < whole {
            target.add(i).write_volatile(source.add(i).read_unaligned());
            i += 1;
        }
        for i in before + whole * BLOCK / std::mem::size_of::<T>().max(1)..count {
            to.add(i).write_volatile(from.add(i).read());
        }
    }
}

/// The index of the first element, and one past the last. Panics as slices do.
fn bounds(range: impl RangeBounds<usize>, count: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(at) => *at,
        Bound::Excluded(at) => *at + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(at) => *at + 1,
        Bound::Excluded(at) => *at,
        Bound::Unbounded => count,
    };
    assert!(start <= end && end <= count, "the range {}..{} is out of bounds for {} elements", start, end, count);
    (start, end)
}

/// Elements in shared memory, to read. Each read copies one element or several. [`as_slice`](Values::as_slice) returns
/// a `&[T]` in place.
pub struct Values<'a, T> {
    data: *const T,
    count: usize,
    memory: PhantomData<&'a T>,
}

impl<T> Clone for Values<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Values<'_, T> {}

// SAFETY: the memory is only read through this value, stays mapped for 'a, and nobody in this process writes to it.
unsafe impl<T: Element> Send for Values<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Values<'_, T> {}

impl<'a, T: Element> Values<'a, T> {
    /// # Safety
    /// There are `count` aligned elements at `data`, mapped for all of 'a, and nothing in this process writes to them
    /// during 'a. `data` may be NULL if `count` is 0.
    pub(crate) unsafe fn new(data: *const T, count: usize) -> Self {
        let data = if count == 0 { std::ptr::NonNull::dangling().as_ptr() } else { data };
        Values { data, count, memory: PhantomData }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One element. `None`: there is no element with this index.
    pub fn get(&self, index: usize) -> Option<T> {
        // SAFETY: the index is in range.
        (index < self.count).then(|| unsafe { self.data.add(index).read_volatile() })
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = T> + ExactSizeIterator + 'a {
        let data = *self;
        // SAFETY: the index is in range.
        (0..self.count).map(move |i| unsafe { data.at(i).read_volatile() })
    }

    /// # Safety
    /// `index` is less than the number of elements.
    unsafe fn at(self, index: usize) -> *const T {
        // SAFETY: the caller's promise.
        unsafe { self.data.add(index) }
    }

    /// A range of the elements.
    ///
    /// # Panics
    /// If the range exceeds the elements.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Values<'a, T> {
        let (start, end) = bounds(range, self.count);
        // SAFETY: the range is within the elements.
        unsafe { Values::new(self.data.add(start), end - start) }
    }

    /// The elements in parts of `size`, such as rows. The last part may be shorter.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn chunks(&self, size: usize) -> impl Iterator<Item = Values<'a, T>> {
        let (all, count) = (*self, self.count);
        (0..count).step_by(size).map(move |start| all.slice(start..count.min(start.saturating_add(size))))
    }

    /// Copies all elements, about as fast as memory can be read.
    ///
    /// # Panics
    /// If `to` has another length.
    pub fn copy_to_slice(&self, to: &mut [T]) {
        assert_eq!(to.len(), self.count, "the length to copy to, and the elements that there are");
        // SAFETY: both sides have this many elements. Shared memory cannot overlap a `&mut [T]`.
        unsafe { copy_out(self.data, to.as_mut_ptr(), self.count) }
    }

    /// Copies all elements into a vector and replaces its former contents. A loop can reuse the vector's memory.
    pub fn copy_to_vec(&self, to: &mut Vec<T>) {
        to.clear();
        to.reserve(self.count);
        // SAFETY: the vector has room for the elements, and the copy initialises all of them.
        unsafe {
            copy_out(self.data, to.as_mut_ptr(), self.count);
            to.set_len(self.count);
        }
    }

    pub fn to_vec(&self) -> Vec<T> {
        let mut copy = Vec::new();
        self.copy_to_vec(&mut copy);
        copy
    }

    pub fn as_ptr(&self) -> *const T {
        self.data
    }

    /// The memory itself, without a copy.
    ///
    /// # Safety
    /// No other process writes to the memory during 'a. Other processes can: worker processes have a loader's memory
    /// mapped for writing, a sender has its ring's, and a process of an arena has that of its entries. Programs that follow the protocol do not write to a batch that
    /// the trainer holds, to another worker's task, to messages that the receiver holds, or to an entry that they have published. So the caller promises that
    /// the programs at the other end, and all code that they run, follow the protocol. The promise always holds if no
    /// other process maps the memory: for inline loaders, for thread workers, and for the tensors of staged batches. It
    /// does not always hold for the metadata of staged batches, which is not copied.
    pub unsafe fn as_slice(&self) -> &'a [T] {
        // SAFETY: the memory is mapped and aligned, and every bit pattern is an element. By the caller's promise it
        // does not change.
        unsafe { std::slice::from_raw_parts(self.data, self.count) }
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for Values<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Elements in shared memory, to write. [`as_mut_slice`](ValuesMut::as_mut_slice) returns a `&mut [T]` in place.
pub struct ValuesMut<'a, T> {
    data: *mut T,
    count: usize,
    memory: PhantomData<&'a mut T>,
}

// SAFETY: in this process only this value reaches the memory, which stays mapped for 'a.
unsafe impl<T: Element> Send for ValuesMut<'_, T> {}
// SAFETY: shared references only read.
unsafe impl<T: Element> Sync for ValuesMut<'_, T> {}

impl<'a, T: Element> ValuesMut<'a, T> {
    /// # Safety
    /// There are `count` aligned elements at `data`, mapped for all of 'a, and nothing else in this process reaches
    /// them during 'a. `data` may be NULL if `count` is 0.
    pub(crate) unsafe fn new(data: *mut T, count: usize) -> Self {
        let data = if count == 0 { std::ptr::NonNull::dangling().as_ptr() } else { data };
        ValuesMut { data, count, memory: PhantomData }
    }

    /// The same elements, to read.
    pub fn as_values(&self) -> Values<'_, T> {
        // SAFETY: `new`'s promise holds for as long as `self` is borrowed.
        unsafe { Values::new(self.data, self.count) }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One element. `None`: there is no element with this index.
    pub fn get(&self, index: usize) -> Option<T> {
        self.as_values().get(index)
    }

    /// # Panics
    /// If there is no element with this index.
    pub fn set(&mut self, index: usize, value: T) {
        assert!(index < self.count, "index {} is out of bounds for {} elements", index, self.count);
        // SAFETY: the index is in range.
        unsafe { self.data.add(index).write_volatile(value) }
    }

    pub fn fill(&mut self, value: T) {
        (0..self.count).for_each(|i| self.set(i, value));
    }

    /// Replaces each element by the result of `f` for it.
    pub fn map_in_place(&mut self, mut f: impl FnMut(T) -> T) {
        for i in 0..self.count {
            // SAFETY: the index is in range.
            unsafe { self.data.add(i).write_volatile(f(self.data.add(i).read_volatile())) }
        }
    }

    /// Copies `values` to the elements, beginning with element `start`, about as fast as memory can be written.
    ///
    /// # Panics
    /// If fewer elements follow `start`.
    pub fn write_at(&mut self, start: usize, values: &[T]) {
        let fits = start <= self.count && values.len() <= self.count - start;
        assert!(fits, "{} elements from index {} are out of bounds for {} elements", values.len(), start, self.count);
        // SAFETY: the range is within the elements. `values` is private memory of this process.
        unsafe { copy_in(values.as_ptr(), self.data.add(start), values.len()) }
    }

    /// Copies `values` to all elements.
    ///
    /// # Panics
    /// If `values` has another length.
    pub fn copy_from_slice(&mut self, values: &[T]) {
        assert_eq!(values.len(), self.count, "the elements to copy, and those that there are");
        self.write_at(0, values);
    }

    /// Writes the values of an iterator until either side ends. Returns the number of values written.
    pub fn copy_from_iter(&mut self, values: impl IntoIterator<Item = T>) -> usize {
        (0..self.count).zip(values).map(|(i, value)| self.set(i, value)).count()
    }

    /// A range of the elements.
    ///
    /// # Panics
    /// If the range exceeds the elements.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> ValuesMut<'_, T> {
        let (start, end) = bounds(range, self.count);
        // SAFETY: the range is within the elements, and borrowed mutably.
        unsafe { ValuesMut::new(self.data.add(start), end - start) }
    }

    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.data
    }

    /// The memory itself, to write in place, for example by a decoder.
    ///
    /// # Safety
    /// While the slice is in use, no other process writes to the memory, or reads values that are half written: see
    /// [`Values::as_slice`]. For a worker, such processes are its loader's other workers and the trainer.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: the memory is mapped and aligned, and every bit pattern is an element. By the promises of `new` and
        // of the caller, nobody else accesses it.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.count) }
    }

    /// As `as_mut_slice`, but valid for the lifetime of the memory's own borrow.
    ///
    /// # Safety
    /// See [`as_mut_slice`](ValuesMut::as_mut_slice).
    pub unsafe fn into_mut_slice(self) -> &'a mut [T] {
        // SAFETY: as above, for 'a, because `self` is consumed.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.count) }
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for ValuesMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_values().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_whole_at_every_alignment_and_length() {
        let source: Vec<u16> = (0..200).map(|i| i * 257 + 1).collect();
        for start in 0..20 {
            for count in 0..150 {
                // SAFETY: within the vector, which nobody writes.
                let values = unsafe { Values::new(source.as_ptr().add(start), count) };
                assert_eq!(values.to_vec(), source[start..][..count], "out: {} from {}", count, start);
                assert!(values.iter().eq(source[start..][..count].iter().copied()));
                let mut target = vec![7u16; 200];
                // SAFETY: within the vector, borrowed mutably.
                let mut place = unsafe { ValuesMut::new(target.as_mut_ptr().add(start), count) };
                place.copy_from_slice(&source[..count]);
                assert_eq!(target[start..][..count], source[..count], "in: {} from {}", count, start);
                assert!(target[..start].iter().chain(&target[start + count..]).all(|x| *x == 7), "and no more");
            }
        }
    }

    #[test]
    fn parts_are_within_their_whole() {
        let source: Vec<i64> = (0..10).collect();
        // SAFETY: the vector, which nobody writes.
        let all = unsafe { Values::new(source.as_ptr(), source.len()) };
        assert_eq!(all.slice(3..=5).to_vec(), [3, 4, 5]);
        assert_eq!(all.chunks(4).map(|rows| rows.to_vec()).collect::<Vec<_>>(), [&source[..4], &source[4..8], &[8, 9]]);
        assert_eq!((all.get(9), all.get(10), all.slice(10..).get(0)), (Some(9), None, None));
        #[allow(clippy::reversed_empty_ranges)]
        for wrong in [3..2, 0..11, 11..11] {
            assert!(std::panic::catch_unwind(|| all.slice(wrong).len()).is_err());
        }
    }
}
