// SPDX-License-Identifier: Apache-2.0
//! Standalone rings: fixed-size messages from several senders to one receiver.
use std::os::unix::io::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut, NonNull};
use std::sync::Arc;
use std::time::Duration;

use crate::args::{armed, c_string, nanoseconds};
use crate::closer::{Closer, Owner};
use crate::error::{call, check_abi, only_ok, Error};
use crate::sys;
use crate::values::{Values, ValuesMut};

/// The configuration of a ring.
#[derive(Clone, Debug, Default)]
pub struct RingConfig {
    /// Size of a message, 1 byte to 1 MiB.
    pub message_bytes: u32,
    /// Messages in a lane: a power of two.
    pub capacity: u32,
    /// Senders at the same time; 0: 1.
    pub lanes: u32,
    /// A Unix socket, to which senders may also connect.
    pub path: Option<PathBuf>,
}

/// The receiving end of a ring. Dropping it ends the ring. Other threads use [`Receiver::closer`].
pub struct Receiver {
    owner: Arc<Owner<sys::feedlane_rx>>,
    message_bytes: usize,
}

impl Receiver {
    /// Creates the ring and checks that there is enough memory for all lanes. A lane's memory is reserved when its
    /// sender attaches.
    pub fn new(wanted: &RingConfig) -> Result<Self, Error> {
        check_abi()?;
        let path = wanted.path.as_deref().map(|path| c_string("path", path)).transpose()?;
        let mut config = sys::feedlane_ring_config::new();
        config.message_bytes = wanted.message_bytes;
        config.capacity = wanted.capacity;
        config.lanes = wanted.lanes;
        config.path = path.as_ref().map_or(null(), |p| p.as_ptr());
        let mut raw = null_mut();
        // SAFETY: the configuration and its path are copied; `raw` is a local variable.
        call(|err| unsafe { sys::feedlane_rx_create(&config, &mut raw, err) })?;
        let raw = NonNull::new(raw).expect("a handle on success");
        // SAFETY: nobody else has this handle.
        let owner = unsafe { Owner::new(raw, ()) };
        Ok(Receiver { owner, message_bytes: wanted.message_bytes as usize })
    }

    /// Reserves a lane and returns a socket for its sender, which calls [`Sender::attach`] with it.
    pub fn offer(&mut self) -> Result<OwnedFd, Error> {
        let mut fd = -1;
        // SAFETY: the handle is valid, and one thread at a time uses it. So in all calls here.
        call(|err| unsafe { sys::feedlane_rx_offer(self.as_ptr(), &mut fd, err) })?;
        // SAFETY: the descriptor belongs to the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Waits for messages and returns up to `want` messages of one sender. All outcomes without a message are errors,
    /// also TIMEOUT and INTERRUPTED. END: all senders that attached have left or died, and all their messages were
    /// received.
    pub fn receive(&mut self, want: u32, timeout: Option<Duration>) -> Result<Received<'_>, Error> {
        let (raw, timeout) = (self.as_ptr(), nanoseconds(timeout));
        let mut span = sys::feedlane_span::new();
        // SAFETY: as above; `span` is a local struct.
        let status = call(|err| unsafe { sys::feedlane_rx_peek(raw, want, timeout, &mut span, err) })?;
        only_ok(status)?;
        Ok(Received { span, ring: self })
    }

    /// Waits for messages, copies as many messages of one sender as fit into `buffer`, one after another, and releases
    /// them. Returns their number and lane. Errors: see [`Receiver::receive`].
    pub fn receive_into(&mut self, buffer: &mut [u8], timeout: Option<Duration>) -> Result<Copied, Error> {
        let (raw, timeout) = (self.as_ptr(), nanoseconds(timeout));
        let want = u32::try_from(buffer.len() / self.message_bytes).unwrap_or(u32::MAX);
        let mut copied = Copied { count: 0, lane: 0 };
        let (got, lane) = (&mut copied.count, &mut copied.lane);
        // SAFETY: as above; the buffer has room for `want` messages.
        let status = call(|err| unsafe {
            sys::feedlane_rx_receive(raw, buffer.as_mut_ptr().cast(), want, timeout, got, lane, err)
        })?;
        only_ok(status)?;
        Ok(copied)
    }

    /// Prepares to sleep in an event loop. `None`: call `receive` now. Otherwise sleep until this descriptor, whose
    /// number never changes, is readable.
    pub fn arm(&mut self) -> Result<Option<BorrowedFd<'_>>, Error> {
        // SAFETY: as above. The ring owns the descriptor, which is open as long as the receiver lives.
        unsafe { armed(|fd| sys::feedlane_rx_arm(self.as_ptr(), fd)) }
    }

    /// A closer, with which another thread can end a wait of this end.
    pub fn closer(&self) -> Closer {
        self.owner.closer()
    }

    fn as_ptr(&self) -> *mut sys::feedlane_rx {
        self.owner.as_ptr()
    }
}

/// The messages that [`Receiver::receive_into`] has copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Number of messages; never 0.
    pub count: u32,
    /// The sender's lane: 0 .. lanes - 1.
    pub lane: u32,
}

/// Messages in place. Dropping the value releases all of them.
pub struct Received<'a> {
    span: sys::feedlane_span,
    ring: &'a mut Receiver,
}

