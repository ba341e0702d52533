# SPDX-License-Identifier: Apache-2.0
"""Workers on the machines of a Ray cluster: Loader(..., start=feedlane.ray.remote_workers()).

Ray places the hosts, moves the bytes, and counts the processors. Everything that the Loader promises of workers holds for these:
order, seeds by sample, errors, retries and skips, states, and the replacement of what dies. docs/machines.md says when this
pays."""
from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import select
import shutil
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import ray  # type: ignore[import-not-found, unused-ignore]
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # type: ignore[import-not-found, unused-ignore]

from . import _core, errors, feeding, maker, remote, worker
from .errors import PeerDead

_LOOK_EVERY_MS = 200  # for relays that wait for Ray to place their hosts while the Loader is closed
_PAUSE_S = 1  # before an actor that has ended without its place is started again
_TOKEN_BYTES = 16
_TRIES = 3  # to start a host
_MOST_ACTORS = 20  # that end without the place that they were started for


def remote_workers(local: int = 0, *, num_cpus: float = 1, resources: Mapping[str, float] | None = None,
                   scheduling_strategy: Any = "SPREAD", runtime_env: Mapping[str, Any] | None = None) -> remote.Engine:
    """Returns what a Loader needs as `start`: each of its num_workers workers then runs as a Ray actor, a *host*, wherever Ray has
    room. Call ray.init before the Loader's first iteration. One value may serve several Loaders.

      local                workers that run on this machine, without a relay; the others run where Ray places them
      num_cpus, resources  what Ray reserves for each worker
      scheduling_strategy  Ray's, for hosts: by default they are spread over the nodes
      runtime_env          Ray's, for hosts

    The data set and its functions are pickled by cloudpickle. A worker that waits for room in the cluster delays nothing as long as
    others run; a node that joins later gets it. Versions of Feedlane and Python must be those of the trainer."""
    return _Ray(local, {"num_cpus": num_cpus, "resources": dict(resources or {}), "runtime_env": dict(runtime_env or {})},
                scheduling_strategy)


class _Ray(remote.Engine):
    def __init__(self, local: int, options: dict[str, Any], strategy: Any) -> None:
        self._local, self._options, self._strategy = local, options, strategy

    def open(self, job: maker.Job) -> remote.Crew:
        return _Crew(ray.cloudpickle.dumps(job, protocol=5), job, self._local, self._options, self._strategy)


class _Crew:
    """Hands each worker's place to the actor that takes it, through a socket in a folder that only this user can enter."""

    def __init__(self, pickled: bytes, job: maker.Job, local: int, options: dict[str, Any], strategy: Any) -> None:
        self._pickled, self._local, self._options, self._strategy = pickled, local, options, strategy
        self._has_substitute = job.policy is not None and job.policy.substitute is not None
        self._job: Any = None  # Ray's reference to it, in a list, where Ray passes it on as a reference
        self._places: _Places | None = None
        self._actors: dict[Any, Any] = {}  # by the reference to the end of their work; a dropped handle ends its actor
        self._lock, self._is_closed = threading.RLock(), False

    def start(self, place: feeding.Place) -> None:
        with self._lock:
            if self._is_closed:
                return place.close()
            self._start(place)

    def _start(self, place: feeding.Place) -> None:
        if not ray.is_initialized():
            if self._places is not None:
                raise errors.make(_core.E_STATE, "Ray was shut down: make a new Loader")
            ray.init()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        there = {**self._options, "scheduling_strategy": self._strategy}
        ray.remote(_Host).options(**there)  # raises what is wrong with them
        if self._places is None:
            self._job = [ray.put(self._pickled)]
            self._places = _Places()
            weakref.finalize(self, self._places.abandon)
        if place.id < self._local:
            kind, options = ray.remote(_Local), {**self._options, "scheduling_strategy": here}
            arguments: tuple[Any, ...] = (self._job,)
        else:
            kind, options = ray.remote(_Relay), {"num_cpus": 0, "scheduling_strategy": here}
            arguments = (self._job, self._has_substitute, there)
        for over in _over(list(self._actors)):
            del self._actors[over]
        actors, path = self._actors, self._places.path

        def begin(token: bytes) -> tuple[Any, Any]:
            actor = kind.options(**options).remote()
            work = actor.run.remote(path, token, *arguments)
            actors[work] = actor
            return actor, work
        self._places.add(feeding.Place(place.id, place.detach()), begin)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._places is not None:
                self._places.close()
            self._places, self._job = None, None
            self._actors.clear()


class _Waiting:
    """A place that no actor has taken yet. begin: starts an actor that asks for it. work: Ray's reference to the end of the
    actor's work."""

    def __init__(self, place: feeding.Place, begin: Callable[[bytes], tuple[Any, Any]], token: bytes) -> None:
        self.place, self._begin, self._token, self.tries = place, begin, token, 0
        self.begin()

    def begin(self) -> None:
        self.begun = time.monotonic()
        self.tries += 1
        self.actor, self.work = self._begin(self._token)


