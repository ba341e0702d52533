# SPDX-License-Identifier: Apache-2.0
"""The compiled module: feedlane.h as Python objects, and the work that is done once per batch.

Constants have the names of feedlane.h, without the prefix. Any function may raise the exception of errors.py that belongs to
the library's status, TypeError for an argument of the wrong type, and OverflowError for an integer that does not fit into its
field."""
from _typeshed import ReadableBuffer
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from . import collate, errors
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
ABSENT: int
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

SHUFFLE_TORCH: int
SHUFFLE_FEISTEL: int
SHUFFLE_TORCH_LOADER: int
START_SPAWN: int
START_FORK: int
START_THREAD: int
START_EXTERNAL: int
START_HOST: int
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
FULL_EVICT: int
FULL_WAIT: int
FULL_FAIL: int
GET_MAKE: int
MAX_KEY_BYTES: int

# ---- objects that the module calls ----

class _Target(Protocol):
    """An object that the module calls in the trainer's process. It keeps the exceptions that its own code raised.
    `interruption` is a KeyboardInterrupt or SystemExit that was not raised in the loop yet."""

    interruption: BaseException | None
    def restart(self) -> None:
        """An epoch begins."""
    def failed(self, reason: BaseException, /) -> tuple[bytes, bytes]:
        """Returns the text and the traceback of an exception that a method has raised."""

class _Indices(_Target, Protocol):
    """See `Sampler`. rows: the largest size of a batch; 0: single indices."""

    @property
    def rows(self) -> int: ...
    def draw(self, cap: int, /) -> ReadableBuffer | None:
        """Returns at most `cap` int64 indices; of a batch sampler, one batch. None: the epoch has ended."""

class _Dataset(_Target, Protocol):
    """See `Loader`."""

    def fetch(self, task: Task, /) -> int | None:
        """Writes the batch and returns its number of rows. None: the shard of an iterable data set has ended."""

class _Epoch(Protocol):
    """See `Cursor`. If `is_whole`, the cursor also calls `arrived`, for every batch. If `held` is not 0, it also calls `copy`,
    for the data of batches beyond `held`."""

    def __len__(self) -> int: ...
    def end(self) -> None:
        """The last batch was yielded."""
    def refuse(self, status: int, /) -> object:
        """Raises the error of a `next` that is not allowed now."""
    def outcome(self, status: int, exception: errors.FeedlaneError, is_again: bool, /) -> object:
        """Raises the error of a `next` that got no batch, or returns NotImplemented to wait again. `exception` is None if
        `status` is not negative. is_again: the previous wait of this `next` ended with this status too."""
    def unusual(self, batch: _Batch, /) -> Any:
        """Returns the data of a batch whose plan has parts that Cursor does not support, and releases the batch."""

class _Glue(Protocol):
    """See `Worker.run` and worker.Glue."""

    ordinary: bool
    batched: bool
    names: list[bytes]
    caught: type[BaseException]
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

def collate_batch(samples: Any, leaves: list[Any], fallback: Callable[[Any, Any], Plan], /) -> Plan:
    """Returns the plan of a batch of samples, and appends its leaves to `leaves`. samples: a list, a tuple, or what
    is_stacked accepts. `fallback` makes the plan of samples that this function does not support."""
def is_stacked(samples: Any, /) -> bool:
    """Whether this is an array or a tensor whose rows are samples, so that collating them makes the same array."""
def collate_whole(value: Any, leaves: list[Any], fallback: Callable[[Any, Any], Plan], unusual: type[Exception] | None,
                  /) -> Plan:
    """Returns the plan of a value, unchanged, and appends its leaves to `leaves`. `fallback` makes the plan of a part that this
    function does not support. `unusual` is raised for a value that a plan would change; None: no exception."""
def set_up(ndarray: type[npt.NDArray[Any]], dtypes: dict[int, np.dtype[Any]], error: Callable[..., errors.FeedlaneError],
           batch: type[Batch], malformed: type[Exception], /) -> None:
    """Called once, first. ndarray: numpy's array type. dtypes: numpy's element types, by `code << 8 | bits`. error: makes an
    exception of an error of the library. batch: the class of batches. malformed: the exception for an invalid plan."""


def end() -> None:
    """The interpreter ends: from now on, threads that return from the library block."""

def status_text(status: int, /) -> str:
    """Returns the meaning of a status, in one line."""

