# SPDX-License-Identifier: Apache-2.0
"""Types for annotations: what the package takes and returns that is a plain dict or tuple, or an object of the user's. Names of
counters are those of feedlane.h, where each is described."""
from __future__ import annotations

from typing import Any, Literal, Protocol, TypedDict

DType = tuple[int, int]
"""An element type as DLPack has it: (code, bits)."""

Plan = tuple[Any, ...]
"""What holds the tensors of a batch together: a kind, what that kind needs, the plans of its children. See tree.py."""


class Indexed(Protocol):
    """A map-style data set. It has `__len__` too, unless a sampler says which indices there are."""

    def __getitem__(self, index: int, /) -> Any:
        """The sample at this index."""


class Stats(TypedDict):
    """Counters of a loader (feedlane_stats). Names that end in _ns are nanoseconds, in _bytes bytes. rank_source is what said the
    rank of a distributed sampler, or ""."""

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
    """What a loader is, and where its epoch stands (feedlane_loader_info)."""

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


class Histogram(TypedDict):
    """How often which duration occurred (feedlane_histogram). buckets[0] counts durations of 0 ns, buckets[b] those of 2**(b-1) to
    2**b - 1 ns, the last one all longer ones."""

    count: int
    sum_ns: int
    buckets: list[int]


class Percentiles(TypedDict):
    """How long one half, 90 % and 99 % of the durations lasted at most, to an eighth; 0: there are none (feedlane_percentiles)."""

    p50_ns: int
    p90_ns: int
    p99_ns: int


class Timings(TypedDict):
    """How long the steps of batches took (feedlane_timings)."""

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
    """A batch and its stamps, in the trace (feedlane_batch_record). A stamp of 0 has not happened."""

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


Bound = Literal["nothing", "trainer", "data", "worker", "slots", "starting", "processors"]
"""What bounds a run (FEEDLANE_BOUND_*)."""


class Diagnosis(TypedDict):
    """What bounded a run for some time, and why (feedlane_diagnosis)."""

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
    """What a loader's saved state says of itself (feedlane_state_info)."""

    epoch: int
    batch: int
    samples: int
    base_seed: int
    ended: int
    iterable: int


class RankInfo(TypedDict):
    """Which process of how many this is (feedlane_rank)."""

    rank: int
    world: int
    source: str
    warning: str


class WorkerSetup(TypedDict):
    """What the library tells a worker (feedlane_worker_info). config: the bytes that the trainer passed for it."""

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
