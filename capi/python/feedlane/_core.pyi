# SPDX-License-Identifier: Apache-2.0
"""The compiled module: feedlane.h as Python objects, and what runs once a batch.

Constants have the names of feedlane.h, without its prefix. Any function may raise the FeedlaneError of errors.py that belongs to
the library's status, TypeError for an argument of another type, and OverflowError for an integer beyond the width of its
field."""
from _typeshed import ReadableBuffer
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from . import errors
from .batch import Batch as _Batch
from .records import (BatchRecord, ConsumerCounters, Diagnosis, DType, LoaderInfo, Plan, PoolStats, RankInfo, StateInfo, Stats, Timings, WorkerSetup,
                      WorkerStats)

ABI: int
VERSION: str
FOREVER: int
MAX_NDIM: int
MAX_TENSORS: int
UNBATCHED: int
PREFETCH_AUTO: int

OK: int
END: int
TIMEOUT: int
AGAIN: int
INTERRUPTED: int
SLOTS_HELD: int
ABANDONED: int
E_ARGUMENT: int
E_STATE: int
E_BUSY: int
E_FORKED: int
E_STALE: int
E_MEMORY: int
E_LIMIT: int
E_OS: int
E_ABI: int
E_CORRUPT: int
E_PEER_DEAD: int
E_SAMPLE: int
E_INIT: int
E_HUNG: int
E_QUARANTINED: int
E_RESTARTS: int
E_DEVICE: int
E_UNSUPPORTED: int

SAMPLE_RETRIED: int
SAMPLE_SUBSTITUTED: int
SAMPLE_SKIPPED: int
SHUFFLE_TORCH: int
SHUFFLE_FEISTEL: int
SHUFFLE_TORCH_LOADER: int
START_SPAWN: int
START_FORK: int
START_THREAD: int
START_EXTERNAL: int
DISPATCH_LEAST_LOADED: int
DISPATCH_ROUND_ROBIN: int

SHARE_NONE: int
SHARE_EVERY: int
SHARE_DEAL: int
LAG_BLOCK: int
LAG_EVICT: int
LAG_OBSERVE: int
CONSUMER_NONE: int
CONSUMER_OFFERED: int
CONSUMER_ATTACHED: int
CONSUMER_EVICTED: int
CONSUMER_LEFT: int

# ---- what the module calls ----

class _Target(Protocol):
    """What is called back in the process of the trainer. It keeps what its own code raised: `interruption` is a KeyboardInterrupt
    or SystemExit that nobody was told of yet."""

    interruption: BaseException | None
    def restart(self) -> None:
        """An epoch begins."""
    def failed(self, reason: BaseException, /) -> tuple[bytes, bytes]:
        """The text and the traceback of what a method has raised."""

class _Indices(_Target, Protocol):
    """See `custom`."""

    def draw(self, cap: int, /) -> ReadableBuffer | None:
        """At most `cap` indices, of int64; one batch of a batch sampler. None: the epoch is at its end."""

class _Dataset(_Target, Protocol):
    """See `Loader`."""

    def fetch(self, task: Task, /) -> int | None:
        """Writes the batch. Its number of rows; None: an iterable data set is at its end."""

class _Epoch(Protocol):
    """See `Cursor`."""

    def __len__(self) -> int: ...
    def end(self) -> None:
        """The last batch was yielded."""
    def refuse(self, status: int, /) -> object:
        """Raises what a `next` raises that can't be called."""
    def outcome(self, status: int, exception: errors.FeedlaneError, is_again: bool, /) -> object:
        """Raises what a `next` raises that got no batch, or returns NotImplemented: it waits on. is_again: the status is that of
        the wait before."""
    def unusual(self, batch: _Batch, /) -> Any:
        """The data of a batch whose plan has parts that Cursor doesn't know. Releases the batch. With is_whole the method
        `arrived` is called for every batch, and with `held` the method `copy`, for the data of other batches."""

