# SPDX-License-Identifier: Apache-2.0
"""Data sets whose samples are read by coroutines, for high-latency storage."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .reads import Reads


class AsyncDataset:
    """A map-style data set that reads samples by `async def fetch(index)`. Each worker keeps up to `reads_in_flight` reads going: of
    the batch in hand and of those behind it, so that Loader(prefetch_factor=) batches must hold more samples than that. A subclass
    has `fetch` and `__len__`.

    The coroutines run in an event loop of their own, in a thread of the worker that starts with the first sample. What `fetch`
    raises fails its sample alone, when that is asked for; the loader's retries and substitutes read anew. Reads of batches that
    never come, because the trainer gave them to another worker or ended their epoch, are cancelled when the next batch is begun.
    When the worker ends all reads are cancelled, then `close` is awaited.

    Random augmentation belongs in `__getitem__`, where sample_seed() is known: `augment(super().__getitem__(index))`.
    """

    reads_in_flight: int = 64
    _reads: Reads | None = None

    async def fetch(self, index: int) -> Any:
        """The sample of this index."""
        raise NotImplementedError

    async def open(self) -> None:
        """Before the first `fetch`, in each process: connections belong here. What it raises fails each sample."""

    async def close(self) -> None:
        """After the last `fetch`, if `open` has returned. Not in a worker that is killed."""

    def __getitem__(self, index: int) -> Any:
        from .reads import Reads
        reads = self._reads
        if reads is None or not reads.is_mine():
            reads = self._reads = Reads(self)
        return reads.sample(index)

    def stop_reads(self) -> None:
        """Cancels all reads, awaits `close` and ends the thread. Workers call it at their end; call it in a process that has asked
        for samples by itself. A later sample starts anew."""
        reads, self._reads = self._reads, None
        if reads is not None and reads.is_mine():
            reads.stop()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_reads"}
