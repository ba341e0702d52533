# SPDX-License-Identifier: Apache-2.0
"""Worker processes that are forked from one process, which has imported the modules that the data set needs."""
from __future__ import annotations

import contextlib
import gc
import importlib
import io
import itertools
import mmap
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from . import _core, errors, lifetime, shipping, worker

if TYPE_CHECKING:
    from . import feeding

_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from feedlane import fork_server; fork_server.main()"
_WORKER_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from feedlane import fork_server; fork_server.work()"
_PATIENCE_S = 5      # for a worker to end, before it is killed
_ALIGNMENT = 4096    # of buffers: workers share the pages that they do not write
_KEPT = 64           # ended workers that are not reaped yet, so that the trainer can read how they have ended
_WORKER = b"start"   # a message that has a worker's descriptor; the numbers of its processors may follow
_REAP = b"reap"      # a message, with a number: wait for the workers, which were told to end, then send the number
_KILL = b"kill"      # a message: kill the workers, and end
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS")


class ForkServer:
    """The server process of a Loader, which is started at once. It ends with this object, or with this process."""

    _memory = -1
    _process: subprocess.Popen[bytes] | None = None

    def __init__(self, blob: bytes, buffers: list[pickle.PickleBuffer], cpus: list[list[int]]) -> None:
        """blob, buffers: from worker.configuration. cpus: the processors of each worker, reused from the start; empty: all.
        Raises OSError if the process cannot be started."""
        self._cpus, self._reaps = cpus, 0
        with shipping.stdio_held():
            self._memory = os.memfd_create("feedlane fork server")
            _write(self._memory, blob, buffers)
            self._run()
        _servers.add(self)
        lifetime.keep_last(self)

    def _run(self) -> None:
        self._was_used = False  # a worker was requested
        self._is_stuck = False  # it has not answered in time
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen([*worker.command(_CODE), str(theirs.fileno()), str(self._memory)],
                                             stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno(), self._memory], process_group=0,
                                             env={**dict.fromkeys(_THREADS, "1"), **os.environ})

    def start(self, place: feeding.Place) -> None:
        """Starts a worker. A server that was killed is started again. Raises InitError if it ends as soon as it has started."""
        cpus = self._cpus[place.id % len(self._cpus)] if self._cpus else []
        message = b" ".join([_WORKER, *(b"%d" % cpu for cpu in cpus)])
        for is_last in False, True:
            # Another process may have the server's end of the socket: a message that is sent is not always read.
            if self._process is not None and self._process.poll() is None:
                with contextlib.suppress(OSError):
                    socket.send_fds(self._socket, [message], [place.fd], socket.MSG_NOSIGNAL)
                    self._was_used = True
                    return
            status = self._end()
            if is_last:
                raise errors.make(_core.E_INIT, f"the process that forks workers has ended with status {status}: what it wrote to "
                                  "stderr says why")
            with shipping.stdio_held():
                self._run()

    def reap(self) -> None:
        """Called when the workers were told to end: returns when they have."""
        self._reaps += 1
        end = time.monotonic() + 2 * _PATIENCE_S
        with contextlib.suppress(OSError):  # the server was killed, or does not answer
            self._socket.send(b"%s %d" % (_REAP, self._reaps), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            while poll.poll(max(0, end - time.monotonic()) * 1000):
                answer = self._socket.recv(64, socket.MSG_DONTWAIT)
                if not answer or int(answer) == self._reaps:
                    return
            self._is_stuck = True

    def close(self) -> None:
        """Called after the end of the workers: ends the server. It cannot be used any more."""
        if self._process is not None:
            self._end()
        memory, self._memory = self._memory, -1
        if memory >= 0:
            os.close(memory)

    @property
    def is_closed(self) -> bool:
        """Whether close was called."""
        return self._memory < 0

    def _end(self) -> int | None:
        """Ends the server. Returns its exit status."""
        process, self._process = self._process, None
        self._socket.close()
        if process is None:
            return None
        try:
            process.wait(2 * _PATIENCE_S if self._was_used and not self._is_stuck else 0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return process.returncode

    def forget(self) -> None:
        """Called in a forked child of the trainer, which neither uses nor ends the server."""
        self._socket.close()
        process, self._process = self._process, None
        if process is not None:
            process.returncode = 0

    def __del__(self) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError):  # the server has ended
                self._socket.send(_KILL, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        self.close()


# ---- the memory: the length of a pickled (blob, [(offset, bytes) of each buffer]), this pickle, and the buffers ----

def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def _write(memory: int, blob: bytes, buffers: list[pickle.PickleBuffer]) -> None:
    views, places, end = [buffer.raw() for buffer in buffers], [], 0
    for view in views:
        places.append((end, view.nbytes))
        end += _aligned(view.nbytes)
    head = pickle.dumps((blob, places))
    begin = _aligned(8 + len(head))
    os.ftruncate(memory, begin + end)
    with mmap.mmap(memory, begin + end) as file:
        file[:8 + len(head)] = len(head).to_bytes(8, "little") + head
        for view, (offset, count) in zip(views, places):
            file[begin + offset:begin + offset + count] = view


def _read(memory: int) -> tuple[bytes, list[memoryview]]:
    """Returns the blob and the buffers, which may be written: a page becomes this process's own when it is."""
    file = mmap.mmap(memory, 0, flags=mmap.MAP_PRIVATE)
    length = int.from_bytes(file[:8], "little")
    blob, places = pickle.loads(memoryview(file)[8:8 + length])
    begin = _aligned(8 + length)
    # An array as long as the buffer: an object may ask the view that it gets for its owner.
    return blob, [np.frombuffer(file, np.uint8, count, begin + offset).data for offset, count in places]


# ---- forks of the trainer ----

_servers: weakref.WeakSet[ForkServer] = weakref.WeakSet()


def _forget_all() -> None:
    for server in list(_servers):
        server.forget()


os.register_at_fork(after_in_child=_forget_all)


# ---- the server ----

def main() -> None:
    """Runs the server."""
    server, memory = (int(word) for word in sys.argv[2:4])
    for fd in server, memory:
        os.set_inheritable(fd, False)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    before = _descriptors()
    with contextlib.suppress(BaseException):  # a worker reports it
        worker.prepare(_read(memory)[0], _import_all)
    must_execute = threading.active_count() > 1 or not _descriptors() <= before
    gc.collect()
    gc.freeze()  # the collector of a worker does not write to these objects, whose memory then stays shared
    _Server(socket.socket(fileno=server), memory, must_execute).serve()
    sys.exit()


def work() -> None:
    """Runs a worker that is a new program."""
    descriptor, memory = (int(word) for word in sys.argv[2:4])
    for fd in descriptor, memory:
        os.set_inheritable(fd, False)
    worker.run_forked(descriptor, lambda _: worker.job_in(*_read(memory)))


def _descriptors() -> set[tuple[str, str]]:
    """The open files, sockets and pipes of this process, but no devices, by number and name."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{fd}")
            if not name.startswith(("/dev/", "/proc/")):
                found.add((fd, name))
    return found


class _Anything:
    """Stands for each object while a pickle is read for its imports."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> _Anything:
        return self

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, *_: Any) -> None:
        pass

    append = extend = add = __call__


class _Imports(pickle.Unpickler):
    """Imports the modules that a pickle names, and runs none of its objects' code."""

    def find_class(self, module: str, name: str) -> Any:
        with contextlib.suppress(Exception, SystemExit):  # the worker reports it
            importlib.import_module(module)
        return _Anything

    def persistent_load(self, _: Any) -> Any:
        return _Anything()


def _import_all(job: bytes) -> None:
    _Imports(io.BytesIO(job), buffers=itertools.repeat(b"")).load()


class _Server:
    def __init__(self, trainer: socket.socket, memory: int, must_execute: bool) -> None:
        """must_execute: modules have made threads or opened files, so each worker is a new program and imports by itself."""
        self._trainer, self._memory, self._must_execute = trainer, memory, must_execute
        self._poll = select.poll()
        self._poll.register(trainer, select.POLLIN)
        self._parent = os.pidfd_open(os.getppid())  # the socket alone is not enough: a forked child of the trainer may have it open
        self._poll.register(self._parent, select.POLLIN)
        self._alive: dict[int, int] = {}  # pids, by pidfd
        self._ended: list[int] = []       # pids of workers that are not reaped

    def serve(self) -> None:
        """Returns when the trainer wants no more workers, after their end."""
        is_wanted = True
        while is_wanted:
            ready = {fd for fd, _ in self._poll.poll()}
            for fd in ready & self._alive.keys():
                self._has_ended(fd)
            is_wanted = self._parent not in ready and (self._trainer.fileno() not in ready or self._obey())
        self._end_all()

    def _has_ended(self, fd: int) -> None:
        pid = self._alive.pop(fd)
        self._poll.unregister(fd)
        os.close(fd)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)  # programs that the data set has started; the group is there until the worker is reaped
        self._ended.append(pid)
        if len(self._ended) > _KEPT:
            self._reap(1)

    def _reap(self, count: int) -> None:
        for pid in self._ended[:count]:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        del self._ended[:count]

    def _end_all(self) -> None:
        """Waits until all workers have ended. Kills those that do not end in time."""
        end, number = time.monotonic() + _PATIENCE_S, signal.SIGTERM
        poll = select.poll()
        for fd in self._alive:
            poll.register(fd, select.POLLIN)
        while self._alive:
            found = poll.poll(max(0, end - time.monotonic()) * 1000)
            for fd, _ in found:
                poll.unregister(fd)
                self._has_ended(fd)
            if not found:
                for fd in self._alive:
                    signal.pidfd_send_signal(fd, number)
                end, number = time.monotonic() + 1, signal.SIGKILL
        self._reap(len(self._ended))

    def _obey(self) -> bool:
        """Handles a message of the trainer. Returns False if the server must end."""
        try:
            message, fds, _, _ = socket.recv_fds(self._trainer, 1 << 16, 1)
        except OSError:
            return False
        if message.startswith(_REAP):
            self._end_all()
            with contextlib.suppress(OSError):
                self._trainer.send(message.split()[1], socket.MSG_NOSIGNAL)
            return True
        if not message.startswith(_WORKER):  # the end, or _KILL
            for fd in self._alive if message else ():
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            return False
        if not fds:
            return True  # no descriptor was free: the worker's socket is closed, which its trainer sees
        pid = fd = -1
        try:
            pid = os.fork()
            if pid == 0:
                self._work(fds[0], {int(word) for word in message.split()[1:]})
            fd = os.pidfd_open(pid)
        except OSError:
            traceback.print_exc()
            if pid > 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        os.close(fds[0])
        if fd >= 0:
            self._alive[fd] = pid
            self._poll.register(fd, select.POLLIN)
        return True

    def _work(self, descriptor: int, cpus: set[int]) -> NoReturn:
        """In the child."""
        try:
            os.setpgid(0, 0)
            for fd in [self._parent, *self._alive]:
                os.close(fd)
            self._trainer.close()
            if cpus:
                os.sched_setaffinity(0, cpus)
            if self._must_execute:
                for fd in descriptor, self._memory:
                    os.set_inheritable(fd, True)
                command = [*worker.command(_WORKER_CODE), str(descriptor), str(self._memory)]
                os.execv(command[0], command)
            worker.forget_exits()  # what modules have registered is the server's to do, once
            worker.run_forked(descriptor, lambda _: worker.job_in(*_read(self._memory)))
            worker.leave(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
