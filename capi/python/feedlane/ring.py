# SPDX-License-Identifier: Apache-2.0
"""Rings without a loader: messages of one size from several senders, which may be other processes, to one receiver."""
from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from . import _core, awaiting, errors, feeding, lifetime

if TYPE_CHECKING:
    import numpy.typing as npt
    from _typeshed import ReadableBuffer

_RECEIVED_BYTES = 1 << 20  # most bytes that receive() copies without `most`
_SLICE_S = 0.2             # asend sends so long in one call, which cannot be cancelled


class Receiver:
    """The receiving end of a ring. One sender's messages stay in order; messages of different senders have no order.

      message    type of a message: a numpy dtype, or a number of bytes, 1 to 2**20. Messages arrive as arrays [count] of this
                 type, or [count, bytes] of uint8
      capacity   messages that each sender has room for: a power of two up to 2**24
      senders    most senders attached at once, up to 4096
      path       path of a Unix socket to create, at which processes of the same user may attach

        ring = feedlane.Receiver("float64", senders=2, path="/run/user/1000/ring.sock")
        for messages in ring:                           # until all senders that attached have left
            print(messages.mean())

        with feedlane.Sender("/run/user/1000/ring.sock", "float64") as sender:      # in another process
            sender.send(numpy.arange(1000.0))

    Senders attach during calls of receive, peek, areceive, poll and offer. One thread or task at a time may use it, otherwise Busy is
    raised; any thread may call close(). The ring ends with this process; senders then raise PeerDead."""

    _asleep: awaiting.Asleep | None = None  # of the task in areceive
    _fd = -1                                # a copy of the descriptor to wait on

    def __init__(self, message: npt.DTypeLike | int, capacity: int = 1024, *, senders: int = 1,
                 path: str | os.PathLike[str] | None = None) -> None:
        """Raises ArgumentError for a size that is not allowed, StateError if another process listens at the path, and LimitError,
        OutOfMemory or SystemCallError as the library does."""
        self._dtype = _type(message)
        self._core = lifetime.keep(_core.Receiver.create(
            self._dtype.itemsize, errors.whole("capacity", capacity, 0, 2**32 - 1), errors.whole("senders", senders, 1, 2**32 - 1),
            None if path is None else os.fsencode(path)))

    def offer(self) -> socket.socket:
        """Returns a socket for one sender, which may be in a process of any user: pass it to Sender there. Raises LimitError if all
        `senders` lanes are taken."""
        return socket.socket(fileno=self._core.offer())

    def receive(self, most: int | None = None, *, timeout: float | None = None) -> npt.NDArray[Any]:
        """Waits for messages of one sender and returns an array with copies of up to `most` of them; None: up to 1 MiB. It returns
        adjacent messages only; call it again for the rest. Raises Timeout, and EOFError if all senders that attached have left or
        died and their messages were received. After EOFError, call it again to wait for new senders."""
        return self._copies(self._core.receive(self._most(most), feeding.nanoseconds(timeout)))

    def peek(self, most: int | None = None, *, timeout: float | None = None) -> Messages:
        """As receive, without a copy: use it as `with ring.peek() as messages: total = messages[:].sum()`. The sender can
        still change these messages: copy a value before you check it."""
        found = self._core.peek(self._most(most), feeding.nanoseconds(timeout))
        return Messages(self._refuse(found) if isinstance(found, int) else found, self._dtype)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Yields what receive() returns, until all senders that attached have left, or the ring was closed."""
        while True:
            try:
                received = self.receive()
            except EOFError:
                return
            except errors.StateError:
                if self._core.is_closed:
                    return
                raise
            yield received

    async def areceive(self, most: int | None = None, *, timeout: float | None = None) -> npt.NDArray[Any]:
        """As receive, for asyncio. A task that waits may be cancelled: no message is lost."""
        timeout_ns = feeding.nanoseconds(timeout)
        end = None if timeout is None else asyncio.get_running_loop().time() + timeout_ns / 1e9
        while True:
            await asyncio.sleep(0)  # other tasks run even if messages are ready
            received = self._core.receive(self._most(most), 0)
            if received != _core.TIMEOUT:
                return self._copies(received)
            if not self.poll() and not await awaiting.readable(self._duplicate(), self, lambda: self._core.is_closed, end):
                self._refuse(_core.TIMEOUT)

    async def __aiter__(self) -> AsyncIterator[npt.NDArray[Any]]:
        """As __iter__, for asyncio."""
        while True:
            try:
                received = await self.areceive()
            except EOFError:
                return
            except errors.StateError:
                if self._core.is_closed:
                    return
                raise
            yield received

    def fileno(self) -> int:
        """The descriptor for the program's own event loop, which the ring owns. Poll it for reading while `poll` returns False."""
        return self._core.arm()[1]

    def poll(self) -> bool:
        """True: call `receive` now. False: there is no message; call this again once fileno() is readable."""
        return self._core.arm()[0] == _core.AGAIN

    def close(self) -> None:
        """Ends the ring: senders raise PeerDead from their next wait. A call in another thread or task raises StateError. While an
        array of messages in place exists, the ring ends only with it."""
        self._core.close()
        awaiting.wake(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    @staticmethod
    def observe(pid: int, nth: int = 0) -> dict[str, int] | None:
        """Returns the figures of ring `nth` whose receiver is process `pid`; that process is not involved: pid, message_bytes,
        capacity, lanes (most senders), received (messages that were released), control_bytes. None: there is no such ring. Raises
        PeerDead if there is no such process, and SystemCallError if it belongs to another user."""
        return _core.Receiver.observe(errors.whole("pid", pid, 1, 2**31 - 1), errors.whole("nth", nth, 0, 2**31 - 1))

    def _most(self, most: int | None) -> int:
        return max(1, _RECEIVED_BYTES // self._dtype.itemsize) if most is None else errors.whole("most", most, 1, 2**32 - 1)

    def _copies(self, received: bytearray | int) -> npt.NDArray[Any]:
        return np.frombuffer(self._refuse(received) if isinstance(received, int) else received, self._dtype)

    @staticmethod
    def _refuse(status: int) -> NoReturn:
        if status == _core.END:
            raise EOFError("all senders that attached to the ring have left")
        raise errors.make(status, "no message arrived within the timeout")

    def _duplicate(self) -> int:
        """Stays open after close, as long as this object lives: an event loop may still have it."""
        if self._fd < 0:
            self._fd = os.dup(self.fileno())
        return self._fd


class Sender:
    """A sending end of a ring.

      ring      the receiver's path, or a socket or descriptor of its offer(), which is consumed
      message   type of a message; its size must be the receiver's. None: bytes
      timeout   seconds to wait for the receiver's answer, which it gives in its own calls

    One thread or task at a time may use it, otherwise Busy is raised; any thread may call close(). The receiver gets everything that
    was sent, even if this process then ends."""

    def __init__(self, ring: str | os.PathLike[str] | socket.socket | int, message: npt.DTypeLike | int | None = None, *,
                 timeout: float | None = 60) -> None:
        """Raises PeerDead if there is no receiver, Timeout if it does not answer in time, LimitError if it has as many senders as
        are allowed, StateError if it belongs to another user, and ValueError if its messages have another size."""
        timeout_ns, dtype = feeding.nanoseconds(timeout), None if message is None else _type(message)
        if isinstance(ring, (str, os.PathLike)):
            core = _core.Sender.attach(-1, os.fsencode(ring), timeout_ns)
        else:
            fd = ring.detach() if isinstance(ring, socket.socket) else errors.whole("ring", ring, 0, 2**31 - 1)
            core = _core.Sender.attach(fd, None, timeout_ns)
        self._core = lifetime.keep(core)
        self._dtype = dtype if dtype is not None else _type(core.message_bytes)
        if self._dtype.itemsize != core.message_bytes:
            self.close()
            raise ValueError(f"message={message!r}: has {self._dtype.itemsize} bytes, but the ring's messages have "
                             f"{core.message_bytes}")

    def send(self, messages: ReadableBuffer | npt.NDArray[Any], *, timeout: float | None = None) -> int:
        """Copies messages, which lie one after another in an array, bytes or another buffer, into the ring. Returns how many were
        sent: all of them, or fewer if the ring stayed full until the timeout. Raises PeerDead if the ring is full and the receiver
        has ended, and TypeError for an array of another type."""
        return self._core.send(self._data(messages), feeding.nanoseconds(timeout))

    def _data(self, messages: ReadableBuffer | npt.NDArray[Any]) -> Any:
        if not isinstance(messages, np.ndarray):
            return messages
        if messages.dtype not in (self._dtype, np.uint8) and (self._dtype.subdtype is None or messages.dtype.hasobject):
            raise TypeError(f"an array of {messages.dtype} was passed, but a message is a {self._dtype}: convert it with astype")
        return np.ascontiguousarray(messages)

    async def asend(self, messages: ReadableBuffer | npt.NDArray[Any], *, timeout: float | None = None) -> int:
        """As send, for asyncio. If the task is cancelled, some of the messages may have been sent."""
        data, end_ns = memoryview(self._data(messages)).cast("B"), time.monotonic_ns() + feeding.nanoseconds(timeout)
        size = self._dtype.itemsize
        sent = self._core.send(data, 0)
        while sent * size < len(data) and (left_s := (end_ns - time.monotonic_ns()) / 1e9) > 0:
            part = asyncio.ensure_future(asyncio.to_thread(self.send, data[sent * size:], timeout=min(left_s, _SLICE_S)))
            try:
                sent += await asyncio.shield(part)
            except asyncio.CancelledError:
                await asyncio.wait([part])
                raise
        return sent

    def reserve(self, most: int = 1, *, timeout: float | None = None) -> Messages:
        """Waits for room, and returns up to `most` messages to be written in place: use it as `with sender.reserve(8) as messages:
        messages[:] = ...`. Raises Timeout and PeerDead."""
        found = self._core.reserve(errors.whole("most", most, 1, 2**32 - 1), feeding.nanoseconds(timeout))
        if isinstance(found, int):
            raise errors.make(found, "the ring stayed full until the timeout")
        return Messages(found, self._dtype)

    def close(self) -> None:
        """Leaves the ring. A call in another thread raises StateError. While an array of reserved messages exists, the receiver does not
        notice."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Messages:
    """Messages of one sender in place: index it like an array of them, which is read-only for a receiver. After a `with` block they
    are released, or sent; after an exception in it they come again, or are dropped. Delete all arrays of them before the block ends,
    and elements of a structured type, which are views too. Otherwise BufferError is raised; call release() after deleting them.
      lane   number of the sender's lane, below Receiver's `senders`"""

    _is_released = False

    def __init__(self, span: _core.Span, dtype: np.dtype[Any]) -> None:
        self._span, self._dtype, self.lane = span, dtype, span.lane

    def __len__(self) -> int:
        return len(self._span)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """The messages, without a copy. Raises BufferError after release."""
        rows = np.asarray(memoryview(self._span))
        array = rows if self._dtype.subdtype is not None else rows.view(self._dtype)[:, 0]
        return array.copy() if copy else array

    def __getitem__(self, key: Any) -> Any:
        """Raises BufferError after release."""
        return self.__array__()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Writes to reserved messages. Raises BufferError after release, and ValueError for received messages."""
        self.__array__()[key] = value

    def release(self, count: int | None = None) -> None:
        """Ends the use of the messages: releases, or sends, the first `count` of them; None: all. The others come again, or are
        dropped. Raises BufferError if an array of them exists, and StaleBatch if they were released."""
        self._span.finish(len(self) if count is None else errors.whole("count", count, 0, len(self)))
        self._is_released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_released:
            return
        if kind is None:
            self.release()
        else:
            with contextlib.suppress(BufferError, errors.FeedlaneError):  # frames of the traceback may have an array
                self.release(0)


def _type(message: npt.DTypeLike | int) -> np.dtype[Any]:
    """Raises ValueError for a type whose values are not plain bytes."""
    if isinstance(message, int):
        return np.dtype((np.uint8, (errors.whole("message", message, 1, 2**20),)))
    dtype = np.dtype(message)
    if message is None or dtype.hasobject or dtype.itemsize == 0 or dtype.subdtype is not None:
        raise ValueError(f"message={message!r}: must be a type of a fixed number of bytes, without Python objects; for an array, use a "
                         "structured type or a number of bytes")
    return dtype
