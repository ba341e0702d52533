# SPDX-License-Identifier: Apache-2.0
"""Makes batches of a user's data set, in a worker process or inline: gets samples, collates them, and copies them once into the
slot."""
from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _core, async_dataset, batch_dataset, collate, dtypes, errors, indices, policies, tree

if TYPE_CHECKING:
    from .records import WorkerSetup


class WorkerInfo(NamedTuple):
    """This worker's identity; see get_worker_info. generation: number of earlier workers with this id. An iterable data set
    iterates shard number `shard` of `shards`, which are rank * num_workers + id and world * num_workers. This includes all
    ranks if the Loader was given `world`."""

    id: int
    num_workers: int
    seed: int
    dataset: Any
    generation: int
    rank: int
    world: int
    shard: int
    shards: int


class Job(NamedTuple):
    """The configuration that is pickled for a worker. `fields`: (name, numpy dtype, shape) of each leaf, or None. `policy`: for
    failing samples, or None. `rank`: this process's rank among the ranks that share the seed. `shard`: for an iterable data set
    without workers, the number of its shard and the number of shards."""

    dataset: Any
    batched: bool
    iterable: bool
    drop_last: bool
    collate_fn: Callable[[Any], Any] | None
    worker_init_fn: Callable[[int], Any] | None
    fields: tuple[tuple[Any, ...], ...] | None
    policy: policies.Policy | None
    allow_pickle: bool
    rank: int
    shard: tuple[int, int] = (0, 1)


_PLAN_BYTES = 65536  # room after the tensors for the plan
_NOTHING = object()
_MASK = 2**64 - 1

_worker_info: WorkerInfo | None = None


class _Seeds(threading.local):
    now: int | None = None


class _Here(threading.local):
    shard: tuple[int, int] = (0, 1)  # of the loader without workers whose data set runs in this thread
    info: WorkerInfo | None = None  # of the worker that is this thread


_seeds = _Seeds()  # one per thread: two loaders without workers may be in use at the same time
_here = _Here()


def get_worker_info() -> WorkerInfo | None:
    """In a worker: its id, the number of workers, its seed, and its copy of the data set; threads share the data set. In the
    trainer: None."""
    return _here.info or _worker_info


def get_shard() -> tuple[int, int]:
    """In an iterable data set: the number of the shard to iterate and the number of shards, over all workers of all ranks;
    without workers, over all ranks. Elsewhere: (0, 1)."""
    info = get_worker_info()
    return (info.shard, info.shards) if info is not None else _here.shard


def sample_seed() -> int | None:
    """Returns the 64-bit seed of the sample that is being made. It is the same in any worker, and after a crash or a resume.
    None: called outside __getitem__, in an iterable data set, or in a DataLoader without workers. It works in the data set of a
    Loader and of a DataLoader."""
    return _core.seed() if _seeds.now is None else _seeds.now


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Sets the result of sample_seed while a sample is made."""
    outer, _seeds.now = _seeds.now, seed
    try:
        yield
    finally:
        _seeds.now = outer


def set_worker_info(number: int, count: int, seed: int, dataset: Any) -> None:
    """Sets the result of get_worker_info."""
    global _worker_info
    _worker_info = WorkerInfo(number, count, seed, dataset, 0, 0, 1, number, count)


def copied(data: Any) -> Any:
    """Returns the data with copies of its arrays and tensors."""
    if isinstance(data, np.ndarray):
        return data.copy()
    if collate.is_tensor(data):
        return data.clone()
    if type(data) in (list, tuple):
        return type(data)(copied(item) for item in data)
    if isinstance(data, tuple):  # a named tuple
        return tuple.__new__(type(data), [copied(item) for item in data])
    if isinstance(data, dict):
        for key, value in data.items():  # in place: no other object uses the batch's dict
            data[key] = copied(value)
    return data


@contextlib.contextmanager
def inline_shard(job: Job) -> Iterator[None]:
    """Sets the result of get_shard while the data set of a loader without workers runs."""
    before, _here.shard = _here.shard, job.shard
    try:
        yield
    finally:
        _here.shard = before


def leave_thread() -> None:
    """This thread is no worker any more."""
    _here.info = None


class SampleFailed(Exception):
    """Row `position` of the task could not be made; `__cause__` is the data set's exception."""

    def __init__(self, position: int, index: int | None) -> None:
        super().__init__(position, index)
        self.position, self.index = position, index


