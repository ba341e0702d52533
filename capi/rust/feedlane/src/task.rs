// SPDX-License-Identifier: Apache-2.0
//! Batches to make: the tasks of a data set that makes full batches, and of a worker in the pull form.
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{addr_of_mut, null, null_mut};
use std::time::Duration;

use crate::args::c_text;
use crate::element::Element;
use crate::error::{bytes_at, call, slice_at, Error, Status};
use crate::failure::{guarded, said, say, Failure};
use crate::field::Field;
use crate::sys;
use crate::tensor::{slice_at_mut, TensorMut};

/// A batch to make: the indices of its rows, and the tensors to write.
pub struct Work<'a> {
    /// A pointer, not a reference, because the library changes the struct when a tensor is added.
    raw: *const sys::feedlane_task,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Work<'a> {
    /// # Safety
    /// The library's task, which is current for all of 'a.
    pub(crate) unsafe fn new(raw: *const sys::feedlane_task) -> Self {
        Work { raw, memory: PhantomData }
    }

    /// A copy of the task's current contents.
    fn now(&self) -> sys::feedlane_task {
        // SAFETY: the library's task, by `new`'s promise. Only calls of this thread change it.
        unsafe { *self.raw }
    }

    /// Unique within a loader.
    pub fn id(&self) -> u64 {
        self.now().id
    }

    pub fn epoch(&self) -> i64 {
        self.now().epoch
    }

    /// The number of the batch in the epoch, from 0.
    pub fn batch(&self) -> i64 {
        self.now().batch
    }

    /// The number of this attempt at the batch, from 0.
    pub fn attempt(&self) -> i32 {
        self.now().attempt
    }

    /// Rows wanted.
    pub fn count(&self) -> usize {
        self.now().count as usize
    }

    /// The data set indices, one per row; empty for an iterable data set. Like `seeds` and `state`, they are valid
    /// until the task is committed. The slice borrows the task, so code that writes tensors copies it, or calls
    /// `indices` again for each row.
    pub fn indices(&self) -> &[i64] {
        // SAFETY: NULL, or `count` indices that are valid as long as the task. Calls that end the task consume it.
        unsafe { slice_at(self.now().indices, self.now().count) }
    }

    /// One seed per row, independent of the worker.
    pub fn seeds(&self) -> &[u64] {
        // SAFETY: as above.
        unsafe { slice_at(self.now().seeds, self.now().count) }
    }

    /// Iterable: the shard starts over, or resumes after `delivered` samples or from `state`.
    pub fn is_first(&self) -> bool {
        self.now().first != 0
    }

    pub fn delivered(&self) -> u64 {
        self.now().delivered
    }

    pub fn state(&self) -> &[u8] {
        // SAFETY: as above; there are `state_bytes` bytes.
        unsafe { bytes_at(self.now().state, self.now().state_bytes) }
    }

    pub fn tensor_count(&self) -> usize {
        self.now().tensor_count as usize
    }

    /// All rows of a tensor, to be written in place.
    pub fn tensor_mut(&mut self, index: usize) -> Result<TensorMut<'_>, Error> {
        // Read again, because adding a tensor may move the descriptors.
        let task = self.now();
        // SAFETY: the task has `tensor_count` descriptors.
        let tensors = unsafe { slice_at(task.tensors, task.tensor_count as u64) };
        let raw = tensors.get(index).ok_or_else(|| Error::beyond("tensor", index, "task", tensors.len()))?;
        // SAFETY: until the commit only this worker, which borrows it mutably, reaches the task's memory.
        Ok(unsafe { TensorMut::new(*raw) })
    }

    /// Copies `values` to the elements of a tensor, beginning with element `start`. E_ARGUMENT: the elements are not
    /// `T`s, or too few follow `start`.
    pub fn write_at<T: Element>(&mut self, index: usize, start: usize, values: &[T]) -> Result<(), Error> {
        let mut elements = self.tensor_mut(index)?.into_values_mut::<T>()?;
        let (found, needed) = (start.saturating_add(values.len()), elements.len());
        if found > needed {
            let text = format!(
                "{} elements from index {} do not fit into a tensor of {} elements",
                values.len(),
                start,
                needed
            );
            return Err(Error::new(Status::ARGUMENT, "values", found as i64, needed as i64, text));
        }
        elements.write_at(start, values);
        Ok(())
    }

    /// Gives tensor `index` a shape that differs from the declared one, or adds a tensor if `index` is
    /// `tensor_count()`. `whole` has the full shape, batch dimension included.
    pub fn reshape(&mut self, index: usize, whole: &Field) -> Result<TensorMut<'_>, Error> {
        let number = i32::try_from(index).map_err(|_| Error::beyond("tensor", index, "task", self.tensor_count()))?;
        let (name, mut out) = (c_text(whole.name()), sys::feedlane_tensor::new());
        let field = whole.to_c(&name)?;
        // SAFETY: the task is current; the field is copied; `out` is a local struct.
        call(|err| unsafe { sys::feedlane_task_tensor(self.raw, number, &field, &mut out, err) })?;
        // SAFETY: as in `tensor_mut`.
        Ok(unsafe { TensorMut::new(out) })
    }

    /// Attaches a copy of these bytes to the batch. The last call replaces earlier ones.
    pub fn set_metadata(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.store_bytes(sys::FEEDLANE_STORE_METADATA, bytes)
    }

    /// Iterable, pull form: saves the position in the shard after this batch, see [`Shard::save`](crate::Shard::save).
    pub fn set_state(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.store_bytes(sys::FEEDLANE_STORE_STATE, bytes)
    }

    fn store_bytes(&mut self, kind: i32, bytes: &[u8]) -> Result<(), Error> {
        let count = bytes.len() as u64;
        // SAFETY: the task is current; there are `count` bytes, which are copied.
        call(|err| unsafe { sys::feedlane_task_store(self.raw, kind, bytes.as_ptr().cast(), count, err) }).map(drop)
    }

    /// In [`Dataset::fetch`](crate::Dataset::fetch): sets the number of rows made, 1 to `count`. 0 is allowed if all
    /// samples are recorded as left out. The number is checked when `fetch` returns. E_STATE: a task of the pull form,
    /// whose [`Task::commit`] takes the number.
    pub fn set_rows(&mut self, rows: usize) -> Result<(), Error> {
        // SAFETY: the task is current. Room for a number, or NULL: the pull form.
        match unsafe { self.now().rows.as_mut() } {
            Some(made) => *made = rows as u64,
            None => {
                return Err(Error::new(
                    Status::STATE,
                    "task",
                    0,
                    0,
                    "pass the number of rows to commit, because this task has the pull form".into(),
                ))
            }
        }
        Ok(())
    }

    /// Calls `f` with private memory for `count` elements, which are 0, for example to decode into. The memory is freed
    /// when the task ends. `None`: there is too little memory.
    ///
    /// ```
    /// # fn decode(_: i64, _: &mut [f32]) {}
    /// # fn fetch(work: &mut feedlane::Work<'_>) -> Result<(), feedlane::Failure> {
    /// work.with_scratch(64, |work, image: &mut [f32]| {
    ///     for row in 0..work.count() {
    ///         decode(work.indices()[row], image);
    ///         work.write_at(0, 64 * row, image)?;
    ///     }
    ///     Ok(())
    /// })
    /// .ok_or("too little memory")?
    /// # }
    /// ```
    pub fn with_scratch<T: Element, R>(
        &mut self,
        count: usize,
        f: impl FnOnce(&mut Work<'_>, &mut [T]) -> R,
    ) -> Option<R> {
        let (bytes, worker) = (count.checked_mul(std::mem::size_of::<T>())?, self.now().worker);
        if worker.is_null() {
            let mut memory = Vec::new();
            memory.try_reserve_exact(count).ok()?;
            // SAFETY: every bit pattern is an element.
            memory.resize(count, unsafe { std::mem::zeroed() });
            return Some(f(self, &mut memory));
        }
        // SAFETY: the worker that has the task, which one thread at a time uses. The result is aligned to at least 16
        // bytes, which is enough for every element.
        let memory = unsafe { sys::feedlane_worker_scratch(worker, bytes as u64, 0) }.cast::<T>();
        if memory.is_null() {
            return None;
        }
        // SAFETY: `bytes` bytes of this process alone. `f` cannot end the task, and keeps no slice.
        let memory = unsafe {
            memory.write_bytes(0, count);
            slice_at_mut(memory, count)
        };
        Some(f(self, memory))
    }

    /// For [`Dataset::fetch`](crate::Dataset::fetch) and the pull form: the sample at `position` of `indices` has failed.
    /// Applies the loader's policies, in this order: a retry (if the failure is [`Transient`](crate::Transient)), a
    /// substitute, skipping the sample. The library records the outcome. Samples fail in ascending order of position.
    /// `substitute` is called as [`Dataset::substitute`](crate::Dataset::substitute).
    ///
    /// `None`: the sample is skipped, and the next one gets its row. E_SAMPLE, E_LIMIT: no policy helps; return this error.
    pub fn sample_failed<S>(
        &mut self,
        position: usize,
        failure: impl Into<Failure>,
        mut substitute: S,
    ) -> Result<Option<Retry>, Error>
    where
        S: FnMut(i64, u64, u32) -> Option<i64>,
    {
        unsafe extern "C" fn ask<S: FnMut(i64, u64, u32) -> Option<i64>>(
            this: *mut c_void,
            failed: i64,
            seed: u64,
            tries: u32,
            other: *mut i64,
            _err: *mut sys::feedlane_error,
        ) -> i32 {
            // SAFETY: `substitute` of the function below, which nothing else uses during the call.
            let substitute = unsafe { &mut *this.cast::<S>() };
            match guarded(|| Ok(substitute(failed, seed, tries))) {
                Ok(Some(index)) => {
                    // SAFETY: room for one index.
                    unsafe { *other = index };
                    sys::FEEDLANE_OK
                }
                _ => sys::FEEDLANE_END,
            }
        }
        let mut report = sys::feedlane_error::new();
        report.code = Status::SAMPLE.0;
        // SAFETY: a local struct without a buffer for details.
        unsafe { say(&mut report, &said(failure.into())) };
        let (mut index, mut wait_ns, this) = (0, 0, addr_of_mut!(substitute).cast());
        // SAFETY: the task is current; `ask` gets the closure that it is made for, during this call only.
        let status = call(|err| unsafe {
            let (task, place) = (self.raw, position as u64);
            sys::feedlane_task_sample_failed(task, place, &report, Some(ask::<S>), this, &mut index, &mut wait_ns, err)
        })?;
        let retry = Retry { index, wait: Duration::from_nanos(wait_ns.unsigned_abs()) };
        Ok(if status == Status::AGAIN { Some(retry) } else { None })
    }

    /// The first queued task with an id above `after` (0: the first of all), so that a data set can start reading
    /// early. A hint: this worker gets the task with these indices, or never. `None`: no such task is known. Inline and
    /// for iterable data sets the result is always `None`.
    pub fn ahead(&self, after: u64) -> Result<Option<Ahead>, Error> {
        let mut found = sys::feedlane_ahead::new();
        // SAFETY: the task is current; `found` is a local struct.
        let status = call(|err| unsafe { sys::feedlane_task_ahead(self.raw, after, &mut found, err) })?;
        if status != Status::OK {
            return Ok(None);
        }
        // SAFETY: the worker's copies of `count` indices and seeds, valid until its next call of this function.
        let (indices, seeds) = unsafe { (slice_at(found.indices, found.count), slice_at(found.seeds, found.count)) };
        let (indices, seeds) = (indices.to_vec(), seeds.to_vec());
        Ok(Some(Ahead { id: found.id, epoch: found.epoch, batch: found.batch, indices, seeds }))
    }

    /// In a worker: the trainer has given up this batch or no longer needs this worker, and will drop the result.
    pub fn is_abandoned(&self) -> bool {
        let worker = self.now().worker;
        // SAFETY: the worker that has the task, or NULL: inline.
        !worker.is_null() && unsafe { sys::feedlane_worker_check(worker) } != sys::FEEDLANE_OK
    }
}

