// SPDX-License-Identifier: Apache-2.0
//! Rings without a loader: messages of one size from several senders to one receiver.
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::io::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut, NonNull};
use std::time::Duration;

use crate::closer::Closer;
use crate::error::{call, check_abi, only_ok, plain, Error, Status};
use crate::loader::nanoseconds;
use crate::sys;
use crate::values::{Values, ValuesMut};

/// A ring to make.
#[derive(Clone, Debug, Default)]
pub struct RingConfig {
    /// 1 to 1 MiB.
    pub message_bytes: u32,
    /// Messages a lane holds: a power of two.
    pub capacity: u32,
    /// Senders at a time; 0: 1.
    pub lanes: u32,
    /// Senders may also come to this Unix socket.
    pub path: Option<PathBuf>,
}

/// The receiving end.
pub struct Receiver {
    raw: NonNull<sys::feedlane_rx>,
    message_bytes: usize,
}

// SAFETY: one thread at a time, not always the same one.
unsafe impl Send for Receiver {}

fn c_path(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::argument("path", format!("{:?} has a zero in it", path)))
}

impl Receiver {
    /// Makes the ring; all its memory is reserved.
    pub fn new(wanted: &RingConfig) -> Result<Self, Error> {
        check_abi()?;
        let path = wanted.path.as_deref().map(c_path).transpose()?;
        let mut config = sys::feedlane_ring_config::new();
        config.message_bytes = wanted.message_bytes;
        config.capacity = wanted.capacity;
        config.lanes = wanted.lanes;
        config.path = path.as_ref().map_or(null(), |p| p.as_ptr());
        let mut raw = null_mut();
        // SAFETY: the configuration and its path are copied; room of ours for the handle.
        call(|err| unsafe { sys::feedlane_rx_create(&config, &mut raw, err) })?;
        let raw = NonNull::new(raw).expect("a handle on success");
        Ok(Receiver { raw, message_bytes: wanted.message_bytes as usize })
    }

    /// A socket for one sender: for [`Sender::attach`] in the process that gets it.
    pub fn offer(&mut self) -> Result<OwnedFd, Error> {
        let mut fd = -1;
        // SAFETY: the handle lives, and one thread has it. So in all calls here.
        call(|err| unsafe { sys::feedlane_rx_offer(self.raw.as_ptr(), &mut fd, err) })?;
        // SAFETY: the caller's to close.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Waits for up to `want` messages of one sender. An error with status END: every sender that came has left, and all
    /// was taken; TIMEOUT and INTERRUPTED are errors here too.
    pub fn receive(&mut self, want: u32, timeout: Option<Duration>) -> Result<Received<'_>, Error> {
        let (raw, timeout) = (self.raw.as_ptr(), nanoseconds(timeout));
        let mut span = sys::feedlane_span::new();
        // SAFETY: as above; a struct of ours to fill in.
        let status = call(|err| unsafe { sys::feedlane_rx_peek(raw, want, timeout, &mut span, err) })?;
        only_ok(status)?;
        Ok(Received { span, ring: self })
    }

    /// Waits for messages of one sender and copies as many as `buffer` has room for, one after another; they are released.
    /// Returns how many, and whose. Errors as for [`Receiver::receive`].
    pub fn receive_into(&mut self, buffer: &mut [u8], timeout: Option<Duration>) -> Result<Copied, Error> {
        let (raw, timeout) = (self.raw.as_ptr(), nanoseconds(timeout));
        let want = u32::try_from(buffer.len() / self.message_bytes).unwrap_or(u32::MAX);
        let mut copied = Copied { count: 0, lane: 0 };
        let (got, lane) = (&mut copied.count, &mut copied.lane);
        // SAFETY: as above; `want` messages have room in the buffer.
        let status =
            call(|err| unsafe { sys::feedlane_rx_receive(raw, buffer.as_mut_ptr().cast(), want, timeout, got, lane, err) })?;
        only_ok(status)?;
        Ok(copied)
    }

    /// For a foreign event loop: true: something is there; false: sleep until `wait_fd` is readable.
    pub fn arm(&mut self) -> Result<bool, Error> {
        // SAFETY: as above.
        plain(unsafe { sys::feedlane_rx_arm(self.raw.as_ptr()) }).map(|status| status == Status::AGAIN)
    }

    /// Ends a wait of this end from another thread.
    pub fn closer(&self) -> Closer {
        // SAFETY: this is one reference.
        unsafe { Closer::of_receiver(self.raw) }
    }

    pub fn wait_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        let mut fd = -1;
        // SAFETY: any thread; the ring's own, open as long as it lives.
        unsafe {
            plain(sys::feedlane_rx_wait_fd(self.raw.as_ptr(), &mut fd))?;
            Ok(BorrowedFd::borrow_raw(fd))
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the one handle, which nobody uses any more.
        unsafe { sys::feedlane_rx_destroy(&mut raw) };
    }
}

/// What [`Receiver::receive_into`] has copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Messages; never 0.
    pub count: u32,
    /// Whose they were: 0 .. lanes.
    pub lane: u32,
}

