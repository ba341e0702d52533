# SPDX-License-Identifier: Apache-2.0
"""Why an epoch is as fast as it is: what loaders say of it, also when their workers have ended."""
from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from . import _core, errors

if TYPE_CHECKING:
    from .records import BatchRecord, Diagnosis, LoaderInfo, Timings


class Figures(Protocol):
    """Where the figures come from: a _core.Loader, or what is left of one."""

    def report(self) -> str:
        """See Observed.report; likewise the others."""

    def diagnose(self) -> Diagnosis:
        """What bounded the epoch."""

    def info(self) -> LoaderInfo:
        """The loader's configuration and position."""

    def timings(self, worker: int, /) -> Timings | None:
        """Of this worker, or -1: of all. None: there are fewer workers."""

    def trace(self, from_: int, /) -> bytes:
        """Records for _core.Loader.read_trace."""


class Last:
    """The figures of a _core.Loader as they were when this was made: it may be closed then."""

    def __init__(self, core: Figures) -> None:
        self._report, self._diagnosis, self._info = core.report(), core.diagnose(), core.info()
        self._timings = [core.timings(worker) for worker in range(-1, self._info["workers"])]
        self._trace = core.trace(0) if self._info["trace"] else None

    def report(self) -> str:
        """As it was."""
        return self._report

    def diagnose(self) -> Diagnosis:
        """As it was."""
        return self._diagnosis

    def info(self) -> LoaderInfo:
        """As it was."""
        return self._info

    def timings(self, worker: int) -> Timings | None:
        """As they were."""
        return self._timings[worker + 1] if -1 <= worker < len(self._timings) - 1 else None

    def trace(self, from_: int) -> bytes:
        """As it was. StateError: none was kept."""
        if self._trace is None:
            raise errors.make(_core.E_STATE, "no trace was kept: say trace=, or set FEEDLANE_TRACE")
        records = _core.Loader.read_trace(self._trace)
        lost = sum(record["sequence"] < from_ for record in records)
        return self._trace[lost * (len(self._trace) // max(1, len(records))):]


class Source:
    """The figures of a _core.Loader while it is open, and its last ones afterwards."""

    def __init__(self, core: _core.Loader) -> None:
        self._core: _core.Loader | None = core
        self.figures: Figures = core

    def freeze(self) -> None:
        """Before it is closed. Lets go of it. Nothing is left of one that is closed already, or is another process's."""
        core, self._core = self._core, None
        if core is None or core.is_closed:
            return
        try:
            self.figures = Last(core)
        except errors.FeedlaneError:
            pass


class Nothing:
    """In place of figures where there are none. `reason` says why, in a sentence."""

    def __init__(self, status: int, reason: str) -> None:
        self._status, self._reason = status, reason

    def _raise(self) -> errors.FeedlaneError:
        return errors.make(self._status, self._reason)

    def report(self) -> str:
        """The reason."""
        return self._reason + "\n"

    def diagnose(self) -> Diagnosis:
        """Zeros, and the reason as the text."""
        return {"bound": "nothing", "worker": -1, "interval_ns": 0, "batches": 0, "samples": 0, "bytes": 0, "exposed_ns": 0,
                "start_ns": 0, "busy_ns": 0, "ready": 0, "asked": 0, "text": self._reason, "advice": ""}

    def info(self) -> LoaderInfo:
        """Raises StateError or Unsupported, with the reason; so do the following."""
        raise self._raise()

    def timings(self, worker: int) -> Timings | None:
        """See info."""
        raise self._raise()

    def trace(self, from_: int) -> bytes:
        """See info."""
        raise self._raise()


class Observed:
    """What Loader and DataLoader have in common: where the time of an epoch goes. All of it is of the present epoch or, after
    it, of the newest one; timings and trace are of all that the loader has made. A monitor in another process reads the same."""

    def _figures(self) -> Figures:
        raise NotImplementedError

    def report(self) -> str:
        """A short text for people: rates, exposed wait, each worker, what bounded the epoch, what to change, errors. Its form may
        change; `diagnose` is for programs. StateError: the loader was closed; so with the methods below."""
        return self._figures().report()

    def diagnose(self) -> Diagnosis:
        """What bounded the epoch: `bound` is "trainer", "data", "worker" (`worker` says which), "slots", "starting", "processors", or
        "nothing" where no epoch has begun; `text` and `advice` say it in words."""
        return self._figures().diagnose()

    def timings(self, worker: int | None = None) -> Timings:
        """Histograms of how long the steps of batches took, of all or of those that one worker made. IndexError: there are fewer
        workers."""
        timings = self._figures().timings(-1 if worker is None else errors.whole("worker", worker, 0, 2**31 - 1))
        if timings is None:
            raise IndexError(f"worker {worker} of {self._figures().info()['workers']}")
        return timings

    def info(self) -> LoaderInfo:
        """What the loader is, and where its epoch stands."""
        return self._figures().info()

    def trace(self, from_: int = 0) -> list[BatchRecord]:
        """The records that the trace keeps, from sequence number `from_` on, oldest first. A batch's record is written when its
        slot is used again, or the epoch ends. StateError: the loader keeps no trace, see the argument `trace`."""
        return _core.Loader.read_trace(self._figures().trace(errors.whole("from_", from_, 0, 2**64 - 1)))
