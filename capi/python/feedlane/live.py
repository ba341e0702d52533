# SPDX-License-Identifier: Apache-2.0
"""A live sampler: threads and coroutines add indices while a Loader takes them."""
from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Iterator, Sequence

_END = object()


class Live:
    """A sampler for requests, sensors and growing files. Loader(sampler=Live()) puts the indices that `put` adds into batches of
    its batch_size; a batch waits until it is full or the epoch ends. Loader(batch_sampler=Live(batch_size=8)) makes one batch of
    each list that `put` adds. While there are none, the loop over the Loader waits. One loader at a time takes from it."""

    def __init__(self, batch_size: int | None = None) -> None:
        """batch_size: the most indices that a list may have. None: for single indices. Raises OSError if there is no free
        descriptor."""
        self.batch_size = batch_size
        self._added: collections.deque[object] = collections.deque()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def put(self, index: int | Sequence[int]) -> None:
        """Adds an index or, with `batch_size`, the list of a batch. Never waits. Any thread may call it."""
        self._added.append(index)
        os.eventfd_write(self._fd, 1)

    def end(self) -> None:
        """Ends the epoch after what was added so far. What is added afterwards is for the next epoch. Any thread may call it."""
        self._added.append(_END)
        os.eventfd_write(self._fd, 1)

    def fileno(self) -> int:
        """The descriptor that is readable after `put` and `end`."""
        return self._fd

    def __iter__(self) -> Iterator[object]:
        """Yields what was added, and None if there is nothing now."""
        while True:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._fd)  # before it looks: what is added after the look makes it readable again
            while self._added:
                item = self._added.popleft()
                if item is _END:
                    return
                yield item
            yield None