class _Glue(Protocol):
    """See `Worker.run` and worker.Glue."""

    ordinary: bool
    batched: bool
    names: list[bytes]
    @property
    def dataset(self) -> Any: ...
    @property
    def get_all(self) -> Callable[[list[int]], Any] | None: ...
    @property
    def collate_fn(self) -> Callable[[Any], Any] | None: ...
    @property
    def leaves(self) -> Callable[[], list[Any]]: ...
    @property
    def batch(self) -> Callable[[list[Any], Any], Plan]: ...
    @property
    def single(self) -> Callable[[Any, Any], Plan]: ...
    @property
    def whole(self) -> Callable[[Any, Any], Plan]: ...
    @property
    def compare(self) -> Callable[[Any], None] | None: ...
    @property
    def rows(self) -> Rows | None: ...
    @property
    def counts(self) -> bool: ...
    @property
    def write(self) -> Callable[[Task, int, Any], None]: ...
    def dump(self, plan: Plan, /) -> bytes: ...
    def slow(self, task: Task, /) -> None: ...
    def failed(self, task: Task, reason: Exception, position: int, index: int, /) -> None: ...
    def refused(self, exception: errors.FeedlaneError, /) -> object: ...

# ---- functions ----

def collate_batch(samples: list[Any] | tuple[Any, ...], leaves: list[Any], fallback: Callable[[Any, Any], Plan], /) -> Plan:
    """The plan of samples that come together, its leaves appended to `leaves`. fallback: of samples that this doesn't know."""
def collate_whole(value: Any, leaves: list[Any], fallback: Callable[[Any, Any], Plan], unusual: type[Exception] | None,
                  /) -> Plan:
    """The plan of a value as it is, its leaves appended to `leaves`. fallback: of a part that this doesn't know. unusual: what is raised
    for a value that a plan would change, or None."""
def set_up(ndarray: type[npt.NDArray[Any]], dtypes: dict[int, np.dtype[Any]], error: Callable[..., errors.FeedlaneError],
           batch: type[Batch], malformed: type[Exception], /) -> None:
    """Once, before all else: numpy's array type; its element types by `code << 8 | bits`; what makes an exception of an error of
    the library; the class of batches; what is raised for a plan that is none."""


def end() -> None:
    """The interpreter ends: threads that come back from the library stay where they are."""

def status_text(status: int, /) -> str:
    """The meaning of a status, in one line."""

def seed() -> int | None:
    """The seed, of 64 bits, of the sample that this thread is making in `Worker.run`; None: it makes none."""

def task_id() -> int | None:
    """The id of the task that this thread makes; None: it makes none, or one of an iterable data set."""

def tasks(after: int, /) -> list[tuple[int, int, int, list[int]]]:
    """That task and those that wait behind it, if their ids are above `after`: id, epoch, batch, indices. StaleBatch: the task is
    over."""

def sequential(length: int, /) -> Sampler:
    """Of 0, 1, ... length - 1. ArgumentError: a negative length."""

def random(config: dict[str, Any], /) -> Sampler:
    """By the fields of feedlane_random_config. ArgumentError, LimitError, OutOfMemory; TypeError: no such field."""

def subset(indices: ReadableBuffer, in_order: bool, seed: int, /) -> Sampler:
    """Of these indices, of int64, which are copied. BufferError: not contiguous."""

def weighted(weights: ReadableBuffer, config: dict[str, Any], /) -> Sampler:
    """Of indices as likely as these weights of float64, by the fields of feedlane_weighted_config. ArgumentError: a weight is
    negative or not finite, all are 0, or more indices are wanted than there are without replacement."""

def distributed(config: dict[str, Any], /) -> Sampler:
    """By the fields of feedlane_distributed_config. ArgumentError: the rank isn't one of the world's."""

def tokens(lengths: ReadableBuffer, config: dict[str, Any], /) -> Sampler:
    """Batches within a budget of tokens, of samples with these lengths of int64, by the fields of feedlane_tokens_config.
    ArgumentError: a length is negative or above the budget, or a field is out of its domain."""

def mixture(lengths: ReadableBuffer, weights: ReadableBuffer, stages: ReadableBuffer, config: dict[str, Any], /) -> Sampler:
    """Sources of these lengths by weights of float64, a row for each stage that begins at these samples, by the fields of
    feedlane_mixture_config. ArgumentError: a length, a weight, a stage or a field is out of its domain. ValueError: not as many
    weights as sources in each stage."""

def batch(inner: Sampler, batch_size: int, drop_last: bool, /) -> Sampler:
    """Batches of what `inner` yields, of which it takes a copy."""

def custom(target: _Indices, rows: int, /) -> Sampler:
    """Of what `target` draws. rows: the most indices of a batch; 0: single indices. It is called with the GIL held."""