def seed() -> int | None:
    """Returns the 64-bit seed of the sample that this thread is making in `Worker.run`; None: it is not making a sample."""

def task_id() -> int | None:
    """Returns the id of this thread's current task; None: there is no task, or the data set is iterable."""

def tasks(after: int, /) -> list[tuple[int, int, int, list[int], list[int]]]:
    """Returns the current task and the tasks queued behind it, if their ids are above `after`, as (id, epoch, batch, indices, seeds).
    Raises StaleBatch if the current task is over."""

def rank_detect() -> RankInfo:
    """Returns the rank found in the launcher's environment variables. Raises ArgumentError if one variable of a pair is missing
    or invalid."""

# ---- the trainer's side ----

class Sampler:
    """A feedlane_sampler. Use it from one thread at a time."""

    def __new__(cls, kind: int, /, *, indices: ReadableBuffer = ..., lengths: ReadableBuffer = ...,
                weights: ReadableBuffer = ..., from_: ReadableBuffer = ..., inner: Sampler = ..., callbacks: _Indices = ...,
                **numbers: int) -> Sampler:
        """kind: samplers._Kind. The other arguments are the fields of feedlane_sampler_config. Arrays are copied: `indices`,
        `lengths` and `from_` have int64 elements, `weights` float64. callbacks: called with the GIL held. Raises ArgumentError,
        LimitError or OutOfMemory. Raises TypeError if there is no such field, ValueError if arrays that belong together differ
        in length, and BufferError, or numpy's ValueError, if an array is not contiguous."""
    def restart(self, epoch: int, /) -> None:
        """Starts this epoch from its first index. Raises SampleError if a callback raised."""
    def next(self, cap: int, /) -> list[int] | None:
        """Returns up to `cap` indices; of a batch sampler, one batch. None: the epoch has ended. Empty: a live sampler has too
        few now. Raises SampleError if a callback raised."""
    def length(self) -> int:
        """Returns the number of indices, or batches, in an epoch; -1: unknown."""
    @staticmethod
    def config_layout() -> dict[str, tuple[int, int]]:
        """Returns, for each field allowed in `numbers`, its offset and size in feedlane_sampler_config, in bytes."""

class Pool:
    """A feedlane_pool: memory registered with a device. It exists as long as loaders, batches and streams use it."""

    def __new__(cls, backend: str | None, custom: int, config: dict[str, int], /) -> Pool:
        """custom: the address of a feedlane_backend, or 0. config: fields of feedlane_pool_config. Raises Unsupported if there
        is no driver or no such backend, and DeviceError, LimitError or OutOfMemory."""
    def stats(self) -> PoolStats:
        """Returns its counters."""
    @staticmethod
    def end_unused() -> int:
        """Ends the pools that have no Python object and are not in use. Returns the number of those that are
        still in use."""

class _Observed:
    """What a monitor reads."""

    def stats(self) -> Stats:
        """Returns the loader's counters."""
    def worker_stats(self, worker: int, /) -> WorkerStats | None:
        """Returns a worker's counters; None: there are fewer workers."""
    def info(self) -> LoaderInfo:
        """Returns facts about the loader, and its position in the epoch."""
    def timings(self, worker: int, /) -> Timings | None:
        """Returns the timings of the batches that this worker made or, with -1, of all batches. None: there are fewer workers."""
    def diagnose(self) -> Diagnosis:
        """Returns the bottleneck of the current or newest epoch."""
    def report(self) -> str:
        """Returns a report for people about the current or newest epoch."""
    def error(self, index: int, /) -> dict[str, Any] | None:
        """Returns the fields of feedlane_error_record; None: there are fewer errors."""
    def slots(self) -> bytes:
        """Returns a record for each slot, for `read_trace`."""
    def trace(self, from_: int, /) -> bytes:
        """Returns the records of the trace from this sequence number on, for `read_trace`. Raises StateError if no trace is
        kept."""

class Monitor(_Observed):
    """A monitor of a loader. Any thread may call any method."""

    @staticmethod
    def open(pid: int, nth: int, /) -> Monitor | None:
        """Opens loader `nth` of a process. None: there is no such loader. Raises the errors of feedlane_monitor_open."""
    def close(self) -> None:
        """Frees the memory of the other loader, after calls of other threads."""

