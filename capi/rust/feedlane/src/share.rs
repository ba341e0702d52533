// SPDX-License-Identifier: Apache-2.0
//! One loader, many trainers: places for consumers, the feeder's loop, and joining a feeder.
use std::os::unix::io::{FromRawFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::ptr::{null, null_mut, NonNull};
use std::sync::Arc;
use std::time::Duration;

use crate::args::{at_least_a_nanosecond, c_string, nanoseconds};
use crate::error::{call, check_abi, only_ok, plain, Error, Status};
use crate::loader::Loader;
use crate::pool::Pool;
use crate::sys;

/// How the batches of a loader are divided among consumers in other processes. Such a loader has workers, and no
/// [`pinned`](crate::LoaderBuilder::pinned): its consumers have, see [`Loader::join_pinned`].
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

/// How the feeder acts when it has no free slot because a consumer has not released its batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lag {
    /// Waits for the consumer.
    #[default]
    Block,
    /// Waits, then evicts a consumer that took and returned no batch for `after` (`None`: 60 s).
    Evict { after: Option<Duration> },
    /// Revokes batches that the consumer has not taken yet. The consumer skips them, see
    /// [`Batch::missed`](crate::Batch::missed). Not allowed with [`Share::Deal`].
    Observe,
}

/// A consumer's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerOptions {
    /// The place, with [`Share::Deal`] the rank. `None`: any free place.
    pub id: Option<i32>,
    pub lag: Lag,
}

impl ConsumerOptions {
    fn to_c(self, pool: &Option<Arc<Pool>>) -> sys::feedlane_consumer_config {
        let mut raw = sys::feedlane_consumer_config::new();
        raw.pinned = pool.as_ref().map_or(null_mut(), |pool| pool.as_ptr());
        raw.id = self.id.unwrap_or(-1);
        raw.lag = match self.lag {
            Lag::Block => sys::FEEDLANE_LAG_BLOCK,
            Lag::Evict { after } => {
                raw.evict_after_ns = after.map_or(0, at_least_a_nanosecond);
                sys::FEEDLANE_LAG_EVICT
            }
            Lag::Observe => sys::FEEDLANE_LAG_OBSERVE,
        };
        raw
    }
}

/// The outcome of [`Loader::serve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Every batch of the epoch was delivered. Before the first epoch: [`consumers`](crate::LoaderBuilder::consumers)
    /// consumers have joined. After an epoch: all consumers have left.
    End,
    /// The timeout has passed: call again.
    Timeout,
    /// A signal or [`Handle::interrupt`](crate::Handle::interrupt) ended the wait: call again.
    Interrupted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerState {
    /// [`Share::Deal`]: the place has no consumer; its batches are kept for the next one.
    None,
    /// The place was opened, but nobody has joined yet.
    Offered,
    /// Has joined.
    Attached,
    /// Was evicted, but still holds batches.
    Evicted,
    /// Has left, but still holds batches.
    Left,
    /// A state of a later library.
    Other(i32),
}

/// A consumer, as its feeder sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerStats {
    /// The place.
    pub id: i32,
    pub state: ConsumerState,
    /// `None`: unknown, or the consumer has not joined.
    pub pid: Option<i64>,
    /// `sys::FEEDLANE_LAG_*`.
    pub lag: i32,
    /// Batches delivered.
    pub delivered: u64,
    /// Batches revoked before the consumer took them, or not delivered because its ring was full.
    pub taken_back: u64,
    /// Batches delivered but not yet taken.
    pub waiting: u64,
    /// Batches taken but not yet returned.
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

