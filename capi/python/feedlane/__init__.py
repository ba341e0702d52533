# SPDX-License-Identifier: Apache-2.0
"""Feedlane for Python: worker processes make batches in shared memory, and the trainer uses them in place. See ../README.md."""
import typing as _typing

from . import _library

_absent = _library.load()  # why the runtime can't run here: then DataLoader is torch's, and there is nothing else
if not _absent:
    from . import _core as _compiled
    __version__ = _compiled.VERSION
    from . import samplers as samplers
    from .ahead import Ahead as Ahead, tasks_ahead as tasks_ahead
    from .arena import Arena as Arena, Cached as Cached, Reservation as Reservation, cached as cached
    from .async_dataset import AsyncDataset as AsyncDataset
    from .batch_dataset import BatchDataset as BatchDataset
    from .batch import Batch as Batch, BatchTensor as BatchTensor, Stamps as Stamps
    from .consumer import Consumer as Consumer, join as join
    from .errors import (AbiError as AbiError, ArgumentError as ArgumentError, Busy as Busy, CorruptError as CorruptError,
                         DeviceError as DeviceError, FeedlaneError as FeedlaneError, Forked as Forked, Hung as Hung,
                         InitError as InitError, LimitError as LimitError, OutOfMemory as OutOfMemory, PeerDead as PeerDead,
                         Quarantined as Quarantined, ReadOnlyWarning as ReadOnlyWarning, SampleError as SampleError,
                         SlotsHeld as SlotsHeld, StaleBatch as StaleBatch, StateError as StateError, SystemCallError as SystemCallError, Timeout as Timeout,
                         TooManyRestarts as TooManyRestarts, Unsupported as Unsupported)
    from .feeding import ConsumerStats as ConsumerStats, Place as Place
    from .image_folder import ImageFolder as ImageFolder
    from .iteration import Batches as Batches, Event as Event
    from .live import Live as Live
    from .loader import Loader as Loader
    from .maker import (WorkerInfo as WorkerInfo, get_shard as get_shard, get_worker_info as get_worker_info,
                        sample_seed as sample_seed)
    from .observe import Monitor as Monitor
    from .pinned import Pool as Pool
    from .ring import Messages as Messages, Receiver as Receiver, Sender as Sender
    from .samplers import Rank as Rank, Sampler as Sampler, rank_detect as rank_detect
    from .worker import run_worker as run_worker, worker_main as worker_main
else:
    from .fallback import VERSION as __version__

if _typing.TYPE_CHECKING:
    from .dataloader import DataLoader as DataLoader


def __getattr__(name: str) -> _typing.Any:
    """DataLoader needs torch; the rest of the package does not."""
    if name == "DataLoader":
        if _absent:
            from . import fallback
            globals()[name] = fallback.data_loader(_absent)
        else:
            from . import dataloader
            globals()[name] = dataloader.DataLoader
        return globals()[name]
    if _absent and not name.startswith("__"):
        raise ImportError(f"feedlane.{name} is not available here, because feedlane can't run: {_absent}")
    raise AttributeError(f"module 'feedlane' has no attribute {name!r}")
