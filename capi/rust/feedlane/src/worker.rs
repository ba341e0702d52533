// SPDX-License-Identifier: Apache-2.0
//! The worker's side: with a data set, or task by task.
use std::ffi::CString;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::unix::io::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::process::ExitCode;
use std::ptr::{null, null_mut, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::builder::Field;
use crate::callbacks::{dataset_table, shard_table, Dataset, Shard, WorkerInfo};
use crate::closer::Closer;
use crate::element::Element;
use crate::error::{bytes_at, call, check_abi, plain, slice_at, Error, Status};
use crate::failure::{guarded, said, Failure};
use crate::loader::nanoseconds;
use crate::pool::Pool;
use crate::sys;
use crate::tensor::TensorMut;

/// First thing in `main`, before any thread: if a trainer started this process, it is a worker here until the trainer
/// wants no more; then the code to end with. None: it is no worker.
///
/// ```no_run
/// # struct Digits;
/// # impl feedlane::Dataset for Digits {
/// #     fn open(_: &feedlane::WorkerInfo<'_>) -> Result<Self, feedlane::Failure> { Ok(Digits) }
/// #     fn get(&mut self, _: &mut feedlane::Row<'_>) -> Result<(), feedlane::Failure> { Ok(()) }
/// # }
/// # use std::process::ExitCode;
/// fn main() -> ExitCode {
///     if let Some(code) = feedlane::worker_main::<Digits>() {
///         return code;
///     }
///     ExitCode::SUCCESS // the trainer
/// }
/// ```
///
/// # Panics
/// In a worker process that has more than one thread by now, or no /proc to count them in. And where `FEEDLANE_WORKER_FD`
/// names a descriptor that this process opened itself, or one of std's three.
pub fn worker_main<D: Dataset>() -> Option<ExitCode> {
    inherited_descriptor().map(|fd| exit_code(run_worker::<D>(fd)))
}

/// The same with an iterable data set.
pub fn shard_worker_main<S: Shard>() -> Option<ExitCode> {
    inherited_descriptor().map(|fd| exit_code(run_shard_worker::<S>(fd)))
}

fn exit_code(end: Result<(), Error>) -> ExitCode {
    match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker: {}", error);
            ExitCode::FAILURE
        }
    }
}

const VARIABLE: &str = "FEEDLANE_WORKER_FD";
const F_GETFD: i32 = 1;

extern "C" {
    fn fcntl(fd: i32, command: i32, ...) -> i32;
}

/// The descriptor that leads to the trainer, for the safe ways to it: once, and none that this process opened itself.
fn inherited_descriptor() -> Option<OwnedFd> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let number: i32 = std::env::var(VARIABLE).ok()?.parse().ok()?;
    refuse_threads();
    // SAFETY: asks for the flags of any number; -1 if it is no descriptor.
    let flags = unsafe { fcntl(number, F_GETFD) };
    // What Rust opens has the one flag there is, to be closed on exec. What came here by exec hasn't, and is nobody's
    // yet but for std's three.
    let is_inherited = number > 2 && flags == 0;
    assert!(is_inherited || flags == -1, "{}={} is a descriptor of this process's own, or std's", VARIABLE, number);
    // Relaxed: a flag by itself.
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    // SAFETY: who started this process gave it the descriptor for this use, and it is taken this once.
    unsafe { worker_descriptor() }
}

fn refuse_threads() {
    let tasks = std::fs::read_dir("/proc/self/task");
    let threads = tasks.expect("a worker counts its threads: /proc must be mounted").count();
    assert!(threads == 1, "a worker looks for its trainer first thing in main, before it starts threads");
}

