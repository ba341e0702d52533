# SPDX-License-Identifier: Apache-2.0
"""DataLoader: torch.utils.data.DataLoader whose worker processes make their batches in shared memory.

It is a subclass: arguments, samplers, generators and the attributes that frameworks use are torch's. It differs in the
transport of batches from workers to the loop, and in its handling of dead workers, which are replaced. Without workers, for
workers that are threads, and for torch's data pipes, it uses torch's own loader."""
from __future__ import annotations

import functools
import inspect
import threading
import typing
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO, overload

import torch
import torch.utils.data

from . import _core, errors, observe, progress as progress_line, torch_arguments, torch_inline, torch_iterator, torch_state

if TYPE_CHECKING:
    from .records import Indexed


_T = typing.TypeVar("_T", covariant=True)
_ITERATORS = (torch_iterator.Iterator, torch_inline.Iterator)


class DataLoader(torch_arguments.Arguments[_T], observe.Observed):
    """As torch's DataLoader, with these additional keyword arguments:

      held          batches that the loop may keep in shared memory; further ones are copied. Default 4.
      slot_bytes    size of the largest batch, in address space: only pages that are written take memory. Default: 16 GiB, or less if
                    `ulimit -v` and `ulimit -f` require it.
      task_timeout  seconds after which a worker that is stuck in a batch is replaced; 0, the default: never.
      max_restarts  most dead workers replaced in an iteration, or in all iterations with persistent_workers; 0: 1000, -1: none.
      allow_pickle  values other than tensors, arrays, numbers, strings, bytes and containers of them are pickled, as with torch.
                    Default True: a worker, and a process that can write its memory, can then run any code in this process. With
                    False such a value raises TypeError in the worker.
      snapshot_every_n_steps
                    a worker sends its data set's state with about every n-th batch; a loader that resumes from a state makes up to
                    n batches again. Default 1; 0 or None: all batches are made again.
      name          shown by monitors of other processes, at most 63 bytes.
      trace         number of an iteration's newest batches whose records are kept, for `trace()` and for monitors; 0, the default:
                    the value of the environment variable FEEDLANE_TRACE, or no trace.
      progress      True: shows the progress of each iteration on stderr, with tqdm if it is installed. A text stream: shows it
                    there. A stream that is not a terminal gets one line at the end. Default False.

    report(), diagnose(), timings(), info() and trace() describe the newest iteration, also after its end. If torch makes the
    batches (num_workers=0, data pipes, a multiprocessing_context whose workers are threads), the first two report that nothing
    is measured, and the others raise Unsupported.

    state_dict() and load_state_dict(state) work like those of torchdata's StatefulDataLoader: the next iteration resumes in
    mid-epoch. Samplers, their iterators, data sets and the iterators of iterable data sets may have state_dict() and
    load_state_dict(state) too.

    Errors of the data set are raised as torch raises them: as their own type, with the worker's traceback. The iteration can
    continue after them."""

    _resume: torch_state.State | None
    _position: Any
    _live: Any
    _kept: Any
    _source: observe.Source | None

    @overload
    def __init__(self, dataset: torch.utils.data.Dataset[_T], batch_size: int | None = 1, shuffle: bool | None = None,
                 sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Sequence[Any]] | None = None, num_workers: int = 0,
                 collate_fn: Callable[[Any], Any] | None = None, pin_memory: bool = False, drop_last: bool = False,
                 timeout: float = 0, worker_init_fn: Callable[[int], None] | None = None, multiprocessing_context: Any = None,
                 generator: torch.Generator | None = None, *, prefetch_factor: int | None = None,
                 persistent_workers: bool = False, pin_memory_device: str = "", in_order: bool = True, held: int = 4,
                 slot_bytes: int | None = None, task_timeout: float = 0, max_restarts: int = 0, allow_pickle: bool = True,
                 snapshot_every_n_steps: int | None = 1, name: str | None = None, trace: int = 0,
                 progress: bool | TextIO = False) -> None: ...

    @overload
    def __init__(self: DataLoader[Any], dataset: Indexed | Iterable[Any], batch_size: int | None = 1, shuffle: bool | None = None,
                 sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Sequence[Any]] | None = None, num_workers: int = 0,
                 collate_fn: Callable[[Any], Any] | None = None, pin_memory: bool = False, drop_last: bool = False,
                 timeout: float = 0, worker_init_fn: Callable[[int], None] | None = None, multiprocessing_context: Any = None,
                 generator: torch.Generator | None = None, *, prefetch_factor: int | None = None,
                 persistent_workers: bool = False, pin_memory_device: str = "", in_order: bool = True, held: int = 4,
                 slot_bytes: int | None = None, task_timeout: float = 0, max_restarts: int = 0, allow_pickle: bool = True,
                 snapshot_every_n_steps: int | None = 1, name: str | None = None, trace: int = 0,
                 progress: bool | TextIO = False) -> None: ...

    def __init__(self, *args: Any, held: int = 4, slot_bytes: int | None = None, task_timeout: float = 0, max_restarts: int = 0,
                 allow_pickle: bool = True, snapshot_every_n_steps: int | None = 1, name: str | None = None, trace: int = 0,
                 progress: bool | TextIO = False, **kwargs: Any) -> None:
        self._source = None                  # the figures of the newest iteration
        self._resume = None                  # a state that was loaded, until an iteration uses it
        self._position = self._live = None   # of the newest iteration: its position; a weak reference to its iterator
        self._kept = None                    # its iterator, until all first states are known
        super().__init__(*args, held=held, slot_bytes=slot_bytes, task_timeout=task_timeout, max_restarts=max_restarts,
                         allow_pickle=allow_pickle, snapshot_every_n_steps=snapshot_every_n_steps, name=name, trace=trace,
                         progress=progress, **kwargs)

    def _get_iterator(self) -> Any:
        if self._torchs_own():
            return super()._get_iterator()
        if self.num_workers == 0:
            resume, self._resume = self._resume, None
            return torch_inline.Iterator(self, resume)
        self.check_worker_number_rationality()  # type: ignore[no-untyped-call]  # torch's method has no types
        resume, self._resume = self._resume, None
        iterator = torch_iterator.Iterator(self, resume)
        self._source = iterator.source
        return iterator

    def _torchs_own(self) -> str:
        """Names the case in which torch's own loader makes the batches; otherwise "". Worker threads would gain nothing from
        shared memory."""
        if isinstance(self.dataset, (torch.utils.data.IterDataPipe, torch.utils.data.MapDataPipe)):
            return "data pipes"
        kind = getattr(self.multiprocessing_context, "Process", None) if self.num_workers > 0 else None
        return "workers that are threads" if isinstance(kind, type) and issubclass(kind, threading.Thread) else ""

    def __iter__(self) -> Any:
        iterator = self._iterate()
        if not self.progress:
            return iterator
        said = self._IterableDataset_len_called  # after len(loader), torch compares the number of batches with it
        epoch = progress_line.epoch_of(self.name or "", self, iterator._num_yielded)
        self._IterableDataset_len_called = said
        return progress_line.Bar(iterator, self._figures, epoch, self.progress)

    def _iterate(self) -> Any:
        if self._torchs_own():
            return super().__iter__()
        kept: Any = self._iterator
        if isinstance(kept, torch_iterator.Iterator) and not kept.is_own:
            self._iterator = None  # the parent's iterator, whose workers this forked child does not have
        iterator: Any = super().__iter__()
        if not isinstance(iterator, _ITERATORS):  # made by a subclass
            return iterator
        if iterator.is_over:  # a state of an epoch's end was loaded: begin the next epoch
            iterator = super().__iter__()
        self._position, self._live = iterator.position, weakref.ref(iterator)
        self._keep_until_known(iterator)
        return iterator

    def _keep_until_known(self, iterator: Any) -> None:
        """Keeps the iterator until all workers have sent their first states, because a state may be requested after the loop
        has dropped it."""
        self._kept = iterator if iterator.position.unknown else None
        if self._kept is not None:
            iterator.position.on_known = functools.partial(_let_go, weakref.ref(self), iterator.position)

    def _figures(self) -> observe.Figures:
        if self._torchs_own():
            return observe.Nothing(_core.E_UNSUPPORTED, f"no measurements: torch's own loader makes the batches of {self._torchs_own()}")
        if self.num_workers == 0:
            return observe.Nothing(_core.E_UNSUPPORTED, "no measurements: with num_workers=0 torch makes the batches in the loop")
        if self._source is None:
            return observe.Nothing(_core.E_STATE, "no iteration has begun")
        return self._source.figures

    def state_dict(self, behind: int = 0) -> torch_state.State:
        """Returns the state after the batches that the newest iteration has yielded, or `behind` batches earlier, for a loop
        that takes batches ahead of their use. Without an iteration: the state at the beginning of the next one. That call does
        not begin the iteration and draws nothing, and the states of workers' data sets are not included. Waits for each
        worker's first batch if its data set may have a state. Raises Unsupported for data pipes and for workers that are
        threads. Raises ValueError if fewer than `behind` batches have come, and StateError if the states that far back are no
        longer known."""
        if self._torchs_own():
            raise errors.make(_core.E_UNSUPPORTED, f"state_dict is not available for {self._torchs_own()}, whose batches are "
                              "made by torch's own loader")
        if self._resume is not None:
            return self._resume
        if self._position is None:
            torch_state.check_behind(behind, 0)
            return torch_state.beginning(self)
        position: Any = self._position
        iterator = self._live()
        if iterator is not None:
            iterator.look_ahead()
        state: torch_state.State = position.state_dict(behind)
        return state

    def load_state_dict(self, state: torch_state.State) -> None:
        """The next iteration continues after the batches that had been yielded when `state` was saved. {}: it starts from the
        beginning. The iteration raises AssertionError if the state is not one of such a loader, or if workers have states and
        their number differs."""
        self._iterator = self._position = self._kept = None
        self._resume = state if state else None

    def __getstate__(self) -> dict[str, Any]:
        """For copying and pickling: omits iterators."""
        return {**self.__dict__, "_iterator": None, "_position": None, "_live": None, "_kept": None,
                "_source": None}


def _let_go(loader: weakref.ref[Any], position: torch_state.Progress) -> None:
    found = loader()
    if found is not None and found._position is position:
        found._kept = None


def _signature() -> inspect.Signature:
    """Returns the constructor's signature: torch's parameters and this package's. Lightning uses it to create loaders."""
    theirs = inspect.signature(torch.utils.data.DataLoader.__init__).parameters.values()
    ours = [p for p in inspect.signature(DataLoader.__init__).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return inspect.Signature([*theirs, *ours])


_constructor: Any = DataLoader.__init__
_constructor.__signature__ = _signature()
