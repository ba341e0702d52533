// SPDX-License-Identifier: Apache-2.0
//! One loader, many trainers: places for consumers, the feeder's loop, joining.
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::io::{FromRawFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::ptr::{null_mut, NonNull};
use std::time::Duration;

use crate::error::{call, check_abi, only_ok, plain, Error, Status};
use crate::loader::{nanoseconds, Loader};
use crate::sys;

/// Who gets which batch of a loader with consumers in other processes. Such a loader has workers, and no
/// [`pinned`](crate::LoaderBuilder::pinned).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Every consumer gets every batch.
    Every,
    /// Batch k goes to consumer k mod [`consumers`](crate::LoaderBuilder::consumers).
    Deal,
}

impl Share {
    pub(crate) fn to_c(self) -> i32 {
        match self {
            Share::Every => sys::FEEDLANE_SHARE_EVERY,
            Share::Deal => sys::FEEDLANE_SHARE_DEAL,
        }
    }
}

/// What the feeder does when it has no free slot because a consumer has not released its batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lag {
    /// Waits for it.
    #[default]
    Block,
    /// Waits for `after` without progress of the consumer (none: 60 s), then ends its place.
    Evict { after: Option<Duration> },
    /// Takes back what the consumer has not taken: it misses those batches, see [`Batch::missed`](crate::Batch::missed).
    /// Not with [`Share::Deal`].
    Observe,
}

/// A consumer's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerOptions {
    /// [`Share::Deal`]: the rank; none: any that has no consumer.
    pub id: Option<i32>,
    pub lag: Lag,
}

impl ConsumerOptions {
    fn to_c(self) -> sys::feedlane_consumer_config {
        let mut raw = sys::feedlane_consumer_config::new();
        raw.id = self.id.unwrap_or(-1);
        raw.lag = match self.lag {
            Lag::Block => sys::FEEDLANE_LAG_BLOCK,
            Lag::Evict { after } => {
                raw.evict_after_ns = after.map_or(0, |after| nanoseconds(Some(after)).max(1));
                sys::FEEDLANE_LAG_EVICT
            }
            Lag::Observe => sys::FEEDLANE_LAG_OBSERVE,
        };
        raw
    }
}

/// How [`Loader::serve`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Every batch of the epoch was delivered. Before the first epoch:
    /// [`consumers`](crate::LoaderBuilder::consumers) have joined. After an epoch: all have left.
    End,
    /// The time has passed: call again.
    Timeout,
    /// A signal, or [`Handle::interrupt`](crate::Handle::interrupt): call again.
    Interrupted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerState {
    /// [`Share::Deal`]: the place has no consumer; its batches wait for a replacement.
    None,
    /// Opened, not joined.
    Offered,
    /// Has joined.
    Attached,
    /// Was evicted, and still holds batches.
    Evicted,
    /// Has left, and still holds batches.
    Left,
    /// Of a later library.
    Other(i32),
}

/// A consumer, as its feeder sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerStats {
    /// The place.
    pub id: i32,
    pub state: ConsumerState,
    /// None: unknown, or it has not joined.
    pub pid: Option<i64>,
    /// `sys::FEEDLANE_LAG_*`.
    pub lag: i32,
    /// Batches.
    pub delivered: u64,
    /// Batches that it had not taken when the feeder needed their slots.
    pub taken_back: u64,
    /// Batches delivered and not taken.
    pub waiting: u64,
    /// Batches taken and not returned.
    pub held: u64,
}

impl ConsumerStats {
    fn from_c(raw: &sys::feedlane_consumer_stats) -> Self {
        ConsumerStats {
            id: raw.id,
            state: match raw.state {
                sys::FEEDLANE_CONSUMER_NONE => ConsumerState::None,
                sys::FEEDLANE_CONSUMER_OFFERED => ConsumerState::Offered,
                sys::FEEDLANE_CONSUMER_ATTACHED => ConsumerState::Attached,
                sys::FEEDLANE_CONSUMER_EVICTED => ConsumerState::Evicted,
                sys::FEEDLANE_CONSUMER_LEFT => ConsumerState::Left,
                other => ConsumerState::Other(other),
            },
            pid: Some(raw.pid).filter(|pid| *pid > 0),
            lag: raw.lag,
            delivered: raw.delivered,
            taken_back: raw.taken_back,
            waiting: raw.waiting,
            held: raw.held,
        }
    }
}

