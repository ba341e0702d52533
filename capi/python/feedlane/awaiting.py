# SPDX-License-Identifier: Apache-2.0
"""Waits in asyncio, and the iteration over batches there."""
from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

from . import _core, errors

Asleep = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]
"""The event loop of a task in `readable`, and the future whose end ends the wait."""


class Sleeper(Protocol):
    """An object on which one task at a time waits."""

    _asleep: Asleep | None


class _Batches(Sleeper, Protocol):
    timeout: float

    def poll(self) -> bool: ...


class AsyncEpoch:
    """The asynchronous iterator of an epoch. It waits on the loader's descriptor in the event loop of the task that calls it, and
    takes a batch only when it returns it: a task that is cancelled loses no batch. One task at a time."""

    def __init__(self, loader: _Batches, core: _core.Loader, cursor: Iterator[Any]) -> None:
        """cursor: an iterator whose `next` raises Timeout in place of waiting."""
        self._loader, self._core, self._cursor, self._turn = loader, core, cursor, core.turn
        self._fd, self._is_over, self._is_in_next = os.dup(core.fileno()), False, False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._is_over:
            raise StopAsyncIteration
        if self._is_in_next:
            raise errors.make(_core.E_BUSY, "another task is already waiting for a batch of this iteration")
        self._is_in_next = True
        try:
            return await self._next()
        finally:
            self._is_in_next = False

    async def _next(self) -> Any:
        timeout = self._loader.timeout
        end = asyncio.get_running_loop().time() + timeout if timeout else None
        while True:
            await asyncio.sleep(0)  # other tasks run even if every batch is ready
            is_late = self._must_wait() and not await self._wait(end)
            try:
                return next(self._cursor)
            except StopIteration:
                self._is_over = True
                raise StopAsyncIteration from None
            except errors.Timeout:
                if is_late:
                    raise

    def _must_wait(self) -> bool:
        """Whether `next` has nothing to return yet. Then the descriptor becomes readable when it may have."""
        return self._core.turn == self._turn and not self._loader.poll()

    async def _wait(self, end: float | None) -> bool:
        """Sleeps until the descriptor is readable, or the loader was closed or begins another epoch. Returns False at the time
        `end`."""
        return await readable(self._fd, self._loader, lambda: self._core.is_closed, end)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # there was no descriptor left
            os.close(self._fd)


async def readable(fd: int, sleeper: Sleeper, is_closed: Callable[[], bool], end: float | None) -> bool:
    """Sleeps until the descriptor is readable, or `wake(sleeper)` is called. Returns False at the time `end` of the event loop.
    Returns at once if is_closed(), because another thread may have closed the object before `wake` could see this task. Raises Busy
    if another task already waits."""
    if sleeper._asleep is not None:
        raise errors.make(_core.E_BUSY, "another task already waits here")
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    asleep = sleeper._asleep = loop, woken
    loop.add_reader(fd, _settle, woken)
    try:
        if not is_closed():
            async with asyncio.timeout_at(end):
                await woken
        return True
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
        if sleeper._asleep is asleep:
            sleeper._asleep = None


def wake(sleeper: Sleeper) -> None:
    """Ends the wait of the task in `readable`, if there is one. Any thread may call it."""
    asleep, sleeper._asleep = sleeper._asleep, None
    if asleep is not None:
        loop, woken = asleep
        with contextlib.suppress(RuntimeError):  # the event loop was closed
            loop.call_soon_threadsafe(_settle, woken)


def _settle(woken: asyncio.Future[None]) -> None:
    """Ends the wait for this future."""
    if not woken.done():
        woken.set_result(None)