/// Functions of a feeder: a loader with [`LoaderBuilder::share`](crate::LoaderBuilder::share).
impl Loader {
    /// Opens a place for one consumer. Returns the place's number and a descriptor, which the caller passes to that
    /// process and closes. The process calls [`Loader::join`] with it. From now on batches are kept for the place.
    /// [`Share::Deal`]: call this again to replace a consumer that has ended.
    ///  - E_STATE: the loader is not shared.
    ///  - E_LIMIT: all places have a consumer.
    ///  - E_ARGUMENT: the id is out of range, or this place has a consumer.
    pub fn open_consumer(&mut self, options: &ConsumerOptions) -> Result<(i32, OwnedFd), Error> {
        let config = options.to_c(&None);
        let (mut id, mut fd) = (-1, -1);
        self.call(|raw, err| {
            // SAFETY: the handle is valid, and `&mut self` makes this the only thread that drives it. So in all calls
            // here.
            unsafe { sys::feedlane_loader_open_consumer(raw, &config, &mut id, &mut fd, err) }
        })
        .and_then(only_ok)?;
        // SAFETY: the descriptor belongs to the caller.
        Ok((id, unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The feeder's loop: delivers batches to the consumers, receives released slots, admits consumers and detects
    /// their ends, until the epoch is over or the timeout has passed (`None`: no limit). Before the first epoch it
    /// returns when all consumers have joined; call it then if consumers join by a path and none may miss a batch.
    /// After an epoch it returns when all consumers have left.
    ///  - E_PEER_DEAD: there is no consumer. With [`Share::Deal`] also if a place has none and the batches kept for it
    ///    prevent progress: see [`Loader::open_consumer`].
    ///  - E_HUNG: consumers that were evicted or have left hold every slot.
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

    /// The consumers, including the ones that have ended and still hold batches.
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

/// Functions of a consumer: a loader that yields the batches of a feeder in another process.
impl Loader {
    /// Joins a feeder through the descriptor of its [`Loader::open_consumer`]. A place takes one consumer. Batches are
    /// read like those of any loader. Their tensors are read-only memory, so
    /// [`Batch::tensor_mut`](crate::Batch::tensor_mut) returns E_STATE. A consumer trusts its feeder's indices, as a
    /// worker trusts its trainer's.
    ///  - E_PEER_DEAD: the feeder has ended.
    ///  - TIMEOUT: the feeder did not answer in time. A `timeout` of `None` means no limit.
    ///  - E_CORRUPT, E_ABI: the descriptor is not connected to a feeder, or the feeder's library is of another version.
    ///
    /// `next` returns E_PEER_DEAD after the feeder's end, E_HUNG after this consumer was evicted, and E_STATE if the
    /// feeder is in a later epoch or has stopped this one.
    pub fn join(fd: OwnedFd, timeout: Option<Duration>) -> Result<Loader, Error> {
        Loader::join_fd(fd, None, timeout)
    }

    /// As [`Loader::join`]; the batches' memory is registered with this pool, for reading. The loader and each of its
    /// batches keep the pool alive. E_UNSUPPORTED, E_DEVICE: its device cannot do that.
    pub fn join_pinned(fd: OwnedFd, pool: &Arc<Pool>, timeout: Option<Duration>) -> Result<Loader, Error> {
        Loader::join_fd(fd, Some(pool.clone()), timeout)
    }

    fn join_fd(fd: OwnedFd, pool: Option<Arc<Pool>>, timeout: Option<Duration>) -> Result<Loader, Error> {
        let config = ConsumerOptions::default().to_c(&pool);
        Loader::joined(pool, |out, err| {
            // SAFETY: the library takes ownership of the descriptor in every case; `config`, `out` and `err` are valid.
            unsafe { sys::feedlane_loader_join(fd.into_raw_fd(), null(), &config, nanoseconds(timeout), out, err) }
        })
    }

    /// Joins a feeder at its [`LoaderBuilder::share_path`](crate::LoaderBuilder::share_path). The feeder opens the
    /// place at its next `serve` or `poll`.
    ///  - E_PEER_DEAD: no feeder listens at this path.
    ///  - E_LIMIT, E_ARGUMENT: see [`Loader::open_consumer`].
    pub fn join_path(
        path: impl AsRef<Path>,
        options: &ConsumerOptions,
        timeout: Option<Duration>,
    ) -> Result<Loader, Error> {
        Loader::join_at(path.as_ref(), options, None, timeout)
    }

    /// As [`Loader::join_path`], with a pool as in [`Loader::join_pinned`].
    pub fn join_path_pinned(
        path: impl AsRef<Path>,
        options: &ConsumerOptions,
        pool: &Arc<Pool>,
        timeout: Option<Duration>,
    ) -> Result<Loader, Error> {
        Loader::join_at(path.as_ref(), options, Some(pool.clone()), timeout)
    }

    fn join_at(
        path: &Path,
        options: &ConsumerOptions,
        pool: Option<Arc<Pool>>,
        timeout: Option<Duration>,
    ) -> Result<Loader, Error> {
        let (path, config) = (c_string("path", path)?, options.to_c(&pool));
        Loader::joined(pool, |out, err| {
            // SAFETY: the path is terminated, and `config` is a local struct; `out` and `err` are valid.
            unsafe { sys::feedlane_loader_join(-1, path.as_ptr(), &config, nanoseconds(timeout), out, err) }
        })
    }

    fn joined(
        pool: Option<Arc<Pool>>,
        join: impl FnOnce(*mut *mut sys::feedlane_loader, *mut sys::feedlane_error) -> i32,
    ) -> Result<Loader, Error> {
        check_abi()?;
        let mut raw = null_mut();
        call(|err| join(&mut raw, err)).and_then(only_ok)?;
        // SAFETY: nobody else has this handle.
        Ok(unsafe { Loader::new_consumer(NonNull::new(raw).expect("a handle on success"), pool) })
    }

    /// The smallest epoch that [`Loader::begin`] accepts on this consumer, see
    /// [`LoaderInfo::next_epoch`](crate::LoaderInfo::next_epoch). E_STATE: the loader is not a consumer.
    pub fn next_epoch(&self) -> Result<i64, Error> {
        let next = self.monitor()?.info()?.next_epoch;
        next.ok_or_else(|| Error::new(Status::STATE, "loader", 0, 0, "the loader is not a consumer".into()))
    }
}
