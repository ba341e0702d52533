# SPDX-License-Identifier: Apache-2.0
"""The iteration over batches, as shared by Loader and Consumer."""
from __future__ import annotations

import functools
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self, TextIO

from . import _core, awaiting, errors, observe, pinned, progress as progress_line, tree

if TYPE_CHECKING:
    from . import _core as core_module
    from .batch import Batch, BatchTensor
    from .records import Plan, Stats, WorkerStats


LOOK_EVERY_NS = 200_000_000
"""How often a wait looks for missing workers, where the program starts them."""


class Event(NamedTuple):
    """Something that happened in a loader. kind: "warning", "worker died", "worker started", "quarantined" and others. worker,
    batch, sample: -1 if the event does not concern one."""

    kind: str
    text: str
    worker: int
    batch: int
    sample: int


class Batches(observe.Observed):
    """Epochs of batches, from a Loader, which makes them, or from a Consumer, which gets them from another process's Loader."""

    timeout: float
    allow_pickle: bool
    name: str | None
    progress: bool | TextIO
    _core: core_module.Loader
    _torch: ModuleType | None
    _pool: pinned.Pool | None
    _streams: bool  # batches are recorded on torch's current stream
    _is_ours: bool = False  # all workers use this package
    _was_told_to_stop = False  # an epoch was over, and its workers were told to end
    _start: Callable[[Any], object] | None = None  # starts a worker, where the program does, see _start_missing
    _asleep: awaiting.Asleep | None = None  # of the task in AsyncEpoch

    # ---- life ----

    def close(self) -> None:
        """Ends the workers and waits for them. Remaining batches and arrays stay valid. The loader cannot be used afterwards; a
        `next` in another thread or task raises StateError. Raises Busy, without effect, if called by the data set or sampler of a
        loader without workers."""
        if self._core is not None:
            self._core.close()
            awaiting.wake(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- epochs ----

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch. Without this call, each iteration adds one."""
        raise NotImplementedError

    def __len__(self) -> int:
        """The number of batches in an epoch. Raises TypeError if it is unknown."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        """Yields an epoch's batches. A batch has the structure of a sample, with arrays of shape [rows, ...] in place of the
        sample's arrays and numbers. Raises StateError if the loader was closed, and Forked if it belongs to the parent process.
        `next` raises Timeout, SlotsHeld, InitError, PeerDead, Quarantined, TooManyRestarts, and SampleError for an exception of
        the data set, which without workers is its cause."""
        return self._cursor(whole=False)

    def batches(self) -> Iterator[Batch]:
        """As __iter__, but yields Batch objects, which the loop releases. They provide a batch's origin and its tensors'
        addresses."""
        return self._cursor(whole=True)

    def __aiter__(self) -> awaiting.AsyncEpoch:
        """As __iter__, for `async for` in asyncio. A task that waits for a batch may be cancelled: the batch is the next one of
        the same iterator. Beginning an epoch, and leaving one early, block the event loop while workers start and end. Without
        workers, so does making a batch."""
        return self._async_cursor(whole=False)

    def abatches(self) -> awaiting.AsyncEpoch:
        """As batches, for `async for` in asyncio."""
        return self._async_cursor(whole=True)

    def _async_cursor(self, whole: bool) -> awaiting.AsyncEpoch:
        cursor = self._cursor(whole, waits=False)
        return awaiting.AsyncEpoch(self, self._core, cursor)

    def fileno(self) -> int:
        """A descriptor for the program's own event loop, which the loader owns, and whose number never changes. Poll it for
        reading while `poll` returns False. Raises StateError after close."""
        return self._core.fileno()

    def poll(self) -> bool:
        """Does the work of `next` without yielding a batch and without waiting. True: `next` does not wait, because a batch, an
        error or the end of the epoch is ready. False: call it again once fileno() is readable. One thread at a time."""
        try:
            if self._start is not None:
                if self._was_told_to_stop and not self._core.is_closed:
                    return True
                if self._core.info()["in_epoch"]:
                    self._start_missing(self._core)
            return self._core.poll()
        except errors.FeedlaneError as exception:
            self._raise(exception)

    def _cursor(self, whole: bool, waits: bool = True) -> Iterator[Any]:
        """waits: `next` waits for a batch, as long as `timeout` allows; otherwise it raises Timeout at once."""
        from_dlpack: Callable[[Any], Any] | None = None
        if self._torch is not None:
            from torch.utils import dlpack as from_torch
            from_dlpack = from_torch.from_dlpack
        core = self._begin()
        awaiting.wake(self)  # a task that waits in the epoch before
        timeout_ns = 0 if not waits else int(self.timeout * 1e9) if self.timeout else _core.FOREVER
        looks = self._start is not None
        if looks and waits:
            timeout_ns = min(timeout_ns, LOOK_EVERY_NS)
        cursor = _core.Cursor(core, _Epoch(self, core, whole, looks and waits), self._load, from_dlpack,
                              timeout_ns, 0, whole or self._streams, looks)
        return self._shown(cursor, core) if self.progress else cursor

    def _shown(self, cursor: core_module.Cursor, core: core_module.Loader) -> Iterator[Any]:
        info = core.info()
        label = f"{self.name} epoch {info['epoch']}" if self.name else f"epoch {info['epoch']}"
        return progress_line.Bar(cursor, lambda: core, progress_line.epoch_of(label, self, info["batch"]), self.progress)

    def _figures(self) -> observe.Figures:
        return self._core

    def _begin(self) -> core_module.Loader:
        """Begins the next epoch."""
        raise NotImplementedError

    def _start_missing(self, core: core_module.Loader) -> bool:
        """If the program starts the workers: calls `start` for each missing one. Returns whether it started any."""
        return False

    def _raise(self, exception: errors.FeedlaneError) -> NoReturn:
        """Raises the library's error."""
        raise exception

    def _stop(self, core: core_module.Loader, turn: int) -> None:
        """The loop has abandoned this epoch."""

    def _is_over(self, core: core_module.Loader) -> None:
        """The epoch is over."""

    @property
    def _load(self) -> Callable[[bytes, int], Plan]:
        """Reads the plan of a batch."""
        return functools.partial(tree.load, allow_pickle=self.allow_pickle, is_ours=self._is_ours)

    def _convert(self, tensor: BatchTensor, owner: int) -> Any:
        if self._torch is not None and owner != tree.NUMPY:
            return tensor.as_torch()
        return tensor.torch() if owner == tree.TORCH else tensor.numpy()

    # ---- state and numbers ----

    def state_dict(self, batch: Batch | None = None) -> dict[str, bytes]:
        """Returns the position in the epoch after the newest batch, or after `batch`, which is one of batches() that was not
        released. A checkpoint taken after that batch must contain this state. Loops that take batches ahead of their use need
        `batch`. Raises StaleBatch if it was released, StateError if it belongs to an earlier epoch, and ArgumentError if it
        belongs to another loader."""
        return {"feedlane": self._core.state(batch)}

    def load_state_dict(self, state: Mapping[str, bytes]) -> None:
        """The next iteration continues with exactly the remaining batches."""
        raise NotImplementedError

    def stats(self) -> Stats:
        """Returns the library's counters, by name: see feedlane_stats in feedlane.h. `rank_source`: the source of a distributed
        sampler's rank, or ""."""
        return self._core.stats()

    def workers(self) -> list[WorkerStats]:
        """Returns a dict for each worker: see feedlane_worker_stats in feedlane.h. The pid of a forked worker is 0 until it has
        attached and the loop has called next or poll since."""
        return observe.workers_of(self._core)

    def events(self) -> list[Event]:
        """Returns the events since the last call, such as deaths, replacements and warnings."""
        return [Event(observe.event_word(kind), text, worker, batch, sample)
                for kind, text, worker, batch, sample in iter(self._core.event, None)]


def closed() -> errors.FeedlaneError:
    """Makes the error for a loader that was closed."""
    return errors.make(_core.E_STATE, "the loader was closed")


class _Epoch:
    """Called by the compiled iterator, see core/cursor.cpp. The epoch ends with this object, or when the next epoch begins."""

    _ended = False

    def __init__(self, loader: Batches, core: _core.Loader, whole: bool, looks: bool) -> None:
        """looks: each wait of the compiled iterator ends after LOOK_EVERY_NS, to look for missing workers."""
        self._loader, self._core, self._turn, self._whole, self._looks = loader, core, core.turn, whole, looks

    def __len__(self) -> int:
        return len(self._loader)

    def end(self) -> None:
        self._ended = True
        self._loader._is_over(self._core)

    def look(self) -> None:
        """Starts missing workers, where the program does it."""
        if not self._ended:
            try:
                self._loader._start_missing(self._core)
            except errors.FeedlaneError as exception:
                self._loader._raise(exception)

    def refuse(self, status: int) -> NoReturn:
        """Raises the error of a `next` that is not allowed now."""
        if self._ended:
            raise StopIteration
        text = "another iteration over this loader has begun" if status == _core.E_STATE else ""
        raise errors.make(status, text)

    def outcome(self, status: int, exception: errors.FeedlaneError, is_again: bool) -> Any:
        """Handles a `next` that got no batch: raises, or returns NotImplemented to wait again. is_again: the previous wait
        ended with this status too."""
        loader = self._loader
        if status == _core.SLOTS_HELD:
            if is_again:
                raise errors.make(status, f"the loop keeps {self._core.stats()['slots_held']} batches or arrays of them, and "
                                  f"there is no slot for another: drop some, copy them, or Loader(held=...)")
            gc.collect()  # perhaps garbage keeps them
            return NotImplemented
        if status == _core.E_PEER_DEAD and exception.worker < 0 and loader._start_missing(self._core):
            return NotImplemented  # all had ended
        if status == _core.TIMEOUT and self._looks:
            if not is_again:
                self._deadline = time.monotonic() + loader.timeout - LOOK_EVERY_NS / 1e9 if loader.timeout else math.inf
            loader._start_missing(self._core)
            if time.monotonic() < self._deadline:
                return NotImplemented
        if status == _core.TIMEOUT:
            raise errors.make(status, f"no batch arrived within {loader.timeout} s")
        if status == _core.E_STATE and self._ended:
            raise StopIteration
        if status == _core.E_STATE and self._core.is_closed:
            raise closed()
        loader._raise(exception)

    def unusual(self, batch: Batch) -> Any:
        """Returns the data of a batch whose plan the compiled iterator does not support."""
        with batch.adopt(self._loader._convert, self._loader._load):
            return batch.data

    def arrived(self, batch: Batch) -> Any:
        """Returns a batch in the form in which it is yielded. Called if Batch objects are requested or streams are recorded."""
        if self._loader._streams and self._loader._pool is not None:
            batch.record_stream(self._loader._pool.current_stream())
        return batch.adopt(self._loader._convert, self._loader._load) if self._whole else self.unusual(batch)

    def __del__(self) -> None:
        if not self._ended:
            try:
                self._loader._stop(self._core, self._turn)
            except errors.FeedlaneError:  # closed just now, or another thread is in a call
                pass