def rank_detect() -> RankInfo:
    """What the launcher's variables say. ArgumentError: half of a pair of them is missing, or one is no number."""

def torch_base_seed(seed: int, /) -> int:
    """The base seed that torch's DataLoader draws after manual_seed(seed)."""

# ---- the trainer's side ----

class Sampler:
    """A feedlane_sampler; the functions above make it. One thread at a time."""

    def restart(self, epoch: int, /) -> None:
        """From the first index of this epoch on. SampleError: what the callbacks raised."""
    def next(self, cap: int, /) -> list[int] | None:
        """Up to `cap` indices, one batch of a batch sampler; None at the end. SampleError: what the callbacks raised."""
    def length(self) -> int:
        """Indices, or batches, of an epoch; -1: unknown."""

class Pool:
    """A feedlane_pool: memory registered with a device. It lasts as long as loaders, batches and streams use it."""

    def __new__(cls, backend: str | None, custom: int, config: dict[str, int], /) -> Pool:
        """custom: the address of a feedlane_backend, or 0; config: fields of feedlane_pool_config. Unsupported: there is no
        driver, or no such backend. DeviceError, LimitError, OutOfMemory."""
    def stats(self) -> PoolStats:
        """Its counters."""
    @staticmethod
    def end_unused() -> int:
        """Ends the pools without an object that nothing uses any more. The number of those that are left."""

class Loader:
    """A feedlane_loader. One thread at a time, except close. Any call after close is a StateError, and in a process that was
    forked from the loader's a Forked."""

    def __new__(cls, config: dict[str, Any], fields: tuple[tuple[bytes, DType, tuple[int, ...]], ...] | None = None,
                data: _Dataset | None = None, sampler: Sampler | None = None, pool: Pool | None = None,
                worker_config: bytes | None = None, argv: list[bytes] | None = None, state: bytes | None = None,
                name: str | None = None, share_path: bytes | None = None,
                worker_cpus: str | None = None, memory_nodes: str | None = None) -> Loader:
        """config: fields of feedlane_loader_config. fields: name, element type and shape of the tensors. data: instead of
        workers. worker_config: what each worker is told. argv: the command that starts one. state: where the epoch goes on.
        name: what monitors show. share_path: where consumers may join. worker_cpus: processors of the workers. memory_nodes: of the slots.
        ArgumentError, LimitError, OutOfMemory, SystemCallError; CorruptError, AbiError: of the state."""
    @property
    def is_closed(self) -> bool:
        """Whether close was called."""
    @property
    def turn(self) -> int:
        """The number of epochs that were begun."""
    def close(self) -> None:
        """Ends the calls of other threads, then the workers, and waits for them. Busy: in a callback of this loader."""
    def begin(self, epoch: int, /) -> None:
        """Begins an epoch; the one before is over."""
    def stop(self) -> None:
        """Ends the epoch and all workers, and waits for them."""
    def length(self) -> int:
        """Batches in an epoch; -1: unknown."""
    def state(self, batch: Batch | None = None) -> bytes:
        """The position after the newest batch. Unsupported: the sampler has no state."""
    def open_worker(self) -> tuple[int, int] | None:
        """The number of a worker that is missing, and a descriptor for it, which the caller closes. None: none is missing."""
    def open_consumer(self, id: int, lag: int, evict_after_ns: int, /) -> tuple[int, int]:
        """A place's number and a descriptor for it, which the caller closes, by the fields of feedlane_consumer_config."""
    def serve(self, timeout_ns: int, /) -> int:
        """The feeder's loop, without the GIL: END or TIMEOUT. Raises what feedlane_loader_serve says, and what a callback left."""
    def attend(self, timeout_ns: int, /) -> int:
        """Waits without the GIL until something may have happened, at most so long, and handles it by feedlane_loader_poll: its status."""
    def consumer(self, nth: int, /) -> ConsumerCounters | None:
        """A consumer, as its feeder sees it; None: there are fewer."""
    def next_epoch(self) -> int:
        """The smallest epoch that this consumer may begin. StateError: it is none."""
    @staticmethod
    def join(descriptor: int, timeout_ns: int, /) -> Loader:
        """A consumer's. The descriptor belongs to the library from here on. Waits without the GIL."""
    @staticmethod
    def join_path(path: bytes, id: int, lag: int, evict_after_ns: int, timeout_ns: int, /) -> Loader:
        """The same by a feeder's path, and the fields of feedlane_consumer_config."""
    def stats(self) -> Stats:
        """The loader's counters."""
    def worker_stats(self, worker: int, /) -> WorkerStats | None:
        """A worker's counters; None: there are fewer workers."""
    def event(self) -> tuple[int, str, int, int, int] | None:
        """The next event: (kind, text, worker, batch, sample), -1 for "none". None: there is no more."""
    def info(self) -> LoaderInfo:
        """What it is, and where its epoch stands."""
    def timings(self, worker: int, /) -> Timings | None:
        """Of batches that this worker made, or -1: of all. None: there are fewer workers."""
    def diagnose(self) -> Diagnosis:
        """What bounded the present epoch, or the newest one."""
    def report(self) -> str:
        """The same for people, with figures."""
    def trace(self, from_: int, /) -> bytes:
        """The records of the trace from this sequence number on, for read_trace. StateError: there is no trace."""
    @staticmethod
    def read_trace(records: bytes, /) -> list[BatchRecord]:
        """The records in what `trace` returned."""
    @staticmethod
    def read_state(state: bytes, /) -> StateInfo:
        """What a saved state says of itself. CorruptError, AbiError: it is none that this library reads."""
    @staticmethod
    def config_layout() -> dict[str, tuple[int, int]]:
        """By field of `config`: its offset and its size in feedlane_loader_config, in bytes."""

