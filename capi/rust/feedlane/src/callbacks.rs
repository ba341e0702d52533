// SPDX-License-Identifier: Apache-2.0
//! Data sets: what a worker runs, and the C callbacks that lead to it. An error or a panic in there becomes the sample's
//! failure; nothing unwinds into C.
use std::ffi::{c_void, CStr};
use std::marker::PhantomData;
use std::os::raw::c_char;

use crate::builder::Field;
use crate::element::{Dtype, Element};
use crate::error::{bytes_at, slice_at, Error, Status};
use crate::failure::{guarded, let_go, said, Failure, Said};
use crate::sys;
use crate::task::Work;
use crate::tensor::elements_of;
use crate::values::ValuesMut;

/// A data set with an index for each sample. One value a worker, all calls in one thread.
pub trait Dataset: Sized + 'static {
    /// [`Dataset::fetch`] makes whole batches; `get` is not called then.
    const WHOLE_BATCHES: bool = false;

    /// Once a worker. A failure is E_INIT in the trainer.
    fn open(info: &WorkerInfo<'_>) -> Result<Self, Failure>;

    /// One sample into its row.
    fn get(&mut self, row: &mut Row<'_>) -> Result<(), Failure>;

    /// The whole batch: every row of every tensor.
    fn fetch(&mut self, _work: &mut Work<'_>) -> Result<(), Failure> {
        Err("this data set has no fetch".into())
    }

    /// Another index to try in place of `failed`, see [`LoaderBuilder::substitute`](crate::LoaderBuilder::substitute).
    fn substitute(&mut self, _failed: i64, _seed: u64, _tries: u32) -> Option<i64> {
        None
    }
}

/// An iterable data set: each worker goes through a shard of its own.
pub trait Shard: Sized + 'static {
    /// [`Shard::save`] and [`Shard::load`] are to be called.
    const SAVES: bool = false;

    /// Shard `info.id()` of `info.count()`.
    fn open(info: &WorkerInfo<'_>) -> Result<Self, Failure>;

    /// Starts over, before the first sample of each epoch.
    fn restart(&mut self, epoch: i64) -> Result<(), Failure>;

    /// The next sample into its row; false: there is none.
    fn next(&mut self, row: &mut Row<'_>) -> Result<bool, Failure>;

    /// Where it stands, up to 64 KiB.
    fn save(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// After `restart`: goes on from there.
    fn load(&mut self, _state: &[u8]) -> Result<(), Failure> {
        Ok(())
    }
}

/// Who a worker is.
pub struct WorkerInfo<'a> {
    raw: sys::feedlane_worker_info,
    owner: PhantomData<&'a ()>,
}

impl<'a> WorkerInfo<'a> {
    /// # Safety
    /// The library filled `raw` in; what it points to lives for 'a.
    pub(crate) unsafe fn new(raw: sys::feedlane_worker_info) -> Self {
        WorkerInfo { raw, owner: PhantomData }
    }

    /// 0 .. count; none: inline, in the trainer.
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

    /// Iterable: the rank of the loader, 0 .. world; map-style: 0.
    pub fn rank(&self) -> i32 {
        self.raw.rank
    }

    /// Iterable: the number of ranks; map-style: 1.
    pub fn world(&self) -> i32 {
        self.raw.world
    }

    /// Iterable: the number of the shard to iterate: rank * count + id, inline the rank.
    pub fn shard(&self) -> i64 {
        self.raw.shard
    }

    /// Iterable: the shards of all ranks: world * count, inline world.
    pub fn shards(&self) -> i64 {
        self.raw.shards
    }

    /// The base seed and the shard: the same in every epoch.
    pub fn seed(&self) -> u64 {
        self.raw.seed
    }

    /// The one begun last, 0 before the first; kept workers outlive it.
    pub fn epoch(&self) -> i64 {
        self.raw.epoch
    }

    /// What the trainer gave to all its workers.
    pub fn config(&self) -> &'a [u8] {
        // SAFETY: as many bytes, by `new`'s promise.
        unsafe { bytes_at(self.raw.config, self.raw.config_bytes) }
    }

    /// As the trainer declared them.
    pub fn fields(&self) -> Vec<Field> {
        if self.raw.fields.is_null() {
            return Vec::new();
        }
        // SAFETY: as many fields, by `new`'s promise, each as long as the library's own is, which its `size` says.
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

/// One sample to make: where to put it.
pub struct Row<'a> {
    raw: &'a sys::feedlane_row,
    task: &'a sys::feedlane_task,
}

impl<'a> Row<'a> {
    /// # Safety
    /// The library gave `raw` to a callback that lasts for 'a.
    unsafe fn new(raw: *const sys::feedlane_row) -> Self {
        // SAFETY: the caller's promise; a row always has its task.
        unsafe { Row { raw: &*raw, task: &*(*raw).task } }
    }

    /// The data set's index; iterable: its number in the shard, from 0.
    pub fn index(&self) -> i64 {
        self.raw.index
    }

    /// The same in any worker: use it for augmentation.
    pub fn seed(&self) -> u64 {
        self.raw.seed
    }

    pub fn epoch(&self) -> i64 {
        self.task.epoch
    }

    /// Of the batch, from 0.
    pub fn batch(&self) -> i64 {
        self.task.batch
    }

    /// Its row in the batch.
    pub fn row(&self) -> usize {
        self.raw.row as usize
    }

    /// This row of field `field`, to be written where it lies. E_ARGUMENT if there is no such one, or if it isn't made of
    /// `T`s.
    pub fn field_mut<T: Element>(&mut self, field: usize) -> Result<ValuesMut<'_, T>, Error> {
        // SAFETY: the task's own number of tensors.
        let tensors = unsafe { slice_at(self.task.tensors, self.task.tensor_count as u64) };
        let tensor = tensors.get(field).ok_or_else(|| Error::beyond("field", field, "sample", tensors.len()))?;
        // SAFETY: one pointer and one length a tensor.
        let (data, bytes) = unsafe { (*self.raw.fields.add(field), *self.raw.bytes.add(field)) };
        let count = elements_of::<T>(tensor.dtype, data.cast(), bytes, "field")?;
        // SAFETY: `count` aligned elements that are this row's alone.
        Ok(unsafe { ValuesMut::new(data.cast(), count) })
    }

    /// Copies all of a field's elements. E_ARGUMENT also if there are more or fewer.
    pub fn write<T: Element>(&mut self, field: usize, values: &[T]) -> Result<(), Error> {
        let mut elements = self.field_mut::<T>(field)?;
        let (found, needed) = (values.len(), elements.len());
        if found != needed {
            let text = format!("{} elements for a field of {}", found, needed);
            return Err(Error::new(Status::ARGUMENT, "values", found as i64, needed as i64, text));
        }
        elements.copy_from_slice(values);
        Ok(())
    }

    /// Writes a field of one element, or the same to all of its elements.
    pub fn fill<T: Element>(&mut self, field: usize, value: T) -> Result<(), Error> {
        self.field_mut::<T>(field).map(|mut elements| elements.fill(value))
    }
}

/// Tells the library of a failure.
///
/// # Safety
/// `err` is what the library gave to the callback.
unsafe fn say(err: *mut sys::feedlane_error, said: &Said) {
    // SAFETY: the callback's own, or NULL.
    if let Some(err) = unsafe { err.as_mut() } {
        let room = err.text.len() - 1;
        for (to, from) in err.text[..room].iter_mut().zip(said.text.bytes()) {
            *to = from as c_char;
        }
        err.transient = said.transient.into();
        let detail = &said.causes;
        if !err.detail.is_null() {
            let fits = detail.len().min(err.detail_cap as usize);
            // SAFETY: `detail_cap` bytes of room.
            unsafe { std::ptr::copy_nonoverlapping(detail.as_ptr(), err.detail.cast::<u8>(), fits) };
            err.detail_len = detail.len() as u64;
        }
    }
}

/// A callback's whole body: `f`'s status, or its failure told.
///
/// # Safety
/// As `say`.
pub(crate) unsafe fn answer(err: *mut sys::feedlane_error, code: i32, f: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    guarded(f).unwrap_or_else(|failure| {
        // SAFETY: the caller's promise.
        unsafe { say(err, &said(failure)) };
        code
    })
}

/// Writes a state where a `save` callback is to, and its length; false: it is longer than `cap`, only the length is written.
///
/// # Safety
/// `cap` bytes of room at `buffer`, and room for their number at `bytes`.
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

/// The callbacks that every data set `D` has.
fn table<D: 'static>(open: OpenCallback) -> sys::feedlane_dataset {
    unsafe extern "C" fn close<D>(this: *mut c_void) {
        // SAFETY: what `open` made, given back this once.
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

/// What `open` of either kind does.
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

/// The callbacks of a data set with indices.
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
        // SAFETY: what `open` made, used by one thread at a time; the library's row.
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
        // SAFETY: what `open` made, used by one thread at a time; the library's row.
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
        // SAFETY: as in `next`; `cap` bytes of room and room for their number.
        unsafe {
            answer(err, sys::FEEDLANE_E_SAMPLE, || {
                let state = (*this.cast::<S>()).save();
                if write_state(&state, buffer, cap, bytes) {
                    return Ok(sys::FEEDLANE_OK);
                }
                Err(format!("the shard's state is {} bytes, more than {}", state.len(), cap).into())
            })
        }
    }
    unsafe extern "C" fn load<S: Shard>(
        this: *mut c_void,
        buffer: *const c_void,
        bytes: u64,
        err: *mut sys::feedlane_error,
    ) -> i32 {
        // SAFETY: as in `next`; `bytes` bytes to read.
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
