# SPDX-License-Identifier: Apache-2.0
"""An exception for each status of feedlane.h that is an error, and for the two outcomes that a loop can't go on with."""
import ctypes
import operator
import threading
import traceback

from . import _abi

_DETAIL_BYTES = 64 * 1024  # no traceback is longer


class FeedlaneError(Exception):
    """What the library says went wrong. -1 in worker, epoch, batch or sample means "none"."""

    status = 0

    def __init__(self, text, *, worker=-1, attempt=-1, epoch=-1, batch=-1, sample=-1, argument="", found=0, needed=0,
                 os_errno=0, traceback=""):
        self.worker, self.attempt, self.epoch, self.batch, self.sample = worker, attempt, epoch, batch, sample
        self.argument, self.found, self.needed, self.traceback = argument, found, needed, traceback
        self.os_errno = os_errno
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
    _abi.SLOTS_HELD: SlotsHeld, _abi.TIMEOUT: Timeout, _abi.E_ARGUMENT: ArgumentError, _abi.E_STATE: StateError,
    _abi.E_BUSY: Busy, _abi.E_FORKED: Forked, _abi.E_STALE: StaleBatch, _abi.E_MEMORY: OutOfMemory,
    _abi.E_LIMIT: LimitError, _abi.E_OS: SystemCallError, _abi.E_ABI: AbiError, _abi.E_CORRUPT: CorruptError,
    _abi.E_PEER_DEAD: PeerDead, _abi.E_SAMPLE: SampleError, _abi.E_INIT: InitError, _abi.E_HUNG: Hung,
    _abi.E_QUARANTINED: Quarantined, _abi.E_RESTARTS: TooManyRestarts, _abi.E_DEVICE: DeviceError,
    _abi.E_UNSUPPORTED: Unsupported,
}
for _status, _class in BY_STATUS.items():
    _class.status = _status


_rooms = threading.local()


class ErrorRoom:
    """A feedlane_error with room for a traceback; for one thread at a time."""

    def __init__(self):
        self._detail = ctypes.create_string_buffer(_DETAIL_BYTES)
        self.struct = _abi.Error(detail=ctypes.addressof(self._detail), detail_cap=_DETAIL_BYTES)

    @classmethod
    def shared(cls):
        """This thread's own."""
        if not hasattr(_rooms, "room"):
            _rooms.room = cls()
        return _rooms.room

    def exception(self, status):
        """What to raise for a status that this was just filled in for."""
        return exception_of(self.struct, status)


def exception_of(e, status, more=""):
    """What to raise for a status that this struct was just filled in for; `more` is added to its text."""
    traceback = ctypes.string_at(e.detail, min(e.detail_len, e.detail_cap)).decode(errors="replace") if e.detail else ""
    text = e.text.decode(errors="replace") + more
    return make(status, text, worker=e.worker, attempt=e.attempt, epoch=e.epoch, batch=e.batch, sample=e.sample,
                argument=e.argument.decode(errors="replace"), found=e.found, needed=e.needed, os_errno=e.os_errno,
                traceback=traceback)


def make(status, text="", *, traceback="", **where):
    """An exception for a status, its message with what is known of the place and with the worker's traceback."""
    text = text or _abi.library.feedlane_status_text(status).decode()
    places = [f"{name} {where[name]}" for name in ("worker", "batch", "sample") if where.get(name, -1) >= 0]
    if places:
        text += f" ({', '.join(places)})"
    if traceback:
        text += f"\n\nThe data set's traceback:\n{traceback.rstrip()}"
    return BY_STATUS.get(status, FeedlaneError)(text, traceback=traceback, **where)


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
    """An exception as the library takes it. Nothing is raised in here, whatever the exception does when it is asked."""
    try:
        said = str(reason)
    except BaseException as failure:
        said = f"its __str__ raised {type(failure).__name__}"
    return _text(f"{type(reason).__name__}: {said}")


def story(reason):
    """The same with its traceback."""
    try:
        return _text("".join(traceback.format_exception(type(reason), reason, reason.__traceback__)))
    except BaseException:
        return one_line(reason)


def _text(text):
    return text.encode(errors="backslashreplace").replace(b"\0", b"?")


def check(status, room=None):
    """Raises for an error; a positive outcome is the caller's to look at."""
    if status < 0:
        raise room.exception(status) if room else make(status)
    return status
