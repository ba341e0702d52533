# SPDX-License-Identifier: Apache-2.0
"""The library's loader, and who is in a call on it: it ends when nobody is."""
import atexit
import ctypes as c
import threading
import time
import weakref

from . import _abi, errors, forks, signals

_PATIENCE_S = 5  # with another thread's call
_LOOK_EVERY_S = 0.001

_open = weakref.WeakSet()


class Handle:
    """Owns a feedlane_loader. `keep`: what it calls back, which must be there as long as it is; None if nothing."""

    _pointer = c.c_void_p()

    def __init__(self, keep):
        self._keep, self._callers, self._is_closing = keep, set(), False
        # Recursive: a signal's handler may close while this thread does.
        self._ending, self._forks = threading.RLock(), forks.count()
        self._pointer = c.c_void_p()  # the library writes it: no moment at which nobody knows of the loader
        _open.add(self)

    def create(self, config, room):
        return self._run(_abi.library.feedlane_loader_create, config, c.byref(self._pointer), room.struct)

    @property
    def calls_nothing_back(self):
        return self._keep is None

    @property
    def value(self):
        """For a batch's functions, which may be called after the loader's end too."""
        return self._pointer.value

    def call(self, function, *arguments):
        """Calls a function of the library with the loader as its first argument."""
        me = threading.get_ident()
        try:
            # First this, then the look: close does it the other way round.
            self._callers.add(me)
            if self._is_closing or not self._pointer.value:
                raise errors.make(_abi.E_STATE, "the loader was closed")
            status = self._run(function, self._pointer, *arguments)
            if status == _abi.E_ARGUMENT and not self._pointer.value:  # by a signal's handler, just before
                raise errors.make(_abi.E_STATE, "the loader was closed")
            return status
        finally:
            self._callers.discard(me)

    def _run(self, function, *arguments):
        return function(*arguments) if self._keep is None else signals.call(function, *arguments)

    def close(self):
        """Ends the workers and the loader. A call of another thread is interrupted; Busy, if it doesn't end in time."""
        if not self._pointer.value:
            return
        if self._forks != forks.count():
            self._pointer.value = None  # the parent's
            return
        deadline = time.monotonic() + _PATIENCE_S
        try:
            self._is_closing = True
            while self._pointer.value and not self._end():
                if time.monotonic() >= deadline:
                    raise errors.make(_abi.E_BUSY, "another thread is in a call on this loader: close it again later")
                time.sleep(_LOOK_EVERY_S)
        finally:
            self._is_closing = False  # without a loader it is closed, else it is as before

    def _end(self):
        with self._ending:
            if self._callers - {threading.get_ident()}:
                _abi.library.feedlane_loader_interrupt(self._pointer)
                return False
            return _abi.library.feedlane_loader_destroy(c.byref(self._pointer)) != _abi.E_BUSY

    def __del__(self):
        """Waits for nothing: workers that are busy are killed."""
        if self._pointer.value and self._forks == forks.count():
            _abi.library.feedlane_loader_unref(self._pointer)


@atexit.register
def _close_all():
    """Before modules are taken apart."""
    for handle in list(_open):
        try:
            handle.close()
        except errors.Busy:
            pass