impl Received<'_> {
    /// Never empty.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.span.count as usize
    }

    /// The sender's lane: 0 .. lanes - 1.
    pub fn lane(&self) -> u32 {
        self.span.lane
    }

    /// The messages, one by one. The sender can write to their memory until they are released: see [`Values`].
    pub fn iter(&self) -> impl Iterator<Item = Values<'_, u8>> {
        let (start, stride) = (self.span.data.cast::<u8>(), self.span.stride as usize);
        let bytes = self.ring.message_bytes;
        // SAFETY: `count` messages, `stride` bytes apart, which stay mapped until they are released.
        (0..self.len()).map(move |i| unsafe { Values::new(start.add(i * stride), bytes) })
    }
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        let raw = self.ring.as_ptr();
        // SAFETY: releases all messages of the last peek.
        unsafe { sys::feedlane_rx_release(raw, self.span.lane, self.span.count, null_mut()) };
    }
}

/// A sending end of a ring. Dropping it leaves the ring; the receiver still gets all committed messages. Other threads
/// use [`Sender::closer`].
pub struct Sender {
    owner: Arc<Owner<sys::feedlane_tx>>,
    message_bytes: usize,
}

impl Sender {
    /// Becomes a sender through the descriptor of an offer. The receiver admits senders only during its own calls.
    pub fn attach(fd: OwnedFd, timeout: Option<Duration>) -> Result<Self, Error> {
        Sender::made(|out, bytes, err| {
            // SAFETY: the library takes ownership of the descriptor in every case; `out` and `bytes` are valid.
            unsafe { sys::feedlane_tx_attach(fd.into_raw_fd(), null(), nanoseconds(timeout), out, bytes, err) }
        })
    }

    /// Becomes a sender through the receiver's socket.
    pub fn connect(path: &Path, timeout: Option<Duration>) -> Result<Self, Error> {
        let path = c_string("path", path)?;
        Sender::made(|out, bytes, err| {
            // SAFETY: the path is terminated; `out` and `bytes` are valid.
            unsafe { sys::feedlane_tx_attach(-1, path.as_ptr(), nanoseconds(timeout), out, bytes, err) }
        })
    }

    fn made(
        make: impl FnOnce(*mut *mut sys::feedlane_tx, *mut u32, *mut sys::feedlane_error) -> i32,
    ) -> Result<Self, Error> {
        check_abi()?;
        let (mut raw, mut bytes) = (null_mut(), 0);
        only_ok(call(|err| make(&mut raw, &mut bytes, err))?)?;
        let raw = NonNull::new(raw).expect("a handle on success");
        // SAFETY: nobody else has this handle.
        let owner = unsafe { Owner::new(raw, ()) };
        Ok(Sender { owner, message_bytes: bytes as usize })
    }

    /// A closer, with which another thread can end a wait of this end.
    pub fn closer(&self) -> Closer {
        self.owner.closer()
    }

    fn as_ptr(&self) -> *mut sys::feedlane_tx {
        self.owner.as_ptr()
    }

    /// The size of a message.
    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// Waits for space and copies `messages`, which lie one after another, into the ring. Returns the number of
    /// published messages, which is less than given if the wait ended early. If none was published, the outcome is an
    /// error, also for TIMEOUT and INTERRUPTED.
    pub fn send(&mut self, messages: &[u8], timeout: Option<Duration>) -> Result<u32, Error> {
        let (raw, timeout) = (self.as_ptr(), nanoseconds(timeout));
        if messages.len() % self.message_bytes != 0 {
            let text =
                format!("{} bytes are not a multiple of the message size, {}", messages.len(), self.message_bytes);
            return Err(Error::argument("messages", text));
        }
        let count = u32::try_from(messages.len() / self.message_bytes).unwrap_or(u32::MAX);
        let mut sent = 0;
        // SAFETY: the handle is valid, and one thread at a time uses it. There are `count` messages.
        match call(|err| unsafe {
            sys::feedlane_tx_send(raw, messages.as_ptr().cast(), count, timeout, &mut sent, err)
        }) {
            Err(error) if sent == 0 => Err(error),
            Ok(status) if sent == 0 => only_ok(status).map(|()| 0),
            _ => Ok(sent),
        }
    }

    /// Waits for space and returns up to `want` messages to fill. TIMEOUT and INTERRUPTED are errors here.
    pub fn reserve(&mut self, want: u32, timeout: Option<Duration>) -> Result<Reserved<'_>, Error> {
        let (raw, timeout) = (self.as_ptr(), nanoseconds(timeout));
        let mut span = sys::feedlane_span::new();
        // SAFETY: the handle is valid, and one thread at a time uses it; `span` is a local struct.
        let status = call(|err| unsafe { sys::feedlane_tx_reserve(raw, want, timeout, &mut span, err) })?;
        only_ok(status)?;
        Ok(Reserved { span, ring: self })
    }
}

/// Space for messages, in place. Messages that are not committed are not sent.
pub struct Reserved<'a> {
    span: sys::feedlane_span,
    ring: &'a mut Sender,
}

impl Reserved<'_> {
    /// Never empty.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.span.count as usize
    }

    /// The space of one message, followed by up to 63 bytes that nobody reads.
    ///
    /// # Panics
    /// If there is no such message.
    pub fn cell_mut(&mut self, index: usize) -> ValuesMut<'_, u8> {
        assert!(index < self.len(), "index {} is out of bounds for {} messages", index, self.len());
        let stride = self.span.stride as usize;
        // SAFETY: a cell of the reservation. It belongs to this sender alone, except for the ring's 8 bytes in each
        // cell.
        unsafe { ValuesMut::new(self.span.data.cast::<u8>().add(index * stride), stride - 8) }
    }

    /// Publishes the first `count` messages, in order.
    pub fn commit(self, count: u32) -> Result<(), Error> {
        let raw = self.ring.as_ptr();
        // SAFETY: the handle is valid, and one thread at a time uses it. Dropping `self` has no further effect.
        call(|err| unsafe { sys::feedlane_tx_commit(raw, count, err) }).map(drop)
    }
}
