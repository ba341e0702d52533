# SPDX-License-Identifier: Apache-2.0
"""The worker processes of a DataLoader: started by multiprocessing and set up as torch starts and sets up its own."""
from __future__ import annotations

import collections
import contextlib
import copy
import functools
import importlib
import itertools
import multiprocessing
import multiprocessing.reduction
import os
import pickle
import random
import re
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.multiprocessing
from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import collate as torch_collate, signal_handling, worker as torch_worker

from . import _core, child, collate, errors, maker, shipping, torch_samples, torch_state, tree, worker

if TYPE_CHECKING:
    from .dataloader import DataLoader
    from .records import Plan

_PATIENCE_S = 5  # for a process that was asked to end
_MOST_IN_VAIN = 3
_MOST_UNKNOWN_IN_VAIN = 10  # if it is unknown whether they were killed
_ENDS_TOLD = 4


class _Descriptor:
    """A descriptor that is passed to a process at its start, with any start method."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Callable[[Any], _Descriptor], tuple[Any]]:
        return _received, (multiprocessing.reduction.DupFd(self.number),)


def _received(duplicate: Any) -> _Descriptor:
    return _Descriptor(duplicate.detach())


class Crew:
    """The processes of one iterator. The library reports when one is missing."""

    _job: maker.Job

    def __init__(self, loader: DataLoader[Any], base_seed: int, allow_pickle: bool, max_restarts: int,
                 keeping: Callable[[int], Any], taken: Callable[[], Any]) -> None:
        """keeping(worker): a Keeping, or None if workers have no state to send. taken(): the number of batches that have come."""
        self._context: Any = loader.multiprocessing_context or torch.multiprocessing
        self._count, self._base_seed, self._init = loader.num_workers, base_seed, loader.worker_init_fn
        is_iterable = loader._dataset_kind == torch_dataloader._DatasetKind.Iterable
        dataset: Any = loader.dataset
        collate_fn = _collate_fn(loader)
        self._job = maker.Job(dataset, loader._auto_collation, is_iterable, loader.drop_last,
                              collate_fn, None, None, None, allow_pickle, 0)
        self._children: dict[int, child.Child] = {}  # by worker
        self._pid = os.getpid()  # the parent of the processes
        self._keeping, self._taken = keeping, taken
        self._ends: collections.deque[child.Child] = collections.deque(maxlen=_ENDS_TOLD)
        # By worker: how often it has ended in a row without a batch, and the number of batches before.
        self._vain: dict[int, tuple[int, int]] = {}
        self._restarts, self._max_restarts = 0, max(0, max_restarts or 1000)

    def fill(self, core: _core.Loader) -> None:
        """Starts the missing workers. Raises RuntimeError if workers die too often or before they start."""
        for _ in iter(core.event, None):  # discards the events
            pass
        # If a worker ends at once, `next` reports it.
        for number, descriptor in itertools.islice(iter(core.open_worker, None), self._count):
            self._start(number, descriptor)

    def _start(self, number: int, descriptor: int) -> None:
        try:
            self._bury(number)
            work = (self._job, number, self._count, self._base_seed, self._init, self._keeping(number))
            make = functools.partial(self._process, descriptor)
            self._children[number] = child.Child(shipping.start(make, work, self._is_forked()))
        finally:
            os.close(descriptor)

    def _process(self, descriptor: int, work: Any) -> Any:
        return self._context.Process(target=serve, args=(_Descriptor(descriptor), work), daemon=True)

    def _is_forked(self) -> bool:
        return bool(self._context.get_start_method() == "fork")

    def _bury(self, number: int) -> None:
        """Handles the end of the predecessor, if there was one. Raises RuntimeError if it ends by itself each time that it is
        started, or if `max_restarts` is exceeded."""
        old = self._children.pop(number, None)
        if old is None:
            return
        old.end(_PATIENCE_S)
        self._restarts += 1
        self._ends.append(old)
        taken = self._taken()
        vain, before = self._vain.get(number, (0, taken))
        by_itself = old.code is None or old.code > 0
        self._vain[number] = vain, taken = (vain + 1 if taken == before and by_itself else 0, taken)
        if vain == (_MOST_IN_VAIN if old.code is not None else _MOST_UNKNOWN_IN_VAIN):
            raise RuntimeError(f"DataLoader worker (pid(s) {old.pid}) exited unexpectedly, as {vain - 1} before it, without a "
                               f"batch: it {old.story()}. What it wrote to stderr says why."
                               f"{'' if self._is_forked() else shipping.hint()}")
        if self._restarts > self._max_restarts:
            raise RuntimeError(f"DataLoader worker (pid(s) {old.pid}) exited unexpectedly: it {old.story()}; "
                               f"{self._restarts} restarts are more than max_restarts")

    def ends(self) -> str:
        """Returns how workers have ended, in torch's words, as an addition to a message; or ""."""
        ended = [*self._ends, *(one for one in self._children.values() if one.wait(0))]
        return "".join(f"; DataLoader worker (pid {one.pid}) {one.story()}" for one in ended[-_ENDS_TOLD:] if one.code != 0)

    def processes(self) -> list[Any]:
        """Returns the processes, by worker, including those that have ended."""
        return [one.process for _, one in sorted(self._children.items())]

    def is_own(self) -> bool:
        """Whether the processes are children of this process. A forked child has copies of its parent's iterators."""
        return os.getpid() == self._pid

    def join(self) -> None:
        """Waits for the processes to end, and ends those that take too long."""
        if not self.is_own():
            return
        deadline = time.monotonic() + _PATIENCE_S
        for one in self._children.values():
            one.end(max(0, deadline - time.monotonic()))


