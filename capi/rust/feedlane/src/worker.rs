// SPDX-License-Identifier: Apache-2.0
//! The worker's side: the callback form, and the pull form, in which the worker requests tasks.
use std::cell::Cell;
use std::marker::PhantomData;
use std::os::unix::io::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::process::ExitCode;
use std::ptr::{null, null_mut, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::args::{armed, c_text, nanoseconds};
use crate::callbacks::{dataset_table, shard_table, Dataset, Shard, WorkerInfo};
use crate::closer::{Closer, Owner};
use crate::error::{call, check_abi, plain, Error, Status};
use crate::failure::{guarded, said, Failure};
use crate::pool::Pool;
use crate::sys;
use crate::task::{Task, Work};

/// Call this first in `main`, before any thread is started. If a trainer started this process, it becomes a worker
/// until the trainer no longer needs it. Then the function returns the exit code. `None`: this process is not a worker.
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
/// In a worker process that already has more than one thread, or no /proc to count them. Also if `FEEDLANE_WORKER_FD`
/// names a descriptor that this process opened itself, or a standard stream.
pub fn worker_main<D: Dataset>() -> Option<ExitCode> {
    inherited_descriptor().map(|fd| exit_code(run_worker::<D>(fd)))
}

/// As [`worker_main`], for an iterable data set.
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

/// The descriptor that leads to the trainer, for safe functions. It is returned once, and only if this process did not
/// open it itself.
fn inherited_descriptor() -> Option<OwnedFd> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let number: i32 = std::env::var(VARIABLE).ok()?.parse().ok()?;
    refuse_threads();
    // SAFETY: `fcntl` accepts any number, and returns -1 if it is not a descriptor.
    let flags = unsafe { fcntl(number, F_GETFD) };
    // Descriptors that Rust opens have the close-on-exec flag, the only flag that exists. Descriptors inherited through
    // exec do not have it, and nobody owns them yet, except for the three standard streams.
    let is_inherited = number > 2 && flags == 0;
    assert!(is_inherited || flags == -1, "{}={} was not inherited from a trainer", VARIABLE, number);
    // Relaxed: the flag guards no other memory.
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    // SAFETY: the parent process passed this descriptor for this purpose, and it is taken once.
    unsafe { worker_descriptor() }
}

fn refuse_threads() {
    let tasks = std::fs::read_dir("/proc/self/task");
    let threads = tasks.expect("a worker counts its threads: /proc must be mounted").count();
    assert!(threads == 1, "a worker must look for its trainer at the start of main, before it starts threads");
}

