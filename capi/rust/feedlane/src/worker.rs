// SPDX-License-Identifier: Apache-2.0
//! The worker's side: with a data set, or task by task.
use std::os::unix::io::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::process::ExitCode;
use std::ptr::{null, null_mut, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::callbacks::{dataset_table, shard_table, Dataset, Shard, WorkerInfo};
use crate::closer::Closer;
use crate::error::{call, check_abi, plain, Error, Status};
use crate::failure::{guarded, said, Failure};
use crate::loader::nanoseconds;
use crate::pool::Pool;
use crate::sys;
use crate::task::{c_text, Task, Work};

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
            Status::OK => NextTask::Task(unsafe { Task::new(task) }),
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
