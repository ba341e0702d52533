# SPDX-License-Identifier: Apache-2.0
"""DataLoader: torch.utils.data.DataLoader whose worker processes make their batches in shared memory.

It is a subclass: arguments, samplers, generators and what frameworks look for are torch's. What differs is the way of a batch
from a worker to the loop, and what happens when a worker dies: another one takes its place. Without workers, and for torch's data
pipes, it is torch's own loader."""
from __future__ import annotations

import collections
import contextlib
import functools
import gc
import itertools
import time
import typing
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, overload

import torch
import torch.utils.data
import torch.utils.dlpack
from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import pin_memory

from . import _core, errors, lifetime, maker, torch_inline, torch_state, torch_worker, tree
from .loader import _SLOT_BYTES

if TYPE_CHECKING:
    from .batch import Batch, BatchTensor
    from .records import Indexed

_LOOK_EVERY_NS = 50_000_000  # at workers that have ended
# With in_order=False torch gives a batch to a worker that has room since 2.7, and to each in turn before.
_IS_FREE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 7)
_OF_WORKERS = (_core.E_PEER_DEAD, _core.E_QUARANTINED, _core.E_RESTARTS, _core.E_HUNG)
_LARGEST_BATCH = 65536       # rows of a batch sampler that doesn't say


_T = typing.TypeVar("_T", covariant=True)