/// A task that is queued behind the current one, see [`Work::ahead`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// [`Work::id`], if this worker gets the task. The tasks of one worker come in ascending order of ids.
    pub id: u64,
    pub epoch: i64,
    /// The number of the batch in the epoch, from 0.
    pub batch: i64,
    /// The data set indices of its rows.
    pub indices: Vec<i64>,
    /// One for each row, as [`Work::seeds`].
    pub seeds: Vec<u64>,
}

/// What to try after a failed sample, see [`Work::sample_failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The sample's own index, or a substitute.
    pub index: i64,
    /// The time to wait before.
    pub wait: Duration,
}

/// A task of [`Worker::next_task`](crate::Worker::next_task). Dropping it without a commit fails it.
pub struct Task<'a> {
    pub(crate) work: Work<'a>,
    is_open: bool,
}

impl<'a> Task<'a> {
    /// # Safety
    /// The library's task, which is current for all of 'a unless this value ends it.
    pub(crate) unsafe fn new(raw: *const sys::feedlane_task) -> Self {
        // SAFETY: the caller's promise.
        Task { work: unsafe { Work::new(raw) }, is_open: true }
    }
}

impl<'a> Deref for Task<'a> {
    type Target = Work<'a>;
    fn deref(&self) -> &Work<'a> {
        &self.work
    }
}

