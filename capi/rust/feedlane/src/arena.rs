// SPDX-License-Identifier: Apache-2.0
//! Arenas: tensors in shared memory that all processes of a machine can put and get, without a copy.
use std::os::unix::io::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut, NonNull};
use std::time::Duration;

use crate::arena_info::ArenaStats;
use crate::args::{armed, c_string, nanoseconds};
use crate::batch::Batch;
use crate::error::{after_end, call, check_abi, completed, only_ok, plain, Error, Status};
use crate::event::Event;
use crate::handle::Handle;
use crate::reservation::{drop_key, timed_out, MakeRight, Put, Reservation};
use crate::sys;

/// What a put does if there is no free memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Full {
    /// Evicts entries with a key, least recently used first. If there are none, waits.
    #[default]
    Evict,
    /// Waits until memory is released.
    Wait,
    /// Fails with E_LIMIT.
    Fail,
}

/// The configuration of an arena. Fields that are not set have the defaults of the C interface; `bytes` has none.
#[derive(Clone, Debug, Default)]
pub struct ArenaOptions {
    /// Memory for entries, 64 KiB to 1 TiB. An entry may take a third of it.
    pub bytes: u64,
    /// Processes besides the owner at the same time, up to 255; 0: 16.
    pub members: u32,
    /// Entries at the same time, up to 2^20; 0: one per 64 KiB, at least 1024.
    pub entries: u32,
    /// Batches and reservations that one process may hold, up to 65,536; 0: 1024.
    pub leases: u32,
    pub when_full: Full,
    /// A Unix socket to create, where processes of the same user may join. It is removed with the arena.
    pub path: Option<PathBuf>,
}

/// The outcome of [`Arena::get_or_make`].
#[derive(Debug)]
pub enum GetOrMake {
    /// The entry.
    Found(Batch),
    /// There is no entry, and this process may make it.
    Make(MakeRight),
}

/// The owner's or a member's end of an arena. Any thread may call every function. Dropping it leaves the arena; the
/// owner ends it. Batches that are held stay valid.
///
/// An entry with a key is stored, and every process can get it. An entry without a key is sent once: by a member to the
/// owner, by the owner to every member. Both come as a [`Batch`], whose [`worker`](Batch::worker) is the number of the
/// process that put it (0: the owner) and whose [`number`](Batch::number) counts the arena's entries. It has no rows.
/// Its maker has the memory mapped for writing: see [`Values`](crate::Values).
///
/// The owner must serve its members: it does in every call that waits, and in [`Arena::serve`].
///
/// A member that produces, and an owner that consumes:
///
/// ```
/// use feedlane::{Arena, ArenaOptions, Error, Field, Put};
/// # use std::path::Path;
///
/// fn produce(path: &Path) -> Result<(), Error> {
///     let arena = Arena::join_path(path, None)?;
///     let fields = [Field::new::<f32>("image", &[2, 3]), Field::new::<i64>("label", &[])];
///     for label in 0..10i64 {
///         let mut entry = arena.reserve(&Put::new(&fields), None)?;
///         entry.tensor_mut(0)?.values_mut::<f32>()?.fill(0.5); // in place, in shared memory
///         entry.write(1, &[label])?;
///         entry.publish(None)?;
///     }
///     Ok(())
/// }
///
/// fn consume(arena: &Arena) -> Result<i64, Error> {
///     let mut sum = 0;
///     for _ in 0..10 {
///         let batch = arena.receive(None)?;
///         sum += batch.field("label")?.values::<i64>()?.iter().sum::<i64>();
///     } // its memory is free again
///     Ok(sum)
/// }
/// # let path = std::env::temp_dir().join(format!("feedlane-doc-{}", std::process::id()));
/// # let options = ArenaOptions { bytes: 1 << 20, path: Some(path.clone()), ..ArenaOptions::default() };
/// # let arena = Arena::new(&options)?;
/// # let producer = std::thread::spawn(move || produce(&path));
/// # assert_eq!(consume(&arena)?, 45);
/// # producer.join().unwrap()?;
/// # Ok::<(), Error>(())
/// ```
pub struct Arena {
    handle: Handle,
}

impl Arena {
    /// Creates an arena and its owner. Memory is taken from the system when it is first needed.
    ///  - E_STATE: another process listens at the path.
    ///  - E_MEMORY, E_LIMIT, E_OS: a resource of the system is missing.
    pub fn new(options: &ArenaOptions) -> Result<Self, Error> {
        let path = options.path.as_deref().map(|path| c_string("path", path)).transpose()?;
        let mut config = sys::feedlane_arena_config::new();
        config.bytes = options.bytes;
        config.members = options.members;
        config.entries = options.entries;
        config.leases = options.leases;
        config.when_full = match options.when_full {
            Full::Evict => sys::FEEDLANE_FULL_EVICT,
            Full::Wait => sys::FEEDLANE_FULL_WAIT,
            Full::Fail => sys::FEEDLANE_FULL_FAIL,
        };
        config.path = path.as_ref().map_or(null(), |path| path.as_ptr());
        // SAFETY: the configuration and its path are copied; `out` and `err` are valid.
        Arena::made(|out, err| unsafe { sys::feedlane_arena_create(&config, out, err) })
    }

