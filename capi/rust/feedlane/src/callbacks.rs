// SPDX-License-Identifier: Apache-2.0
//! Data sets, which workers run, and the C callbacks that call them. An error or a panic of a data set becomes the
//! sample's failure; nothing unwinds into C.
use std::ffi::{c_void, CStr};
use std::marker::PhantomData;

use crate::element::{Dtype, Element};
use crate::error::{bytes_at, slice_at, Error, Status};
use crate::failure::{guarded, let_go, said, say, Failure};
use crate::field::Field;
use crate::sys;
use crate::task::Work;
use crate::tensor::elements_of;
use crate::values::ValuesMut;

/// A data set with an index for each sample. Each worker has one value and makes all calls in one thread.
pub trait Dataset: Sized + 'static {
    /// Batches are made by [`Dataset::fetch`], and `get` is not called.
    const WHOLE_BATCHES: bool = false;

    /// Called once per worker. The trainer gets an error as E_INIT.
    fn open(info: &WorkerInfo<'_>) -> Result<Self, Failure>;

    /// Writes one sample into its row.
    fn get(&mut self, row: &mut Row<'_>) -> Result<(), Failure>;

    /// Makes one batch: every row of every tensor.
    fn fetch(&mut self, _work: &mut Work<'_>) -> Result<(), Failure> {
        Err("this data set has no `fetch`".into())
    }

    /// Another index to try in place of `failed`, see [`LoaderBuilder::substitute`](crate::LoaderBuilder::substitute).
    fn substitute(&mut self, _failed: i64, _seed: u64, _tries: u32) -> Option<i64> {
        None
    }
}

/// An iterable data set. Each worker iterates its own shard.
pub trait Shard: Sized + 'static {
    /// [`Shard::save`] and [`Shard::load`] are implemented.
    const SAVES: bool = false;

    /// Opens shard `info.shard()` of `info.shards()`.
    fn open(info: &WorkerInfo<'_>) -> Result<Self, Failure>;

    /// Starts the shard over. Called before the first sample of each epoch.
    fn restart(&mut self, epoch: i64) -> Result<(), Failure>;

    /// Writes the next sample into its row, or returns false if the shard is exhausted.
    fn next(&mut self, row: &mut Row<'_>) -> Result<bool, Failure>;

    /// The position in the shard, up to 64 KiB.
    fn save(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Called after `restart`: continues from a saved position.
    fn load(&mut self, _state: &[u8]) -> Result<(), Failure> {
        Ok(())
    }
}

/// A worker's identity and configuration.
pub struct WorkerInfo<'a> {
    raw: sys::feedlane_worker_info,
    owner: PhantomData<&'a ()>,
}

impl<'a> WorkerInfo<'a> {
    /// # Safety
    /// The library filled in `raw`; its pointers are valid for 'a.
    pub(crate) unsafe fn new(raw: sys::feedlane_worker_info) -> Self {
        WorkerInfo { raw, owner: PhantomData }
    }

    /// 0 .. count - 1. `None`: inline, in the trainer.
    pub fn id(&self) -> Option<i32> {
        Some(self.raw.id).filter(|id| *id != -1)
    }

    pub fn count(&self) -> i32 {
        self.raw.count
    }

    /// 0, and one more for each replacement.
    pub fn generation(&self) -> i32 {
        self.raw.generation
    }

    pub fn is_iterable(&self) -> bool {
        self.raw.iterable != 0
    }

    /// Iterable: the loader's rank, 0 .. world - 1; map-style: 0.
    pub fn rank(&self) -> i32 {
        self.raw.rank
    }

    /// Iterable: the number of ranks; map-style: 1.
    pub fn world(&self) -> i32 {
        self.raw.world
    }

    /// Iterable: number of the shard to iterate: rank * count + id; inline: rank.
    pub fn shard(&self) -> i64 {
        self.raw.shard
    }

    /// Iterable: number of shards of all ranks: world * count; inline: world.
    pub fn shards(&self) -> i64 {
        self.raw.shards
    }

    /// The base seed plus the shard. Equal in every epoch.
    pub fn seed(&self) -> u64 {
        self.raw.seed
    }

    /// The newest epoch begun, 0 before the first. Kept workers outlive epochs.
    pub fn epoch(&self) -> i64 {
        self.raw.epoch
    }

    /// The bytes of the loader's `worker_config`.
    pub fn config(&self) -> &'a [u8] {
        // SAFETY: `config_bytes` bytes, by `new`'s promise.
        unsafe { bytes_at(self.raw.config, self.raw.config_bytes) }
    }

    /// The fields, as the trainer declared them.
    pub fn fields(&self) -> Vec<Field> {
        if self.raw.fields.is_null() {
            return Vec::new();
        }
        // SAFETY: `field_count` fields, by `new`'s promise. Each is as long as the library's struct, whose length is
        // its `size`.
        unsafe {
            let apart = (*self.raw.fields).size;
            (0..self.raw.field_count as usize)
                .map(|i| {
                    let f = *self.raw.fields.cast::<u8>().add(i * apart).cast::<sys::feedlane_field>();
                    let name = CStr::from_ptr(f.name).to_string_lossy();
                    Field::of(&name, Dtype::from_c(f.dtype), &f.shape[..f.ndim as usize])
                })
                .collect()
        }
    }
}

/// The place of one sample to make.
pub struct Row<'a> {
    raw: &'a sys::feedlane_row,
    task: &'a sys::feedlane_task,
}