class _Places:
    """The places that no actor has taken yet, by token, and the thread that hands them out."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="feedlane-ray-")
        self.path = os.path.join(self._folder, "place")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen(128)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._waiting: dict[bytes, _Waiting] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._hand_out, daemon=True, name="feedlane places")
        self._thread.start()

    def add(self, place: feeding.Place, begin: Callable[[bytes], tuple[Any, Any]]) -> None:
        """Lets an actor ask for the place."""
        token = secrets.token_bytes(_TOKEN_BYTES)
        with self._lock:
            self._waiting[token] = _Waiting(place, begin, token)

    def close(self) -> None:
        """Ends the actors that have not taken their places."""
        self.abandon()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def abandon(self) -> None:
        """As close, but does not wait. Does nothing in a forked child."""
        if os.getpid() == self._process:
            self._is_closed = True

    def _drop(self, token: bytes) -> None:
        with self._lock:
            waiting = self._waiting.pop(token, None)
        if waiting is not None:
            waiting.place.close()
            with contextlib.suppress(Exception):
                if ray.is_initialized():
                    ray.kill(waiting.actor)

    def _hand_out(self) -> None:
        with self._listener:
            self._answer_all()
        with self._lock:
            tokens = list(self._waiting)
        for token in tokens:
            self._drop(token)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answer_all(self) -> None:
        while not self._is_closed:
            sockets = self._look()
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            for fd in sockets:
                poll.register(fd, 0)  # only whether the Loader has closed the other end
            for fd, _ in poll.poll(_LOOK_EVERY_MS):
                if fd in sockets:
                    self._drop(sockets[fd])
                else:
                    self._answer()

    def _look(self) -> dict[int, bytes]:
        """Starts actors again that have ended without their places. Returns the descriptors of the places, and their tokens. The
        thread keeps none of Ray's objects while it waits: Ray may be shut down meanwhile."""
        with self._lock:
            latest = time.monotonic() - _PAUSE_S
            works = {one.work: token for token, one in self._waiting.items() if one.begun < latest}
        for work in _over(list(works)):
            try:
                ray.get(work)
            except Exception as reason:
                print(f"feedlane: an actor has ended before it was a worker: {errors.one_line(reason).decode()}", file=sys.stderr)
            self._begin_again(works[work])
        with self._lock:
            return {one.place.fd: token for token, one in self._waiting.items()}

    def _begin_again(self, token: bytes) -> None:
        """An actor has ended without its place. The Loader counts what ends before it attaches, so it is not told at first."""
        with self._lock:
            waiting = self._waiting.get(token)
            if waiting is not None and waiting.tries < _MOST_ACTORS:
                with contextlib.suppress(Exception):
                    waiting.begin()
                return
        self._drop(token)

    def _answer(self) -> None:
        with contextlib.suppress(OSError), self._listener.accept()[0] as asker:
            asker.settimeout(1)
            token = asker.recv(_TOKEN_BYTES)
            with self._lock:
                waiting = self._waiting.pop(token, None)
            if waiting is not None:
                with waiting.place as place:
                    socket.send_fds(asker, [b"p"], [place.fd])


def _over(works: list[Any]) -> list[Any]:
    """Returns the works that have finished; an empty list after ray.shutdown."""
    if not works or not ray.is_initialized():
        return []
    with contextlib.suppress(Exception):
        over: list[Any] = ray.wait(works, num_returns=len(works), timeout=0)[0]
        return over
    return []


def _take(path: str, token: bytes) -> int:
    """Returns the descriptor of the place; -1: the Loader was closed."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker:
        asker.connect(path)
        asker.send(token)
        _, fds, _, _ = socket.recv_fds(asker, 1, 1, socket.MSG_CMSG_CLOEXEC)
        return fds[0] if fds else -1
    return -1


def _load(job: list[Any]) -> maker.Job:
    loaded: maker.Job = pickle.loads(ray.get(job[0]))
    return loaded


# ---- actors ----

class _Local:
    """An ordinary worker on the trainer's machine."""

    def run(self, path: str, token: bytes, job: list[Any]) -> None:
        descriptor = _take(path, token)
        if descriptor >= 0:
            worker.run_worker_of(descriptor, lambda info: _load(job))


class _Host(remote.Host):
    def __init__(self, job: list[Any]) -> None:
        super().__init__(lambda: _load(job))


class _Relay:
    """On the trainer's machine. Owns its host, so that Ray ends the host when this process ends."""

    def run(self, path: str, token: bytes, job: list[Any], has_substitute: bool, options: dict[str, Any]) -> None:
        for left in reversed(range(_TRIES)):
            try:
                host = ray.remote(_Host).options(**options).remote(job)
                greeting: remote.Greeting = ray.get(host.greet.remote())  # when Ray has placed it
                break
            except Exception as reason:
                if left == 0:
                    return self._report(path, token, reason)
                time.sleep(1)
        try:
            descriptor = _take(path, token)
            if descriptor >= 0:
                with contextlib.suppress(PeerDead):  # the Loader was closed
                    remote.relay(descriptor, greeting, _Link(host, greeting.name), has_substitute)
        finally:
            ray.kill(host)

    def _report(self, path: str, token: bytes, reason: BaseException) -> None:
        descriptor = _take(path, token)
        if descriptor >= 0:
            here = _core.Worker(descriptor)
            here.ready(_core.E_INIT, b"Ray could not start a host: " + errors.one_line(reason))
            here.detach()


class _Link:
    """A relay's calls of its host."""

    def __init__(self, host: Any, name: str) -> None:
        self._host, self._name = host, name

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self._host, method).remote(*arguments)

    def wait(self, future: Any, seconds: float) -> bool:
        return bool(ray.wait([future], timeout=seconds)[0])

    def cancel(self, future: Any) -> None:
        with contextlib.suppress(Exception):
            ray.cancel(future)

    def result(self, future: Any) -> Any:
        try:
            return ray.get(future)
        except Exception as reason:  # of Ray, or of the data set if it ends its process
            print(f"feedlane: the host on {self._name} is gone: {errors.one_line(reason).decode()}", file=sys.stderr, flush=True)
            os._exit(1)