    /// Becomes a member through the descriptor of an offer.
    ///  - TIMEOUT: the owner did not answer in time. A `timeout` of `None` means no limit, here and in all functions.
    ///  - E_PEER_DEAD: there is no owner.
    ///  - E_LIMIT: all places are taken.
    ///  - E_ABI, E_CORRUPT: the owner's library is of another version, or its message is invalid.
    pub fn join(fd: OwnedFd, timeout: Option<Duration>) -> Result<Self, Error> {
        Arena::made(|out, err| {
            // SAFETY: the library takes ownership of the descriptor in every case; `out` and `err` are valid.
            unsafe { sys::feedlane_arena_join(fd.into_raw_fd(), null(), nanoseconds(timeout), out, err) }
        })
    }

    /// Becomes a member through the socket at [`ArenaOptions::path`]. Errors: see [`Arena::join`]. E_STATE: the owner
    /// belongs to another user.
    pub fn join_path(path: impl AsRef<Path>, timeout: Option<Duration>) -> Result<Self, Error> {
        let path = c_string("path", path.as_ref())?;
        // SAFETY: the path is terminated; `out` and `err` are valid.
        Arena::made(|out, err| unsafe { sys::feedlane_arena_join(-1, path.as_ptr(), nanoseconds(timeout), out, err) })
    }

    fn made(make: impl FnOnce(*mut *mut sys::feedlane_loader, *mut sys::feedlane_error) -> i32) -> Result<Self, Error> {
        check_abi()?;
        let mut raw = null_mut();
        call(|err| make(&mut raw, err)).and_then(only_ok)?;
        // SAFETY: the handle's first reference, which `drop` releases. An arena has no pool.
        Ok(Arena { handle: unsafe { Handle::of(NonNull::new(raw).expect("a handle on success"), None) } })
    }

    fn as_ptr(&self) -> *mut sys::feedlane_loader {
        self.handle.raw().as_ptr()
    }