// No DerefMut: code with two tasks could swap their works, and commit one task with the memory of the other.
impl Task<'_> {
    /// See [`Work::tensor_mut`].
    pub fn tensor_mut(&mut self, index: usize) -> Result<TensorMut<'_>, Error> {
        self.work.tensor_mut(index)
    }

    /// See [`Work::write_at`].
    pub fn write_at<T: Element>(&mut self, index: usize, start: usize, values: &[T]) -> Result<(), Error> {
        self.work.write_at(index, start, values)
    }

    /// See [`Work::reshape`].
    pub fn reshape(&mut self, index: usize, whole: &Field) -> Result<TensorMut<'_>, Error> {
        self.work.reshape(index, whole)
    }

    /// See [`Work::set_metadata`].
    pub fn set_metadata(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.work.set_metadata(bytes)
    }

    /// See [`Work::set_state`].
    pub fn set_state(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.work.set_state(bytes)
    }

    /// See [`Work::sample_failed`].
    pub fn sample_failed<S>(
        &mut self,
        position: usize,
        failure: impl Into<Failure>,
        substitute: S,
    ) -> Result<Option<Retry>, Error>
    where
        S: FnMut(i64, u64, u32) -> Option<i64>,
    {
        self.work.sample_failed(position, failure, substitute)
    }

    /// See [`Work::with_scratch`].
    pub fn with_scratch<T: Element, R>(
        &mut self,
        count: usize,
        f: impl FnOnce(&mut Work<'_>, &mut [T]) -> R,
    ) -> Option<R> {
        self.work.with_scratch(count, f)
    }

    /// Delivers the batch. `rows` rows of every tensor must have been written.
    pub fn commit(self, rows: usize) -> Result<(), Error> {
        match rows as u64 {
            sys::FEEDLANE_EXHAUSTED => Err(Error::beyond("rows", rows, "task", self.count())),
            rows => self.end(rows),
        }
    }

    fn end(mut self, rows: u64) -> Result<(), Error> {
        // SAFETY: the task is current.
        let end = call(|err| unsafe { sys::feedlane_task_commit(self.work.raw, rows, err) });
        // After these errors the task is still current, and dropping it fails it.
        self.is_open = matches!(&end, Err(error) if matches!(error.status, Status::ARGUMENT | Status::STATE));
        end.map(drop)
    }

    /// Reports that the batch cannot be made, because of `row` if it is given. The trainer's `next` returns E_SAMPLE
    /// with these texts.
    pub fn fail(mut self, row: Option<usize>, transient: bool, text: &str, detail: &str) -> Result<(), Error> {
        self.is_open = false;
        let (position, text, detail) = (row.map_or(-1, |r| r as i64), c_text(text), c_text(detail));
        let (raw, text, detail) = (self.work.raw, text.as_ptr(), detail.as_ptr());
        // SAFETY: the task is current; both texts are valid until the end of this function, and are copied.
        call(|err| unsafe { sys::feedlane_task_fail(raw, position, transient.into(), text, detail, err) }).map(drop)
    }

    /// Iterable: reports that the shard has no more samples in this epoch.
    pub fn exhausted(self) -> Result<(), Error> {
        self.end(sys::FEEDLANE_EXHAUSTED)
    }
}

impl Drop for Task<'_> {
    fn drop(&mut self) {
        if self.is_open {
            let text = b"the worker dropped the task\0";
            // SAFETY: the task is current; the text is terminated.
            unsafe {
                sys::feedlane_task_fail(self.work.raw, -1, 0, text.as_ptr().cast(), null(), null_mut());
            }
        }
    }
}