/// The descriptor that leads to the trainer, if a trainer started this process. Removes the variable from the
/// environment, so no other thread may be running. [`Worker::from_environment`] takes the descriptor without `unsafe`.
///
/// # Safety
/// If `FEEDLANE_WORKER_FD` is in the environment, it names a descriptor that nobody else owns. This is true in a
/// process that a trainer started, until the descriptor is taken.
///
/// # Panics
/// In a worker process that already has more than one thread, or no /proc to count them.
pub unsafe fn worker_descriptor() -> Option<OwnedFd> {
    std::env::var_os(VARIABLE)?;
    refuse_threads();
    // SAFETY: changes the environment while there is only one thread.
    let fd = unsafe { sys::feedlane_worker_fd() };
    // SAFETY: by the caller's promise nobody else owns the descriptor. The library returns it once.
    Some(fd).filter(|fd| *fd >= 0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs a worker with a data set until the trainer no longer needs it.
pub fn run_worker<D: Dataset>(fd: OwnedFd) -> Result<(), Error> {
    run(fd, &dataset_table::<D>())
}

/// Runs a worker with a shard of an iterable data set until the trainer no longer needs it.
pub fn run_shard_worker<S: Shard>(fd: OwnedFd) -> Result<(), Error> {
    run(fd, &shard_table::<S>())
}

fn run(fd: OwnedFd, table: &sys::feedlane_dataset) -> Result<(), Error> {
    check_abi()?;
    // SAFETY: the library takes ownership of the descriptor in every case; the table is copied.
    call(|err| unsafe { sys::feedlane_worker_run(fd.into_raw_fd(), null_mut(), table, err) }).map(drop)
}

/// A worker in the pull form. When it is dropped, it leaves the trainer.
pub struct Worker {
    /// A thread worker keeps its loader's memory alive, and so also the pool that the memory is registered with.
    owner: Arc<Owner<sys::feedlane_worker, Option<Arc<Pool>>>>,
    /// One thread at a time uses it, but not always the same thread.
    not_sync: PhantomData<Cell<()>>,
}

/// The outcome of [`Worker::next_task`].
pub enum NextTask<'a> {
    Task(Task<'a>),
    /// The trainer no longer needs this worker, or has ended.
    End,
    Timeout,
    /// A signal ended the wait: call again.
    Interrupted,
}

impl Worker {
    /// Call this first in `main`, before any thread is started: attaches to the trainer that started this process.
    /// `None`: no trainer did, or the descriptor was taken before.
    ///
    /// # Panics
    /// See [`worker_main`].
    pub fn from_environment(timeout: Option<Duration>) -> Result<Option<Self>, Error> {
        inherited_descriptor().map(|fd| Worker::attach(fd, timeout)).transpose()
    }

    /// Attaches to the trainer at the other end of `fd`. Call it in the thread that makes the batches. From then on the
    /// process is killed when its trainer dies.
    pub fn attach(fd: OwnedFd, timeout: Option<Duration>) -> Result<Self, Error> {
        check_abi()?;
        // SAFETY: the library takes ownership of the descriptor in every case.
        let (worker, status) = unsafe { Worker::attached(fd.into_raw_fd(), null_mut(), timeout, None)? };
        worker.ok_or_else(|| Error::new(status, "", 0, 0, "the trainer did not answer in time".into()))
    }

    /// The calling thread as a worker of a loader of this process. `None`: no worker is missing.
    ///
    /// # Safety
    /// The handle is valid, and the loader's memory is registered with this pool.
    pub(crate) unsafe fn of(
        loader: NonNull<sys::feedlane_loader>,
        pool: Option<Arc<Pool>>,
    ) -> Result<Option<Self>, Error> {
        // SAFETY: the caller's promise.
        Ok(unsafe { Worker::attached(-1, loader.as_ptr(), None, pool)?.0 })
    }

    /// # Safety
    /// Either the descriptor belongs to nobody else, or it is -1 and the loader is valid.
    unsafe fn attached(
        fd: i32,
        loader: *mut sys::feedlane_loader,
        timeout: Option<Duration>,
        pool: Option<Arc<Pool>>,
    ) -> Result<(Option<Self>, Status), Error> {
        let (timeout, mut raw) = (nanoseconds(timeout), null_mut());
        // SAFETY: the caller's promise; `raw` is a local variable.
        let status = call(|err| unsafe { sys::feedlane_worker_attach(fd, loader, timeout, &mut raw, err) })?;
        let worker = NonNull::new(raw).map(|raw| Worker {
            // SAFETY: nobody else has this handle.
            owner: unsafe { Owner::new(raw, pool) },
            not_sync: PhantomData,
        });
        Ok((worker, status))
    }

    fn as_ptr(&self) -> *mut sys::feedlane_worker {
        self.owner.as_ptr()
    }

    pub fn info(&self) -> Result<WorkerInfo<'_>, Error> {
        let mut out = sys::feedlane_worker_info::new();
        // SAFETY: the handle is valid, and the struct's pointers are valid as long as the handle.
        plain(unsafe { sys::feedlane_worker_get_info(self.as_ptr(), &mut out) })?;
        // SAFETY: as above.
        Ok(unsafe { WorkerInfo::new(out) })
    }

    /// Reports that the data set is open. Call it once, before the first task.
    pub fn ready(&mut self) -> Result<(), Error> {
        // SAFETY: the handle is valid, and one thread at a time uses it.
        call(|err| unsafe { sys::feedlane_worker_ready(self.as_ptr(), sys::FEEDLANE_OK, null(), err) }).map(drop)
    }

    /// Reports, in place of `ready`, that the data set could not be opened. The trainer's first `next` returns E_INIT
    /// with this text.
    pub fn refuse(&mut self, text: &str) -> Result<(), Error> {
        let (raw, text) = (self.as_ptr(), c_text(text));
        // SAFETY: as in `ready`; the text is copied.
        call(|err| unsafe { sys::feedlane_worker_ready(raw, sys::FEEDLANE_E_INIT, text.as_ptr(), err) }).map(drop)
    }

    /// Waits for a task. No timeout means no limit.
    pub fn next_task(&mut self, timeout: Option<Duration>) -> Result<NextTask<'_>, Error> {
        let raw = self.as_ptr();
        let mut task = null();
        // SAFETY: as in `ready`; `task` is a local variable.
        let status = call(|err| unsafe { sys::feedlane_worker_next(raw, nanoseconds(timeout), &mut task, err) })?;
        Ok(match status {
            // SAFETY: the library's task, valid until it is committed or failed, which `Task` does before its lifetime
            // ends.
            Status::OK => NextTask::Task(unsafe { Task::new(task) }),
            Status::END => NextTask::End,
            Status::INTERRUPTED => NextTask::Interrupted,
            _ => NextTask::Timeout,
        })
    }

    /// Prepares to sleep in an event loop. `None`: call `next_task` now. Otherwise sleep until this descriptor, whose
    /// number never changes, is readable.
    pub fn arm(&mut self) -> Result<Option<BorrowedFd<'_>>, Error> {
        // SAFETY: as in `ready`. The worker owns the descriptor, which is open as long as the worker lives.
        unsafe { armed(|fd| sys::feedlane_worker_arm(self.as_ptr(), fd)) }
    }

    /// A closer, with which another thread can end a wait of this worker.
    pub fn closer(&self) -> Closer {
        self.owner.closer()
    }

    /// Reports that it is ready, then makes batches until the trainer no longer needs this worker. `make` fills every
    /// row of every tensor. An error or a panic of `make` fails its batch only.
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
                Err(error) if error.status == Status::STALE => {} // the trainer has given up this task
                other => other?,
            }
        }
    }
}