class DataLoader(torch.utils.data.DataLoader[_T]):
    """As torch's, with these arguments besides, by keyword:

    held          batches that the loop may keep in shared memory; what it keeps beyond is copied. Default 4.
    slot_bytes    the largest batch. Address space: only what is written takes memory. Default 256 MiB.
    task_timeout  seconds after which a worker that is stuck in a batch is replaced; 0, the default: never.
    max_restarts  of dead workers over an iteration; 0: 1000, -1: none.
    allow_pickle  values that are neither tensors, arrays, numbers, strings, bytes nor containers of such travel pickled, as with
                  torch. Default True: a worker, and a process that can write its memory, can then run any code in this one. With
                  False such a value is a TypeError in the worker.
    snapshot_every_n_steps
                  a data set's state comes from its worker with about every n-th batch; a loader that goes on from a state makes
                  up to n batches again. Default 1; 0 or None: all are made again.

    state_dict() and load_state_dict(state) are those of torchdata's StatefulDataLoader: the next iteration goes on in mid-epoch.
    Samplers, their iterators, data sets and those of iterable ones may have state_dict() and load_state_dict(state) too.

    Errors of the data set are raised as torch raises them: as their own type, with the worker's traceback. The iteration can go
    on after them. Indices must be integers."""

    _next_random: torch.Tensor | None
    _resume: torch_state.State | None
    _ready: Any
    _position: Any
    _live: Any
    _kept: Any

    @overload
    def __init__(self, dataset: torch.utils.data.Dataset[_T], batch_size: int | None = 1, shuffle: bool | None = None,
                 sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Sequence[Any]] | None = None, num_workers: int = 0,
                 collate_fn: Callable[[Any], Any] | None = None, pin_memory: bool = False, drop_last: bool = False,
                 timeout: float = 0, worker_init_fn: Callable[[int], None] | None = None, multiprocessing_context: Any = None,
                 generator: torch.Generator | None = None, *, prefetch_factor: int | None = None,
                 persistent_workers: bool = False, pin_memory_device: str = "", in_order: bool = True, held: int = 4,
                 slot_bytes: int = ..., task_timeout: float = 0, max_restarts: int = 0, allow_pickle: bool = True,
                 snapshot_every_n_steps: int | None = 1) -> None: ...

    @overload
    def __init__(self: DataLoader[Any], dataset: Indexed | Iterable[Any], batch_size: int | None = 1, shuffle: bool | None = None,
                 sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Sequence[Any]] | None = None, num_workers: int = 0,
                 collate_fn: Callable[[Any], Any] | None = None, pin_memory: bool = False, drop_last: bool = False,
                 timeout: float = 0, worker_init_fn: Callable[[int], None] | None = None, multiprocessing_context: Any = None,
                 generator: torch.Generator | None = None, *, prefetch_factor: int | None = None,
                 persistent_workers: bool = False, pin_memory_device: str = "", in_order: bool = True, held: int = 4,
                 slot_bytes: int = ..., task_timeout: float = 0, max_restarts: int = 0, allow_pickle: bool = True,
                 snapshot_every_n_steps: int | None = 1) -> None: ...

    def __init__(self, *args: Any, held: int = 4, slot_bytes: int = _SLOT_BYTES, task_timeout: float = 0, max_restarts: int = 0,
                 allow_pickle: bool = True, snapshot_every_n_steps: int | None = 1, **kwargs: Any) -> None:
        # By these names, since frameworks make a loader anew with what they read off it.
        self.held, self.slot_bytes = errors.whole("held", held, 1, 4096), errors.whole("slot_bytes", slot_bytes, 1, 1 << 46)
        self.max_restarts = errors.whole("max_restarts", max_restarts, -1, 2**31 - 1)
        self.task_timeout, self.allow_pickle = task_timeout, bool(allow_pickle)
        self.snapshot_every_n_steps = errors.whole("snapshot_every_n_steps", snapshot_every_n_steps or 0, 0, 2**31 - 1)
        self._next_random = None             # torch's default generator's state for the next epoch, of a state that was loaded
        self._resume = None                  # a state that was loaded
        self._ready = None                   # an iterator that state_dict made
        self._position = self._live = None   # of the newest iteration: what says where it is; the iterator, weakly
        self._kept = None                    # the same, until all is known of it
        super().__init__(*args, **kwargs)

    def _get_iterator(self) -> Any:
        if self._is_of_pipes():
            return super()._get_iterator()
        if self.num_workers == 0:
            resume, self._resume = self._resume, None
            return torch_inline.Iterator(self, resume)
        self.check_worker_number_rationality()  # type: ignore[no-untyped-call]  # torch's has no types, here and below
        resume, self._resume = self._resume, None
        return _Iterator(self, resume)

    def _is_of_pipes(self) -> bool:
        return isinstance(self.dataset, (torch.utils.data.IterDataPipe, torch.utils.data.MapDataPipe))

    def __iter__(self) -> Any:
        if self._is_of_pipes():
            return super().__iter__()
        if self._ready is not None:
            ready, self._ready = self._ready, None
            return ready
        iterator: Any = super().__iter__()
        if iterator.is_over:  # it was loaded: the next epoch follows
            iterator = super().__iter__()
        self._position, self._live = iterator.position, weakref.ref(iterator)
        self._keep_until_known(iterator)
        return iterator

    def _keep_until_known(self, iterator: Any) -> None:
        """A state may be asked for when the loop has dropped its iterator: not before workers have told their first ones."""
        self._kept = iterator if iterator.position.unknown else None
        if self._kept is not None:
            iterator.position.on_known = functools.partial(_let_go, weakref.ref(self), iterator.position)

    def state_dict(self) -> torch_state.State:
        """Where the newest iteration stands, after the batches that it has yielded. Without one, where the next one begins.
        Waits for the first batch of each worker, if its data set may have a state. Unsupported: data pipes have none."""
        if self._is_of_pipes():
            raise errors.make(_core.E_UNSUPPORTED, "data pipes have no state")
        if self._resume is not None:
            return self._resume
        if self._position is None:
            self._ready = iter(self)
        position: Any = self._position
        iterator = self._live()
        if iterator is not None:
            iterator.look_ahead()
        state: torch_state.State = position.state_dict()
        return state

    def load_state_dict(self, state: torch_state.State) -> None:
        """The next iteration goes on after what was yielded before `state`. {}: it begins anew. The iteration raises
        AssertionError if the state isn't of such a loader, or is of another number of workers that have states."""
        self._iterator = self._ready = self._position = self._kept = None
        self._resume = state if state else None

    def __getstate__(self) -> dict[str, Any]:
        """To be copied and pickled: without iterators."""
        return {**self.__dict__, "_iterator": None, "_ready": None, "_position": None, "_live": None, "_kept": None}


def _let_go(loader: weakref.ref[Any], position: torch_state.Progress) -> None:
    found = loader()
    if found is not None and found._position is position:
        found._kept = None