impl<'a> Row<'a> {
    /// # Safety
    /// The library gave `raw` to a callback that lasts for 'a.
    unsafe fn new(raw: *const sys::feedlane_row) -> Self {
        // SAFETY: the caller's promise. A row always has a task.
        unsafe { Row { raw: &*raw, task: &*(*raw).task } }
    }

    /// The data set index; iterable: the sample's number in the shard, from 0.
    pub fn index(&self) -> i64 {
        self.raw.index
    }

    /// The sample's seed, which does not depend on the worker. Use it for augmentation.
    pub fn seed(&self) -> u64 {
        self.raw.seed
    }

    pub fn epoch(&self) -> i64 {
        self.task.epoch
    }

    /// The number of the batch in the epoch, from 0.
    pub fn batch(&self) -> i64 {
        self.task.batch
    }

    /// The row in the batch.
    pub fn row(&self) -> usize {
        self.raw.row as usize
    }

    /// This row of field number `field`, to be written in place. E_ARGUMENT: there is no such field, or its elements
    /// are not `T`s.
    pub fn field_mut<T: Element>(&mut self, field: usize) -> Result<ValuesMut<'_, T>, Error> {
        // SAFETY: the task has `tensor_count` tensors.
        let tensors = unsafe { slice_at(self.task.tensors, self.task.tensor_count as u64) };
        let tensor = tensors.get(field).ok_or_else(|| Error::beyond("field", field, "sample", tensors.len()))?;
        // SAFETY: there is one pointer and one length per tensor.
        let (data, bytes) = unsafe { (*self.raw.fields.add(field), *self.raw.bytes.add(field)) };
        let count = elements_of::<T>(tensor.dtype, data.cast(), bytes, "field")?;
        // SAFETY: `count` aligned elements that belong to this row alone.
        Ok(unsafe { ValuesMut::new(data.cast(), count) })
    }

    /// Copies `values` to the field. E_ARGUMENT: see `field_mut`, or the number of elements differs.
    pub fn write<T: Element>(&mut self, field: usize, values: &[T]) -> Result<(), Error> {
        let mut elements = self.field_mut::<T>(field)?;
        let (found, needed) = (values.len(), elements.len());
        if found != needed {
            let text = format!("the sample has {} elements, but the field has {}", found, needed);
            return Err(Error::new(Status::ARGUMENT, "values", found as i64, needed as i64, text));
        }
        elements.copy_from_slice(values);
        Ok(())
    }

    /// Writes `value` to every element of a field, which may be a single one.
    pub fn fill<T: Element>(&mut self, field: usize, value: T) -> Result<(), Error> {
        self.field_mut::<T>(field).map(|mut elements| elements.fill(value))
    }
}

