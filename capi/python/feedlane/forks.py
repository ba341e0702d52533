# SPDX-License-Identifier: Apache-2.0
"""Worker processes that are forked from the trainer."""
from __future__ import annotations

import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, Any

from . import child, maker, worker

if TYPE_CHECKING:
    from . import feeding

_PATIENCE_S = 5  # for a worker to end


class Forks:
    """The workers of a Loader."""

    def __init__(self, job: maker.Job, cpus: list[list[int]]) -> None:
        """cpus: the processors of each worker, reused from the start; empty: all."""
        self._job, self._cpus = job, cpus
        self._context: Any = multiprocessing.get_context("fork")
        self._children: dict[int, child.Child] = {}

    def start(self, place: feeding.Place) -> None:
        """Starts a worker."""
        old = self._children.pop(place.id, None)
        if old is not None:
            old.end(_PATIENCE_S)
        cpus = self._cpus[place.id % len(self._cpus)] if self._cpus else []
        process = self._context.Process(target=_work, args=(place.fd, self._job, cpus), daemon=True)
        process.start()
        self._children[place.id] = child.Child(process, leads_group=True)

    def reap(self) -> None:
        """Called after the end of the workers."""
        self.close()

    def close(self) -> None:
        """Waits for the end of the workers, which the loader has asked for."""
        for one in self._children.values():
            one.end(_PATIENCE_S)
        self._children.clear()

    def __del__(self) -> None:
        for one in self._children.values():  # their Loader was dropped
            one.end(0)


def _work(descriptor: int, job: maker.Job, cpus: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cpus:
        os.sched_setaffinity(0, cpus)
    os.setpgid(0, 0)  # programs that the data set starts are killed with it
    worker.run_forked(descriptor, lambda _: job)
