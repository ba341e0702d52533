# SPDX-License-Identifier: Apache-2.0
"""The speed of an epoch: what loaders report about it, also after their workers have ended."""
from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from . import _core, errors

if TYPE_CHECKING:
    from .records import BatchRecord, Diagnosis, ErrorRecord, LoaderInfo, Stats, Timings, WorkerStats


_EVENTS = ["error", "warning", "worker died", "worker started", "worker wanted", "quarantined", "invalid", "sample retried",
           "sample substituted", "sample skipped", "worker hung", "device failed", "consumer left", "consumer lags",
           "consumer evicted"]


class Figures(Protocol):
    """The source of the figures: a _core.Loader or _core.Monitor, or a copy of its last figures."""

    def report(self) -> str:
        """See Observed.report. The other methods also correspond to those of Observed."""

    def diagnose(self) -> Diagnosis:
        """The bottleneck of the epoch."""

    def info(self) -> LoaderInfo:
        """The loader's configuration and position."""

    def timings(self, worker: int, /) -> Timings | None:
        """The timings of this worker or, with -1, of all. None: there are fewer workers."""

    def error(self, index: int, /) -> dict[str, Any] | None:
        """The distinct error with this index, whose `kind` is a number. None: there are fewer."""

    def slots(self) -> bytes:
        """Records for _core.Loader.read_trace, one for each slot."""

    def trace(self, from_: int, /) -> bytes:
        """Records for _core.Loader.read_trace."""


