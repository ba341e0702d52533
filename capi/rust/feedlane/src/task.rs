// SPDX-License-Identifier: Apache-2.0
//! Batches to make: by a data set as a whole, or task by task.
use std::ffi::CString;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{null, null_mut};

use crate::builder::Field;
use crate::element::Element;
use crate::error::{bytes_at, call, slice_at, Error, Status};
use crate::sys;
use crate::tensor::TensorMut;

/// A text without the zeros that would end it early.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).expect("no zero is left")
}

/// A batch to make: what its rows are, and where they go.
pub struct Work<'a> {
    /// The library changes what lies there when a tensor is added, so there is no reference to it.
    raw: *const sys::feedlane_task,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Work<'a> {
    /// # Safety
    /// The library's task, which is in hand for all of 'a.
    pub(crate) unsafe fn new(raw: *const sys::feedlane_task) -> Self {
        Work { raw, memory: PhantomData }
    }

    /// What it says now.
    fn now(&self) -> sys::feedlane_task {
        // SAFETY: the library's task, by `new`'s promise; only calls of this thread change it.
        unsafe { *self.raw }
    }

    /// Never used again within a loader.
    pub fn id(&self) -> u64 {
        self.now().id
    }

    pub fn epoch(&self) -> i64 {
        self.now().epoch
    }

    /// Of the batch in its epoch, from 0.
    pub fn batch(&self) -> i64 {
        self.now().batch
    }

    /// 0, and one more each time the batch is sent out again.
    pub fn attempt(&self) -> i32 {
        self.now().attempt
    }

    /// Rows wanted.
    pub fn count(&self) -> usize {
        self.now().count as usize
    }

    /// What its rows are; empty for an iterable data set. These go with the task, as `seeds` and `state` do: another
    /// task's lie there when it is committed. Who writes tensors meanwhile copies them, or looks at one a row.
    pub fn indices(&self) -> &[i64] {
        // SAFETY: `count` indices that stay as long as the task, and whatever ends it takes it; NULL if there are none.
        unsafe { slice_at(self.now().indices, self.now().count) }
    }

    /// One a row: the same in any worker.
    pub fn seeds(&self) -> &[u64] {
        // SAFETY: as above.
        unsafe { slice_at(self.now().seeds, self.now().count) }
    }

    /// Iterable: the shard starts over, or goes on behind `delivered` samples, or from `state`.
    pub fn is_first(&self) -> bool {
        self.now().first != 0
    }

    pub fn delivered(&self) -> u64 {
        self.now().delivered
    }

    pub fn state(&self) -> &[u8] {
        // SAFETY: as above, as many bytes.
        unsafe { bytes_at(self.now().state, self.now().state_bytes) }
    }

    pub fn tensor_count(&self) -> usize {
        self.now().tensor_count as usize
    }

    /// A tensor of all rows, to be written in place.
    pub fn tensor_mut(&mut self, index: usize) -> Result<TensorMut<'_>, Error> {
        let task = self.now(); // each time anew: the descriptors may have moved when one was added
                               // SAFETY: the task's own number of descriptors.
        let tensors = unsafe { slice_at(task.tensors, task.tensor_count as u64) };
        let raw = tensors.get(index).ok_or_else(|| Error::beyond("tensor", index, "task", tensors.len()))?;
        // SAFETY: the task's memory, this worker's alone until the commit, and borrowed mutably.
        Ok(unsafe { TensorMut::new(*raw) })
    }

    /// Copies `values` to the elements of a tensor from `start` on. E_ARGUMENT if it isn't made of `T`s, or beyond the last
    /// one.
    pub fn write_at<T: Element>(&mut self, index: usize, start: usize, values: &[T]) -> Result<(), Error> {
        let mut elements = self.tensor_mut(index)?.into_values_mut::<T>()?;
        let (found, needed) = (start.saturating_add(values.len()), elements.len());
        if found > needed {
            let text = format!("{} elements from {} on, for a tensor of {}", values.len(), start, needed);
            return Err(Error::new(Status::ARGUMENT, "values", found as i64, needed as i64, text));
        }
        elements.write_at(start, values);
        Ok(())
    }

    /// Gives tensor `index` another shape than declared, or adds one at `tensor_count()`. The field's shape is the whole
    /// one, batch dimension included.
    pub fn reshape(&mut self, index: usize, whole: &Field) -> Result<TensorMut<'_>, Error> {
        let number = i32::try_from(index).map_err(|_| Error::beyond("tensor", index, "task", self.tensor_count()))?;
        let (name, mut out) = (c_text(whole.name()), sys::feedlane_tensor::new());
        let field = whole.to_c(&name)?;
        // SAFETY: the task in hand; the field is copied; a struct of ours to fill in.
        call(|err| unsafe { sys::feedlane_task_tensor(self.raw, number, &field, &mut out, err) })?;
        // SAFETY: as in `tensor_mut`.
        Ok(unsafe { TensorMut::new(out) })
    }

    /// Bytes that travel with the batch. The last call counts.
    pub fn set_metadata(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let count = bytes.len() as u64;
        // SAFETY: the task in hand; `count` bytes, which are copied.
        call(|err| unsafe { sys::feedlane_task_metadata(self.raw, bytes.as_ptr().cast(), count, err) }).map(drop)
    }

    /// Iterable, task by task: where the shard stands after this batch, see [`Shard::save`](crate::Shard::save).
    pub fn set_state(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let count = bytes.len() as u64;
        // SAFETY: the task in hand; `count` bytes, which are copied.
        call(|err| unsafe { sys::feedlane_task_state(self.raw, bytes.as_ptr().cast(), count, err) }).map(drop)
    }

    /// In [`Dataset::fetch`](crate::Dataset::fetch): so many rows are made, 1 to `count`; 0 if all samples are recorded as left out.
    pub fn set_rows(&mut self, rows: usize) -> Result<(), Error> {
        // SAFETY: the task in hand.
        call(|err| unsafe { sys::feedlane_task_rows(self.raw, rows as u64, err) }).map(drop)
    }

    /// Where a data set makes whole batches, or the worker goes task by task: what became of the sample at `position` of
    /// `indices` that failed. Records come in ascending order, one a sample. E_LIMIT: the loader's policies don't allow
    /// it.
    pub fn record(&mut self, position: usize, record: &Record<'_>) -> Result<(), Error> {
        let (outcome, other) = match record.outcome {
            Outcome::Retried => (sys::FEEDLANE_SAMPLE_RETRIED, 0),
            Outcome::Substituted(index) => (sys::FEEDLANE_SAMPLE_SUBSTITUTED, index),
            Outcome::Skipped => (sys::FEEDLANE_SAMPLE_SKIPPED, 0),
        };
        let (text, place, code) = (c_text(record.text), position as u64, Status::SAMPLE.0);
        // SAFETY: the task in hand; the text is copied.
        call(|err| unsafe {
            sys::feedlane_task_record(self.raw, place, outcome, code, record.retries, other, text.as_ptr(), err)
        })
        .map(drop)
    }

    /// The first task behind this one with an id above `after` (0: the first of all), to begin its reads early. A hint:
    /// it comes with these indices, or never. `None`: none is known; always so for iterable data sets and inline.
    pub fn ahead(&self, after: u64) -> Result<Option<Ahead>, Error> {
        let mut found = sys::feedlane_ahead::new();
        // SAFETY: the task in hand; a struct of ours to fill in.
        let status = call(|err| unsafe { sys::feedlane_task_ahead(self.raw, after, &mut found, err) })?;
        if status != Status::OK {
            return Ok(None);
        }
        // SAFETY: the worker's own copy of `count` indices, which stays until its next call of this.
        let indices = unsafe { slice_at(found.indices, found.count) }.to_vec();
        Ok(Some(Ahead { id: found.id, epoch: found.epoch, batch: found.batch, indices }))
    }

    /// In a worker: the trainer has given this batch up, or wants no more; whatever is made will be dropped.
    pub fn is_abandoned(&self) -> bool {
        let worker = self.now().worker;
        // SAFETY: the worker that has the task; NULL inline.
        !worker.is_null() && unsafe { sys::feedlane_worker_check(worker) } != sys::FEEDLANE_OK
    }
}

