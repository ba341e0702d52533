# SPDX-License-Identifier: Apache-2.0
"""The reads of an AsyncDataset in one process: an event loop in a thread, and the reads that belong to each task."""
from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import os
import threading
from typing import Any, Protocol

from . import _core

_PATIENCE_S = 5  # for cancelled reads, and for `close`

_Future = concurrent.futures.Future[Any]
_Started = dict[int, collections.deque[_Future]]  # by index


class Coroutines(Protocol):
    """The coroutines of an AsyncDataset."""

    reads_in_flight: int

    async def open(self) -> None:
        """Awaited before the first `fetch`."""

    async def fetch(self, index: int) -> Any:
        """Returns a sample."""

    async def close(self) -> None:
        """Awaited after the last `fetch`."""


class Reads:
    """Any thread may request samples, one at a time."""

    def __init__(self, dataset: Coroutines) -> None:
        self._dataset, self._pid = dataset, os.getpid()
        self._started: dict[int, _Started] = {}  # by task: the current one and the ones queued behind it
        self._in_hand: int | None = None
        self._newest = 0  # newest task whose reads were started
        self._follows = True  # True: the loader's indices are the ones requested here
        self._loop = asyncio.new_event_loop()
        self._opened: asyncio.Task[None] | None = None
        self._room = asyncio.Semaphore(dataset.reads_in_flight)
        self._thread = threading.Thread(target=self._loop.run_forever, name="feedlane reads", daemon=True)
        self._thread.start()

    def is_mine(self) -> bool:
        """False in a forked child, which does not have this thread."""
        return self._pid == os.getpid()

    def sample(self, index: int) -> Any:
        """Waits for the sample. Raises exceptions of `fetch`."""
        in_hand = _core.task_id() if self._follows else None
        if in_hand is not None:
            self._follow(in_hand, index)
        waiting = self._started[in_hand].get(index) if in_hand is not None and in_hand in self._started else None
        read = waiting.popleft() if waiting else self._start(index)
        try:
            return read.result()
        except BaseException:
            read.cancel()  # in case a signal handler has raised
            raise

    # ---- which reads ----

    def _follow(self, in_hand: int, index: int) -> None:
        """Starts the reads of new tasks, and cancels the reads of tasks that will not come."""
        if in_hand != self._in_hand:
            is_another_loaders = self._in_hand is not None and in_hand < self._in_hand  # only without workers
            for task in [task for task in self._started if task < in_hand or is_another_loaders]:
                self._drop(task)
            self._newest = in_hand - 1 if is_another_loaders else max(self._newest, in_hand - 1)
            self._in_hand = in_hand
        for task, _, _, indices, _ in _core.tasks(self._newest):
            if task == in_hand and index not in indices:  # a data set around this one maps the indices
                self._follows = False
                for started in list(self._started):
                    self._drop(started)
                return
            self._newest = task
            reads = self._started[task] = {}
            for one in indices:
                reads.setdefault(one, collections.deque()).append(self._start(one))

    def _drop(self, task: int) -> None:
        for reads in self._started.pop(task).values():
            for read in reads:
                read.cancel()

    # ---- in the loop ----

    def _start(self, index: int) -> _Future:
        return asyncio.run_coroutine_threadsafe(self._read(index), self._loop)

    async def _read(self, index: int) -> Any:
        async with self._room:
            if self._opened is None:
                self._opened = self._loop.create_task(self._dataset.open())
            await asyncio.shield(self._opened)
            return await self._dataset.fetch(index)

    def stop(self) -> None:
        """Cancels all reads, awaits `close` and ends the thread."""
        if self._loop.is_closed():
            return
        ended = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        try:
            ended.result(2 * _PATIENCE_S)
        except Exception:  # `close` failed or hung, at the end of a worker
            pass
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _end(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and task is not self._opened]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_PATIENCE_S)
        if self._opened is not None and self._opened.done() and not self._opened.cancelled() and self._opened.exception() is None:
            await asyncio.wait_for(self._dataset.close(), _PATIENCE_S)
