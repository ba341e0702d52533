# SPDX-License-Identifier: Apache-2.0
"""The worker processes of a DataLoader: started by multiprocessing, as torch starts its own, whenever the library wants one."""
from __future__ import annotations

import collections
import functools
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing
import torch.utils.data
from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import collate as torch_collate

from . import _core, child, errors, maker, shipping, torch_worker

_PATIENCE_S = 5  # for a process that was asked to end
_ENDS_TOLD = 4
_FINAL = (_core.E_INIT, _core.E_RESTARTS)  # errors after which a dead worker is not replaced


class Processes:
    """The processes of one iterator. The library watches the workers and decides whether a dead one is replaced."""

    def __init__(self, loader: torch.utils.data.DataLoader[Any], base_seed: int, allow_pickle: bool,
                 keeping: Callable[[int], torch_worker.Keeping | None]) -> None:
        """keeping(worker): None if workers have no state to send."""
        self._context: Any = loader.multiprocessing_context or torch.multiprocessing
        self._count, self._base_seed, self._init = loader.num_workers, base_seed, loader.worker_init_fn
        is_iterable = loader._dataset_kind == torch_dataloader._DatasetKind.Iterable
        dataset: Any = loader.dataset
        self._job = maker.Job(dataset, loader._auto_collation, is_iterable, loader.drop_last,
                              _collate_fn(loader), None, None, None, allow_pickle, 0)
        self._children: dict[int, child.Child] = {}  # by worker
        self._pid = os.getpid()  # the parent of the processes
        self._keeping = keeping
        self._replaced: collections.deque[child.Child] = collections.deque(maxlen=_ENDS_TOLD)

    def start_wanted(self, core: _core.Loader) -> None:
        """Starts a process for each worker that the library wants."""
        for _ in iter(core.event, None):  # discards the events
            pass
        # At most one for each worker: if all end at once, `next` reports it.
        for number, descriptor in itertools.islice(iter(core.open_worker, None), self._count):
            self._start(number, descriptor)

    def _start(self, number: int, descriptor: int) -> None:
        try:
            old = self._children.pop(number, None)
            if old is not None:
                old.end(_PATIENCE_S)
                self._replaced.append(old)
            work = (self._job, number, self._count, self._base_seed, self._init, self._keeping(number))
            make = functools.partial(self._process, descriptor)
            self._children[number] = child.Child(shipping.start(make, work, self._is_forked()))
        finally:
            os.close(descriptor)

    def _process(self, descriptor: int, work: Any) -> Any:
        return self._context.Process(target=torch_worker.serve, args=(torch_worker.Descriptor(descriptor), work), daemon=True)

    def _is_forked(self) -> bool:
        return bool(self._context.get_start_method() == "fork")

    def explained(self, exception: errors.FeedlaneError) -> errors.FeedlaneError:
        """Returns the library's error with an addition: how workers have ended, in torch's words, and what to do."""
        dead = self._children.get(exception.worker) if exception.status in _FINAL else None
        if dead is not None:
            dead.wait(_PATIENCE_S)  # its socket is closed before its end
        ended = [*self._replaced, *(one for one in self._children.values() if one.wait(0))]
        more = "".join(f"; DataLoader worker (pid {one.pid}) {one.story()}" for one in ended[-_ENDS_TOLD:] if one.code != 0)
        if exception.status == _core.E_INIT:
            more += f". What it wrote to stderr says why.{'' if self._is_forked() else shipping.hint()}"
        return errors.with_more(exception, more)

    def started(self) -> list[Any]:
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


def _collate_fn(loader: torch.utils.data.DataLoader[Any]) -> Callable[[Any], Any] | None:
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
