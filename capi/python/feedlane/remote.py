# SPDX-License-Identifier: Apache-2.0
"""Workers on other machines, whatever engine carries their messages. A *host* is a process on another machine that has the data
set and makes batches. A *relay* is a process at the trainer that is an ordinary external worker: it forwards its tasks to one host
and copies the rows that come back into the slot. feedlane.ray is the engine for Ray."""
from __future__ import annotations

import abc
import math
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from . import _core, batch_dataset, dtypes, errors, feeding, maker, policies, worker

if TYPE_CHECKING:
    import numpy.typing as npt

    from .records import DType, WorkerSetup

_Future = TypeVar("_Future")
_LOOK_EVERY_S = 0.3  # between two reports of progress while a host skips samples; a task_timeout must be longer
_END_S = 5  # a host's time to close its data set


class Crew(Protocol):
    """The workers of one Loader."""

    def start(self, place: feeding.Place, /) -> object:
        """Starts a worker that takes the place. Does not wait for it. Called again for each worker that has ended too early."""

    def close(self) -> None:
        """Ends what has not yet taken its place. The Loader ends the workers themselves."""


class Engine(abc.ABC):
    """Starts workers on other machines: an argument `start` of Loader."""

    @abc.abstractmethod
    def open(self, job: maker.Job) -> Crew:
        """Called once by each Loader. Raises pickle's errors if the job cannot be pickled."""


# ---- messages between a relay and its host ----

class Greeting(NamedTuple):
    """A host's name, and the versions that host and relay must have in common."""

    name: str
    versions: dict[str, str]


class Request(NamedTuple):
    """A task, see _core.Task. oldest: the id of the relay's current task; earlier tasks were given up. indices and seeds: None for
    an iterable data set."""

    id: int
    oldest: int
    epoch: int
    rows: int
    first: int
    delivered: int
    indices: list[int] | None
    seeds: list[int] | None


class Made(NamedTuple):
    """A batch. tensors: (number, name, element type, shape) of each. data: the bytes of each."""

    rows: int
    tensors: list[tuple[int, bytes, DType, tuple[int, ...]]]
    data: list[npt.NDArray[np.uint8]]
    metadata: bytes | None


class Failed(NamedTuple):
    """The batch could not be made: the arguments of _core.Task.fail."""

    position: int
    text: bytes
    traceback: bytes


class Asks(NamedTuple):
    """A sample has failed, and the trainer's policy decides: arguments of _core.Task.sample_failed."""

    position: int
    text: bytes
    is_transient: bool


class Exhausted(NamedTuple):
    """The shard has no more samples."""


class Deferred(NamedTuple):
    """The host waits for the trainer's decision on a failed sample. The relay sends the request again after it."""


Reply = Made | Failed | Asks | Exhausted | Deferred


def versions() -> dict[str, str]:
    """Returns the versions that a relay and its host must share: pickles and plans pass between them."""
    from . import __version__
    return {"feedlane": __version__, "Python": "%d.%d" % sys.version_info[:2]}


# ---- the host ----

class _Asks(BaseException):
    """Ends the making of a batch until the trainer has decided on a sample. Not an Exception, so no data set takes it for one."""

    def __init__(self, asks: Asks) -> None:
        super().__init__(asks)
        self.asks = asks