    /// The owner: returns a socket for one member, which may belong to any user and calls [`Arena::join`] with it.
    /// E_LIMIT: all places are taken. E_STATE: this process is not the owner.
    pub fn offer(&self) -> Result<OwnedFd, Error> {
        let mut fd = -1;
        // SAFETY: the handle is valid; any thread may call this. So in all calls here.
        call(|err| unsafe { sys::feedlane_arena_offer(self.as_ptr(), &mut fd, err) })?;
        // SAFETY: the descriptor belongs to the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Waits for memory for an entry, whose tensors the caller fills.
    ///  - TIMEOUT: there was no memory in time.
    ///  - SLOTS_HELD: this process holds [`ArenaOptions::leases`] batches and reservations.
    ///  - E_LIMIT: the entry exceeds a third of the arena, or there is no memory ([`Full::Fail`]). `found` and `needed`
    ///    are the bytes available and the bytes of the entry.
    ///  - E_PEER_DEAD: the owner has ended. E_CORRUPT: the owner has cut this member off.
    ///  - INTERRUPTED: a signal or [`Arena::interrupt`] ended the wait.
    pub fn reserve(&self, put: &Put<'_>, timeout: Option<Duration>) -> Result<Reservation, Error> {
        Reservation::new(&self.handle, put, None, timeout)
    }

    /// Gets the entry with this key, and waits for it if there is none. `None`: there was none in time.
    /// `Some(Duration::ZERO)` does not wait. After this process has put or dropped an entry, the call waits until the
    /// owner has taken that up, at most 5 s.
    ///  - SLOTS_HELD, INTERRUPTED: see [`Arena::reserve`].
    ///  - E_CORRUPT: the entry's maker has overwritten the description of its tensors; the text names the maker.
    ///  - E_PEER_DEAD: there is no entry, and the owner has ended.
    pub fn get(&self, key: impl AsRef<[u8]>, timeout: Option<Duration>) -> Result<Option<Batch>, Error> {
        self.get_flagged(key.as_ref(), 0, timeout).map(|(_, batch)| batch)
    }

    /// Gets the entry with this key. If there is none, one process at a time gets the right to make it. Others wait for
    /// the entry, or for the right. TIMEOUT: there is no entry yet. Other errors: see [`Arena::get`].
    pub fn get_or_make(&self, key: impl AsRef<[u8]>, timeout: Option<Duration>) -> Result<GetOrMake, Error> {
        let key = key.as_ref();
        match self.get_flagged(key, sys::FEEDLANE_GET_MAKE, timeout)? {
            (_, Some(batch)) => Ok(GetOrMake::Found(batch)),
            (Status::ABSENT, None) => Ok(GetOrMake::Make(MakeRight::new(self.handle.clone(), key))),
            _ => Err(timed_out("another process has the right to make the entry, and has not put it in time")),
        }
    }

    fn get_flagged(&self, key: &[u8], flags: i32, timeout: Option<Duration>) -> Result<(Status, Option<Batch>), Error> {
        let (data, bytes) = (key.as_ptr().cast(), key.len() as u64);
        self.yielded(|raw, out, err| {
            // SAFETY: as above; there are `bytes` bytes at `data`; `out` and `err` are valid.
            unsafe { sys::feedlane_arena_get(raw, data, bytes, flags, nanoseconds(timeout), out, err) }
        })
    }

    /// Waits for the next entry without a key that was sent to this process. All outcomes without a batch are errors,
    /// also TIMEOUT.
    ///  - SLOTS_HELD, INTERRUPTED: see [`Arena::reserve`].
    ///  - E_PEER_DEAD: all was received, and the owner has ended.
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Batch, Error> {
        let (_, batch) = self.yielded(|raw, out, err| {
            // SAFETY: as above; `out` and `err` are valid.
            unsafe { sys::feedlane_arena_receive(raw, nanoseconds(timeout), out, err) }
        })?;
        batch.ok_or_else(|| timed_out("no entry was sent to this process in time"))
    }

    fn yielded(
        &self,
        f: impl FnOnce(*mut sys::feedlane_loader, *mut sys::feedlane_batch, *mut sys::feedlane_error) -> i32,
    ) -> Result<(Status, Option<Batch>), Error> {
        let mut raw = sys::feedlane_batch::new();
        let status = completed(|err| f(self.as_ptr(), &mut raw, err))?;
        // SAFETY: on OK it was just yielded; the new batch takes over the reference.
        let batch = (status == Status::OK).then(|| unsafe { Batch::new(self.handle.raw(), raw, None, true) });
        Ok((status, batch))
    }

    /// The owner: serves its members until the timeout. INTERRUPTED: see [`Arena::reserve`]. E_STATE: the arena was
    /// closed.
    pub fn serve(&self, timeout: Option<Duration>) -> Result<(), Error> {
        // SAFETY: as above; without a struct for a batch, nothing is received.
        completed(|err| unsafe { sys::feedlane_arena_receive(self.as_ptr(), nanoseconds(timeout), null_mut(), err) })
            .map(drop)
    }

    /// Drops the entry with this key, if there is one. Later gets do not find it; batches that were got stay. If this
    /// process has the right to make the entry, gives the right up instead. TIMEOUT: the owner has not taken earlier
    /// requests in time.
    pub fn drop_key(&self, key: impl AsRef<[u8]>, timeout: Option<Duration>) -> Result<(), Error> {
        drop_key(&self.handle, key.as_ref(), timeout)
    }

    /// Prepares to sleep in an event loop. `None`: call [`receive`](Arena::receive) or [`serve`](Arena::serve) now.
    /// Otherwise sleep until this descriptor, whose number never changes, is readable. E_BUSY: another thread waits in
    /// a call on this arena.
    pub fn arm(&self) -> Result<Option<BorrowedFd<'_>>, Error> {
        // SAFETY: as above. The arena owns the descriptor, which is open as long as the arena lives.
        unsafe { armed(|fd| sys::feedlane_arena_arm(self.as_ptr(), fd)) }.map_err(|e| after_end(e, "arena"))
    }

    /// The state of the arena, and of this process in it.
    pub fn stats(&self) -> Result<ArenaStats, Error> {
        let mut out = sys::feedlane_arena_stats::new();
        // SAFETY: as above; `out` is a local struct.
        self.simple(unsafe { sys::feedlane_arena_get_stats(self.as_ptr(), &mut out) })?;
        Ok(ArenaStats::from_c(&out))
    }

    /// The oldest event that was not read yet, or `None`. The owner: members that ended, left or were cut off.
    pub fn event(&self) -> Result<Option<Event>, Error> {
        self.handle.event().map_err(|e| after_end(e, "arena"))
    }

    /// Ends one wait, the current or the next one, with INTERRUPTED.
    pub fn interrupt(&self) -> Result<(), Error> {
        // SAFETY: as above.
        self.simple(unsafe { sys::feedlane_loader_interrupt(self.as_ptr()) })
    }

    /// Ends all waits with E_STATE; later calls return E_STATE. The arena is left when this value is dropped.
    pub fn close(&self) -> Result<(), Error> {
        // SAFETY: as above.
        self.simple(unsafe { sys::feedlane_loader_close(self.as_ptr()) })
    }

    /// For functions that take no error struct.
    fn simple(&self, status: i32) -> Result<(), Error> {
        plain(status).map(drop).map_err(|error| after_end(error, "arena"))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let mut raw = self.as_ptr();
        // SAFETY: releases the handle's first reference. `handle` has another one, until it is dropped.
        unsafe { sys::feedlane_arena_destroy(&mut raw) };
    }
}