class Maker:
    """Makes the batches of one worker, or of a loader without workers."""

    by_python = False  # True: `make` makes every batch, not the compiled loop
    rows: _core.Rows | None = None  # makes the batches of a BatchDataset in place of `make`
    # Collates samples that core/collate.cpp does not support.
    batch: Callable[[Any, collate.Leaves], Any] = staticmethod(collate.batch)
    loader_class = "Loader"  # the user's class, for messages
    counts = True  # __getitems__ must return as many samples as it was asked for

    _shard: Any  # an iterator

    def __init__(self, job: Job) -> None:
        self.job = job
        self._shard, self._taken = None, 0
        self._ended = False
        self.rows = batch_dataset.rows_of(job.dataset, job.fields)

    def open_worker(self, info: WorkerSetup) -> None:
        """Called once per worker process, before its first task. `info`: from _core.Worker. Raises exceptions of
        worker_init_fn."""
        self.enter(info)

    def enter(self, info: WorkerSetup, is_thread: bool = False) -> None:
        """Sets the result of get_worker_info, in this process or this thread, and calls worker_init_fn. In a worker process it
        also seeds the random generators and sets torch's get_worker_info."""
        global _worker_info
        job = self.job
        seed = worker_seed(info["seed"], info["epoch"], job.rank)
        this = WorkerInfo(info["id"], info["count"], seed, job.dataset, info["generation"], info["rank"], info["world"],
                          info["shard"], info["shards"])
        if is_thread:
            _here.info = this
        else:
            _worker_info = this
            _seed_generators(seed)
            _tell_torch(this)
        if job.worker_init_fn is not None:
            job.worker_init_fn(info["id"])

    def close_worker(self) -> None:
        """Called after the last task of a worker process: ends the reads of an AsyncDataset."""
        if isinstance(self.job.dataset, async_dataset.AsyncDataset):
            self.job.dataset.stop_reads()

    # ---- samples ----

    def restart(self) -> None:
        """Starts the shard over. If iter(dataset) raises, the exception is raised here, and the shard has ended."""
        self._shard, self._ended = iter(()), True
        self._shard = iter(self.job.dataset)
        self._ended = False

    def skip(self, task: _core.Task) -> None:
        """Drops the samples of the task's shard that were already delivered."""
        self._ended = True  # in case the iterator raises or ends
        for _ in range(task.delivered):
            if next(self._shard, _NOTHING) is _NOTHING:
                return
            task.is_wanted()  # counts as progress, so that the worker does not exceed a deadline
        self._ended = False

    def make(self, task: _core.Task) -> int:
        """Writes the batch of a feedlane_task: tensors and metadata. Returns its number of rows; 0: the shard is exhausted, or
        all samples were left out. Raises SampleFailed, LimitError if the batch is larger than its slot, TypeError if the
        samples cannot be collated or differ from the declaration, and exceptions of collate_fn."""
        leaves = self.leaves()
        plan, rows = self.plan(task, leaves)
        if not rows:
            return 0
        self._write(task, leaves)
        blob = tree.dump(plan, leaves.numbers, self.job.allow_pickle)
        try:
            task.metadata(blob)
        except errors.LimitError as reason:
            raise self.too_large(reason) from None
        return rows

    def too_large(self, exception: errors.FeedlaneError) -> errors.FeedlaneError:
        """Returns the same error, with a text that names the loader's argument."""
        needed = exception.needed + _PLAN_BYTES
        return errors.make(_core.E_LIMIT, f"the batch takes {needed} bytes, but a slot has only {exception.found}: use "
                           f"{self.loader_class}(slot_bytes={needed}) or more", needed=needed, found=exception.found)

    def in_words(self, reason: BaseException) -> BaseException:
        """Converts an exception of `rows`: a LimitError then names the loader's argument to change."""
        return self.too_large(reason) if self.rows is not None and isinstance(reason, errors.LimitError) else reason

    def leaves(self) -> collate.Leaves:
        """Returns an empty collection for the leaves of a batch."""
        return collate.Leaves(self.job.fields is None, self.job.allow_pickle)

    def plan(self, task: _core.Task, leaves: collate.Leaves) -> tuple[Any, int]:
        """Returns the plan of the batch and its number of rows, and appends its leaves to `leaves`. At the end of a shard: None
        and 0."""
        samples, rows = self._samples(task)
        if not rows:
            return None, 0
        if self.job.collate_fn is not None:
            return collate.whole(self.job.collate_fn(samples if self.job.batched else samples[0]), leaves), rows
        if self.job.batched:
            return _core.collate_batch(samples, leaves, self.batch), rows
        return collate.single(samples[0], leaves), rows

    def _samples(self, task: _core.Task) -> tuple[Any, int]:
        """Returns the input of the collate_fn, and the number of rows that it stands for."""
        job = self.job
        if job.iterable:
            samples = self._from_shard(task.count)
            return samples, len(samples)
        words = task.indices
        wanted = indices.unpacked(words)
        if not job.batched and wanted is not words:
            wanted = [wanted]
        if job.batched and job.policy is None and getattr(job.dataset, "__getitems__", None):
            return self._at_once(wanted), len(wanted) or 1
        samples = self._by_index(wanted, task)
        return samples, len(samples) or (1 if wanted is not words else 0)  # a batch sampler may yield none

    def _by_index(self, indices: Any, task: _core.Task) -> list[Any]:
        dataset, seeds, policy = self.job.dataset, task.seeds, self.job.policy
        samples: list[Any] = []
        outer = _seeds.now  # set if a data set iterates over another loader
        try:
            for position, index in enumerate(indices):
                _seeds.now = seeds[position]
                try:
                    samples += [dataset[index]] if policy is None else policies.sample(dataset, task, position, policy)
                except Exception as reason:
                    raise SampleFailed(position, index) from reason
        finally:
            _seeds.now = outer
        return samples

    def _at_once(self, indices: Any) -> Any:
        """Returns the result of __getitems__: a list of samples, or any object that the collate_fn accepts."""
        samples = self.job.dataset.__getitems__(indices)
        if self.job.collate_fn is not None:
            return samples
        if not isinstance(samples, tuple) and not _core.is_stacked(samples):
            samples = list(samples)
        if self.counts and len(samples) != len(indices):
            raise RuntimeError(f"__getitems__ was called with {len(indices)} indices, but returned {len(samples)} samples")
        return samples

    def _from_shard(self, count: int) -> list[Any]:
        samples: list[Any] = []
        while len(samples) < count and not self._ended:
            try:
                samples.append(next(self._shard))
            except StopIteration:
                self._ended = True
            except Exception as reason:
                raise SampleFailed(len(samples), None) from reason
        return [] if self.job.drop_last and len(samples) < count else samples

    # ---- into the slot ----

    def _write(self, task: _core.Task, leaves: collate.Leaves) -> None:
        if self.job.fields is not None:
            self.compare(leaves)
        for number, leaf in enumerate(leaves):
            self.write_leaf(task, number, leaf)

    def name_of(self, number: int) -> bytes:
        """Returns the name of tensor `number` of a batch."""
        name: str = self.job.fields[number][0] if self.job.fields else str(number)
        return name.encode()

    def write_leaf(self, task: _core.Task, number: int, leaf: collate.AnyLeaf) -> None:
        """Writes tensor `number` of the batch. Raises TypeError if it has too many dimensions, and LimitError if the slot is
        too small."""
        if len(leaf.shape) > _core.MAX_NDIM:
            raise TypeError(f"a tensor has {len(leaf.shape)} dimensions, but at most {_core.MAX_NDIM} are allowed")
        assert not isinstance(leaf.dtype, str)  # only leaves in a Pack have such a type
        try:
            memory = task.tensor(number, self.name_of(number), leaf.dtype, leaf.shape)
        except errors.LimitError as reason:
            raise self.too_large(reason) from None
        leaf.fill(memory)

    def compare(self, leaves: collate.Leaves) -> None:
        """Raises TypeError if the leaves differ from the declaration in number, element type or shape."""
        declared = self.job.fields or ()
        if len(leaves) != len(declared):
            raise TypeError(f"{len(declared)} fields were declared, but the samples have {len(leaves)}")
        for (name, dtype, shape), leaf in zip(declared, leaves):
            found = leaf.shape[1:] if self.job.batched else leaf.shape
            wanted = dtypes.name_of(dtypes.of_numpy(dtype)[0])
            if (dtypes.name_of(leaf.dtype), found) != (wanted, tuple(shape)):
                raise TypeError(f"field {name!r} was declared as {wanted} {tuple(shape)}, but the samples have "
                                f"{dtypes.name_of(leaf.dtype)} {found}")