class _Task:
    """Replaces a _core.Task on a host: the maker reads the Request from it, and it collects the Reply."""

    def __init__(self, request: Request) -> None:
        self.epoch, self.count, self.first, self.delivered = request.epoch, request.rows, request.first, request.delivered
        self.indices, self.seeds = request.indices, request.seeds
        self.reply: Reply | None = None
        self.made: list[list[Any]] = []  # with a policy: the samples of each row so far
        self.substitutes: dict[int, int] = {}  # by position: the index to try instead
        self.failure: BaseException = Exception()  # of the sample that the trainer decides on
        self._tensors: list[tuple[int, bytes, DType, tuple[int, ...]]] = []
        self._data: list[npt.NDArray[np.uint8]] = []
        self._metadata: bytes | None = None

    def tensor(self, number: int, name: bytes, dtype: DType, shape: tuple[int, ...]) -> memoryview:
        data = np.empty((math.prod(shape) * dtype[1] + 7) // 8, np.uint8)
        self.add(number, name, dtype, shape, data)
        return data.data

    def add(self, number: int, name: bytes, dtype: DType, shape: Sequence[int], data: npt.NDArray[np.uint8]) -> None:
        self._tensors.append((number, name, dtype, tuple(shape)))
        self._data.append(data)

    def metadata(self, blob: bytes) -> None:
        self._metadata = blob

    def is_wanted(self) -> bool:
        return True  # the relay cancels calls that are not wanted

    def commit(self, rows: int) -> None:
        self.reply = Made(rows, self._tensors, self._data, self._metadata)

    def fail(self, position: int, text: bytes, story: bytes) -> None:
        self.reply = Failed(position, text, story)

    def exhausted(self) -> None:
        self.reply = Exhausted()


class _HostMaker(maker.Maker):
    """Makes batches without a slot, and leaves decisions on failed samples to the trainer."""

    by_python = True

    def __init__(self, job: maker.Job) -> None:
        super().__init__(job)
        self._plan = batch_dataset.plan_of(job.fields) if self.rows is not None and job.fields else b""

    def make(self, task: Any) -> int:
        if self.rows is None:
            return super().make(task)
        out = {}
        for number, (name, dtype, shape) in enumerate(self.job.fields or ()):
            code, stored = dtypes.of_numpy(dtype)
            out[name] = np.empty((task.count, *shape), stored)
            task.add(number, name.encode(), code, out[name].shape, out[name].reshape(-1).view(np.uint8))
        indices, seeds = np.array(task.indices, np.int64), np.array(task.seeds, np.uint64)
        for array in indices, seeds:
            array.flags.writeable = False
        self.job.dataset.fetch(indices, seeds, out)
        task.metadata(self._plan)
        rows: int = task.count
        return rows

    def _by_index(self, indices: Any, task: Any) -> list[Any]:
        policy = self.job.policy
        if policy is None:
            return super()._by_index(indices, task)
        while (position := len(task.made)) < len(indices):
            index = task.substitutes.get(position, indices[position])
            try:
                with maker.seeded(task.seeds[position]):
                    sample = self.job.dataset[index]
            except Exception as reason:
                task.failure = maker.SampleFailed(position, index)
                task.failure.__cause__ = reason
                raise _Asks(Asks(position, errors.one_line(reason), isinstance(reason, policy.retry_on))) from None
            task.made.append([sample])
        return [sample for samples in task.made for sample in samples]


class Host:
    """Makes batches for one relay, which calls one method at a time and in order. load: returns the job."""

    def __init__(self, load: Callable[[], maker.Job]) -> None:
        self._load = load
        self._open: dict[int, _Task] = {}  # by id: tasks whose sample the trainer decides on

    def greet(self) -> Greeting:
        """Says who this is."""
        return Greeting(socket.gethostname(), versions())

    def open(self, info: WorkerSetup) -> bytes | None:
        """Gets ready as worker `info`. Returns None, or why that failed, in one line."""
        try:
            self._batches = _HostMaker(self._load())
            self._batches.open_worker(info)
            self._glue = worker.Glue(self._batches, tells_epochs=True)
        except (Exception, SystemExit) as reason:
            traceback.print_exc()  # the trainer's error holds only one line
            return worker.reason_of(reason)
        return None

    def make(self, request: Request) -> Reply:
        """Makes the batch of a task."""
        self._open = {id: task for id, task in self._open.items() if id >= request.oldest}
        return Deferred() if self._open else self._go_on(request.id, _Task(request))

    def resume(self, id: int, decision: int | bool | None) -> Reply:
        """Goes on with a task after the trainer's decision on the sample that had failed: the index to try next; None: the
        sample is skipped; False: the batch fails."""
        task = self._open.pop(id)
        if decision is False:
            self._glue.fail(task, task.failure)  # type: ignore[arg-type]  # it is used as a _core.Task
            assert task.reply is not None
            return task.reply
        if decision is None:
            task.made.append([])
        else:
            task.substitutes[len(task.made)] = decision
        return self._go_on(id, task)

    def _go_on(self, id: int, task: _Task) -> Reply:
        try:
            self._glue.slow(task)  # type: ignore[arg-type]  # it is used as a _core.Task
        except _Asks as question:
            self._open[id] = task
            return question.asks
        assert task.reply is not None
        return task.reply

    def substitute(self, index: int, seed: int, tries: int) -> int | Failed | None:
        """The data set's substitute for a sample."""
        policy = self._batches.job.policy
        assert policy is not None and policy.substitute is not None
        try:
            return policy.substitute(index, seed, tries)
        except Exception as reason:
            return Failed(-1, errors.one_line(reason), errors.story(reason))

    def close(self) -> None:
        """The trainer needs this host no longer."""
        self._batches.close_worker()


# ---- the relay ----

class Link(Protocol, Generic[_Future]):
    """What an engine gives a relay: calls of one Host, which are executed in order."""

    def call(self, method: str, *arguments: Any) -> _Future:
        """Enqueues a call. Does not wait."""

    def wait(self, future: _Future, seconds: float) -> bool:
        """Waits for its result at most so long. Returns whether it is there."""

    def cancel(self, future: _Future) -> None:
        """Nobody waits for the call any more. If it has not begun, the host need not make it."""

    def result(self, future: _Future) -> Any:
        """Waits for its result. If the host is gone, ends this process, so that the trainer replaces this worker."""


class _Refused(Exception):
    """`substitute` has raised an exception on the host."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed)
        self.failed = failed


class _Relay(worker.Glue):
    """Called by the compiled loop with each task, see worker.Glue."""

    def __init__(self, link: Link[Any], info: WorkerSetup, host: str, has_substitute: bool) -> None:
        job = maker.Job(None, True, bool(info["iterable"]), False, None, None, None, None, False, 0)
        batches = maker.Maker(job)
        batches.by_python = True  # so that `slow` gets every task
        super().__init__(batches)
        self._link, self._host, self._substitute = link, host, self._ask_host if has_substitute else None
        self._calls: dict[int, Any] = {}  # by task, in order
        self._newest = 0

    def slow(self, task: _core.Task) -> None:
        """Submits the task and the tasks queued behind it, then waits for the task's reply and delivers its batch."""
        try:
            self._forward(task)
        except _Refused as refused:
            self._fail_as(task, refused.failed)
        except Exception as reason:
            self.fail(task, reason)

    def _forward(self, task: _core.Task) -> None:
        id = self._submit(task)
        reply = self._reply(task, self._calls.pop(id))
        while isinstance(reply, Deferred):
            reply = self._reply(task, self._call(id, id, task.epoch, task.indices or [], task.seeds))
        while isinstance(reply, Asks):
            decision = task.sample_failed(*reply, self._substitute)
            if decision is not None and decision is not False:
                index, wait_ns = decision
                policies.pause(task, wait_ns / 1e9)
                decision = index  # type: ignore[assignment]
            reply = self._reply(task, self._link.call("resume", id, decision))
        if isinstance(reply, Exhausted):
            task.exhausted()
        elif isinstance(reply, Failed):
            self._fail_as(task, reply)
        elif isinstance(reply, Made):
            self._deliver(task, reply)

    def _reply(self, task: _core.Task, future: Any) -> Reply:
        # At the start of a shard the host skips the delivered samples. The library counts up to `delivered` calls as progress.
        while task.delivered and not self._link.wait(future, _LOOK_EVERY_S):
            task.is_wanted()
        reply: Reply = self._link.result(future)
        return reply

    def _fail_as(self, task: _core.Task, failed: Failed) -> None:
        place = f" (on {self._host})".encode()
        task.fail(failed.position, failed.text + place, failed.traceback.rstrip() + place + b"\n")

    def _call(self, id: int, oldest: int, epoch: int, indices: list[int], seeds: list[int]) -> Any:
        return self._link.call("make", Request(id, oldest, epoch, len(indices), 0, 0, indices, seeds))

    def _submit(self, task: _core.Task) -> int:
        """Returns the task's id, under which its call is found."""
        if task.indices is None:  # the next one depends on how many samples this one takes
            id = self._newest = self._newest + 1
            self._calls[id] = self._link.call("make", Request(id, id, task.epoch, task.count, task.first, task.delivered, None, None))
            return id
        id = _core.task_id() or 0
        for ahead in _core.tasks(self._newest):
            number, epoch, _, indices, seeds = ahead
            self._calls[number] = self._call(number, id, epoch, indices, seeds)
            self._newest = number
        for number in [number for number in self._calls if number < id]:  # taken back by the trainer, or given up
            self._link.cancel(self._calls.pop(number))
        return id

    def _deliver(self, task: _core.Task, made: Made) -> None:
        try:
            for (number, name, dtype, shape), data in zip(made.tensors, made.data):
                memory = task.tensor(number, name, dtype, shape)
                if data.nbytes:
                    memory[:] = data.data
            if made.metadata is not None:
                task.metadata(made.metadata)
            task.commit(made.rows)
        except errors.LimitError as reason:
            self.fail(task, self._batches.too_large(reason))
        except errors.ArgumentError as reason:  # the task is still open: the batch fails with this error
            self.fail(task, reason)

    def _ask_host(self, index: int, seed: int, tries: int) -> int | None:
        chosen: int | Failed | None = self._link.result(self._link.call("substitute", index, seed, tries))
        if isinstance(chosen, Failed):
            raise _Refused(chosen)
        return chosen

    def end(self) -> None:
        """The trainer needs this relay no longer."""
        for call in self._calls.values():
            self._link.cancel(call)
        self._link.wait(self._link.call("close"), _END_S)


def relay(descriptor: int, greeting: Greeting, link: Link[Any], has_substitute: bool) -> None:
    """Is a worker of the trainer that the descriptor leads to, and lets a host make its batches."""
    here = _core.Worker(descriptor)
    info = here.info()
    if greeting.versions != versions():
        theirs, ours = (", ".join(f"{name} {number}" for name, number in all.items()) for all in (greeting.versions, versions()))
        here.ready(_core.E_ABI, f"{greeting.name} has {theirs}, but the trainer has {ours}".encode())
        return here.detach()
    reason: bytes | None = link.result(link.call("open", {**info, "config": b""}))
    if reason is not None:
        here.ready(_core.E_INIT, reason + f" (on {greeting.name})".encode())
        return here.detach()
    here.ready(_core.OK, b"")
    glue = _Relay(link, info, greeting.name, has_substitute)
    try:
        here.run(glue)
    finally:
        here.detach()
        glue.end()
