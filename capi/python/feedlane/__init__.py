# SPDX-License-Identifier: Apache-2.0
"""Feedlane for Python: batches made by worker processes in shared memory, used where they lie. See ../README.md."""
from . import _library

_library.load()
from . import samplers  # noqa: E402
from .batch import Batch, BatchTensor
from .errors import (AbiError, ArgumentError, Busy, CorruptError, DeviceError, FeedlaneError, Forked, Hung, InitError,
                     LimitError, OutOfMemory, PeerDead, Quarantined, SampleError, SlotsHeld, StaleBatch, StateError,
                     SystemCallError, Timeout, TooManyRestarts, Unsupported)
from .loader import Event, Loader
from .maker import WorkerInfo, get_worker_info, sample_seed
from .pinned import Pool
from .samplers import Rank, Sampler, rank_detect


def __getattr__(name):
    """DataLoader needs torch, which the rest does without."""
    if name == "DataLoader":
        from .dataloader import DataLoader
        return DataLoader
    raise AttributeError(f"module 'feedlane' has no attribute {name!r}")
