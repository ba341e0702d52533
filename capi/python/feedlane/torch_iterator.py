# SPDX-License-Identifier: Apache-2.0
"""One iteration of a DataLoader with workers: its processes, the batches of indices that they get, and the handling
of batches that cannot be made."""
from __future__ import annotations

import collections
import contextlib
import functools
import gc
import resource
import time
import types
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.utils.data
import torch.utils.dlpack
from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import pin_memory

from . import _core, errors, indices, lifetime, maker, observe, torch_arguments, torch_failures, torch_processes, torch_state, torch_worker, tree

if TYPE_CHECKING:
    from .batch import Batch, BatchTensor

_LARGEST_SLOT, _ADDRESS_SPACE = 16 << 30, 8 << 40
_LOOK_EVERY_NS = 50_000_000  # interval between checks for workers that have ended
# With in_order=False, torch 2.7 and later give a batch to a worker that has room; earlier versions go round-robin.
_IS_FREE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 7)
_OF_WORKERS = (_core.E_PEER_DEAD, _core.E_INIT, _core.E_QUARANTINED, _core.E_RESTARTS, _core.E_HUNG)
_profiler: Any = torch.autograd.profiler if hasattr(torch.autograd.profiler, "_is_profiler_enabled") else types.SimpleNamespace(
    _is_profiler_enabled=False)  # torch 1 does not have it
_PLAIN_SAMPLERS = (torch.utils.data.SequentialSampler, torch.utils.data.RandomSampler, torch.utils.data.WeightedRandomSampler,
                   torch.utils.data.DistributedSampler)


def _yields_integers(loader: torch_arguments.Arguments[Any]) -> bool:
    """Whether its samplers are torch's and yield integers or, if samples are collated, lists of integers."""
    if not loader._auto_collation:
        return type(loader.sampler) in _PLAIN_SAMPLERS
    batches: Any = loader.batch_sampler
    return type(batches) is torch.utils.data.BatchSampler and type(batches.sampler) in _PLAIN_SAMPLERS