def worker_seed(seed: int, epoch: int, rank: int = 0) -> int:
    """Returns the seed of a worker that was started in this epoch: the library's seed in epoch 0, another one in each further
    epoch. So workers that end with their epoch do not repeat their random numbers. Two workers of a rank never have the same
    seed, because the mixing, the output function of SplitMix64, is a permutation. Ranks above 0 mix the seed once more, with
    their number."""
    if rank:
        seed = _mix(seed ^ _mix(rank * 0xd1342543de82ef95))
    return _mix(seed + epoch * 0x9e3779b97f4a7c15) if epoch else seed


def _mix(x: int) -> int:
    x &= _MASK
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & _MASK
    x = (x ^ x >> 27) * 0x94d049bb133111eb & _MASK
    return x ^ x >> 31


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed & (2**63 - 1))
        torch.set_num_threads(1)


def _tell_torch(info: WorkerInfo) -> None:
    """Sets torch.utils.data.get_worker_info() for data sets written for torch's DataLoader. If this version of torch stores it
    elsewhere, it stays None."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    try:
        from torch.utils.data._utils import worker
        kind: Any = worker.WorkerInfo
        worker._worker_info = kind(id=info.id, num_workers=info.num_workers, seed=info.seed,
                                   dataset=info.dataset)
    except (ImportError, AttributeError, TypeError):
        pass