/// A task that waits behind the one in hand: [`Work::ahead`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// [`Work::id`], if the task comes. Tasks of one worker come in ascending order.
    pub id: u64,
    pub epoch: i64,
    /// Of the batch in its epoch, from 0.
    pub batch: i64,
    /// What its rows will be.
    pub indices: Vec<i64>,
}

/// What became of a sample that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded after all.
    Retried,
    /// The sample of this index took its place.
    Substituted(i64),
    /// It was left out: its row is the next sample's.
    Skipped,
}

/// For [`Work::record`].
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    pub outcome: Outcome,
    /// Tries more than one.
    pub retries: u32,
    /// What the last failure said; 223 bytes are kept.
    pub text: &'a str,
}

/// A task of [`Worker::next_task`](crate::Worker::next_task). Dropped without a commit it is failed.
pub struct Task<'a> {
    pub(crate) work: Work<'a>,
    is_open: bool,
}

impl<'a> Task<'a> {
    /// # Safety
    /// The library's task, which stays in hand for all of 'a unless this ends it.
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

// No DerefMut: who has two works could swap them, and commit what is somebody else's to write.
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

    /// See [`Work::record`].
    pub fn record(&mut self, position: usize, record: &Record<'_>) -> Result<(), Error> {
        self.work.record(position, record)
    }

    /// The batch is made: so many rows of every tensor are written.
    pub fn commit(mut self, rows: usize) -> Result<(), Error> {
        // SAFETY: the task in hand.
        let end = call(|err| unsafe { sys::feedlane_task_commit(self.work.raw, rows as u64, err) });
        // With E_ARGUMENT it is still there: dropping fails it.
        self.is_open = matches!(&end, Err(error) if error.status == Status::ARGUMENT);
        end.map(drop)
    }

    /// The batch can't be made, because of this row if one is named: the trainer's `next` says E_SAMPLE and this.
    pub fn fail(mut self, row: Option<usize>, transient: bool, text: &str, detail: &str) -> Result<(), Error> {
        self.is_open = false;
        let (position, text, detail) = (row.map_or(-1, |r| r as i64), c_text(text), c_text(detail));
        let (raw, text, detail) = (self.work.raw, text.as_ptr(), detail.as_ptr());
        // SAFETY: the task in hand; both texts live until the end of this function and are copied.
        call(|err| unsafe { sys::feedlane_task_fail(raw, position, transient.into(), text, detail, err) }).map(drop)
    }

    /// Iterable: the shard has no more samples in this epoch.
    pub fn exhausted(mut self) -> Result<(), Error> {
        // SAFETY: the task in hand.
        let end = call(|err| unsafe { sys::feedlane_task_exhausted(self.work.raw, err) });
        self.is_open = matches!(&end, Err(error) if error.status == Status::STATE);
        end.map(drop)
    }
}

impl Drop for Task<'_> {
    fn drop(&mut self) {
        if self.is_open {
            let text = b"the worker dropped the task\0";
            // SAFETY: the task in hand, and a terminated text.
            unsafe {
                sys::feedlane_task_fail(self.work.raw, -1, 0, text.as_ptr().cast(), null(), null_mut());
            }
        }
    }
}