/// Messages where they lie. Dropping it gives them all back to their sender.
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

    /// Whose they are: 0 .. lanes.
    pub fn lane(&self) -> u32 {
        self.span.lane
    }

    /// Message by message. Its sender has them mapped for writing until they are given back: see [`Values`].
    pub fn iter(&self) -> impl Iterator<Item = Values<'_, u8>> {
        let (start, stride) = (self.span.data.cast::<u8>(), self.span.stride as usize);
        let bytes = self.ring.message_bytes;
        // SAFETY: `count` messages, `stride` bytes apart, which stay mapped until they are given back.
        (0..self.len()).map(move |i| unsafe { Values::new(start.add(i * stride), bytes) })
    }
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        let raw = self.ring.raw.as_ptr();
        // SAFETY: what the last peek showed, all of it.
        unsafe { sys::feedlane_rx_release(raw, self.span.lane, self.span.count, null_mut()) };
    }
}

/// A sending end. Dropping it leaves; what was committed is still taken.
pub struct Sender {
    raw: NonNull<sys::feedlane_tx>,
    message_bytes: usize,
}

// SAFETY: one thread at a time, not always the same one.
unsafe impl Send for Sender {}

impl Sender {
    /// By an offer's descriptor. The receiver lets senders in while it is in one of its own calls.
    pub fn attach(fd: OwnedFd, timeout: Option<Duration>) -> Result<Self, Error> {
        Sender::made(|out, err| {
            // SAFETY: the descriptor is taken in every case; room of ours for the handle.
            unsafe { sys::feedlane_tx_attach(fd.into_raw_fd(), null(), nanoseconds(timeout), out, err) }
        })
    }

    /// By the receiver's socket.
    pub fn connect(path: &Path, timeout: Option<Duration>) -> Result<Self, Error> {
        let path = c_path(path)?;
        // SAFETY: a terminated path; room of ours for the handle.
        Sender::made(|out, err| unsafe { sys::feedlane_tx_attach(-1, path.as_ptr(), nanoseconds(timeout), out, err) })
    }

    fn made(make: impl FnOnce(*mut *mut sys::feedlane_tx, *mut sys::feedlane_error) -> i32) -> Result<Self, Error> {
        check_abi()?;
        let mut raw = null_mut();
        let status = call(|err| make(&mut raw, err))?;
        only_ok(status)?;
        let mut sender = Sender { raw: NonNull::new(raw).expect("a handle on success"), message_bytes: 0 };
        let mut bytes = 0;
        // SAFETY: the handle lives; room of ours for the number.
        plain(unsafe { sys::feedlane_tx_message_bytes(raw, &mut bytes) })?;
        sender.message_bytes = bytes as usize;
        Ok(sender)
    }

    /// Ends a wait of this end from another thread.
    pub fn closer(&self) -> Closer {
        // SAFETY: this is one reference.
        unsafe { Closer::of_sender(self.raw) }
    }

    /// The size of a message.
    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// Copies the messages in `messages`, one after another, into the ring; waits for room. Returns how many were published:
    /// fewer than given if the wait ended before. It is an error, TIMEOUT and INTERRUPTED too, if none was.
    pub fn send(&mut self, messages: &[u8], timeout: Option<Duration>) -> Result<u32, Error> {
        let (raw, timeout) = (self.raw.as_ptr(), nanoseconds(timeout));
        if messages.len() % self.message_bytes != 0 {
            let text = format!("{} bytes are no multiple of {}", messages.len(), self.message_bytes);
            return Err(Error::argument("messages", text));
        }
        let count = u32::try_from(messages.len() / self.message_bytes).unwrap_or(u32::MAX);
        let mut sent = 0;
        // SAFETY: the handle lives, and one thread has it; `count` messages are there.
        match call(|err| unsafe { sys::feedlane_tx_send(raw, messages.as_ptr().cast(), count, timeout, &mut sent, err) }) {
            Err(error) if sent == 0 => Err(error),
            Ok(status) if sent == 0 => only_ok(status).map(|()| 0),
            _ => Ok(sent),
        }
    }

    /// Waits for room for up to `want` messages. TIMEOUT and INTERRUPTED are errors here.
    pub fn reserve(&mut self, want: u32, timeout: Option<Duration>) -> Result<Reserved<'_>, Error> {
        let (raw, timeout) = (self.raw.as_ptr(), nanoseconds(timeout));
        let mut span = sys::feedlane_span::new();
        // SAFETY: the handle lives, and one thread has it; a struct of ours to fill in.
        let status = call(|err| unsafe { sys::feedlane_tx_reserve(raw, want, timeout, &mut span, err) })?;
        only_ok(status)?;
        Ok(Reserved { span, ring: self })
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut raw = self.raw.as_ptr();
        // SAFETY: the one handle, which nobody uses any more.
        unsafe { sys::feedlane_tx_destroy(&mut raw) };
    }
}

/// Room for messages, in place. What isn't committed is given back.
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

    /// One message's room: its bytes, then up to 63 more that nobody looks at.
    ///
    /// # Panics
    /// Beyond the last one.
    pub fn cell_mut(&mut self, index: usize) -> ValuesMut<'_, u8> {
        assert!(index < self.len(), "cell {} of {}", index, self.len());
        let stride = self.span.stride as usize;
        // SAFETY: a cell of the reservation, this sender's alone but for the ring's own 8 bytes of each.
        unsafe { ValuesMut::new(self.span.data.cast::<u8>().add(index * stride), stride - 8) }
    }

    /// Publishes the first `count` messages, in order.
    pub fn commit(self, count: u32) -> Result<(), Error> {
        let raw = self.ring.raw.as_ptr();
        // SAFETY: the handle lives, and one thread has it. Dropping then gives back nothing that is published.
        call(|err| unsafe { sys::feedlane_tx_commit(raw, count, err) }).map(drop)
    }
}