class Loader(_Observed):
    """A feedlane_loader. Use it from one thread at a time, except for `close`. Calls after `close` raise StateError. Calls in a
    forked child raise Forked."""

    def __new__(cls, config: dict[str, Any], fields: tuple[tuple[bytes, DType, tuple[int, ...]], ...] | None = None,
                data: _Dataset | None = None, sampler: Sampler | None = None, pool: Pool | None = None,
                worker_config: bytes | None = None, argv: list[bytes] | None = None, state: bytes | None = None,
                name: str | None = None, share_path: bytes | None = None,
                worker_cpus: str | None = None, memory_nodes: str | None = None) -> Loader:
        """config: fields of feedlane_loader_config. fields: name, element type and shape of each tensor. data: makes the
        batches if there are no workers. worker_config: bytes passed to each worker. argv: the command that starts a worker.
        state: the state to resume from. name: shown by monitors. share_path: the socket at which consumers may join.
        worker_cpus: processors of the workers. memory_nodes: memory nodes of the slots. Raises ArgumentError, LimitError,
        OutOfMemory or SystemCallError, and CorruptError or AbiError if `state` cannot be read."""
    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
    @property
    def turn(self) -> int:
        """The number of epochs begun."""
    def close(self) -> None:
        """Ends calls of other threads, then the workers, and waits for both. Raises Busy in a callback of this loader."""
    def begin(self, epoch: int, /) -> None:
        """Begins an epoch and ends the previous one."""
    def stop(self) -> None:
        """Ends the epoch and all workers, and waits for them."""
    def poll(self) -> bool:
        """Does the work of a Cursor's `next` without waiting. True: `next` has something to return or raise. False: the
        descriptor becomes readable when it may have."""
    def fileno(self) -> int:
        """Returns the descriptor to poll for reading."""
    def state(self, batch: Batch | None = None) -> bytes:
        """Returns the position after `batch`, a batch that is held; None: after the newest batch. Raises Unsupported if the
        sampler has no state."""
    def open_worker(self) -> tuple[int, int] | None:
        """Returns the number of a missing worker and a descriptor for it, which the caller closes. None: no worker is missing."""
    def open_consumer(self, id: int, lag: int, evict_after_ns: int, /) -> tuple[int, int]:
        """Returns a place's number and a descriptor for it, which the caller closes. The arguments are the fields of
        feedlane_consumer_config."""
    def serve(self, timeout_ns: int, /) -> int:
        """The feeder's loop, without the GIL. Returns END or TIMEOUT. Raises the errors of feedlane_loader_serve, and
        exceptions of callbacks."""
    def attend(self, timeout_ns: int, /) -> int:
        """Waits, without the GIL and for at most `timeout_ns`, until something may have happened. Handles it with
        feedlane_loader_poll and returns that function's status."""
    def consumer(self, nth: int, /) -> ConsumerCounters | None:
        """Returns the counters of consumer `nth`, as its feeder sees it; None: there are fewer consumers."""
    @staticmethod
    def join(descriptor: int, path: bytes | None, place: tuple[int, int, int] | None, pool: Pool | None, timeout_ns: int, /) -> Loader:
        """Joins a feeder and returns the consumer's loader. Takes ownership of the descriptor in every case. Waits without the
        GIL. With a path, `descriptor` is -1 and `place` has the fields of feedlane_consumer_config: id, lag, evict_after_ns."""
    def event(self) -> tuple[int, str, int, int, int] | None:
        """Returns the next event as (kind, text, worker, batch, sample); -1 means "none". None: there are no more events."""
    @staticmethod
    def read_trace(records: bytes, /) -> list[BatchRecord]:
        """Decodes the records that `trace` returned."""
    @staticmethod
    def read_state(state: bytes, /) -> StateInfo:
        """Returns the facts recorded in a saved state. Raises CorruptError or AbiError if this library cannot read it."""
    @staticmethod
    def config_layout() -> dict[str, tuple[int, int]]:
        """Returns, for each field allowed in `config`, its offset and size in feedlane_loader_config, in bytes."""

