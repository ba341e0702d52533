# SPDX-License-Identifier: Apache-2.0
"""An exception for each status of feedlane.h that is an error, and for the two outcomes that a loop can't go on with."""
import operator
import traceback

from . import _core


class FeedlaneError(Exception):
    """What the library says went wrong. -1 in worker, attempt, epoch, batch or sample means "none". `reason`: the text alone,
    without the place and the traceback."""

    status = 0

    def __init__(self, text, *, worker=-1, attempt=-1, epoch=-1, batch=-1, sample=-1, argument="", found=0, needed=0,
                 os_errno=0, traceback="", reason=""):
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

    def __init__(self, text, **where):
        super().__init__(text, **where)
        self.errno = self.os_errno or None


class AbiError(FeedlaneError, RuntimeError):
    """Versions or layouts differ."""


class CorruptError(FeedlaneError, RuntimeError):
    """A worker's memory or message does not hold together."""


class PeerDead(FeedlaneError, RuntimeError):
    """The peer has died, and what it had can't be made again."""


class SampleError(FeedlaneError, RuntimeError):
    """The data set failed; `traceback` is the worker's, `sample` its index. The loop can go on with the next batch."""


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


BY_STATUS = {
    _core.SLOTS_HELD: SlotsHeld, _core.TIMEOUT: Timeout, _core.E_ARGUMENT: ArgumentError, _core.E_STATE: StateError,
    _core.E_BUSY: Busy, _core.E_FORKED: Forked, _core.E_STALE: StaleBatch, _core.E_MEMORY: OutOfMemory,
    _core.E_LIMIT: LimitError, _core.E_OS: SystemCallError, _core.E_ABI: AbiError, _core.E_CORRUPT: CorruptError,
    _core.E_PEER_DEAD: PeerDead, _core.E_SAMPLE: SampleError, _core.E_INIT: InitError, _core.E_HUNG: Hung,
    _core.E_QUARANTINED: Quarantined, _core.E_RESTARTS: TooManyRestarts, _core.E_DEVICE: DeviceError,
    _core.E_UNSUPPORTED: Unsupported,
}
for _status, _class in BY_STATUS.items():
    _class.status = _status


def from_library(status, text, argument, traceback, worker, attempt, epoch, batch, sample, found, needed, os_errno):
    """What to raise for a status and the feedlane_error that came with it. For core/failure.cpp."""
    return make(status, text, argument=argument, traceback=traceback, worker=worker, attempt=attempt, epoch=epoch, batch=batch,
                sample=sample, found=found, needed=needed, os_errno=os_errno)


def with_more(e, more):
    """The same exception with something added to its text."""
    return make(e.status, e.reason + more, argument=e.argument, traceback=e.traceback, worker=e.worker, attempt=e.attempt,
                epoch=e.epoch, batch=e.batch, sample=e.sample, found=e.found, needed=e.needed, os_errno=e.os_errno)


def make(status, text="", *, traceback="", **where):
    """An exception for a status, its message with what is known of the place and with the worker's traceback."""
    reason = text = text or _core.status_text(status)
    places = [f"{name} {where[name]}" for name in ("worker", "batch", "sample") if where.get(name, -1) >= 0]
    if places:
        text += f" ({', '.join(places)})"
    if traceback:
        text += f"\n\nThe data set's traceback:\n{traceback.rstrip()}"
    return BY_STATUS.get(status, FeedlaneError)(text, traceback=traceback, reason=reason, **where)


def choice(name, found, known):
    """known[found], or a ValueError that says what there is."""
    try:
        return known[found]
    except (KeyError, TypeError):
        raise ValueError(f"{name}={found!r}: must be one of {', '.join(map(repr, known))}") from None


def whole(name, found, least, most):
    """An integer of that range, or a ValueError."""
    try:
        number = operator.index(found)
    except TypeError:
        raise ValueError(f"{name}={found!r}: must be an integer") from None
    if isinstance(found, bool) or not least <= number <= most:
        raise ValueError(f"{name}={found!r}: must be from {least} to {most}")
    return number


def one_line(reason):
    """An exception as the library takes it. Nothing that the exception does when it is asked is raised: Ctrl-C is."""
    try:
        said = str(reason)
    except Exception as failure:
        said = f"its __str__ raised {type(failure).__name__}"
    return _text(f"{type(reason).__name__}: {said}")


def story(reason):
    """The same with its traceback."""
    try:
        return _text("".join(traceback.format_exception(type(reason), reason, reason.__traceback__)))
    except Exception:
        return one_line(reason)


def _text(text):
    return text.encode(errors="backslashreplace").replace(b"\0", b"?")