class Cursor(Iterator[Any]):
    """Iterates over the batches of the epoch that the loader has begun."""

    def __new__(cls, loader: Loader, epoch: _Epoch, read: Callable[[bytes, int], Plan],
                from_dlpack: Callable[[Any], Any] | None, timeout_ns: int, held: int, is_whole: bool, /) -> Cursor:
        """read: metadata and the number of tensors to the plan. from_dlpack: None: arrays are numpy's. timeout_ns: for a batch,
        or FOREVER. held: what comes while so many batches are held is copied; 0: never. is_whole: batches are yielded as Batch
        objects."""
    def __iter__(self) -> Cursor: ...
    def __next__(self) -> Any:
        """The next batch. Waits for it without the GIL. What is raised, `epoch` decides."""
    def __len__(self) -> int:
        """The length of `epoch`. TypeError: it doesn't know."""

class IndexQueue:
    """Batches of indices that are pushed ahead of what the library draws."""

    def __new__(cls) -> IndexQueue: ...
    def push(self, indices: Iterable[Any], /) -> None:
        """The next batch. TypeError: an index is no integer. OverflowError: it is beyond 64 bits."""
    def end(self) -> None:
        """No batch follows in this epoch."""
    def restart(self) -> None:
        """Empties the queue, before the library begins an epoch."""
    def sampler(self, rows: int, /) -> Sampler:
        """Of the batches of this queue, at most `rows` indices each; 0: of single indices."""

class Batch:
    """A batch that the trainer holds; a Cursor makes it."""

    @property
    def epoch(self) -> int:
        """The number of its epoch."""
    @property
    def number(self) -> int:
        """Its number in the epoch, from 0."""
    @property
    def worker(self) -> int:
        """The number of the worker that made it; -1: the trainer itself."""
    @property
    def attempt(self) -> int:
        """The number of the attempt that made it, from 0."""
    @property
    def rows(self) -> int:
        """The number of its rows."""
    @property
    def missed(self) -> int:
        """The number of batches just before it that the feeder took back: of a consumer with lag="observe"."""
    @property
    def is_read_only(self) -> bool:
        """Whether its memory can't be written: a consumer's."""
    @property
    def tensor_count(self) -> int:
        """The number of its tensors."""
    @property
    def _stamps(self) -> tuple[int, int, int, int, int, int]:
        """What batch.Stamps consists of."""
    @property
    def is_held(self) -> bool:
        """False: it was released."""
    @property
    def indices(self) -> list[int] | None:
        """The data set's index of each row; None: of an iterable data set. StaleBatch."""
    @property
    def skipped(self) -> list[int]:
        """The data set's indices of the samples that were left out of it. StaleBatch."""
    def _check_held(self) -> None:
        """StaleBatch: it was released. Forked: it is the parent process's."""
    def _metadata(self, most: int, /) -> bytes:
        """A copy of at most so many bytes of the metadata."""
    def _tensor(self, number: int, /) -> tuple[str, DType, tuple[int, ...], int, int, int]:
        """(name, element type, shape, bytes, offset in the slot, address). IndexError: there is no such tensor."""
    def _array(self, number: int, /) -> npt.NDArray[Any] | None:
        """A numpy array over the tensor, which holds a reference of the batch; None: numpy has no such element type."""
    def _capsule(self, number: int, is_versioned: bool, /) -> Any:
        """A capsule of DLPack's over the tensor, which holds a reference of the batch."""
    def _record_stream(self, address: int, /) -> None:
        """What is enqueued on this stream may read the memory. StateError: the loader has no pool. LimitError: more than
        four streams."""
    def _release(self) -> None:
        """Gives up the object's reference. StaleBatch: it was released before."""

