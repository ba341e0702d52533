# SPDX-License-Identifier: Apache-2.0
"""DataLoader: torch.utils.data.DataLoader whose worker processes make their batches in shared memory.

It is a subclass: arguments, samplers, generators and what frameworks look for are torch's. What differs is the way of a batch
from a worker to the loop, and what happens when a worker dies: another one takes its place. Without workers, and for torch's data
pipes, it is torch's own loader."""
import functools
import gc
import itertools
import time
import typing
import weakref

import torch
import torch.utils.data
import torch.utils.dlpack
from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import pin_memory

from . import _core, errors, lifetime, maker, torch_worker, tree
from .loader import _SLOT_BYTES

_LOOK_EVERY_NS = 50_000_000  # at workers that have ended
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

    Errors of the data set are raised as torch raises them: as their own type, with the worker's traceback. The iteration can go
    on after them. Indices must be integers."""

    def __init__(self, *args, held=4, slot_bytes=_SLOT_BYTES, task_timeout=0, max_restarts=0, allow_pickle=True, **kwargs):
        self._feedlane = {"held": errors.whole("held", held, 1, 4096),
                          "slot_bytes": errors.whole("slot_bytes", slot_bytes, 1, 1 << 46),
                          "task_timeout_ns": int(task_timeout * 1e9),
                          "max_restarts": errors.whole("max_restarts", max_restarts, -1, 2**31 - 1)}
        self._allow_pickle = bool(allow_pickle)
        super().__init__(*args, **kwargs)

    def _get_iterator(self):
        pipes = torch.utils.data.IterDataPipe, torch.utils.data.MapDataPipe
        if self.num_workers == 0 or isinstance(self.dataset, pipes):
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return _Iterator(self)


class _Iterator(torch_dataloader._BaseDataLoaderIter):
    """One iteration with its own workers; with persistent_workers, one after the other."""

    _core = None

    def __init__(self, loader):
        super().__init__(loader)
        self._options, self._allow_pickle = loader._feedlane, loader._allow_pickle
        self._prefetch = loader.prefetch_factor * loader.num_workers
        self._iterable = self._dataset_kind == torch_dataloader._DatasetKind.Iterable
        self._in_order = getattr(loader, "in_order", True)
        self._queue, self._epoch = _core.IndexQueue(), 0
        super()._reset(loader, True)
        self._takes_lists = self._auto_collation or self._yields_lists()
        self._crew = torch_worker.Crew(loader, self._base_seed, self._allow_pickle, self._options["max_restarts"],
                                       self._takes_lists)
        self._create(loader)
        self._begin()

    def _yields_lists(self):
        """Without a batch size a sampler may yield lists of indices, each of which the data set is asked for at once."""
        if self._iterable or type(self._index_sampler) in (torch.utils.data.SequentialSampler, torch.utils.data.RandomSampler):
            return False
        head = list(itertools.islice(self._sampler_iter, 1))
        self._sampler_iter = itertools.chain(head, self._sampler_iter)
        return bool(head) and isinstance(head[0], (list, tuple))

    def _create(self, loader):
        sampler = None
        if self._iterable:
            batch_size = loader.batch_size if self._auto_collation else _core.UNBATCHED
        else:
            batch_size = 0 if self._takes_lists else _core.UNBATCHED
            rows = (getattr(self._index_sampler, "batch_size", None) or _LARGEST_BATCH) if self._takes_lists else 0
            sampler = self._queue.sampler(rows)
        self._core = lifetime.create(
            {"workers": self._num_workers, "prefetch_factor": loader.prefetch_factor, "start": _core.START_EXTERNAL,
             "dispatch": _core.DISPATCH_ROUND_ROBIN, "out_of_order": not self._in_order, "has_seed": True,
             "seed": self._base_seed & (2**64 - 1), "drop_last": self._drop_last and self._iterable,
             "iterable": self._iterable, "batch_size": batch_size, **self._options}, sampler=sampler)

    def _reset(self, loader, first_iter=False):
        super()._reset(loader, first_iter)
        self._epoch += 1
        self._begin()

    def _begin(self):
        self._queue.restart()
        self._has_indices, self._ended = not self._iterable, False
        for _ in range(self._prefetch):
            self._push()
        self._crew.fill(self._core)
        self._core.begin(self._epoch)
        self._cursor = _core.Cursor(self._core, _Outcomes(self), functools.partial(tree.load, allow_pickle=self._allow_pickle),
                                    torch.utils.dlpack.from_dlpack, _LOOK_EVERY_NS, self._options["held"], False)
        self._next_of_cursor = self._cursor.__next__

    def _push(self):
        """The library draws one batch ahead of what it has yielded: it is there before it does."""
        if not self._has_indices:
            return
        try:
            indices = next(self._sampler_iter)
        except StopIteration:
            self._has_indices = False
            self._queue.end()
            return
        self._queue.push(indices if self._takes_lists else (indices,))

    def __next__(self):
        if self._sampler_iter is None:
            self._reset(None)
        if self._iterable and self._IterableDataset_len_called is not None:
            return super().__next__()  # which looks whether the data set is as long as it said
        data = self._next_data()
        self._num_yielded += 1
        return data

    def _next_data(self):
        self._push()
        self._deadline = time.monotonic() + self._timeout if self._timeout > 0 else None
        data = self._next_of_cursor()
        return pin_memory.pin_memory(data, self._pin_memory_device) if self._pin_memory else data

    next = __next__
    # As torch's iterator has them: the processes, by worker.
    _workers = property(lambda self: self._crew.processes())

    # ---- the end ----

    def _shutdown_workers(self):
        if self._core is not None:  # else the constructor has raised
            self._core.close()
            self._crew.join()

    def __del__(self):
        self._shutdown_workers()


class _Outcomes:
    """What the compiled iterator asks: see core/cursor.cpp."""

    def __init__(self, iterator):
        self._weak = weakref.ref(iterator)  # an iterator that is dropped ends its workers

    _i = property(lambda self: self._weak())

    def __len__(self):
        return len(self._i)

    def end(self):
        i = self._i
        i._ended = True
        if not i._persistent_workers:
            i._shutdown_workers()

    def refuse(self, status):
        raise errors.make(status)

    def outcome(self, status, exception, is_again):
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
        if status in (_core.E_SAMPLE, _core.E_INIT):
            torch_worker.reraise(exception)
        raise exception

    def unusual(self, batch):
        with batch.adopt(_convert, self._i._allow_pickle):
            return batch.data

    def copy(self, data):
        return maker.copied(data)


def _convert(tensor, owner):
    return tensor.numpy() if owner == tree.NUMPY else tensor.torch()