class _Iterator(torch_dataloader._BaseDataLoaderIter):
    """One iteration with its own workers; with persistent_workers, one after the other."""

    _core: Any = None  # a _core.Loader
    _base_seed: Any  # an int, of torch's generator
    is_over = False

    def __init__(self, loader: DataLoader[Any], state: torch_state.State | None = None) -> None:
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
            "held": loader.held, "slot_bytes": loader.slot_bytes, "max_restarts": loader.max_restarts,
            "task_timeout_ns": int(loader.task_timeout * 1e9)}
        self._allow_pickle = loader.allow_pickle
        self._prefetch = (loader.prefetch_factor or 0) * loader.num_workers
        self._iterable = self._dataset_kind == torch_dataloader._DatasetKind.Iterable
        self._in_order = getattr(loader, "in_order", True)
        self._queue, self._epoch = _core.IndexQueue(), 0
        if resume and resume.base_seed is not None:
            self._base_seed = resume.base_seed
        self._plan_states(loader, resume)
        self._draw_from(resume, loader)
        self._takes_lists = self._auto_collation or self._yields_lists()
        weak: Any = weakref.ref(self)
        self._crew = torch_worker.Crew(loader, self._base_seed, self._allow_pickle, self._options["max_restarts"],
                                       self._takes_lists, lambda worker: weak()._keeping(worker),
                                       lambda: weak().position.taken)
        self._create(loader)
        self._begin()
        if resume:
            self._forward(resume)

    # ---- states ----

    def _plan_states(self, loader: DataLoader[Any], resume: torch_state.Resume | None) -> None:
        """Who has a state, and what a worker starts with."""
        self._has_states = self._iterable or torch_state.is_stateful(self._dataset)
        self._states = resume.states if resume else {}
        if all(state is None or torch_state.is_empty(state) for state in self._states.values()):
            self._states = {}  # an iterable data set without states begins anew
        every = loader.snapshot_every_n_steps
        self._rounds = max(1, every // self._num_workers) if every else 0
        if not self._iterable and not self._in_order:
            self._rounds = 0  # which batches have come is no position of the sampler
        # The workers before the one whose turn it is answer first, with nothing.
        self._lead = (resume.last + 1) % self._num_workers if resume and self._states and self._in_order else 0

    def _keeping(self, worker: int) -> torch_worker.Keeping | None:
        if not self._has_states:
            return None
        progress = self.position
        state = progress.state_for(worker)
        if state is not None and torch_state.is_empty(state):
            state = None
        return torch_worker.Keeping(state, self._rounds, self._lead if self._epoch == 0 else 0)

    def _draw_from(self, resume: torch_state.Resume | None, loader: DataLoader[Any]) -> None:
        """The sampler, from its start or where the state says."""
        random = torch_state.draw_as_saved(loader, self, self._epoch == 0) if resume is None else None
        self._indices = torch_state.Indices(self._index_sampler)
        step = taken = 0
        if resume and not self._iterable:
            self._indices.load_state_dict(resume.main)
            step, taken = resume.step, resume.main["_sampler_iter_yielded"]
        elif resume and self._states:
            step = taken = resume.step
        if resume:
            self._IterableDataset_len_called = resume.main["_IterableDataset_len_called"]
        if random is not None:
            self._indices.start_as_saved(random)
        seeds = {"_base_seed": self._base_seed, **torch_state.generator_state(loader)}
        if not self._iterable:
            self._indices.start()
        self.position = torch_state.Progress(self._indices, self._num_workers, self._rounds, seeds, self._iterable,
                                             self._has_states, self._states)
        self.position.begin(step, taken, resume.last if resume and step else None)
        self._num_yielded = step
        self._sampler_iter, self._batch_failed = iter(self._indices), False
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
        """An epoch that is over: of it only generators and samplers are left."""
        self.is_over = True
        if self._dataset_kind == torch_dataloader._DatasetKind.Map:
            indices = torch_state.Indices(self._index_sampler)
            indices.load_state_dict(resume.main)
            indices.exhaust()

    def look_ahead(self) -> None:
        """Takes batches until every worker has told its first state. The loop gets them later."""
        while self.position.unknown and not (self._ahead and self._ahead[-1][1]):
            try:
                self._ahead.append((self._take(), None))
            except Exception as reason:
                self._ahead.append((None, reason))

    def _yields_lists(self) -> bool:
        """Without a batch size a sampler may yield lists of indices, each of which the data set is asked for at once."""
        if self._iterable or type(self._index_sampler) in (torch.utils.data.SequentialSampler, torch.utils.data.RandomSampler):
            return False
        head = list(itertools.islice(self._sampler_iter, 1))
        self._sampler_iter = itertools.chain(head, self._sampler_iter)
        return bool(head) and isinstance(head[0], (list, tuple))

    def _create(self, loader: DataLoader[Any]) -> None:
        sampler = None
        if self._iterable:
            batch_size = loader.batch_size if self._auto_collation else _core.UNBATCHED
        else:
            batch_size = 0 if self._takes_lists else _core.UNBATCHED
            rows = (getattr(self._index_sampler, "batch_size", None) or _LARGEST_BATCH) if self._takes_lists else 0
            sampler = self._queue.sampler(rows)
        self._core = lifetime.create(
            {"workers": self._num_workers, "prefetch_factor": loader.prefetch_factor, "start": _core.START_EXTERNAL,
             "dispatch": _core.DISPATCH_ROUND_ROBIN if self._in_order or not _IS_FREE else _core.DISPATCH_LEAST_LOADED,
             "out_of_order": not self._in_order, "has_seed": True,
             "seed": self._base_seed & (2**64 - 1), "drop_last": self._drop_last and self._iterable,
             "iterable": self._iterable, "batch_size": batch_size, **self._options}, sampler=sampler)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)  # type: ignore[no-untyped-call]
        self._epoch += 1
        states = self.position.states
        self._indices = torch_state.Indices(self._index_sampler)
        self._states, self.is_over = {}, False
        self._draw_from(None, loader)
        self.position.keep(states)
        self._begin()

    def _begin(self) -> None:
        self._queue.restart()
        self._has_indices, self._ended = not self._iterable, False
        if self._has_indices and self._epoch == 0:
            for _ in range(self._lead):
                self._queue.push((0,))  # not asked for
        for _ in range(self._prefetch):
            self._push()
        self._crew.fill(self._core)
        self._core.begin(self._epoch)
        self._cursor = _core.Cursor(self._core, _Outcomes(self), functools.partial(tree.load, allow_pickle=self._allow_pickle),
                                    torch.utils.dlpack.from_dlpack, _LOOK_EVERY_NS, self._options["held"], False)
        self._next_of_cursor = self._cursor.__next__

    def _push(self) -> None:
        """The library draws one batch ahead of what it has yielded: it is there before it does."""
        if not self._has_indices:
            return
        try:
            indices = next(self._sampler_iter)
        except StopIteration:
            self._has_indices = False
            self._queue.end()
            return
        if not self.position.is_plain:
            self.position.drew()
        self._queue.push(indices if self._takes_lists else (indices,))

    def __next__(self) -> Any:
        try:
            if self._iterable and self._IterableDataset_len_called is not None:
                data = super().__next__()  # which looks whether the data set is as long as it said
            else:
                data = self._next_data()
                self._num_yielded += 1
        except StopIteration:
            self.is_over = self.position.finished = True
            self.position.on_known()
            raise
        self.position.step = self._num_yielded
        return data

    def _next_data(self) -> Any:
        position = self.position
        try:
            data = self._taken() if self._ahead or self._has_states else self._take()
        except Exception:
            if self._batch_failed:  # it was one all the same
                self._batch_failed = False
                position.took()
            raise
        position.took()
        if not self._pin_memory:
            return data
        return pin_memory.pin_memory(data, self._pin_memory_device)  # type: ignore[no-untyped-call]

    def _taken(self) -> Any:
        """The next batch, if workers may tell states, or batches were taken ahead."""
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
        self._push()
        self._deadline = time.monotonic() + self._timeout if self._timeout > 0 else None
        data = self._next_of_cursor()
        if type(data) is not tree.WithState:
            return data
        told = torch_worker.state_told(data.state, self._allow_pickle)
        self.position.told_first(told)
        return tree.WithState(data.data, told)

    next = __next__
    # As torch's iterator has them: the processes, by worker.
    _workers = property(lambda self: self._crew.processes())

    # ---- the end ----

    def _shutdown_workers(self) -> None:
        if self._core is not None:  # else the constructor has raised
            self._core.close()
            self._crew.join()

    def __del__(self) -> None:
        self._shutdown_workers()