class Keeping(NamedTuple):
    """How a worker handles states. `state`: the state with which it starts, or None. `rounds`: it sends a state with every
    `rounds`-th of its batches; 0: never. `lead`: number of batches of the first epoch that were yielded before the state was
    made, in the same round."""

    state: Any
    rounds: int
    lead: int


class Keeper(torch_samples.Maker):
    """A Maker whose batches carry the data set's state. The first batch of an epoch also carries the state before that batch.
    After the last batch of a shard, a separate batch carries the state."""

    by_python = True

    def __init__(self, job: maker.Job, number: int, keeping: Keeping) -> None:
        super().__init__(job)
        self._number, self._state, self._rounds, self._lead = number, keeping.state, keeping.rounds, keeping.lead
        self._made, self._is_first_told, self._is_end_told, self._is_empty = 0, False, False, False
        if self._state is not None:
            torch_state.load(job.dataset, self._state["dataset_state"])

    def restart(self) -> None:
        """As in Maker. Then the shard's iterator gets the state with which the worker has started."""
        self._is_first_told = self._is_end_told = False
        self._made = 0
        super().restart()
        state, self._state = self._state, None
        if state is not None and state["fetcher_state"] is not None:
            torch_state.load(self._shard, state["fetcher_state"]["dataset_iter_state"])
            # Only a shard with a state can be known to be over.
            self._ended = state["fetcher_state"]["fetcher_ended"] and not torch_state.is_empty(state)

    def skip(self, task: _core.Task) -> None:
        """As in Maker. If there is nothing to skip, the state determines whether the shard has ended."""
        if task.delivered:
            super().skip(task)

    def plan(self, task: _core.Task, leaves: collate.Leaves) -> tuple[Any, int]:
        """As in Maker, with the state if one is due."""
        told: dict[str, Any] = {"worker": self._number, "first": None, "state": None, "without": None}
        if not self._is_first_told:
            told["first"] = copy.deepcopy(self._now())  # making the batch may change the state
            self._is_empty = torch_state.is_empty(told["first"])
        if task.epoch == 0 and task.batch < self._lead:
            plan, told["without"] = (tree.VALUE, None), "lead"
        else:
            plan, rows = super().plan(task, leaves)
            if not rows and self._is_end_told:
                return None, 0
            if not rows:
                plan, told["without"], told["state"] = (tree.VALUE, None), "end", self._now()
                self._is_end_told = True
            else:
                self._made += 1
                if self._rounds and self._made % self._rounds == 0 and not self._is_empty:
                    told["state"] = self._now()
        if self._is_first_told and self._is_empty and not told["without"]:
            return plan, rows
        self._is_first_told = True
        return (tree.STATE, (plan, _plan_of_state(told, self.job.allow_pickle, leaves))), task.count if told["without"] else rows

    def _now(self) -> torch_state.State:
        return torch_state.worker_state(self._number, self.job.iterable, self.job.dataset, self._shard, self._ended)