class Last:
    """A copy of a _core.Loader's figures, made by the constructor. The loader may then be closed."""

    def __init__(self, core: Figures) -> None:
        self._report, self._diagnosis, self._info = core.report(), core.diagnose(), core.info()
        self._timings = [core.timings(worker) for worker in range(-1, self._info["workers"])]
        self._trace = core.trace(0) if self._info["trace"] else None
        self._errors, self._slots = list(_errors(core)), core.slots()

    def report(self) -> str:
        """The copied report."""
        return self._report

    def diagnose(self) -> Diagnosis:
        """The copied diagnosis."""
        return self._diagnosis

    def info(self) -> LoaderInfo:
        """The copied facts."""
        return self._info

    def timings(self, worker: int) -> Timings | None:
        """The copied timings."""
        return self._timings[worker + 1] if -1 <= worker < len(self._timings) - 1 else None

    def error(self, index: int) -> dict[str, Any] | None:
        """The copied error."""
        return self._errors[index] if index < len(self._errors) else None

    def slots(self) -> bytes:
        """The copied records of the slots."""
        return self._slots

    def trace(self, from_: int) -> bytes:
        """The copied records from `from_` on. Raises StateError if no trace was kept."""
        if self._trace is None:
            raise errors.make(_core.E_STATE, "no trace is recorded: pass trace=, or set FEEDLANE_TRACE")
        records = _core.Loader.read_trace(self._trace)
        lost = sum(record["sequence"] < from_ for record in records)
        return self._trace[lost * (len(self._trace) // max(1, len(records))):]


class Source:
    """The figures of a _core.Loader while it is open, then its last ones."""

    def __init__(self, core: _core.Loader) -> None:
        self._core: _core.Loader | None = core
        self.figures: Figures = core

    def freeze(self) -> None:
        """Called before the loader is closed: copies its figures and drops the reference to it. Copies nothing if the loader is
        already closed or belongs to another process."""
        core, self._core = self._core, None
        if core is None or core.is_closed:
            return
        try:
            self.figures = Last(core)
        except errors.FeedlaneError:
            pass


class Nothing:
    """Stands for figures that do not exist. `reason` is a sentence that says why."""

    def __init__(self, status: int, reason: str) -> None:
        self._status, self._reason = status, reason

    def _raise(self) -> errors.FeedlaneError:
        return errors.make(self._status, self._reason)

    def report(self) -> str:
        """The reason."""
        return self._reason + "\n"

    def diagnose(self) -> Diagnosis:
        """Zeros, with the reason as the text."""
        return {"bound": "nothing", "worker": -1, "interval_ns": 0, "batches": 0, "samples": 0, "bytes": 0, "exposed_ns": 0,
                "start_ns": 0, "busy_ns": 0, "ready": 0, "asked": 0, "text": self._reason, "advice": ""}

    def info(self) -> LoaderInfo:
        """Raises StateError or Unsupported, with the reason; so do the following methods."""
        raise self._raise()

    def timings(self, worker: int) -> Timings | None:
        """See info."""
        raise self._raise()

    def error(self, index: int) -> dict[str, Any] | None:
        """See info."""
        raise self._raise()

    def slots(self) -> bytes:
        """See info."""
        raise self._raise()

    def trace(self, from_: int) -> bytes:
        """See info."""
        raise self._raise()


class Observed:
    """The methods that Loader and DataLoader share to show where an epoch's time goes. They describe the current epoch or,
    after its end, the newest one; timings and trace cover all batches of the loader. A monitor in another process reads the
    same figures."""

    def _figures(self) -> Figures:
        raise NotImplementedError

    def report(self) -> str:
        """Returns a short text for people: rates, exposed wait, each worker, the bottleneck, advice, errors. Its format may
        change; programs use `diagnose`. Raises StateError if the loader was closed; so do the methods below."""
        return self._figures().report()

    def diagnose(self) -> Diagnosis:
        """Returns the bottleneck of the epoch: `bound` is "trainer", "data", "worker" (`worker` is its number), "slots",
        "starting", "processors", or "nothing" if no epoch has begun; `text` and `advice` explain it."""
        return self._figures().diagnose()

    def timings(self, worker: int | None = None) -> Timings:
        """Returns histograms of the durations of each step, for all batches or for the batches of one worker. Raises IndexError
        if there are fewer workers."""
        timings = self._figures().timings(-1 if worker is None else errors.whole("worker", worker, 0, 2**31 - 1))
        if timings is None:
            raise IndexError(f"worker {worker} does not exist: the loader has {self._figures().info()['workers']} workers")
        return timings

    def info(self) -> LoaderInfo:
        """Returns facts about the loader, and its position in the epoch."""
        return self._figures().info()

    def trace(self, from_: int = 0) -> list[BatchRecord]:
        """Returns the records that the trace keeps, from sequence number `from_` on, oldest first. A batch's record is written
        when its slot is reused or the epoch ends. Raises StateError if the loader keeps no trace, see the argument `trace`."""
        return _core.Loader.read_trace(self._figures().trace(errors.whole("from_", from_, 0, 2**64 - 2)))

    def slots(self) -> list[BatchRecord]:
        """Returns one record per slot, in order of slot number. It describes the batch in the slot or, if `released_ns` is not 0, the
        last batch there. `task` is 0 if the slot was not used yet."""
        return _core.Loader.read_trace(self._figures().slots())

    def errors(self) -> list[ErrorRecord]:
        """Returns the distinct errors and events, at most 32, in the order of their first occurrence. Errors whose
        texts differ only in numbers are counted together. `kind` is a word as in Event, or "error" for one that `next` raised."""
        return [cast("ErrorRecord", {**error, "kind": event_word(error["kind"])}) for error in _errors(self._figures())]


class Monitor(Observed):
    """Reads the figures of loader `nth` of process `pid`. The process may be this one; another one must run as the same user, and is
    not disturbed. After the loader or its process has ended, the last values remain. report() and diagnose() cover the time since the
    last diagnose(), or since the monitor was opened. Any thread may call any method."""

    def __init__(self, pid: int, nth: int = 0) -> None:
        """`nth` counts the loaders of the process from 0. Raises LookupError if there are fewer, PeerDead if there is no such
        process, SystemCallError if it belongs to another user, and AbiError or CorruptError if its library is of another
        version."""
        core = _core.Monitor.open(errors.whole("pid", pid, 1, 2**31 - 1), errors.whole("nth", nth, 0, 2**31 - 1))
        if core is None:
            raise LookupError(f"process {pid} has no loader {nth}")
        self._core = core

    def _figures(self) -> Figures:
        return self._core

    def stats(self) -> Stats:
        """As Loader.stats."""
        return self._core.stats()

    def workers(self) -> list[WorkerStats]:
        """As Loader.workers."""
        return workers_of(self._core)

    def close(self) -> None:
        """Frees the memory of the other loader. Calls raise StateError afterwards."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def workers_of(core: _core.Loader | _core.Monitor) -> list[WorkerStats]:
    """Returns the counters of each worker."""
    return list(iter(map(core.worker_stats, itertools.count()).__next__, None))


def event_word(kind: int) -> str:
    """Returns the word for a kind of event; "error" for 0."""
    return _EVENTS[kind] if kind < len(_EVENTS) else str(kind)


def _errors(figures: Figures) -> Iterator[dict[str, Any]]:
    return iter(map(figures.error, itertools.count()).__next__, None)
