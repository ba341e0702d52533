# SPDX-License-Identifier: Apache-2.0
"""Worker processes that are forked from one process. It imports the modules and unpickles the data set once, and the workers share
its memory as long as they do not write to it."""
from __future__ import annotations

import contextlib
import gc
import math
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _core, errors, lifetime, maker, worker

if TYPE_CHECKING:
    from . import feeding
    from .records import WorkerSetup

_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from feedlane import fork_server; fork_server.main()"
_PATIENCE_S = 1      # for the server to end, and for the trainer to read how a worker has ended
_WORKER = b"start"   # a message that has a worker's descriptor; the numbers of its processors may follow
_REAP = b"reap"      # a message: wait for the workers, which were told to end, then send one byte


class ForkServer:
    """The server process of a Loader, which is started at once. It ends with this object, or with this process."""

    _memory = -1

    def __init__(self, blob: bytes, cpus: list[list[int]]) -> None:
        """blob: from worker.configuration. cpus: the processors of each worker, reused from the start; empty: all. Raises OSError if
        the process cannot be started."""
        self._cpus = cpus
        self._memory = os.memfd_create("feedlane fork server")
        with open(os.dup(self._memory), "wb") as file:
            file.write(blob)
        self._run()
        _servers.add(self)
        lifetime.keep_last(self)

    def _run(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen([*worker.command(_CODE), str(theirs.fileno()), str(self._memory)],
                                             stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno(), self._memory], process_group=0)

    def start(self, place: feeding.Place) -> None:
        """Starts a worker. A server that was killed is started again. Raises InitError if it ends as soon as it has started."""
        cpus = self._cpus[place.id % len(self._cpus)] if self._cpus else []
        message = b" ".join([_WORKER, *(b"%d" % cpu for cpu in cpus)])
        for is_last in False, True:
            try:
                socket.send_fds(self._socket, [message], [place.fd], socket.MSG_NOSIGNAL)
                return
            except OSError:
                self._socket.close()
                status = self._process.wait()
                if is_last:
                    raise errors.make(_core.E_INIT, f"the process that forks workers has ended with status {status}: what it wrote to "
                                      "stderr says why") from None
                self._run()

    def reap(self) -> None:
        """Called when the workers were told to end: returns when they have."""
        with contextlib.suppress(OSError):  # the server was killed
            self._socket.settimeout(2 * _PATIENCE_S)
            self._socket.send(_REAP, socket.MSG_NOSIGNAL)
            self._socket.recv(1)

    def close(self) -> None:
        """Called after the end of the workers: ends the server."""
        self._socket.close()
        self._forget_memory()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """Called in a forked child: the server must see the end of its own trainer, and is not the child's to end."""
        self._socket.close()
        self._process.returncode = 0
        del self._process

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self._socket.close()
            self._process.kill()
            self._process.wait()
        self._forget_memory()

    def _forget_memory(self) -> None:
        memory, self._memory = self._memory, -1
        if memory >= 0:
            os.close(memory)


_servers: weakref.WeakSet[ForkServer] = weakref.WeakSet()


def _forget_all() -> None:
    for server in list(_servers):
        server.forget()


os.register_at_fork(after_in_child=_forget_all)


def main() -> None:
    """Runs the server."""
    server, memory = (int(word) for word in sys.argv[2:4])
    with mmap.mmap(memory, 0, prot=mmap.PROT_READ) as blob:
        job_of = _opened(bytes(blob))
    os.close(memory)
    gc.freeze()  # the collector of a worker does not write to these objects, whose memory then stays shared
    _Server(socket.socket(fileno=server), job_of).serve()
    os._exit(0)


def _opened(blob: bytes) -> Callable[[WorkerSetup], maker.Job]:
    """Returns a function with the result of unpickling: each worker reports the exception to the trainer."""
    try:
        job = worker.job_in(blob)
        return lambda _: job
    except (Exception, SystemExit) as failure:
        traceback.print_exc()
        reason = failure

        def raise_it(_: Any) -> maker.Job:
            raise reason
        return raise_it


class _Server:
    def __init__(self, trainer: socket.socket, job_of: Callable[[WorkerSetup], maker.Job]) -> None:
        self._trainer, self._job_of = trainer, job_of
        self._poll = select.poll()
        self._poll.register(trainer, select.POLLIN)
        self._parent = os.pidfd_open(os.getppid())  # the socket alone is not enough: a forked child of the trainer may have it open
        self._poll.register(self._parent, select.POLLIN)
        self._alive: dict[int, int] = {}            # pids, by pidfd
        self._ended: list[tuple[int, float]] = []   # pids, and the time until which the trainer may look how they have ended

    def serve(self) -> None:
        """Returns when the trainer wants no more workers, after their end."""
        is_wanted = True
        while is_wanted or self._alive:
            ready = {fd for fd, _ in self._poll.poll(1000 if self._ended else None)}
            for fd in ready & self._alive.keys():
                self._has_ended(fd)
            if self._parent in ready or self._trainer.fileno() in ready and not self._obey():
                is_wanted = False
                self._poll.unregister(self._trainer)
                self._poll.unregister(self._parent)
            self._reap(time.monotonic())
        self._reap(math.inf)

    def _has_ended(self, fd: int) -> None:
        pid = self._alive.pop(fd)
        self._poll.unregister(fd)
        os.close(fd)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)  # programs that the data set has started; the group is there until the worker is reaped
        self._ended.append((pid, time.monotonic() + _PATIENCE_S))

    def _end_all(self) -> None:
        """Waits for the workers, and kills those that do not end."""
        poll, end = select.poll(), time.monotonic() + _PATIENCE_S
        for fd in self._alive:
            poll.register(fd, select.POLLIN)
        while self._alive:
            found = poll.poll(None if end == math.inf else max(0, end - time.monotonic()) * 1000)
            for fd, _ in found:
                poll.unregister(fd)
                self._has_ended(fd)
            if not found:
                for pid in self._alive.values():
                    os.kill(pid, signal.SIGKILL)
                end = math.inf
        self._reap(math.inf)

    def _reap(self, now: float) -> None:
        while self._ended and self._ended[0][1] < now:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._ended.pop(0)[0], 0)

    def _obey(self) -> bool:
        """Does what the trainer wants: forks a worker, or reaps those that have ended. Returns False at the end of its messages."""
        message, fds, _, _ = socket.recv_fds(self._trainer, 1 << 16, 1)
        if message == _REAP:
            self._end_all()
            self._trainer.send(b"\0", socket.MSG_NOSIGNAL)
            return True
        if not message.startswith(_WORKER) or not fds:
            return False
        pid = os.fork()
        if pid == 0:
            self._work(fds[0], {int(word) for word in message.split()[1:]})
        os.close(fds[0])
        fd = os.pidfd_open(pid)
        self._alive[fd] = pid
        self._poll.register(fd, select.POLLIN)
        return True

    def _work(self, descriptor: int, cpus: set[int]) -> None:
        """In the child."""
        status = 1
        try:
            os.setpgid(0, 0)
            for fd in [self._parent, *self._alive]:
                os.close(fd)
            self._trainer.close()
            if cpus:
                os.sched_setaffinity(0, cpus)
            worker.run_worker_of(descriptor, self._job_of)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)