def _slot_bytes(loader: torch_arguments.Arguments[Any]) -> int:
    """Returns the address space of a slot. Without a limit this is far more than a batch takes."""
    slots = loader.num_workers * ((loader.prefetch_factor or 2) + 1) + loader.held + 2
    bounds = [_LARGEST_SLOT, _ADDRESS_SPACE // slots]
    for kind, is_used in (resource.RLIMIT_AS, True), (resource.RLIMIT_FSIZE, False):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            left = limit - (_address_space_in_use() if is_used else 0)
            bounds.append(left // (4 * slots) if is_used else left // slots)  # the rest is left for the program
    return max(min(bounds) >> 20 << 20, 1 << 20)


def _address_space_in_use() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


class Iterator(torch_dataloader._BaseDataLoaderIter):
    """One iteration with its own workers; with persistent_workers, all iterations, one after the other."""

    _core: Any = None  # a _core.Loader
    _base_seed: Any  # an int, drawn from torch's generator
    is_over = _is_shut = False
    source: observe.Source | None = None  # None: the iteration was over when it was loaded

    def __init__(self, loader: torch_arguments.Arguments[Any], state: torch_state.State | None = None) -> None:
        if loader.prefetch_factor is not None and loader.prefetch_factor < 1:
            raise AssertionError(f"prefetch_factor is {loader.prefetch_factor}: it must be greater than 0")  # the type that torch raises
        resume = None if state is None else torch_state.Resume(state, loader.num_workers)
        with torch_state.no_draw(loader.generator) if resume else contextlib.nullcontext():
            super().__init__(loader)
        if resume:
            resume.restore_generator(loader)
            if resume.finished:
                loader._next_random = resume.next_random
        if resume and resume.finished and not self._persistent_workers:
            self._pass_over(resume)
            return
        self._options: dict[str, Any] = {
            "held": loader.held, "slot_bytes": loader.slot_bytes or _slot_bytes(loader), "max_restarts": loader.max_restarts,
            "task_timeout_ns": int(loader.task_timeout * 1e9)}
        self._allow_pickle = loader.allow_pickle
        self._load = functools.partial(tree.load, allow_pickle=self._allow_pickle, is_ours=True)
        self._prefetch = (loader.prefetch_factor or 0) * loader.num_workers
        self._iterable = self._dataset_kind == torch_dataloader._DatasetKind.Iterable
        self._in_order = getattr(loader, "in_order", True)
        self._queue, self._epoch = _core.IndexQueue(), 0
        if resume and resume.base_seed is not None:
            self._base_seed = resume.base_seed
        self._plan_states(loader, resume)
        random = self._prepare(resume, loader)
        self._are_integers = self._iterable or _yields_integers(loader)
        self._start_workers(loader)  # before the sampler's iterator is requested a second time, see _draw
        self._draw(resume, random)
        self._begin()
        if resume:
            self._forward(resume)

    def _start_workers(self, loader: torch_arguments.Arguments[Any]) -> None:
        weak: Any = weakref.ref(self)
        self._processes = torch_processes.Processes(loader, self._base_seed, self._allow_pickle,
                                                    lambda worker: weak()._keeping(worker))
        self._create(loader)
        lifetime.end_at_exit(self)
        self._processes.start_wanted(self._core)

    # ---- states ----

    def _plan_states(self, loader: torch_arguments.Arguments[Any], resume: torch_state.Resume | None) -> None:
        """Determines which objects have states, and the state with which each worker starts."""
        self._has_states = self._iterable or torch_state.is_stateful(self._dataset)
        self._states = resume.states if resume else {}
        if all(state is None or torch_state.is_empty(state) for state in self._states.values()):
            self._states = {}  # an iterable data set without states starts over
        every = loader.snapshot_every_n_steps
        self._rounds = max(1, every // self._num_workers) if every else 0
        if not self._iterable and not self._in_order:
            self._rounds = 0  # the batches that have come do not determine the sampler's position
        # Workers before the one whose turn it is first return empty batches.
        self._lead = (resume.last + 1) % self._num_workers if resume and self._states and self._in_order else 0

    def _keeping(self, worker: int) -> torch_worker.Keeping | None:
        if not self._has_states:
            return None
        progress = self.position
        state = progress.state_for(worker)
        if state is not None and torch_state.is_empty(state):
            state = None
        return torch_worker.Keeping(state, self._rounds, self._lead if self._epoch == 0 else 0)

    def _prepare(self, resume: torch_state.Resume | None, loader: torch_arguments.Arguments[Any]) -> torch.Tensor | None:
        """Sets up the epoch's position before anything is drawn. Returns the generator state from which the order is drawn, if
        a loaded state contains one."""
        random = torch_state.draw_as_saved(loader, self, self._epoch == 0) if resume is None else None
        self._indices = torch_state.Indices(self._index_sampler)
        if resume:
            self._IterableDataset_len_called = resume.main["_IterableDataset_len_called"]
        seeds = {"_base_seed": self._base_seed, **torch_state.generator_state(loader)}
        self.position = torch_state.Progress(self._indices, self._num_workers, self._rounds, seeds, self._iterable,
                                             self._has_states, self._states)
        self.position.length_called = self._IterableDataset_len_called
        return random

    def _draw(self, resume: torch_state.Resume | None, random: torch.Tensor | None) -> None:
        """Starts the sampler, from its beginning or from the position in the state. torch requests the index sampler's iterator
        when the iteration is created, draws the seed, starts the workers, and requests the iterator again to use it. This class
        does the same. When kept workers begin another epoch, the iterator is requested once."""
        step = taken = 0
        if resume and not self._iterable:
            self._indices.load_state_dict(resume.main)
            step, taken = resume.step, resume.main["_sampler_iter_yielded"]
        elif resume and self._states:
            step = taken = resume.step
        if random is not None:
            self._indices.start_as_saved(random)
        if not self._iterable:
            self._indices.start()
        self.position.begin(step, taken, resume.last if resume and step else None)
        self._num_yielded = step
        self._sampler_iter, self._batch_failed, self._has_pushed = iter(self._indices), False, False
        self._ahead: collections.deque[tuple[Any, Exception | None]] = collections.deque()

    def _forward(self, resume: torch_state.Resume) -> None:
        steps = resume.since
        if self._iterable and not self._states:
            steps += resume.step
            if steps:
                torch_state.warn_of_forwarding(steps)
        for _ in range(steps):
            next(self)
        if resume.finished:
            collections.deque(self, 0)

    def _pass_over(self, resume: torch_state.Resume) -> None:
        """Skips an epoch that is over: only its generators and samplers are restored."""
        self.is_over = True
        if self._dataset_kind == torch_dataloader._DatasetKind.Map:
            indices = torch_state.Indices(self._index_sampler)
            indices.load_state_dict(resume.main)
            indices.exhaust()

    def look_ahead(self) -> None:
        """Takes batches until every worker has sent its first state. The loop gets these batches later."""
        while self.position.unknown and not (self._ahead and self._ahead[-1][1]):
            try:
                self._ahead.append((self._take(), None))
            except Exception as reason:
                self._ahead.append((None, reason))

    def _create(self, loader: torch_arguments.Arguments[Any]) -> None:
        sampler = None
        if self._iterable:
            batch_size = loader.batch_size if self._auto_collation else _core.UNBATCHED
        else:
            is_batch = self._auto_collation or not self._are_integers
            rows = (getattr(self._index_sampler, "batch_size", None) or 0) if is_batch else 0
            self._largest = rows if self._are_integers else max(rows, indices.LARGEST)
            batch_size, sampler = 0 if is_batch else _core.UNBATCHED, self._queue.sampler(self._largest)
        self._core = lifetime.create(
            {"workers": self._num_workers, "prefetch_factor": loader.prefetch_factor, "start": _core.START_EXTERNAL,
             "dispatch": _core.DISPATCH_ROUND_ROBIN if self._in_order or not _IS_FREE else _core.DISPATCH_LEAST_LOADED,
             "out_of_order": not self._in_order, "has_seed": True,
             "seed": self._base_seed & (2**64 - 1), "drop_last": self._drop_last and self._iterable,
             "iterable": self._iterable, "batch_size": batch_size, "trace": loader._trace, **self._options}, sampler=sampler, name=loader.name)
        self.source = observe.Source(self._core)

    def _reset(self, loader: torch_arguments.Arguments[Any], first_iter: bool = False) -> None:
        # Replaces torch's method, which would request the sampler's iterator once more.
        self._IterableDataset_len_called = loader._IterableDataset_len_called
        self._epoch += 1
        states = self.position.states
        self._states, self.is_over = {}, False
        self._draw(None, self._prepare(None, loader))
        self.position.keep(states)
        self._begin()

    def _begin(self) -> None:
        self._queue.restart()
        self._has_indices, self._ended = not self._iterable, False
        if self._has_indices and self._epoch == 0:
            for _ in range(self._lead):
                self._queue.push((0,))  # an empty batch, see _plan_states
        for _ in range(self._prefetch):
            self._push()
        self._core.begin(self._epoch)
        self._cursor = _core.Cursor(self._core, _Outcomes(self), self._load,
                                    torch.utils.dlpack.from_dlpack, _LOOK_EVERY_NS, self._options["held"], False)
        self._next_of_cursor = self._cursor.__next__

    def _push(self) -> None:
        """Pushes one batch of indices. The library draws one batch ahead of the ones that it has yielded, so each batch is
        pushed before the library draws it."""
        if not self._has_indices:
            return
        try:
            wanted = next(self._sampler_iter)
        except StopIteration:
            self._has_indices = False
            self._queue.end()
            return
        if not self.position.is_plain:
            self.position.drew()
        if not self._are_integers:
            self._queue.push(indices.sent(wanted, self._auto_collation, self._largest))
        else:
            self._queue.push(wanted if self._auto_collation else (wanted,))

    def __next__(self) -> Any:
        try:
            if self._iterable and self._IterableDataset_len_called is not None:
                data = super().__next__()  # torch's method checks the data set's length
            else:
                data = self._profiled_data() if _profiler._is_profiler_enabled else self._next_data()
                self._num_yielded += 1
        except StopIteration:
            self.is_over = self.position.finished = True
            self.position.all_known()
            raise
        self.position.step = self._num_yielded
        return data

    def _profiled_data(self) -> Any:
        with torch.autograd.profiler.record_function(self._profile_name):  # as torch's iterator does
            return self._next_data()

    def _next_data(self) -> Any:
        position = self.position
        try:
            data = self._taken() if self._ahead or self._has_states else self._take()
        except Exception:
            if self._batch_failed:  # a failed batch counts too
                self._batch_failed = False
                position.failed()
            raise
        position.took()
        if not self._pin_memory:
            return data
        return pin_memory.pin_memory(data, self._pin_memory_device)  # type: ignore[no-untyped-call]

    def _taken(self) -> Any:
        """Returns the next batch. Used if workers may send states or batches were taken ahead."""
        while True:
            data, reason = self._ahead.popleft() if self._ahead else (self._take(), None)
            if reason is not None:
                raise reason
            if type(data) is not tree.WithState:
                return data
            told = data.state
            self.position.told(told)
            if not told["without"]:
                return data.data

    def _take(self) -> Any:
        if not self._has_pushed:  # after a timeout it was already pushed
            self._push()
            self._has_pushed = True
        self._deadline = time.monotonic() + self._timeout if self._timeout > 0 else None
        data = self._next_of_cursor()
        self._has_pushed = False
        if type(data) is not tree.WithState:
            return data
        told = torch_worker.decode_state(data.state, self._allow_pickle)
        self.position.told_first(told)
        return tree.WithState(data.data, told)

    next = __next__
    is_own = property(lambda self: self._processes.is_own(), doc="False in a forked child.")
    # The processes, by worker, as in torch's iterator.
    _workers = property(lambda self: self._processes.started())

    # ---- the end ----

    def _shutdown_workers(self) -> None:
        if self._core is None or self._is_shut:  # None: the constructor has raised
            return
        if self.source is not None:
            self.source.freeze()
        self._core.close()
        self._processes.join()
        self._is_shut = True

    def __del__(self) -> None:
        self._shutdown_workers()  # also called before the interpreter ends: see lifetime.py


class _Outcomes:
    """Called by the compiled iterator, see core/cursor.cpp."""

    def __init__(self, iterator: Iterator) -> None:
        self._weak = weakref.ref(iterator)  # weak, because dropping the iterator must end its workers

    _i = property(lambda self: self._weak())

    def __len__(self) -> int:
        return len(self._i)

    def end(self) -> None:
        i = self._i
        i._ended = True
        if not i._persistent_workers:
            i._shutdown_workers()

    def refuse(self, status: int) -> NoReturn:
        raise errors.make(status)

    def outcome(self, status: int, exception: errors.FeedlaneError, is_again: bool) -> Any:
        i = self._i
        if i._ended and status == _core.E_STATE:
            raise StopIteration
        # E_PEER_DEAD without a worker: none is attached yet. With a worker: its shard is lost.
        if status == _core.TIMEOUT or (status == _core.E_PEER_DEAD and exception.worker < 0):
            i._processes.start_wanted(i._core)
            if i._deadline is not None and time.monotonic() >= i._deadline:
                raise RuntimeError(f"DataLoader timed out after {i._timeout} seconds")
            return NotImplemented
        if status == _core.SLOTS_HELD:
            if is_again:
                raise errors.make(status)
            gc.collect()
            return NotImplemented
        i._batch_failed = status in (_core.E_SAMPLE, _core.E_QUARANTINED)
        i._has_pushed = i._has_pushed and not i._batch_failed
        if status == _core.E_SAMPLE:
            torch_failures.reraise(exception, i._allow_pickle)
        if status in _OF_WORKERS:
            raise i._processes.explained(exception)
        raise exception

    def unusual(self, batch: Batch) -> Any:
        """Makes the data. Beyond `held` batches it is copied here, because pickled values cannot be copied in any other way."""
        i = self._i
        convert = _convert_copy if i._core.stats()["slots_held"] >= i._options["held"] else _convert
        with batch.adopt(convert, i._load):
            return batch.data

    def copy(self, data: Any) -> Any:
        return maker.copied(data)


def _convert(tensor: BatchTensor, owner: int) -> Any:
    return tensor.numpy() if owner == tree.NUMPY else tensor.torch()


def _convert_copy(tensor: BatchTensor, owner: int) -> Any:
    return maker.copied(_convert(tensor, owner))
