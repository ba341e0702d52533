# SPDX-License-Identifier: Apache-2.0
"""A worker process of a DataLoader: set up as torch sets up its own workers."""
from __future__ import annotations

import copy
import multiprocessing
import multiprocessing.reduction
import os
import pickle
import random
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data._utils import signal_handling, worker as torch_worker

from . import _core, collate, errors, maker, shipping, torch_failures, torch_samples, torch_state, tree, worker

if TYPE_CHECKING:
    from .records import Plan


class Descriptor:
    """A descriptor that is passed to a process at its start, with any start method."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Callable[[Any], Descriptor], tuple[Any]]:
        return _received, (multiprocessing.reduction.DupFd(self.number),)


def _received(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


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
        return (tree.STATE, (plan, _encode_state(told, self.job.allow_pickle, leaves))), task.count if told["without"] else rows

    def _now(self) -> torch_state.State:
        return torch_state.worker_state(self._number, self.job.iterable, self.job.dataset, self._shard, self._ended)


def _encode_state(told: torch_state.State, allow_pickle: bool, leaves: collate.Leaves) -> Plan:
    if allow_pickle:
        return collate.whole(np.frombuffer(pickle.dumps(told, protocol=pickle.HIGHEST_PROTOCOL), np.uint8), leaves)
    return collate.values_alone(told)


def decode_state(state: Any, allow_pickle: bool) -> Any:
    """Decodes, in the trainer, the state written by `_encode_state`."""
    blob: Any = state
    return pickle.loads(blob) if allow_pickle and isinstance(state, np.ndarray) else state


def serve(descriptor: Descriptor, work: Any) -> None:
    """Runs a worker. work: passed by torch_processes. An exception is printed and gives exit code 1."""
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
        handle.run(worker.Glue(batches, torch_failures.tagged))
    finally:
        batches.close_worker()
    handle.detach()


class Unable(maker.Maker):
    """Makes the batches of a worker whose setup failed. As with torch, each batch fails with the reason and its traceback. A
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
