// SPDX-License-Identifier: Apache-2.0
//! The trainer's side: a loader and its epochs.
use std::iter::FusedIterator;
use std::os::unix::io::{BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use crate::args::{armed, nanoseconds};
use crate::batch::Batch;
use crate::error::{plain, Error, Report, Status};
use crate::event::Event;
use crate::handle::Handle;
use crate::monitor::Monitor;
use crate::pool::Pool;
use crate::sys;

/// Feeds a training loop. It may move between threads; one thread at a time drives it, as `&mut self` ensures. Other
/// threads use [`Loader::handle`].
///
/// There are two ways to end a loader. [`close`](Loader::close) lets the workers finish, waits for them and returns an
/// error if one did not end. Dropping a loader never waits: a busy worker process is killed, at the latest when the
/// last [`Handle`] is dropped, and threads are asked to end. Held batches stay valid.
pub struct Loader {
    /// NULL after `close`.
    raw: *mut sys::feedlane_loader,
    report: Report,
    /// The pool that the slots, or the buffers of a staged loader, are registered with.
    pool: Option<Arc<Pool>>,
    /// The batches come from a feeder in another process.
    is_consumer: bool,
}

// SAFETY: a loader is not bound to the thread that created it. An inline data set is Send too.
unsafe impl Send for Loader {}

/// The outcome of [`Loader::next`].
#[derive(Debug)]
pub enum Next {
    Batch(Batch),
    /// The epoch is over.
    End,
    /// No batch came in time.
    Timeout,
    /// A signal or [`Handle::interrupt`] ended the wait. No batch is lost: call again.
    Interrupted,
    /// The trainer holds every slot: drop a batch, or raise `held`. The error contains the numbers.
    SlotsHeld(Error),
}

/// Whether the feeder has ended, or has evicted this consumer.
fn is_end_of_consumer(error: &Error) -> bool {
    matches!(error.status, Status::PEER_DEAD | Status::HUNG)
}

impl Loader {
    /// # Safety
    /// The handle is valid, belongs to nobody else, and was created with this pool.
    pub(crate) unsafe fn new(raw: NonNull<sys::feedlane_loader>, pool: Option<Arc<Pool>>) -> Self {
        Loader { raw: raw.as_ptr(), report: Report::with_detail(), pool, is_consumer: false }
    }

    /// # Safety
    /// The handle is valid, belongs to nobody else, is a consumer, and joined with this pool.
    pub(crate) unsafe fn new_consumer(raw: NonNull<sys::feedlane_loader>, pool: Option<Arc<Pool>>) -> Self {
        Loader { raw: raw.as_ptr(), report: Report::with_detail(), pool, is_consumer: true }
    }

    pub(crate) fn raw(&mut self) -> *mut sys::feedlane_loader {
        self.raw
    }

    fn there(&self) -> NonNull<sys::feedlane_loader> {
        NonNull::new(self.raw).expect("the closed loader was abandoned")
    }

    /// Starts an epoch, and workers that are not running. An epoch in progress is abandoned first.
    pub fn begin(&mut self, epoch: i64) -> Result<(), Error> {
        self.call(|raw, err| {
            // SAFETY: the handle is valid, and `&mut self` makes this the only thread that drives it. So in all calls
            // here.
            unsafe { sys::feedlane_loader_begin(raw, epoch, err) }
        })
        .map(drop)
    }

    /// Starts an epoch and iterates over its batches.
    pub fn epoch(&mut self, epoch: i64) -> Result<Epoch<'_>, Error> {
        self.begin(epoch)?;
        Ok(Epoch { loader: self, is_over: false })
    }

    /// Waits for the next batch. No timeout means no limit; `Duration::ZERO` tries once. An error for which
    /// [`Error::is_of_one_batch`] returns true does not affect the batches that follow.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Next, Error> {
        let mut batch = sys::feedlane_batch::new();
        let timeout = nanoseconds(timeout);
        // SAFETY: as above; `batch` is a local struct.
        let status = self.call(|raw, err| unsafe { sys::feedlane_loader_next(raw, timeout, &mut batch, err) })?;
        Ok(match status {
            // SAFETY: it was just yielded; the new batch takes over the reference.
            Status::OK => Next::Batch(unsafe { Batch::new(self.there(), batch, self.pool.clone(), self.is_consumer) }),
            Status::END => Next::End,
            Status::INTERRUPTED => Next::Interrupted,
            Status::SLOTS_HELD => Next::SlotsHeld(self.report.error(status.0)),
            _ => Next::Timeout,
        })
    }

    /// Reaps and restarts workers and dispatches tasks, without waiting. Call it while a device works. True: `next` has
    /// an outcome to return.
    pub fn poll(&mut self) -> Result<bool, Error> {
        // SAFETY: as above.
        self.call(|raw, err| unsafe { sys::feedlane_loader_poll(raw, err) }).map(|status| status == Status::AGAIN)
    }

    /// Prepares to sleep in an event loop. `None`: call `next` now (a feeder: `serve`). Otherwise sleep until this
    /// descriptor, whose number never changes, is readable.
    pub fn arm(&mut self) -> Result<Option<BorrowedFd<'_>>, Error> {
        // SAFETY: as above. The loader owns the descriptor, which is open as long as the loader lives.
        unsafe { armed(|fd| sys::feedlane_loader_arm(self.raw, fd)) }
    }

    /// Ends the epoch and all workers; `begin` starts them again.
    pub fn stop(&mut self) -> Result<(), Error> {
        // SAFETY: as above.
        self.call(|raw, err| unsafe { sys::feedlane_loader_stop(raw, err) }).map(drop)
    }

    /// Lets each worker finish its task and waits for the workers. After the stop timeouts, the remaining workers are
    /// killed. E_HUNG: a worker still exists.
    pub fn close(mut self) -> Result<(), Error> {
        // SAFETY: this handle may be destroyed. The call sets the pointer to NULL, so `drop` does nothing.
        plain(unsafe { sys::feedlane_loader_destroy(&mut self.raw) }).map(drop)
    }

    /// The number of batches in an epoch. `None`: unknown.
    pub fn length(&self) -> Result<Option<i64>, Error> {
        Ok(self.monitor()?.info()?.batches)
    }

    /// The position in the epoch just after `batch`, or after the newest batch, for a model checkpoint taken after that
    /// batch. A loader that is created with this state continues with exactly the remaining batches.
    pub fn state(&mut self, batch: Option<&Batch>) -> Result<Vec<u8>, Error> {
        let token = match batch {
            Some(other) if other.loader().as_ptr() != self.raw => {
                return Err(Error::argument("batch", "the batch belongs to another loader".into()));
            }
            Some(held) => held.token(),
            None => 0,
        };
        let raw = self.raw;
        crate::state::written(0, |buffer, cap, bytes, err| {
            // SAFETY: as above; there is room for `cap` bytes.
            unsafe { sys::feedlane_loader_state(raw, token, buffer, cap, bytes, err) }
        })
    }

    /// External mode: the id and the descriptor of a worker to start, either `wanted` or any missing one. `None`: no
    /// worker is missing. Close the descriptor after the worker process has inherited it.
    pub fn open_worker(&mut self, wanted: Option<i32>) -> Result<Option<(i32, OwnedFd)>, Error> {
        let (mut id, mut fd) = (wanted.unwrap_or(-1), -1);
        // SAFETY: as above; `id` and `fd` are local variables.
        let status = self.call(|raw, err| unsafe { sys::feedlane_loader_open_worker(raw, &mut id, &mut fd, err) })?;
        // SAFETY: the descriptor belongs to the caller.
        Ok(Some(id).filter(|_| status == Status::OK).map(|id| (id, unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// A reference to this loader, for other threads.
    pub fn handle(&self) -> Handle {
        // SAFETY: this loader holds a reference.
        unsafe { Handle::of(self.there(), self.pool.clone()) }
    }

    /// A monitor of this loader: counters, workers, timings, the trace, errors and the bottleneck. Any thread may use
    /// it, also after the loader's end.
    pub fn monitor(&self) -> Result<Monitor, Error> {
        self.handle().monitor()
    }

    /// The oldest event that was not read yet, or `None`.
    pub fn event(&self) -> Result<Option<Event>, Error> {
        self.handle().event()
    }

    /// A short report for people about the current or newest epoch, see [`Monitor::report`].
    pub fn report(&self) -> Result<String, Error> {
        self.monitor()?.report()
    }

    /// Makes a call whose error may have a traceback.
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
            // SAFETY: the handle's first reference, released once. Neither call waits.
            unsafe {
                sys::feedlane_loader_close(self.raw);
                sys::feedlane_loader_unref(self.raw);
            }
        }
    }
}

/// The batches of an epoch. After an error for which [`may_go_on`](Error::may_go_on) returns true (a failed sample, a
/// signal, slots held, a lost shard), it can be asked for the next batch. After any other error it ends.
pub struct Epoch<'a> {
    loader: &'a mut Loader,
    is_over: bool,
}

impl Epoch<'_> {
    /// The loader, for calls between two batches: `poll`, `state`, statistics.
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
