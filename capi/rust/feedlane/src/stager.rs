// SPDX-License-Identifier: Apache-2.0
//! The thread that copies a staged loader's batches.
//!
//! It is in one call of the library until the loader's end, and ends that by nothing else. The library keeps the memory of
//! a loader for the thread in that call, so the end may come while a thread is in there, but not while it is on its way. The
//! library doesn't say when a thread has come; but it lets one in, and sends a second one away at once with E_STATE. So two
//! threads go: when one is back, the other is there.
use std::sync::{Condvar, Mutex, MutexGuard};

use crate::error::{call, Error, Status};
use crate::handle::{Handle, Live};
use crate::sys;

#[derive(Default, PartialEq)]
enum Place {
    #[default]
    Nowhere,
    /// Two go; one may be back, but not because the other is there.
    OnTheWay { is_one_back: bool },
    /// Or both are back: nobody is on the way any more.
    There,
}

/// Where a loader's stager stands. The loader's end waits here for one on its way.
#[derive(Default)]
pub(crate) struct Gate {
    place: Mutex<Place>,
    changed: Condvar,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn set(&self, place: Place) {
        *self.lock() = place;
        self.changed.notify_all();
    }

    fn leave_for(&self) -> Result<(), Error> {
        let mut place = self.lock();
        if *place != Place::Nowhere {
            let text = "another thread copies for this loader".into();
            return Err(Error::new(Status::STATE, "", 0, 0, text));
        }
        *place = Place::OnTheWay { is_one_back: false };
        Ok(())
    }

    /// One of the two has come back.
    fn is_back(&self, end: &Result<(), Error>) {
        let mut place = self.lock();
        if let Place::OnTheWay { is_one_back } = *place {
            let was_sent_away = matches!(end, Err(error) if error.status == Status::STATE);
            *place = if was_sent_away || is_one_back { Place::There } else { Place::OnTheWay { is_one_back: true } };
            self.changed.notify_all();
        }
    }

    pub(crate) fn wait_until_there(&self) {
        let mut place = self.lock();
        while matches!(*place, Place::OnTheWay { .. }) {
            place = self.changed.wait(place).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

fn copy(live: &Live) -> Result<(), Error> {
    // SAFETY: the loader's end waits until the library has this thread, by the lock or by the gate; any thread.
    call(|err| unsafe { sys::feedlane_loader_run_stager(live.raw.as_ptr(), err) }).map(drop)
}

impl Handle {
    /// Copies the batches of a [`staged`](crate::LoaderBuilder::staged) loader until its end, on this thread or on one
    /// that it starts and waits for. E_STATE: not staged, inline, ended, or another thread does.
    pub fn run_stager(&self) -> Result<(), Error> {
        let live = self.with_live(|live| {
            if !live.is_copied {
                return copy(live).map(|()| None); // it says why not, at once
            }
            self.shared.gate.leave_for()?;
            Ok(Some(live.clone()))
        })?;
        let live = match live {
            Some(live) => live,
            None => return Ok(()),
        };
        let go = || {
            let end = copy(&live);
            self.shared.gate.is_back(&end);
            end
        };
        let end = std::thread::scope(|scope| {
            let second = std::thread::Builder::new().name("stager".into()).spawn_scoped(scope, go);
            let second = second.map_err(|e| Error::new(Status::OS, "", 0, 0, format!("a second thread: {}", e)))?;
            let first = go();
            first.or(second.join().expect("no panic"))
        });
        self.shared.gate.set(Place::Nowhere);
        end
    }
}
