// SPDX-License-Identifier: Apache-2.0
//! The counters of an arena and of its processes.
use crate::error::{call, check_abi, Error, Status};
use crate::sys;

/// The state of an arena and, from [`Arena::stats`](crate::Arena::stats), of this process in it. Only the owner knows
/// `used_bytes` and the fields up to `evicted`; in a member they are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// The owner's pid, as this process sees it. `None`: unknown.
    pub owner: Option<i64>,
    /// [`ArenaOptions::bytes`](crate::ArenaOptions::bytes).
    pub bytes: u64,
    /// Memory that entries take.
    pub used_bytes: u64,
    /// Memory without an entry.
    pub free_bytes: u64,
    /// Entries now, sent ones included.
    pub entries: u64,
    /// Processes now, the owner included.
    pub members: u64,
    /// Entries that any process holds.
    pub leased: u64,
    /// Requests that wait for memory or for a key.
    pub waiting: u64,
    /// Entries ever published.
    pub published: u64,
    /// Of these, evicted.
    pub evicted: u64,
    /// Gets that found their entry; the owner: of all processes.
    pub hits: u64,
    /// Gets that did not, counted in the same way.
    pub misses: u64,
    /// Batches and reservations that this process holds.
    pub held: u64,
}

impl ArenaStats {
    pub(crate) fn from_c(raw: &sys::feedlane_arena_stats) -> Self {
        ArenaStats {
            owner: Some(raw.owner).filter(|pid| *pid > 0),
            bytes: raw.bytes,
            used_bytes: raw.used_bytes,
            free_bytes: raw.free_bytes,
            entries: raw.entries,
            members: raw.members,
            leased: raw.leased,
            waiting: raw.waiting,
            published: raw.published,
            evicted: raw.evicted,
            hits: raw.hits,
            misses: raw.misses,
            held: raw.held,
        }
    }
}

/// A process of an arena, the owner's included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaMember {
    /// As the owner sees it. `None`: it has not joined yet.
    pub pid: Option<i64>,
    /// [`Batch::worker`](crate::Batch::worker) of the entries that it has put; 0: the owner's process.
    pub number: u32,
    /// The owner has cut it off, because it sent an invalid request.
    pub is_cut_off: bool,
    /// Entries that it holds.
    pub held: u64,
    /// Its requests that wait for memory or for a key.
    pub waiting: u64,
    /// Memory that it has for its next puts.
    pub granted_bytes: u64,
    pub hits: u64,
    pub misses: u64,
}

/// An arena of a process, as its owner saw it when it last served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaInfo {
    /// `held` is 0 here.
    pub stats: ArenaStats,
    /// In the order in which they joined.
    pub members: Vec<ArenaMember>,
}

impl ArenaInfo {
    /// Reads arena number `nth`, from 0, of process `pid`, its owner, which runs as the same user, without its help.
    /// `None`: the process has no such arena. E_PEER_DEAD: there is no such process.
    pub fn read(pid: i64, nth: i32) -> Result<Option<Self>, Error> {
        check_abi()?;
        let mut stats = sys::feedlane_arena_stats::new();
        let mut members = vec![sys::feedlane_arena_member::new(); sys::FEEDLANE_MAX_ARENA_PROCESSES as usize];
        let (room, mut count) = (members.len() as u64, 0);
        // SAFETY: local variables; there is room for `room` members.
        let status = call(|err| unsafe {
            sys::feedlane_monitor_arena(pid, nth, &mut stats, members.as_mut_ptr(), room, &mut count, err)
        })?;
        let members = members.iter().take(count as usize).map(|raw| ArenaMember {
            pid: Some(raw.pid).filter(|pid| *pid > 0),
            number: raw.number,
            is_cut_off: raw.cut_off != 0,
            held: raw.held,
            waiting: raw.waiting,
            granted_bytes: raw.granted_bytes,
            hits: raw.hits,
            misses: raw.misses,
        });
        Ok((status == Status::OK).then(|| ArenaInfo { stats: ArenaStats::from_c(&stats), members: members.collect() }))
    }
}
