# SPDX-License-Identifier: Apache-2.0
"""An exception class for each error status of feedlane.h, and for the outcomes TIMEOUT and SLOTS_HELD."""
from __future__ import annotations

import operator
import traceback
from collections.abc import Mapping
from typing import Any, TypeVar

from . import _core

_V = TypeVar("_V")


class FeedlaneError(Exception):
    """An error of the library. -1 in worker, attempt, epoch, batch or sample means "none". `reason`: the text without the place
    and the traceback. `argument`: the name of the refused argument, or "". `found` and `needed`: of a limit, in its unit.
    `os_errno`: the system's error number, or 0."""

    status: int = 0

    def __init__(self, text: str, *, worker: int = -1, attempt: int = -1, epoch: int = -1, batch: int = -1, sample: int = -1,
                 argument: str = "", found: int = 0, needed: int = 0, os_errno: int = 0, traceback: str = "",
                 reason: str = "") -> None:
        self.worker, self.attempt, self.epoch, self.batch, self.sample = worker, attempt, epoch, batch, sample
        self.argument, self.found, self.needed, self.traceback = argument, found, needed, traceback
        self.os_errno, self.reason = os_errno, reason or text
        super().__init__(text)


class SlotsHeld(FeedlaneError, RuntimeError):
    """The trainer keeps so many batches that no slot is free: drop some, or increase `held`."""


class Timeout(FeedlaneError, TimeoutError, RuntimeError):
    """No batch came in time. Nothing is lost, and the loop can continue. Like torch's, this is also a RuntimeError."""


class ArgumentError(FeedlaneError, ValueError):
    """An argument is out of its domain."""


class StateError(FeedlaneError, RuntimeError):
    """The call is not possible in this state."""


class Busy(FeedlaneError, RuntimeError):
    """Another thread is in a call that allows only one thread at a time."""


class Forked(FeedlaneError, RuntimeError):
    """The loader belongs to the parent process."""


class StaleBatch(FeedlaneError, RuntimeError):
    """The batch was already released."""


class OutOfMemory(FeedlaneError, MemoryError):
    """There is too little memory; `needed` and `found` are bytes."""


class LimitError(FeedlaneError, RuntimeError):
    """A limit of the system or of the configuration was exceeded."""


class SystemCallError(FeedlaneError, OSError):
    """A system call failed; `errno` is the system's error number."""

    def __init__(self, text: str, **where: Any) -> None:
        super().__init__(text, **where)
        errno: Any = self.os_errno or None
        self.errno = errno


class AbiError(FeedlaneError, RuntimeError):
    """Versions or memory layouts differ."""


class CorruptError(FeedlaneError, RuntimeError):
    """A worker's memory or message is inconsistent."""


class PeerDead(FeedlaneError, RuntimeError):
    """The peer has died, and what it had cannot be made again."""


class SampleError(FeedlaneError, RuntimeError):
    """The data set failed; `traceback` is the worker's, `sample` the index. The loop can continue with the next batch.
    A BatchDataset's `fetch` and a data set's __getitems__ can raise SampleError(text, sample=index): the trainer's error then has
    this `sample`, if it is an index of the batch."""


class ReadOnlyWarning(UserWarning):
    """A torch tensor views memory that cannot be written. Torch does not know this, so an operation in place ends the process."""


class InitError(FeedlaneError, RuntimeError):
    """A worker could not set up its data set, or ended several times before it had."""


class Hung(FeedlaneError, RuntimeError):
    """A worker exceeded its deadline."""


class Quarantined(FeedlaneError, RuntimeError):
    """This batch has killed its worker too often. The loop can continue with the next batch."""


class TooManyRestarts(FeedlaneError, RuntimeError):
    """Workers have died more often than max_restarts allows."""


class DeviceError(FeedlaneError, RuntimeError):
    """The accelerator's driver failed."""


class Unsupported(FeedlaneError, NotImplementedError):
    """Not available in this build or on this system."""


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
    """Makes the exception for a status and the feedlane_error that came with it. For core/failure.cpp."""
    return make(status, text, argument=argument, traceback=traceback, worker=worker, attempt=attempt, epoch=epoch, batch=batch,
                sample=sample, found=found, needed=needed, os_errno=os_errno)


def with_more(e: FeedlaneError, more: str) -> FeedlaneError:
    """Makes a copy of the exception, with an addition to its text."""
    return make(e.status, e.reason + more, argument=e.argument, traceback=e.traceback, worker=e.worker, attempt=e.attempt,
                epoch=e.epoch, batch=e.batch, sample=e.sample, found=e.found, needed=e.needed, os_errno=e.os_errno)


def make(status: int, text: str = "", *, traceback: str = "", **where: Any) -> FeedlaneError:
    """Makes the exception for a status. Its message includes the known place and the worker's traceback."""
    reason = text = text or _core.status_text(status)
    places = [f"{name} {where[name]}" for name in ("worker", "batch", "sample") if where.get(name, -1) >= 0]
    if places:
        text += f" ({', '.join(places)})"
    if traceback:
        text += f"\n\nThe data set's traceback:\n{traceback.rstrip()}"
    return BY_STATUS.get(status, FeedlaneError)(text, traceback=traceback, reason=reason, **where)


def choice(name: str, found: str, known: Mapping[str, _V]) -> _V:
    """Returns known[found]. Raises ValueError, with all valid values, if there is no such value."""
    try:
        return known[found]
    except (KeyError, TypeError):
        raise ValueError(f"{name}={found!r}: must be one of {', '.join(map(repr, known))}") from None


def whole(name: str, found: Any, least: int, most: int) -> int:
    """Returns `found` as an integer. Raises ValueError if it is not an integer from `least` to `most`."""
    try:
        number = operator.index(found)
    except TypeError:
        raise ValueError(f"{name}={found!r}: must be an integer") from None
    if isinstance(found, bool) or not least <= number <= most:
        raise ValueError(f"{name}={found!r}: must be from {least} to {most}")
    return number


def named_sample(reason: BaseException) -> int:
    """Returns the sample that a data set names by SampleError(text, sample=index); -1: none. The error of another loader, which
    the data set iterates over, has a batch, and names none."""
    sample = reason.sample if isinstance(reason, SampleError) and reason.batch < 0 else -1
    try:
        return whole("sample", sample, 0, 2**63 - 1)
    except ValueError:
        return -1


def one_line(reason: BaseException) -> bytes:
    """Returns an exception in the form that the library takes: its type's name and its text, in UTF-8 without a zero byte.
    Raises no Exception, even if the exception's __str__ fails."""
    try:
        said = str(reason)
    except Exception as failure:
        said = f"its __str__ raised {type(failure).__name__}"
    return _text(f"{type(reason).__name__}: {said}")


def story(reason: BaseException) -> bytes:
    """As one_line, with the traceback."""
    try:
        return _text("".join(traceback.format_exception(type(reason), reason, reason.__traceback__)))
    except Exception:
        return one_line(reason)


def _text(text: str) -> bytes:
    return text.encode(errors="backslashreplace").replace(b"\0", b"?")