class Span:
    """Messages in place: a buffer [messages, message_bytes] of bytes, read-only for a receiver. Without `finish`, received messages
    come again, and reserved ones are dropped."""

    @property
    def lane(self) -> int:
        """The sender's lane."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def finish(self, count: int, /) -> None:
        """Releases or sends the first messages. Raises BufferError if a buffer of this object exists."""

class Receiver:
    """The receiving end of a ring. One thread at a time, otherwise Busy. Calls that wait release the GIL."""

    @staticmethod
    def create(message_bytes: int, capacity: int, senders: int, path: bytes | None, /) -> Receiver:
        """Creates a ring. Raises the errors of feedlane_rx_create."""
    @property
    def is_closed(self) -> bool:
        """Whether close was called."""
    @property
    def message_bytes(self) -> int:
        """Size of a message."""
    def close(self) -> None:
        """Ends the call of another thread, and the ring as soon as no Span exists. Any thread."""
    def offer(self) -> int:
        """Returns a descriptor for attach, which the caller owns."""
    def peek(self, want: int, timeout_ns: int, /) -> Span | int:
        """Returns up to `want` messages of one sender in place, or a status: END or TIMEOUT."""
    def receive(self, want: int, timeout_ns: int, /) -> bytearray | int:
        """Returns copies of up to `want` messages of one sender, or a status: END or TIMEOUT."""
    def arm(self) -> tuple[int, int]:
        """Prepares to sleep on a descriptor. Returns the status and the descriptor."""
    @staticmethod
    def observe(pid: int, nth: int, /) -> dict[str, int] | None:
        """Returns the fields of feedlane_ring_info; None: there is no such ring."""

class Sender:
    """A sending end of a ring. One thread at a time, otherwise Busy. Calls that wait release the GIL."""

    @staticmethod
    def attach(fd: int, path: bytes | None, timeout_ns: int, /) -> Sender:
        """Becomes a sender. Takes ownership of the descriptor in every case; with a path, it is -1. Raises Timeout."""
    @property
    def is_closed(self) -> bool:
        """Whether close was called."""
    @property
    def message_bytes(self) -> int:
        """Size of a message."""
    def close(self) -> None:
        """Ends the call of another thread, and leaves the ring as soon as no Span exists. Any thread."""
    def send(self, messages: ReadableBuffer, timeout_ns: int, /) -> int:
        """Returns how many messages were sent: all of them, unless the time was over."""
    def reserve(self, want: int, timeout_ns: int, /) -> Span | int:
        """Returns up to `want` messages to be written in place, or TIMEOUT."""

class Arena:
    """The owner's or a member's end of an arena. Any thread may call any method. Those that wait release the GIL."""

    @staticmethod
    def create(bytes: int, members: int, entries: int, leases: int, when_full: int, path: bytes | None, /) -> Arena:
        """Creates an arena and its owner. Raises the errors of feedlane_arena_create."""
    @staticmethod
    def join(fd: int, path: bytes | None, timeout_ns: int, /) -> Arena:
        """Becomes a member. Takes ownership of the descriptor in every case; with a path, it is -1. Raises Timeout."""
    @property
    def is_closed(self) -> bool:
        """Whether close was called."""
    def close(self) -> None:
        """Ends calls of other threads, and leaves the arena with the last of them."""
    def offer(self) -> int:
        """Returns a descriptor for join, which the caller owns."""
    def reserve(self, key: bytes | None, fields: tuple[Any, ...], metadata: bytes | None, is_pinned: bool,
                timeout_ns: int, /) -> _Batch | int:
        """Returns the entry, to be written, or a status. fields: (name, element type, shape) of each tensor."""
    def publish(self, entry: Batch, timeout_ns: int, /) -> int:
        """Publishes the entry, which the batch then no longer holds. Returns the status."""
    def get(self, key: bytes, flags: int, timeout_ns: int, /) -> _Batch | int:
        """Returns the entry, or a status."""
    def receive(self, timeout_ns: int, /) -> _Batch | int:
        """Returns the next entry that was sent to this process, or a status."""
    def serve(self, timeout_ns: int, /) -> int:
        """Serves members. Returns the status."""
    def drop(self, key: bytes, timeout_ns: int, /) -> int:
        """Removes the entry, or gives the right to make it back. Returns the status."""
    def arm(self) -> tuple[int, int]:
        """Prepares to sleep on a descriptor. Returns the status and the descriptor."""
    def interrupt(self) -> None:
        """Ends one wait."""
    def event(self) -> tuple[int, str] | None:
        """Returns the next event as (kind, text); None: there are no more events."""
    def stats(self) -> dict[str, int]:
        """Returns the fields of feedlane_arena_stats."""
    @staticmethod
    def observe(pid: int, nth: int, /) -> dict[str, Any] | None:
        """Returns the fields of feedlane_arena_stats and `processes`, a list of those of feedlane_arena_member; None: there is no
        such arena."""

class Cursor(Iterator[Any]):
    """Iterates over the batches of the epoch that the loader has begun."""

    def __new__(cls, loader: Loader, epoch: _Epoch, read: Callable[[bytes, int], Plan],
                from_dlpack: Callable[[Any], Any] | None, timeout_ns: int, held: int, is_whole: bool,
                looks: bool = False, /) -> Cursor:
        """read: builds a plan from a batch's metadata and its number of tensors. from_dlpack: None: arrays are numpy's. timeout_ns:
        the limit for a batch, or FOREVER. held: while this many batches are held, further ones are copied; 0: never. is_whole:
        yields Batch objects. looks: calls epoch.look() before the first batch and every few batches."""
    def __iter__(self) -> Cursor: ...
    def __next__(self) -> Any:
        """Returns the next batch. Waits for it without the GIL. `epoch` decides what is raised."""
    def __len__(self) -> int:
        """Returns the length of `epoch`. Raises TypeError if it is unknown."""

class IndexQueue:
    """Batches of indices that Python code pushes before the library draws them."""

    def __new__(cls) -> IndexQueue: ...
    def push(self, indices: Iterable[Any], /) -> None:
        """Adds a batch. Raises TypeError if an index is not an integer, and OverflowError if an index exceeds 64 bits."""
    def end(self) -> None:
        """No further batch follows in this epoch."""
    def restart(self) -> None:
        """Empties the queue, before the library begins an epoch."""
    def sampler(self, rows: int, /) -> Sampler:
        """Returns a sampler of the batches in this queue, of at most `rows` indices each; 0: of single indices."""

class Batch:
    """A batch that the trainer holds, made by a Cursor."""

    @property
    def epoch(self) -> int:
        """The number of its epoch."""
    @property
    def number(self) -> int:
        """Its number in the epoch, from 0."""
    @property
    def worker(self) -> int:
        """The number of the worker that made it; -1: the trainer made it."""
    @property
    def attempt(self) -> int:
        """The number of the attempt that made it, from 0."""
    @property
    def rows(self) -> int:
        """The number of its rows."""
    @property
    def missed(self) -> int:
        """The number of batches just before it that the feeder took back from a consumer with lag="observe"."""
    @property
    def is_read_only(self) -> bool:
        """Whether its memory is read-only, as in a consumer."""
    @property
    def tensor_count(self) -> int:
        """The number of its tensors."""
    @property
    def _stamps(self) -> tuple[int, int, int, int, int, int]:
        """The fields of batch.Stamps."""
    @property
    def is_held(self) -> bool:
        """False: it was released."""
    @property
    def indices(self) -> list[int] | None:
        """The data set's index of each row; None: the data set is iterable. Raises StaleBatch if it was released."""
    @property
    def skipped(self) -> list[int]:
        """The data set's indices of the samples that were left out. Raises StaleBatch if it was released."""
    def _check_held(self) -> None:
        """Raises StaleBatch if it was released, and Forked if it belongs to the parent process."""
    def _metadata(self, most: int, /) -> bytes:
        """Returns a copy of at most `most` bytes of the metadata."""
    def _tensor(self, number: int, /) -> tuple[str, DType, tuple[int, ...], int, int, int]:
        """Returns (name, element type, shape, bytes, offset in the slot, address). Raises IndexError if there is no such
        tensor."""
    def _array(self, number: int, /) -> npt.NDArray[Any] | None:
        """Returns a numpy array that views the tensor and holds a reference to the batch; None: numpy has no such element type."""
    def _view(self, number: int, /) -> View:
        """Returns the tensor's bytes, which hold a reference to the batch."""
    def _capsule(self, number: int, is_versioned: bool, /) -> Any:
        """Returns a DLPack capsule that views the tensor and holds a reference to the batch."""
    def _record_stream(self, address: int, /) -> None:
        """Keeps the memory for the work enqueued on this stream. Raises StateError if the loader has no pool, and LimitError
        beyond four streams."""
    def _release(self) -> None:
        """Releases the object's reference. Raises StaleBatch if it was already released."""

