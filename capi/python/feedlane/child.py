# SPDX-License-Identifier: Apache-2.0
"""A process started by multiprocessing, watched and signalled only through its pidfd. So this process may ignore SIGCHLD or
reap all its children, and a signal never reaches another process that got the same pid."""
from __future__ import annotations

import contextlib
import fcntl
import multiprocessing.process
import os
import select
import signal
import weakref
from typing import Any

_STATUS_S = 5          # for a fork server to report the exit status of an ended process
_UNKNOWN_STATUS = 255  # as multiprocessing reports it if the fork server has ended


class Child:
    """Owns the pidfd of `process`, a multiprocessing Process that was started."""

    code: int | None = None  # how it ended, as Process.exitcode; None: it runs, or was reaped by other code

    def __init__(self, process: Any, leads_group: bool = False) -> None:
        """leads_group: its process group is killed when it has ended. Raises OSError if no descriptor is free; the process is then
        killed."""
        self.process, self.pid, self._has_ended, self._leads_group = process, process.pid, False, leads_group
        self._popen = getattr(process, "_popen", None)
        self._fd = -1
        try:
            self._fd = _pidfd(self.pid)
            if self._popen is not None and self._popen.method != "forkserver":
                os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except (ProcessLookupError, ChildProcessError):  # already reaped; ChildProcessError: its pid belongs to another process now
            self._settle()
        except OSError:
            process.kill()
            process.join()
            raise
        _children.add(self)

    def wait(self, seconds: float) -> bool:
        """Returns whether it has already ended or will end within this many seconds."""
        if not self._has_ended:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            if poll.poll(max(0, seconds) * 1000):
                self._settle()
        return self._has_ended

    def send(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if not self.wait(0):
            try:
                signal.pidfd_send_signal(self._fd, number)
            except ProcessLookupError:
                pass

    def end(self, seconds: float) -> None:
        """Waits this many seconds for its end, then sends SIGTERM, then SIGKILL."""
        for number in signal.SIGTERM, signal.SIGKILL:
            if self.wait(seconds):
                return
            self.send(number)
            seconds = 1
        self.wait(seconds)

    def story(self) -> str:
        """Describes how it ended, in torch's words."""
        if self.code is None:
            return ("has ended; its exit code is unknown, because something else in this process reaps its children (SIGCHLD is "
                    "ignored, or a handler or thread calls waitpid)")
        return f"is killed by signal: {_signal_name(-self.code)}" if self.code < 0 else f"exited unexpectedly with exit code {self.code}"

    def _settle(self) -> None:
        """The process has ended. Records this in multiprocessing, which would otherwise signal the pid at the interpreter's
        exit, even if the pid then belongs to another process."""
        self._has_ended, popen = True, self._popen
        if popen is None:
            return
        if popen.method == "forkserver":  # the fork server has the exit status, and sends it through a pipe
            self.process.join(_STATUS_S)
        if popen.returncode is None:
            self.code = self._reap()
            popen.returncode = _UNKNOWN_STATUS if self.code is None else self.code
        else:
            self.code = popen.returncode
        self.process.join(0)
        self._close()

    def _reap(self) -> int | None:
        if self._fd < 0:
            return None
        try:
            if self._leads_group and os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                with contextlib.suppress(OSError):
                    os.killpg(self.pid, signal.SIGKILL)  # it is not reaped, so the group is its own
            end = os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return None
        if end is None:
            return None
        return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def forget(self) -> None:
        """Called in a forked child, whose multiprocessing would otherwise end its parent's workers at exit."""
        self._has_ended = True
        self._close()
        getattr(multiprocessing.process, "_children", set()).discard(self.process)

    def __del__(self) -> None:
        self._close()


def _pidfd(pid: int) -> int:
    """Opens a pidfd whose number is above the standard descriptors."""
    fd = os.pidfd_open(pid)
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def _signal_name(number: int) -> str:
    try:
        return f"{signal.strsignal(number)} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


_children: weakref.WeakSet[Child] = weakref.WeakSet()


def _forget_all() -> None:
    for child in list(_children):
        child.forget()


os.register_at_fork(after_in_child=_forget_all)
