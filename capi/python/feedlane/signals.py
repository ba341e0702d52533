# SPDX-License-Identifier: Apache-2.0
"""Signals while the library may call back into Python.

Python runs a signal's handler between any two bytecodes, so Ctrl-C can raise at a callback's very first one, outside of any
`try`. ctypes drops such an exception, and the library reads a status that nobody wrote. So handlers wait until the library
has returned, but in the part of a callback that is the user's own code: there they run at once."""
import _signal  # what `signal` is made of; that one looks for an enum's member in each handler, which takes longer than a call
import signal
import sys
import threading

_SIGNALS = tuple(map(int, signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))


class _Here(threading.local):
    inside = False  # this thread is in the user's part of a callback, where an exception may rise


_here = _Here()


def call(function, *arguments):
    """Calls a function of the library that may call back."""
    if threading.current_thread() is not threading.main_thread():
        return function(*arguments)  # handlers run in the main thread
    with _Deferred():
        return function(*arguments)


def called_back(work, failed, otherwise):
    """Runs a callback: `work`, or `failed` with what it raised; if that raises too, `otherwise` is the answer. Wherever an
    exception can rise in here, handlers wait or there is a `try` around."""
    try:
        try:
            _here.inside = True
            return work()
        finally:
            _here.inside = False
    except BaseException as reason:
        try:
            return failed(reason)
        except BaseException:
            return otherwise


class _Deferred:
    """Python's handlers are replaced by one that remembers the signal, unless a callback is in the user's part."""

    def __init__(self):
        self._originals, self._late, self._is_over = {}, [], False
        self._outer = _here.inside  # of a call around this one, whose callback this is in

    def __enter__(self):
        try:
            found = zip(_SIGNALS, map(_signal.getsignal, _SIGNALS))
            self._originals = {number: handler for number, handler in found if handler and callable(handler)}
            for number in self._originals:
                _signal.signal(number, self._handle)
            _here.inside = False
        except BaseException:  # of a handler that isn't replaced yet
            self._restore()
            raise

    def __exit__(self, *_):
        try:
            self._restore()
        finally:
            self._restore()  # one that was restored already may have raised
            self._is_over = True
            _here.inside = self._outer
            self._deliver()

    def _handle(self, number, frame):
        if self._is_over:
            self._originals[number](number, frame)
        elif not _here.inside:
            if number not in self._late:
                self._late.append(number)
        else:
            _here.inside = self._outer  # before it raises; and the handler may be that of the call around this one
            self._originals[number](number, frame)
            _here.inside = True

    def _restore(self):
        for number, handler in self._originals.items():
            if _signal.getsignal(number) == self._handle:  # else the user's code has set another one meanwhile
                _signal.signal(number, handler)

    def _deliver(self):
        while self._late:
            number = self._late.pop(0)
            try:
                self._originals[number](number, sys._getframe())
            finally:
                self._deliver()