def _plan_of_state(told: torch_state.State, allow_pickle: bool, leaves: collate.Leaves) -> Plan:
    if allow_pickle:
        return collate.whole(np.frombuffer(pickle.dumps(told, protocol=pickle.HIGHEST_PROTOCOL), np.uint8), leaves)
    return collate.values_alone(told)


def state_told(state: Any, allow_pickle: bool) -> Any:
    """Decodes, in the trainer, the state written by `_plan_of_state`."""
    blob: Any = state
    return pickle.loads(blob) if allow_pickle and isinstance(state, np.ndarray) else state


def _collate_fn(loader: DataLoader[Any]) -> Callable[[Any], Any] | None:
    """Returns the collate_fn. None: it is torch's default one, whose work this package does, directly in the slot."""
    function: Any = loader.collate_fn
    is_torchs = function is torch_collate.default_collate and function.__module__ == torch_collate.__name__  # it was not replaced
    if is_torchs and loader._auto_collation and not _is_extended():
        return None
    return loader.collate_fn


def _is_extended() -> bool:
    """Whether default_collate_fn_map has entries in addition to torch's."""
    known: dict[Any, Any] = getattr(torch_collate, "default_collate_fn_map", {})
    kinds = [kind for key in known for kind in (key if isinstance(key, tuple) else (key,))]
    return (any(function.__module__ != torch_collate.__name__ for function in known.values()) or
            any(kind.__module__.partition(".")[0] not in ("torch", "numpy", "builtins") for kind in kinds))


# ---- in a worker ----

