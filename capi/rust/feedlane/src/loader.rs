// SPDX-License-Identifier: Apache-2.0
//! The trainer's side.
use std::iter::FusedIterator;
use std::os::unix::io::{BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use crate::batch::Batch;
use crate::builder::LoaderBuilder;
use crate::error::{plain, Error, Report, Status};
use crate::handle::{Event, Handle, Stats, WorkerStats};
use crate::observe::{Diagnosis, Timings};
use crate::pool::Pool;
use crate::sys;

/// Feeds a training loop. One thread at a time drives it, which `&mut self` sees to; it may move between threads. What
/// any thread may do meanwhile is in [`Loader::handle`].
///
/// Two ways to end it: [`close`](Loader::close) lets workers finish, waits for them and says how that went. Dropping it
/// never waits: a worker process that is busy is killed, at the latest when the last [`Handle`] goes too; threads are
/// asked to end. Batches that are held live on.
pub struct Loader {
    /// NULL once it was closed.
    raw: *mut sys::feedlane_loader,
    report: Report,
    /// Which its slots, or the buffers that its batches are copied to, are registered with.
    pool: Option<Arc<Pool>>,
    /// Its batches are a feeder's, in another process.
    is_consumer: bool,
}

// SAFETY: nothing of a loader is bound to the thread that made it; an inline data set is Send too.
unsafe impl Send for Loader {}

/// What [`Loader::next`] came back with.
#[derive(Debug)]
pub enum Next {
    Batch(Batch),
    /// The epoch is over.
    End,
    /// Nothing came in time.
    Timeout,
    /// A signal, or [`Handle::interrupt`]. Nothing is lost: call again.
    Interrupted,
    /// The trainer holds every slot: drop a batch, or raise `held`. The error has the numbers.
    SlotsHeld(Error),
}

/// A consumer's feeder has ended, or has evicted it.
fn is_end_of_consumer(error: &Error) -> bool {
    matches!(error.status, Status::PEER_DEAD | Status::HUNG)
}

/// None: no limit. Longer than 292 years is no limit either.
pub(crate) fn nanoseconds(timeout: Option<Duration>) -> i64 {
    timeout.and_then(|t| i64::try_from(t.as_nanos()).ok()).unwrap_or(sys::FEEDLANE_FOREVER)
}

impl Loader {
    pub fn builder<'a>() -> LoaderBuilder<'a> {
        LoaderBuilder::new()
    }

    /// # Safety
    /// The handle is valid and nobody else's, and was made with this pool.
    pub(crate) unsafe fn new(raw: NonNull<sys::feedlane_loader>, pool: Option<Arc<Pool>>) -> Self {
        Loader { raw: raw.as_ptr(), report: Report::with_detail(), pool, is_consumer: false }
    }

    /// # Safety
    /// The handle is valid, nobody else's, and a consumer's.
    pub(crate) unsafe fn new_consumer(raw: NonNull<sys::feedlane_loader>) -> Self {
        Loader { raw: raw.as_ptr(), report: Report::with_detail(), pool: None, is_consumer: true }
    }

    pub(crate) fn raw(&mut self) -> *mut sys::feedlane_loader {
        self.raw
    }

    fn there(&self) -> NonNull<sys::feedlane_loader> {
        NonNull::new(self.raw).expect("a loader that was closed was given up")
    }

    /// Starts an epoch, and workers if none run. In mid-epoch the old one is abandoned first.
    pub fn begin(&mut self, epoch: i64) -> Result<(), Error> {
        self.call(|raw, err| {
            // SAFETY: the handle lives, and `&mut self` is the one thread in it. So in all calls here.
            unsafe { sys::feedlane_loader_begin(raw, epoch, err) }
        })
        .map(drop)
    }

    /// Starts an epoch and iterates over its batches.
    pub fn epoch(&mut self, epoch: i64) -> Result<Epoch<'_>, Error> {
        self.begin(epoch)?;
        Ok(Epoch { loader: self, is_over: false })
    }

    /// The next batch. Without a timeout it waits for ever; `Duration::ZERO` tries once. An error that
    /// [is of one batch](Error::is_of_one_batch) leaves the following ones as they are.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Next, Error> {
        let mut batch = sys::feedlane_batch::new();
        let timeout = nanoseconds(timeout);
        // SAFETY: as above; a struct of ours to fill in.
        let status = self.call(|raw, err| unsafe { sys::feedlane_loader_next(raw, timeout, &mut batch, err) })?;
        Ok(match status {
            // SAFETY: just yielded, with a reference that is the batch's.
            Status::OK => Next::Batch(unsafe { Batch::new(self.there(), batch, self.pool.clone(), self.is_consumer) }),
            Status::END => Next::End,
            Status::INTERRUPTED => Next::Interrupted,
            Status::SLOTS_HELD => Next::SlotsHeld(self.report.error(status.0)),
            _ => Next::Timeout,
        })
    }

    /// Reaps, restarts and dispatches, without waiting: for the time that a device works. True: `next` has something.
    pub fn poll(&mut self) -> Result<bool, Error> {
        // SAFETY: as above.
        self.call(|raw, err| unsafe { sys::feedlane_loader_poll(raw, err) }).map(|status| status == Status::AGAIN)
    }

    /// For a foreign event loop: true: something is there, call `next`; false: sleep until `wait_fd` is readable.
    pub fn arm(&mut self) -> Result<bool, Error> {
        // SAFETY: as above.
        plain(unsafe { sys::feedlane_loader_arm(self.raw) }).map(|status| status == Status::AGAIN)
    }

    pub fn wait_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        let mut fd = -1;
        // SAFETY: any thread.
        plain(unsafe { sys::feedlane_loader_wait_fd(self.raw, &mut fd) })?;
        // SAFETY: the loader's own, open as long as it lives.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Ends the epoch and all workers; `begin` starts them again.
    pub fn stop(&mut self) -> Result<(), Error> {
        // SAFETY: as above.
        self.call(|raw, err| unsafe { sys::feedlane_loader_stop(raw, err) }).map(drop)
    }

    /// Ends the workers, each after its task, and waits for that: up to the stop timeouts, then they are killed. E_HUNG:
    /// one is there still.
    pub fn close(mut self) -> Result<(), Error> {
        // SAFETY: the one handle that may be destroyed; the pointer is NULL after, which dropping leaves alone.
        plain(unsafe { sys::feedlane_loader_destroy(&mut self.raw) }).map(drop)
    }

    /// Batches in an epoch; none: not known.
    pub fn length(&self) -> Result<Option<i64>, Error> {
        let mut batches = -1;
        // SAFETY: any thread.
        plain(unsafe { sys::feedlane_loader_length(self.raw, &mut batches) })?;
        Ok(Some(batches).filter(|n| *n >= 0))
    }

    /// How far the epoch has come just after `batch`, or after the newest one: what a checkpoint of the model after that
    /// batch must hold. A loader built with it goes on with exactly the remaining batches.
    pub fn state(&mut self, batch: Option<&Batch>) -> Result<Vec<u8>, Error> {
        let token = match batch {
            Some(other) if other.loader().as_ptr() != self.raw => {
                return Err(Error::argument("batch", "the batch is another loader's".into()));
            }
            Some(held) => held.token(),
            None => 0,
        };
        let raw = self.raw;
        crate::state::written(|buffer, cap, bytes, err| {
            // SAFETY: as above; `cap` bytes of room.
            unsafe { sys::feedlane_loader_state(raw, token, buffer, cap, bytes, err) }
        })
    }

    /// External mode: the id and the descriptor of a worker to start, of `wanted` or of any that is missing. None: none
    /// is. Close the descriptor once the worker has it.
    pub fn open_worker(&mut self, wanted: Option<i32>) -> Result<Option<(i32, OwnedFd)>, Error> {
        let (mut id, mut fd) = (wanted.unwrap_or(-1), -1);
        // SAFETY: as above; room of ours for both numbers.
        let status = self.call(|raw, err| unsafe { sys::feedlane_loader_open_worker(raw, &mut id, &mut fd, err) })?;
        // SAFETY: the descriptor is the caller's to close.
        Ok(Some(id).filter(|_| status == Status::OK).map(|id| (id, unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// The loader as other threads see it.
    pub fn handle(&self) -> Handle {
        // SAFETY: this is one reference.
        unsafe { Handle::of(self.there(), self.pool.clone()) }
    }

    pub fn stats(&self) -> Result<Stats, Error> {
        self.handle().stats()
    }

    /// Every worker, by its id.
    pub fn workers(&self) -> Result<Vec<WorkerStats>, Error> {
        self.handle().workers()
    }

    /// The oldest event that nobody has read; none: there is none.
    pub fn event(&self) -> Result<Option<Event>, Error> {
        self.handle().event()
    }

    /// How long the steps of batches took. By worker, and much else that can be watched: [`Handle::timings`].
    pub fn timings(&self) -> Result<Timings, Error> {
        self.handle().timings(None)?.ok_or_else(|| Error::bare(Status::END))
    }

    /// What bounded the present epoch since it began, or the newest one.
    pub fn diagnose(&self) -> Result<Diagnosis, Error> {
        self.handle().diagnose()
    }

    /// A short text for people about the present epoch, or the newest one: see [`Handle::report`].
    pub fn report(&self) -> Result<String, Error> {
        self.handle().report()
    }

    /// A call whose error may bring a traceback.
    pub(crate) fn call(
        &mut self,
        f: impl FnOnce(*mut sys::feedlane_loader, *mut sys::feedlane_error) -> i32,
    ) -> Result<Status, Error> {
        match f(self.raw, self.report.room()) {
            status if status < 0 => Err(self.report.error(status)),
            status => Ok(Status(status)),
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the handle's first reference, given back this once. Neither waits.
            unsafe {
                sys::feedlane_loader_close(self.raw);
                sys::feedlane_loader_unref(self.raw);
            }
        }
    }
}

/// The batches of an epoch. After an error that [may go on](Error::may_go_on) (a failed sample, a signal, slots held, a lost
/// shard) it can be asked for the next one; after any other there is none.
pub struct Epoch<'a> {
    loader: &'a mut Loader,
    is_over: bool,
}

impl Epoch<'_> {
    /// For what is to be done between two batches: `poll`, `state`, statistics.
    pub fn loader(&mut self) -> &mut Loader {
        self.loader
    }
}

impl Iterator for Epoch<'_> {
    type Item = Result<Batch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let item = match self.loader.next(None) {
            Ok(Next::Batch(batch)) => Some(Ok(batch)),
            Ok(Next::End) => None,
            Ok(Next::SlotsHeld(error)) => Some(Err(error)),
            Ok(Next::Interrupted) => Some(Err(Error::bare(Status::INTERRUPTED))),
            Ok(Next::Timeout) => Some(Err(Error::bare(Status::TIMEOUT))),
            Err(error) => Some(Err(error)),
        };
        self.is_over = match &item {
            Some(Ok(_)) => false,
            Some(Err(error)) => !error.may_go_on() || self.loader.is_consumer && is_end_of_consumer(error),
            None => true,
        };
        item
    }
}

impl FusedIterator for Epoch<'_> {}