/// The body of a callback: returns `f`'s status, or reports its failure and returns `code`.
///
/// # Safety
/// See `say`.
pub(crate) unsafe fn answer(err: *mut sys::feedlane_error, code: i32, f: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    guarded(f).unwrap_or_else(|failure| {
        // SAFETY: the caller's promise.
        unsafe { say(err, &said(failure)) };
        code
    })
}

/// Writes a state and its length for a `save` callback. Returns false if the state is longer than `cap`; then only the
/// length is written.
///
/// # Safety
/// There is room for `cap` bytes at `buffer`, and for one number at `bytes`.
pub(crate) unsafe fn write_state(state: &[u8], buffer: *mut c_void, cap: u64, bytes: *mut u64) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        *bytes = state.len() as u64;
        if *bytes > cap {
            return false;
        }
        std::ptr::copy_nonoverlapping(state.as_ptr(), buffer.cast::<u8>(), state.len());
    }
    true
}

/// The callbacks that map-style and iterable data sets share.
fn table<D: 'static>(open: OpenCallback) -> sys::feedlane_dataset {
    unsafe extern "C" fn close<D>(this: *mut c_void) {
        // SAFETY: `open` made it; it is freed once.
        let_go(unsafe { Box::from_raw(this.cast::<D>()) });
    }
    let mut table = sys::feedlane_dataset::new();
    table.open = Some(open);
    table.close = Some(close::<D>);
    table
}

type OpenCallback = unsafe extern "C" fn(
    *mut c_void,
    *const sys::feedlane_worker_info,
    *mut *mut c_void,
    *mut sys::feedlane_error,
) -> i32;