def serve(descriptor: _Descriptor, work: Any) -> None:
    """Runs a worker. work: passed by Crew. An exception is printed and gives exit code 1."""
    code = 1
    try:
        job, number, count, base_seed, init, keeping = shipping.opened(work)
        _prepare(job.dataset, number, count, base_seed)
        _work(descriptor.number, job, number, init, keeping)
        code = 0
    except KeyboardInterrupt:
        pass  # the trainer reports it
    except SystemExit as reason:
        code = reason.code if isinstance(reason.code, int) else int(reason.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if multiprocessing.get_start_method(allow_none=True) != "fork":
            os._exit(code)  # torch's cleanup takes longer than everything else
    if code:
        sys.exit(code)


def _prepare(dataset: Any, number: int, count: int, base_seed: int) -> None:
    handling: Any = signal_handling  # torch's private modules have no types
    theirs: Any = torch_worker
    handling._set_worker_signal_handlers()
    torch.set_num_threads(1)
    seed = base_seed + number
    random.seed(seed)
    torch.manual_seed(seed)
    if getattr(torch_worker, "HAS_NUMPY", True):
        np.random.seed(theirs._generate_state(base_seed, number))
    theirs._worker_info = theirs.WorkerInfo(id=number, num_workers=count, seed=seed, dataset=dataset)
    maker.set_worker_info(number, count, seed, dataset)


def _work(descriptor: int, job: maker.Job, number: int, init: Callable[[int], Any] | None, keeping: Keeping | None) -> None:
    try:
        handle = _core.Worker(descriptor)
    except errors.PeerDead:  # the iteration was over before this process began
        return
    batches: maker.Maker
    try:
        if init is not None:
            init(number)
        batches = torch_samples.Maker(job) if keeping is None else Keeper(job, number, keeping)
    except Exception as reason:
        batches = Unable(job, reason)
    handle.ready(_core.OK, b"")
    try:
        handle.run(worker.Glue(batches, _tagged))
    finally:
        batches.close_worker()
    handle.detach()


class Unable(maker.Maker):
    """The maker of a worker whose setup failed. As with torch, each of its batches fails with the reason and its traceback. A
    shard ends after its first batch."""

    by_python = True

    def __init__(self, job: maker.Job, reason: Exception) -> None:
        super().__init__(job)
        self._reason = reason

    def restart(self) -> None:
        """Has no effect, because there is no shard."""

    def skip(self, task: _core.Task) -> None:
        """Has no effect."""

    def plan(self, task: _core.Task, leaves: collate.Leaves) -> tuple[Any, int]:
        """Raises the reason."""
        if self._ended:
            return None, 0
        self._ended = self.job.iterable
        raise self._reason


def _tagged(reason: BaseException) -> bytes:
    """Returns an exception in one line that begins with its class's name, by which `reraise` finds the class."""
    kind = type(reason)
    return f"{kind.__module__}:{kind.__qualname__}: ".encode() + errors.one_line(reason)


# ---- in the trainer ----

_TAG = re.compile(r"\b([\w.]+:[\w.<>]+): ")

def reraise(error: errors.FeedlaneError, allow_import: bool) -> None:
    """Raises the exception of a worker's data set, by torch's ExceptionWrapper. error: the library's. allow_import: whether the
    module of the exception's class may be imported."""
    text, story = error.reason, error.traceback
    tag = _TAG.search(text)
    kind = (_exception_named(tag[1], allow_import) if tag else None) or RuntimeError
    told = story or (text[tag.end():] if tag else text)
    if issubclass(kind, StopIteration):  # in `next`, it would end the loop as if all batches had come
        sample = f"sample {error.sample}" if error.sample >= 0 else f"batch {error.batch}"
        kind, told = RuntimeError, f"{torch_state.stopped(sample)}\n{told}"
    wrapper: Any = torch._utils.ExceptionWrapper.__new__(torch._utils.ExceptionWrapper)
    wrapper.exc_type, wrapper.exc_msg, wrapper.where = kind, told, f"in DataLoader worker process {error.worker}"
    raise _made(wrapper)


def _made(wrapper: Any) -> BaseException:
    """Returns the exception that torch's ExceptionWrapper raises or, if that loses the worker's traceback, another one that has
    it."""
    text = f"Caught {wrapper.exc_type.__name__} {wrapper.where}.\nOriginal {wrapper.exc_msg}"
    try:
        wrapper.reraise()
    except Exception as made:  # whatever the class's constructor does
        found = made.with_traceback(None)
    if not isinstance(found, wrapper.exc_type) and issubclass(wrapper.exc_type, BaseExceptionGroup):
        found = _attempt(wrapper.exc_type, text, [RuntimeError("the worker's traceback, above, shows what the group consists of")]) or found
    elif not isinstance(found, wrapper.exc_type):
        found = _attempt(wrapper.exc_type, text) or found
    is_said = wrapper.exc_msg in _words(found)
    if not is_said and not isinstance(found, wrapper.exc_type):
        return RuntimeError(text)
    if not is_said:
        found.add_note(text)
    return found


def _attempt(kind: type[Exception], *arguments: Any) -> Exception | None:
    try:
        made = kind(*arguments)
    except Exception:
        return None
    return made if isinstance(made, kind) else None


def _words(reason: BaseException) -> str:
    try:
        return str(reason)
    except Exception:
        return ""


def _exception_named(name: str, allow_import: bool) -> type[Exception] | None:
    """Returns the exception class. None: there is no such class, or its module would have to be imported."""
    module, _, path = name.partition(":")
    if allow_import and module not in sys.modules:
        with contextlib.suppress(Exception):  # whatever the module does
            importlib.import_module(module)
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) and issubclass(found, Exception) else None