/// The descriptor that leads to the trainer, if one started this process. It is in the environment, and taken out of
/// there, so no other thread may be there yet. [`Worker::from_environment`] takes it without `unsafe`.
///
/// # Safety
/// If `FEEDLANE_WORKER_FD` is in the environment, it names a descriptor that nobody else owns: so it is in a process
/// that a trainer started, until somebody takes it.
///
/// # Panics
/// In a worker process that has more than one thread by now, or no /proc to count them in.
pub unsafe fn worker_descriptor() -> Option<OwnedFd> {
    std::env::var_os(VARIABLE)?;
    refuse_threads();
    // SAFETY: changes the environment, which this one thread has for itself.
    let fd = unsafe { sys::feedlane_worker_fd() };
    // SAFETY: nobody else's, by the caller's promise; the library names it once.
    Some(fd).filter(|fd| *fd >= 0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A worker with a data set, until the trainer wants no more.
pub fn run_worker<D: Dataset>(fd: OwnedFd) -> Result<(), Error> {
    run(fd, &dataset_table::<D>())
}

/// A worker with a shard of an iterable data set, until the trainer wants no more.
pub fn run_shard_worker<S: Shard>(fd: OwnedFd) -> Result<(), Error> {
    run(fd, &shard_table::<S>())
}

fn run(fd: OwnedFd, table: &sys::feedlane_dataset) -> Result<(), Error> {
    check_abi()?;
    // SAFETY: the descriptor is taken in every case; the table is copied.
    call(|err| unsafe { sys::feedlane_worker_run(fd.into_raw_fd(), table, err) }).map(drop)
}

/// A worker that takes task by task. Dropping it leaves the trainer.
pub struct Worker {
    raw: NonNull<sys::feedlane_worker>,
    /// A thread's keeps its loader's memory, and so what that is registered with.
    _pool: Option<Arc<Pool>>,
}

// SAFETY: one thread at a time, not always the same one.
unsafe impl Send for Worker {}

/// What [`Worker::next_task`] came back with.
pub enum NextTask<'a> {
    Task(Task<'a>),
    /// The trainer wants no more, or is gone.
    End,
    Timeout,
    /// A signal: call again.
    Interrupted,
}

impl Worker {
    /// # Safety
    /// The handle is valid and nobody else's.
    pub(crate) unsafe fn new(raw: NonNull<sys::feedlane_worker>, pool: Option<Arc<Pool>>) -> Self {
        Worker { raw, _pool: pool }
    }

    /// First thing in `main`, before any thread: joins the trainer that started this process. None: none did, or its
    /// descriptor was taken before.
    ///
    /// # Panics
    /// As [`worker_main`].
    pub fn from_environment(timeout: Option<Duration>) -> Result<Option<Self>, Error> {
        inherited_descriptor().map(|fd| Worker::attach(fd, timeout)).transpose()
    }

    /// Joins the trainer at the other end, in the thread that will work. From here on the process dies with its trainer.
    pub fn attach(fd: OwnedFd, timeout: Option<Duration>) -> Result<Self, Error> {
        check_abi()?;
        let mut raw = null_mut();
        // SAFETY: the descriptor is taken in every case; room of ours for the handle.
        let status =
            call(|err| unsafe { sys::feedlane_worker_attach(fd.into_raw_fd(), nanoseconds(timeout), &mut raw, err) })?;
        match NonNull::new(raw) {
            Some(raw) => Ok(Worker { raw, _pool: None }),
            None => Err(Error::new(status, "", 0, 0, "the trainer didn't answer".into())),
        }
    }

    pub fn info(&self) -> Result<WorkerInfo<'_>, Error> {
        let mut out = sys::feedlane_worker_info::new();
        // SAFETY: the handle lives, and with it what the struct points to.
        plain(unsafe { sys::feedlane_worker_get_info(self.raw.as_ptr(), &mut out) })?;
        // SAFETY: as above.
        Ok(unsafe { WorkerInfo::new(out) })
    }

    /// Once, before the first task: the data set is open.
    pub fn ready(&mut self) -> Result<(), Error> {
        // SAFETY: the handle lives, and one thread has it.
        call(|err| unsafe { sys::feedlane_worker_ready(self.raw.as_ptr(), sys::FEEDLANE_OK, null(), err) }).map(drop)
    }

    /// In place of `ready`: it can't be opened. The trainer's first `next` says E_INIT and this text.
    pub fn refuse(&mut self, text: &str) -> Result<(), Error> {
        let (raw, text) = (self.raw.as_ptr(), c_text(text));
        // SAFETY: as in `ready`; the text is copied.
        call(|err| unsafe { sys::feedlane_worker_ready(raw, sys::FEEDLANE_E_INIT, text.as_ptr(), err) }).map(drop)
    }

    /// Waits for a task, for ever without a timeout.
    pub fn next_task(&mut self, timeout: Option<Duration>) -> Result<NextTask<'_>, Error> {
        let raw = self.raw.as_ptr();
        let mut task = null();
        // SAFETY: as in `ready`; room of ours for the pointer.
        let status = call(|err| unsafe { sys::feedlane_worker_next(raw, nanoseconds(timeout), &mut task, err) })?;
        Ok(match status {
            // SAFETY: the library's task, valid until it is committed or failed, which `Task` does before 'a ends.
            Status::OK => NextTask::Task(Task { work: unsafe { Work::new(task) }, is_open: true }),
            Status::END => NextTask::End,
            Status::INTERRUPTED => NextTask::Interrupted,
            _ => NextTask::Timeout,
        })
    }

    /// For a foreign event loop: true: call `next_task`; false: sleep until `wait_fd` is readable.
    pub fn arm(&mut self) -> Result<bool, Error> {
        // SAFETY: as in `ready`.
        plain(unsafe { sys::feedlane_worker_arm(self.raw.as_ptr()) }).map(|status| status == Status::AGAIN)
    }

    pub fn wait_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        let mut fd = -1;
        // SAFETY: any thread; the worker's own, open as long as it lives.
        unsafe {
            plain(sys::feedlane_worker_wait_fd(self.raw.as_ptr(), &mut fd))?;
            Ok(BorrowedFd::borrow_raw(fd))
        }
    }

    /// Ends a wait of this worker from another thread. It leaves the trainer when both are dropped.
    pub fn closer(&self) -> Closer {
        // SAFETY: this is one reference.
        unsafe { Closer::of_worker(self.raw) }
    }

    /// Says that it is ready, then makes batch after batch with `make`, which fills every row of every tensor, until the
    /// trainer wants no more. What `make` returns as an error, and a panic in it, fails its batch and no other.
    pub fn run(&mut self, mut make: impl FnMut(&mut Work<'_>) -> Result<(), Failure>) -> Result<(), Error> {
        self.ready()?;
        loop {
            let mut task = match self.next_task(None)? {
                NextTask::Task(task) => task,
                NextTask::End => return Ok(()),
                NextTask::Timeout | NextTask::Interrupted => continue,
            };
            let told = match guarded(|| make(&mut task.work)) {
                Ok(()) => {
                    let rows = task.count();
                    task.commit(rows)
                }
                Err(failure) => {
                    let said = said(failure);
                    task.fail(None, said.transient, &said.text, &said.causes)
                }
            };
            match told {
                Err(error) if error.status == Status::STALE => {} // the trainer has given this one up
                other => other?,
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the one handle, which nobody uses any more.
        unsafe { sys::feedlane_worker_detach(&mut raw) };
    }
}

/// A text without the zeros that would end it early.
fn c_text(text: &str) -> CString {
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

    /// Iterable, task by task: where the shard stands after this batch, see [`Shard::save`].
    pub fn set_state(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let count = bytes.len() as u64;
        // SAFETY: the task in hand; `count` bytes, which are copied.
        call(|err| unsafe { sys::feedlane_task_state(self.raw, bytes.as_ptr().cast(), count, err) }).map(drop)
    }

    /// In [`Dataset::fetch`]: so many rows are made, 1 to `count`; 0 if all samples are recorded as left out.
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

    /// In a worker: the trainer has given this batch up, or wants no more; whatever is made will be dropped.
    pub fn is_abandoned(&self) -> bool {
        let worker = self.now().worker;
        // SAFETY: the worker that has the task; NULL inline.
        !worker.is_null() && unsafe { sys::feedlane_worker_check(worker) } != sys::FEEDLANE_OK
    }
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

/// A task of [`Worker::next_task`]. Dropped without a commit it is failed.
pub struct Task<'a> {
    work: Work<'a>,
    is_open: bool,
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