/// The `open` callback of both kinds of data sets.
///
/// # Safety
/// The arguments are those of the C callback.
unsafe fn opened<D>(
    info: *const sys::feedlane_worker_info,
    out: *mut *mut c_void,
    err: *mut sys::feedlane_error,
    open: impl FnOnce(&WorkerInfo<'_>) -> Result<D, Failure>,
) -> i32 {
    // SAFETY: the library's struct, and room for one pointer.
    unsafe {
        answer(err, sys::FEEDLANE_E_INIT, || {
            *out = Box::into_raw(Box::new(open(&WorkerInfo::new(*info))?)).cast();
            Ok(sys::FEEDLANE_OK)
        })
    }
}

/// The callbacks of a map-style data set.
pub(crate) fn dataset_table<D: Dataset>() -> sys::feedlane_dataset {
    unsafe extern "C" fn open<D: Dataset>(
        _user: *mut c_void,
        info: *const sys::feedlane_worker_info,
        out: *mut *mut c_void,
        err: *mut sys::feedlane_error,
    ) -> i32 {
        // SAFETY: the library's arguments.
        unsafe { opened(info, out, err, D::open) }
    }
    unsafe extern "C" fn get<D: Dataset>(
        this: *mut c_void,
        row: *const sys::feedlane_row,
        err: *mut sys::feedlane_error,
    ) -> i32 {
        // SAFETY: `open` made it, and one thread at a time uses it; the library's row.
        unsafe {
            answer(err, sys::FEEDLANE_E_SAMPLE, || {
                (*this.cast::<D>()).get(&mut Row::new(row)).map(|()| sys::FEEDLANE_OK)
            })
        }
    }
    unsafe extern "C" fn fetch<D: Dataset>(
        this: *mut c_void,
        task: *const sys::feedlane_task,
        err: *mut sys::feedlane_error,
    ) -> i32 {
        // SAFETY: as in `get`; the library's task.
        unsafe {
            answer(err, sys::FEEDLANE_E_SAMPLE, || {
                (*this.cast::<D>()).fetch(&mut Work::new(task)).map(|()| sys::FEEDLANE_OK)
            })
        }
    }
    unsafe extern "C" fn substitute<D: Dataset>(
        this: *mut c_void,
        failed: i64,
        seed: u64,
        tries: u32,
        other: *mut i64,
        err: *mut sys::feedlane_error,
    ) -> i32 {
        // SAFETY: as in `get`; room for one index.
        unsafe {
            answer(err, sys::FEEDLANE_E_SAMPLE, || match (*this.cast::<D>()).substitute(failed, seed, tries) {
                Some(index) => {
                    *other = index;
                    Ok(sys::FEEDLANE_OK)
                }
                None => Ok(sys::FEEDLANE_END),
            })
        }
    }
    let mut table = table::<D>(open::<D>);
    if D::WHOLE_BATCHES {
        table.fetch = Some(fetch::<D>);
    } else {
        table.get = Some(get::<D>);
    }
    table.substitute = Some(substitute::<D>);
    table
}

/// The callbacks of an iterable data set.
pub(crate) fn shard_table<S: Shard>() -> sys::feedlane_dataset {
    unsafe extern "C" fn open<S: Shard>(
        _user: *mut c_void,
        info: *const sys::feedlane_worker_info,
        out: *mut *mut c_void,
        err: *mut sys::feedlane_error,
    ) -> i32 {
        // SAFETY: the library's arguments.
        unsafe { opened(info, out, err, S::open) }
    }
    unsafe extern "C" fn next<S: Shard>(
        this: *mut c_void,
        row: *const sys::feedlane_row,
        err: *mut sys::feedlane_error,
    ) -> i32 {
        // SAFETY: `open` made it, and one thread at a time uses it; the library's row.
        unsafe {
            answer(err, sys::FEEDLANE_E_SAMPLE, || {
                let made = (*this.cast::<S>()).next(&mut Row::new(row))?;
                Ok(if made { sys::FEEDLANE_OK } else { sys::FEEDLANE_END })
            })
        }
    }
    unsafe extern "C" fn restart<S: Shard>(this: *mut c_void, epoch: i64, err: *mut sys::feedlane_error) -> i32 {
        // SAFETY: as in `next`.
        unsafe { answer(err, sys::FEEDLANE_E_INIT, || (*this.cast::<S>()).restart(epoch).map(|()| sys::FEEDLANE_OK)) }
    }
    unsafe extern "C" fn save<S: Shard>(
        this: *mut c_void,
        buffer: *mut c_void,
        cap: u64,
        bytes: *mut u64,
        err: *mut sys::feedlane_error,
    ) -> i32 {
        // SAFETY: as in `next`; there is room for `cap` bytes and for one number.
        unsafe {
            answer(err, sys::FEEDLANE_E_SAMPLE, || {
                let state = (*this.cast::<S>()).save();
                if write_state(&state, buffer, cap, bytes) {
                    return Ok(sys::FEEDLANE_OK);
                }
                Err(format!("the shard's state has {} bytes, but at most {} are allowed", state.len(), cap).into())
            })
        }
    }
    unsafe extern "C" fn load<S: Shard>(
        this: *mut c_void,
        buffer: *const c_void,
        bytes: u64,
        err: *mut sys::feedlane_error,
    ) -> i32 {
        // SAFETY: as in `next`; there are `bytes` bytes to read.
        unsafe {
            answer(err, sys::FEEDLANE_E_INIT, || {
                (*this.cast::<S>()).load(bytes_at(buffer, bytes)).map(|()| sys::FEEDLANE_OK)
            })
        }
    }
    let mut table = table::<S>(open::<S>);
    table.next = Some(next::<S>);
    table.restart = Some(restart::<S>);
    if S::SAVES {
        table.save = Some(save::<S>);
        table.load = Some(load::<S>);
    }
    table
}