class View:
    """The memory of a tensor, as the owner of an array. It holds a reference to its batch."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

# ---- the worker's side ----

class Worker:
    """A feedlane_worker: the worker's side of a loader, in a worker process."""

    def __new__(cls, descriptor: int, /) -> Worker:
        """Attaches to the trainer. Takes ownership of the descriptor. Raises PeerDead, AbiError or CorruptError."""
    @staticmethod
    def of_thread(loader: Loader, /) -> Worker | None:
        """Makes the calling thread a worker of this process's loader. None: none is missing."""
    @staticmethod
    def descriptor() -> int:
        """Returns the descriptor that the trainer passed to this process; -1: no trainer has started it."""
    def info(self) -> WorkerSetup:
        """Returns the worker's identity and configuration."""
    def ready(self, status: int, text: bytes, /) -> None:
        """Reports that the data set is open (OK), or could not be opened because of `text`."""
    def run(self, glue: _Glue, /) -> None:
        """Makes batches until the trainer no longer needs this worker. A KeyboardInterrupt or SystemExit of the data set ends
        it."""
    def detach(self) -> None:
        """Detaches from the trainer. A second call has no effect."""

class Task:
    """A batch to make, in a worker or inline. Any use after its end raises StateError."""

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
        """The number of rows wanted."""
    @property
    def first(self) -> int:
        """1: the shard of an iterable data set begins; otherwise 0."""
    @property
    def delivered(self) -> int:
        """The number of the shard's samples that were already delivered."""
    @property
    def indices(self) -> list[int]:
        """The data set's index of each row. For an iterable data set it is None, and is not used."""
    @property
    def seeds(self) -> list[int]:
        """A 64-bit seed for each row."""
    def tensor(self, number: int, name: bytes, dtype: DType, shape: tuple[int, ...], /) -> memoryview:
        """Returns a tensor's bytes in the slot, to be written. They are valid as long as the task. Raises LimitError if the
        slot is too small; `needed` is then the slot_bytes required."""
    def metadata(self, blob: bytes, /) -> None:
        """Attaches these bytes to the batch; the last call replaces earlier ones. Raises LimitError as `tensor` does."""
    def sample_failed(self, position: int, text: bytes, is_transient: bool,
                      substitute: Callable[[int, int, int], int | None] | None, /) -> tuple[int, int] | Literal[False] | None:
        """Decides on the failed sample at `position` among the task's indices. Returns the index to try next and the
        nanoseconds to wait before; None: the sample is skipped; False: no policy helps. Also raises exceptions of `substitute`,
        and LimitError if there are too many records."""
    def is_wanted(self) -> bool:
        """Returns False if the batch will be dropped. The call counts as progress for the task's deadline."""
    def commit(self, rows: int, /) -> bool:
        """Delivers the batch. Returns whether it was still wanted. Raises ArgumentError if the batch differs from the
        declaration; the task is then still open."""
    def fail(self, position: int, text: bytes, traceback: bytes, /) -> bool:
        """Fails the batch. position: the row that failed; -1: none. Returns whether the batch was still wanted."""
    def exhausted(self) -> bool:
        """Reports that the shard has no more samples. Returns whether the batch was still wanted."""

