# SPDX-License-Identifier: Apache-2.0
"""An exception for each status of feedlane.h that is an error, and for the two outcomes that a loop can't go on with."""
from __future__ import annotations

import operator
import traceback
from collections.abc import Mapping
from typing import Any, TypeVar

from . import _core

_V = TypeVar("_V")


class FeedlaneError(Exception):
    """What the library says went wrong. -1 in worker, attempt, epoch, batch or sample means "none". `reason`: the text alone,
    without the place and the traceback. `argument`: the name of the one that is refused, or "". `found` and `needed`: of a limit,
    in its unit. `os_errno`: the system's number, or 0."""

    status: int = 0

    def __init__(self, text: str, *, worker: int = -1, attempt: int = -1, epoch: int = -1, batch: int = -1, sample: int = -1,
                 argument: str = "", found: int = 0, needed: int = 0, os_errno: int = 0, traceback: str = "",
                 reason: str = "") -> None:
        self.worker, self.attempt, self.epoch, self.batch, self.sample = worker, attempt, epoch, batch, sample
        self.argument, self.found, self.needed, self.traceback = argument, found, needed, traceback
        self.os_errno, self.reason = os_errno, reason or text
        super().__init__(text)


class SlotsHeld(FeedlaneError, RuntimeError):
    """The trainer keeps so many batches that no slot is left for another one: drop some, or make `held` larger."""


class Timeout(FeedlaneError, TimeoutError, RuntimeError):
    """No batch came in time. The loop can go on: nothing is lost. A RuntimeError too, as torch's is."""


class ArgumentError(FeedlaneError, ValueError):
    """An argument is out of its domain."""


class StateError(FeedlaneError, RuntimeError):
    """Not possible in this state."""


class Busy(FeedlaneError, RuntimeError):
    """Another thread is in a call that allows one at a time."""


class Forked(FeedlaneError, RuntimeError):
    """The loader belongs to the parent process."""


class StaleBatch(FeedlaneError, RuntimeError):
    """The batch was released already."""


class OutOfMemory(FeedlaneError, MemoryError):
    """Too little memory; `needed` and `found` are bytes."""


class LimitError(FeedlaneError, RuntimeError):
    """A limit of the system or of the configuration."""


class SystemCallError(FeedlaneError, OSError):
    """A system call failed; `errno` is the system's number."""

    def __init__(self, text: str, **where: Any) -> None:
        super().__init__(text, **where)
        errno: Any = self.os_errno or None
        self.errno = errno


class AbiError(FeedlaneError, RuntimeError):
    """Versions or layouts differ."""


class CorruptError(FeedlaneError, RuntimeError):
    """A worker's memory or message does not hold together."""


class PeerDead(FeedlaneError, RuntimeError):
    """The peer has died, and what it had can't be made again."""


class SampleError(FeedlaneError, RuntimeError):
    """The data set failed; `traceback` is the worker's, `sample` its index. The loop can go on with the next batch."""


class ReadOnlyWarning(UserWarning):
    """A torch tensor over memory that can't be written, which torch doesn't know: an operation in place ends the process."""


class InitError(FeedlaneError, RuntimeError):
    """A worker could not set up its data set."""


class Hung(FeedlaneError, RuntimeError):
    """A worker passed its deadline."""


class Quarantined(FeedlaneError, RuntimeError):
    """This batch has killed its worker too often. The loop can go on with the next one."""


class TooManyRestarts(FeedlaneError, RuntimeError):
    """Workers die more often than max_restarts allows."""


class DeviceError(FeedlaneError, RuntimeError):
    """The accelerator's driver failed."""


class Unsupported(FeedlaneError, NotImplementedError):
    """Not in this build, or not on this system."""


BY_STATUS: dict[int, type[FeedlaneError]] = {
    _core.SLOTS_HELD: SlotsHeld, _core.TIMEOUT: Timeout, _core.E_ARGUMENT: ArgumentError, _core.E_STATE: StateError,
    _core.E_BUSY: Busy, _core.E_FORKED: Forked, _core.E_STALE: StaleBatch, _core.E_MEMORY: OutOfMemory,
    _core.E_LIMIT: LimitError, _core.E_OS: SystemCallError, _core.E_ABI: AbiError, _core.E_CORRUPT: CorruptError,
    _core.E_PEER_DEAD: PeerDead, _core.E_SAMPLE: SampleError, _core.E_INIT: InitError, _core.E_HUNG: Hung,
    _core.E_QUARANTINED: Quarantined, _core.E_RESTARTS: TooManyRestarts, _core.E_DEVICE: DeviceError,
    _core.E_UNSUPPORTED: Unsupported,
}
for _status, _class in BY_STATUS.items():
    _class.status = _status


def from_library(status: int, text: str, argument: str, traceback: str, worker: int, attempt: int, epoch: int, batch: int,
                 sample: int, found: int, needed: int, os_errno: int) -> FeedlaneError:
    """What to raise for a status and the feedlane_error that came with it. For core/failure.cpp."""
    return make(status, text, argument=argument, traceback=traceback, worker=worker, attempt=attempt, epoch=epoch, batch=batch,
                sample=sample, found=found, needed=needed, os_errno=os_errno)


def with_more(e: FeedlaneError, more: str) -> FeedlaneError:
    """The same exception with something added to its text."""
    return make(e.status, e.reason + more, argument=e.argument, traceback=e.traceback, worker=e.worker, attempt=e.attempt,
                epoch=e.epoch, batch=e.batch, sample=e.sample, found=e.found, needed=e.needed, os_errno=e.os_errno)


def make(status: int, text: str = "", *, traceback: str = "", **where: Any) -> FeedlaneError:
    """An exception for a status, its message with what is known of the place and with the worker's traceback."""
    reason = text = text or _core.status_text(status)
    places = [f"{name} {where[name]}" for name in ("worker", "batch", "sample") if where.get(name, -1) >= 0]
    if places:
        text += f" ({', '.join(places)})"
    if traceback:
        text += f"\n\nThe data set's traceback:\n{traceback.rstrip()}"
    return BY_STATUS.get(status, FeedlaneError)(text, traceback=traceback, reason=reason, **where)


def choice(name: str, found: str, known: Mapping[str, _V]) -> _V:
    """known[found], or a ValueError that says what there is."""
    try:
        return known[found]
    except (KeyError, TypeError):
        raise ValueError(f"{name}={found!r}: must be one of {', '.join(map(repr, known))}") from None


def whole(name: str, found: Any, least: int, most: int) -> int:
    """An integer of that range, both ends included. ValueError: it is none."""
    try:
        number = operator.index(found)
    except TypeError:
        raise ValueError(f"{name}={found!r}: must be an integer") from None
    if isinstance(found, bool) or not least <= number <= most:
        raise ValueError(f"{name}={found!r}: must be from {least} to {most}")
    return number


def one_line(reason: BaseException) -> bytes:
    """An exception as the library takes it: its type's name and its text, in UTF-8 without a zero. No Exception is raised in here,
    whatever the one that is asked does."""
    try:
        said = str(reason)
    except Exception as failure:
        said = f"its __str__ raised {type(failure).__name__}"
    return _text(f"{type(reason).__name__}: {said}")


def story(reason: BaseException) -> bytes:
    """The same with its traceback."""
    try:
        return _text("".join(traceback.format_exception(type(reason), reason, reason.__traceback__)))
    except Exception:
        return one_line(reason)


def _text(text: str) -> bytes:
    return text.encode(errors="backslashreplace").replace(b"\0", b"?")