class _Outcomes:
    """What the compiled iterator asks: see core/cursor.cpp."""

    def __init__(self, iterator: _Iterator) -> None:
        self._weak = weakref.ref(iterator)  # an iterator that is dropped ends its workers

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
        # Without a worker: none is attached yet. With one: its shard is lost with it.
        if status == _core.TIMEOUT or (status == _core.E_PEER_DEAD and exception.worker < 0):
            i._crew.fill(i._core)
            if i._deadline is not None and time.monotonic() >= i._deadline:
                raise RuntimeError(f"DataLoader timed out after {i._timeout} seconds")
            return NotImplemented
        if status == _core.SLOTS_HELD:
            if is_again:
                raise errors.make(status)
            gc.collect()
            return NotImplemented
        i._batch_failed = status in (_core.E_SAMPLE, _core.E_QUARANTINED)
        if status in (_core.E_SAMPLE, _core.E_INIT):
            torch_worker.reraise(exception)
        if status in _OF_WORKERS:
            raise errors.with_more(exception, i._crew.ends())
        raise exception

    def unusual(self, batch: Batch) -> Any:
        with batch.adopt(_convert, self._i._allow_pickle):
            return batch.data

    def copy(self, data: Any) -> Any:
        return maker.copied(data)


def _convert(tensor: BatchTensor, owner: int) -> Any:
    return tensor.numpy() if owner == tree.NUMPY else tensor.torch()