class View:
    """The memory of a tensor, as the owner of an array. It holds a reference of its batch."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

# ---- the worker's side ----

class Worker:
    """A feedlane_worker: the trainer's peer in a worker process."""

    def __new__(cls, descriptor: int, /) -> Worker:
        """Attaches to the trainer. The descriptor belongs to the library from here on. PeerDead, AbiError, CorruptError."""
    @staticmethod
    def descriptor() -> int:
        """The descriptor that the trainer has left in this process; -1: none has started it."""
    def info(self) -> WorkerSetup:
        """What the trainer says of this worker."""
    def ready(self, status: int, text: bytes, /) -> None:
        """The data set is open (OK), or couldn't be opened because of `text`."""
    def run(self, glue: _Glue, /) -> None:
        """Makes batches until the trainer wants no more. KeyboardInterrupt and SystemExit of the data set end it."""
    def detach(self) -> None:
        """Leaves the trainer. A second time it does nothing."""

class Task:
    """A batch to be made, in a worker or without one. Any use after it is over is a StateError."""

    @property
    def epoch(self) -> int:
        """The number of its epoch."""
    @property
    def batch(self) -> int:
        """Its number in the epoch, from 0."""
    @property
    def attempt(self) -> int:
        """How often the batch was sent out before."""
    @property
    def count(self) -> int:
        """The number of rows that are wanted."""
    @property
    def first(self) -> int:
        """1: the shard of an iterable data set begins; else 0."""
    @property
    def delivered(self) -> int:
        """The number of samples of the shard that were delivered before."""
    @property
    def indices(self) -> list[int]:
        """The data set's index of each row. Of an iterable data set it is None, and nobody asks."""
    @property
    def seeds(self) -> list[int]:
        """A seed of 64 bits for each row."""
    def tensor(self, number: int, name: bytes, dtype: DType, shape: tuple[int, ...], /) -> memoryview:
        """The bytes of a tensor in the slot, to be written; valid as long as the task. LimitError: the slot is too small;
        `needed` is the slot_bytes that it takes."""
    def metadata(self, blob: bytes, /) -> None:
        """Attaches these bytes to the batch; the last call counts. LimitError, as above."""
    def record(self, position: int, outcome: int, retries: int, other: int, text: bytes, /) -> None:
        """What became of the sample of row `position`, which has failed: SAMPLE_RETRIED, SAMPLE_SUBSTITUTED by index `other`, or
        SAMPLE_SKIPPED."""
    def is_wanted(self) -> bool:
        """False: the batch will be dropped. Counts as progress before the task's deadline."""
    def commit(self, rows: int, /) -> bool:
        """Delivers the batch. Whether it was still wanted. ArgumentError: not what was declared; the task goes on."""
    def fail(self, position: int, text: bytes, traceback: bytes, /) -> bool:
        """The batch can't be made. position: of the row that has failed; -1: none. Whether it was still wanted."""
    def exhausted(self) -> bool:
        """The shard has no more samples. Whether the batch was still wanted."""

class Rows:
    """Makes the batches of a BatchDataset by its `fetch`."""

    def __new__(cls, fields: list[tuple[str, bytes, DType, np.dtype[Any], tuple[int, ...]]], metadata: bytes, /) -> Rows:
        """fields: the name, the same for the library, DLPack's element type, numpy's, and the shape without the rows. metadata: of
        each batch."""

class Leaf:
    """A tensor that is to be written into a slot, and where its rows come from; `Worker.run` makes it."""

    @property
    def dtype(self) -> DType:
        """Its element type."""
    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, in elements."""
    def fill(self, memory: ReadableBuffer, /) -> None:
        """Writes it there. ValueError: the memory hasn't exactly its bytes."""
