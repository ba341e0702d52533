# SPDX-License-Identifier: Apache-2.0
"""Data sets whose samples are read by coroutines, for high-latency storage."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .reads import Reads


class AsyncDataset:
    """A map-style data set that reads samples with `async def fetch(index)`. Each worker keeps up to `reads_in_flight` reads in
    flight: of its current batch and of the batches queued behind it. So the loader's `prefetch_factor` batches must hold more
    samples than `reads_in_flight`. A subclass defines `fetch` and `__len__`.

    The coroutines run in their own event loop, in a thread of the worker that starts with the first sample. An exception of
    `fetch` fails only its own sample, when the loader requests that sample. Retries and substitutes start new reads. When a
    worker begins its next batch, it cancels the reads of batches that the trainer gave to another worker or whose epoch was
    ended. When the worker ends, it cancels all reads and then awaits `close`.

    Random augmentation belongs in `__getitem__`, where sample_seed() is known: `augment(super().__getitem__(index))`.
    """

    reads_in_flight: int = 64
    _reads: Reads | None = None

    async def fetch(self, index: int) -> Any:
        """Returns the sample with this index."""
        raise NotImplementedError

    async def open(self) -> None:
        """Awaited before the first `fetch` in each process, for example to open connections. An exception fails each sample."""

    async def close(self) -> None:
        """Awaited after the last `fetch`, if `open` has returned, but not in a worker that is killed."""

    def __getitem__(self, index: int) -> Any:
        from .reads import Reads  # here: asyncio is imported only if it is used
        reads = self._reads
        if reads is None or not reads.is_mine():
            reads = self._reads = Reads(self)
        return reads.sample(index)

    def stop_reads(self) -> None:
        """Cancels all reads, awaits `close` and ends the thread. Workers call it when they end. Call it yourself in a process
        that has read samples without a loader. Reading another sample starts again."""
        reads, self._reads = self._reads, None
        if reads is not None and reads.is_mine():
            reads.stop()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_reads"}
