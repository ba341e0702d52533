# SPDX-License-Identifier: Apache-2.0
"""Types for annotations: arguments and results that are plain dicts or tuples, or user-defined objects. Counters have the names
of feedlane.h, which describes them."""
from __future__ import annotations

from typing import Any, Literal, Protocol, TypedDict

DType = tuple[int, int]
"""An element type in DLPack's form: (code, bits)."""

Plan = tuple[Any, ...]
"""The structure of a batch: a kind, the data of that kind, the plans of its children. See tree.py."""


class Indexed(Protocol):
    """A map-style data set. It also has `__len__`, unless a sampler determines the indices."""

    def __getitem__(self, index: int, /) -> Any:
        """Returns the sample at this index."""


class Stats(TypedDict):
    """Counters of a loader (feedlane_stats). Names ending in _ns are nanoseconds, names ending in _bytes are bytes.
    rank_source: the source of a distributed sampler's rank, or ""."""

    batches: int
    samples: int
    bytes: int
    epochs: int
    wait_ns: int
    restarts: int
    redispatched: int
    quarantined: int
    invalid_results: int
    late_results: int
    slots: int
    slots_free: int
    slots_held: int
    control_bytes: int
    data_bytes: int
    reserved_bytes: int
    retried: int
    substituted: int
    skipped: int
    hung: int
    rank_source: str
    huge_bytes: int
    start_wait_ns: int
    restarts_signal: int
    restarts_exit: int
    restarts_hung: int
    restarts_invalid: int
    restarts_unattached: int


class ConsumerCounters(TypedDict):
    """A consumer, as its feeder sees it (feedlane_consumer_stats)."""

    id: int
    state: int
    pid: int
    lag: int
    delivered: int
    taken_back: int
    waiting: int
    held: int


class WorkerStats(TypedDict):
    """Counters of a worker (feedlane_worker_stats)."""

    pid: int
    state: int
    generation: int
    tasks: int
    samples: int
    bytes: int
    errors: int
    work_ns: int
    wait_ns: int
    state_since_ns: int
    task_since_ns: int
    epoch: int
    batch: int
    row: int


class LoaderInfo(TypedDict):
    """Facts about a loader, and its position in the epoch (feedlane_loader_info)."""

    pid: int
    created_ns: int
    start: int
    workers: int
    prefetch_factor: int
    held: int
    batch_size: int
    task_timeout_ns: int
    iterable: int
    in_epoch: int
    epoch: int
    batch: int
    batches: int
    begun_ns: int
    yielded_ns: int
    waiting_since_ns: int
    trace: int
    name: str
    version: str
    next_epoch: int


class Histogram(TypedDict):
    """A histogram of durations (feedlane_histogram). buckets[0] counts durations of 0 ns, buckets[b] durations of 2**(b-1) to
    2**b - 1 ns, the last bucket all longer ones."""

    count: int
    sum_ns: int
    buckets: list[int]


class Percentiles(TypedDict):
    """The durations that half, 90 % and 99 % of all durations did not exceed, accurate to an eighth; 0: there are none
    (feedlane_percentiles)."""

    p50_ns: int
    p90_ns: int
    p99_ns: int


class Timings(TypedDict):
    """Durations of the steps of batches (feedlane_timings)."""

    exposed: Histogram
    start: Histogram
    queue: Histogram
    work: Histogram
    ready: Histogram
    hold: Histogram
    exposed_percentiles: Percentiles
    start_percentiles: Percentiles
    queue_percentiles: Percentiles
    work_percentiles: Percentiles
    ready_percentiles: Percentiles
    hold_percentiles: Percentiles


class BatchRecord(TypedDict):
    """A batch and its stamps in the trace (feedlane_batch_record). Stamp 0: the step has not happened."""

    sequence: int
    task: int
    epoch: int
    batch: int
    worker: int
    attempt: int
    slot: int
    status: int
    rows: int
    bytes: int
    dispatched_ns: int
    begun_ns: int
    committed_ns: int
    swept_ns: int
    yielded_ns: int
    released_ns: int
    exposed_ns: int


class ErrorRecord(TypedDict):
    """Errors or events of one kind whose texts differ only in numbers (feedlane_error_record). kind: a word."""

    kind: str
    code: int
    worker: int
    batch: int
    sample: int
    count: int
    first_ns: int
    last_ns: int
    text: str


Bound = Literal["nothing", "trainer", "data", "worker", "slots", "starting", "processors"]
"""The bottleneck of a run (FEEDLANE_BOUND_*)."""


class Diagnosis(TypedDict):
    """The bottleneck of a run in an interval, with figures (feedlane_diagnosis)."""

    bound: Bound
    worker: int
    interval_ns: int
    batches: int
    samples: int
    bytes: int
    exposed_ns: int
    start_ns: int
    busy_ns: int
    ready: int
    asked: int
    text: str
    advice: str


class PoolStats(TypedDict):
    """Counters of a pool (feedlane_pool_stats)."""

    buffers: int
    in_use: int
    pending: int
    registered_bytes: int
    acquired: int
    waited_ns: int
    failures: int


class StateInfo(TypedDict):
    """The contents of a loader's saved state (feedlane_state_info)."""

    epoch: int
    batch: int
    samples: int
    base_seed: int
    ended: int
    iterable: int


class RankInfo(TypedDict):
    """The rank of this process and the number of ranks (feedlane_rank)."""

    rank: int
    world: int
    source: str
    warning: str


class WorkerSetup(TypedDict):
    """A worker's identity and configuration (feedlane_worker_info). fields: (name, element type, shape) of each declared field.
    config: the bytes that the trainer passed for it."""

    iterable: int
    drop_last: int
    fields: tuple[tuple[str, DType, tuple[int, ...]], ...]
    id: int
    count: int
    generation: int
    seed: int
    epoch: int
    rank: int
    world: int
    shard: int
    shards: int
    config: bytes