/// Of a loader with [`LoaderBuilder::share`](crate::LoaderBuilder::share), which feeds consumers.
impl Loader {
    /// Opens a place for one consumer: its number, and the descriptor to pass to that process, which calls
    /// [`Loader::join`] with it. Close it once that process has it. From here on batches are kept for the place.
    /// [`Share::Deal`]: a place whose consumer has ended is opened again by the same call.
    ///  - E_STATE: the loader is not shared.
    ///  - E_LIMIT: all places have a consumer.
    ///  - E_ARGUMENT: the id is out of range, or has a consumer.
    pub fn open_consumer(&mut self, options: &ConsumerOptions) -> Result<(i32, OwnedFd), Error> {
        let config = options.to_c();
        let (mut id, mut fd) = (-1, -1);
        self.call(|raw, err| {
            // SAFETY: the handle lives, and `&mut self` is the one thread in it; structs of ours. So in all calls here.
            unsafe { sys::feedlane_loader_open_consumer(raw, &config, &mut id, &mut fd, err) }
        })
        .and_then(only_ok)?;
        // SAFETY: the descriptor is the caller's to close.
        Ok((id, unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The feeder's loop: delivers batches to the consumers, takes them back, admits consumers and observes their ends,
    /// until the epoch is over or the time has passed (none: no limit). Before the first epoch: until all consumers have
    /// joined, for those that join by a path and are to miss no batch. After an epoch: until all have left.
    ///  - E_PEER_DEAD: there is no consumer, or with [`Share::Deal`] a place has none: see [`Loader::open_consumer`].
    ///  - E_HUNG: every slot is held by consumers that were evicted.
    pub fn serve(&mut self, timeout: Option<Duration>) -> Result<Served, Error> {
        let timeout = nanoseconds(timeout);
        // SAFETY: as above.
        let status = self.call(|raw, err| unsafe { sys::feedlane_loader_serve(raw, timeout, err) })?;
        Ok(match status {
            Status::END => Served::End,
            Status::INTERRUPTED => Served::Interrupted,
            _ => Served::Timeout,
        })
    }

    /// The consumers, those included that have ended and still hold batches.
    pub fn consumers(&mut self) -> Result<Vec<ConsumerStats>, Error> {
        let mut all = Vec::new();
        loop {
            let mut out = sys::feedlane_consumer_stats::new();
            // SAFETY: as above.
            let status = unsafe { sys::feedlane_loader_get_consumer(self.raw(), all.len() as i32, &mut out) };
            if plain(status)? != Status::OK {
                return Ok(all);
            }
            all.push(ConsumerStats::from_c(&out));
        }
    }
}

/// Of a consumer: a loader that yields what a feeder in another process delivers.
impl Loader {
    /// Joins a feeder by the descriptor of its [`Loader::open_consumer`]. A place takes one consumer. Batches are read as
    /// those of any loader; their tensors are memory that this process cannot write, so
    /// [`Batch::tensor_mut`](crate::Batch::tensor_mut) is E_STATE. The feeder's order is trusted, as by a worker.
    ///  - E_PEER_DEAD: the feeder has ended. TIMEOUT: it did not answer in time; none: no limit.
    ///  - E_CORRUPT, E_ABI: the descriptor leads to no feeder, or to another version's.
    ///
    /// `next` returns E_PEER_DEAD after the feeder's end, E_HUNG after this consumer was evicted, E_STATE if the feeder is
    /// in a later epoch or has stopped this one.
    pub fn join(fd: OwnedFd, timeout: Option<Duration>) -> Result<Loader, Error> {
        check_abi()?;
        let mut raw = null_mut();
        let timeout = nanoseconds(timeout);
        // SAFETY: the library owns the descriptor in every case; room of ours for a handle.
        call(|err| unsafe { sys::feedlane_loader_join(fd.into_raw_fd(), timeout, &mut raw, err) }).and_then(only_ok)?;
        // SAFETY: a handle that is nobody else's.
        Ok(unsafe { Loader::new_consumer(NonNull::new(raw).expect("a handle on success")) })
    }

    /// Joins a feeder at its [`LoaderBuilder::share_path`](crate::LoaderBuilder::share_path). The feeder opens the place
    /// when it serves next.
    ///  - E_PEER_DEAD: no feeder listens there. E_LIMIT, E_ARGUMENT: see [`Loader::open_consumer`].
    pub fn join_path(
        path: impl AsRef<Path>,
        options: &ConsumerOptions,
        timeout: Option<Duration>,
    ) -> Result<Loader, Error> {
        check_abi()?;
        let path = c_path(path.as_ref())?;
        let config = options.to_c();
        let mut raw = null_mut();
        let timeout = nanoseconds(timeout);
        // SAFETY: a terminated path and structs of ours.
        call(|err| unsafe { sys::feedlane_loader_join_path(path.as_ptr(), &config, timeout, &mut raw, err) })
            .and_then(only_ok)?;
        // SAFETY: a handle that is nobody else's.
        Ok(unsafe { Loader::new_consumer(NonNull::new(raw).expect("a handle on success")) })
    }

    /// The smallest epoch that [`Loader::begin`] accepts on this consumer: the one that the feeder was in when it joined,
    /// or the one after the last that it has begun. E_STATE: not a consumer.
    pub fn next_epoch(&mut self) -> Result<i64, Error> {
        let mut epoch = -1;
        // SAFETY: as above.
        plain(unsafe { sys::feedlane_loader_next_epoch(self.raw(), &mut epoch) })?;
        Ok(epoch)
    }
}

/// As the library takes it.
pub(crate) fn c_path(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::argument("path", format!("{:?} has a zero in it", path)))
}