class Rows:
    """Makes the batches of a BatchDataset with its `fetch`."""

    def __new__(cls, fields: list[tuple[str, bytes, DType, np.dtype[Any], tuple[int, ...]]], metadata: bytes, /) -> Rows:
        """fields: for each field its name, its name as bytes, DLPack's element type, numpy's element type, and the shape
        without the rows. metadata: attached to each batch."""

class Leaf:
    """A tensor to write into a slot, and the memory that its rows come from; made by `Worker.run`."""

    @property
    def dtype(self) -> DType:
        """Its element type."""
    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, in elements."""
    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
    def fill(self, memory: ReadableBuffer, /) -> None:
        """Writes the tensor to `memory`. Raises ValueError if the size of `memory` differs."""


class Pack:
    """Leaves stored one after the other in a tensor of bytes."""

    def __len__(self) -> int:
        """The number of its leaves."""
    @property
    def dtype(self) -> DType:
        """That of bytes."""
    @property
    def shape(self) -> tuple[int]:
        """The total size, in bytes."""
    def add(self, leaf: collate.AnyLeaf, /) -> int:
        """Adds a leaf. Returns its offset in the tensor, a multiple of 64."""
    def cut(self, count: int, /) -> None:
        """Removes the leaves after the first `count`."""
    def fill(self, memory: ReadableBuffer, /) -> None:
        """Writes all to `memory`. Raises ValueError if the size of `memory` differs, and what a collate.Leaf raises."""
