# SPDX-License-Identifier: Apache-2.0
"""Loaders without workers: the library calls back for each batch, in the thread that is in `next`. See core/callbacks.cpp."""
from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from . import errors, maker

if TYPE_CHECKING:
    from . import _core


class Inline:
    """The data set's side, over a maker. Keeps the data set's exceptions for the loader."""

    interruption: BaseException | None = None  # raised by a signal handler outside the data set's code

    _failure: BaseException | None

    def __init__(self, batches: maker.Maker) -> None:
        self._batches, self._failure, self._begins = batches, None, False
        self.rows, self.dataset = batches.rows, batches.job.dataset

    def take_failure(self) -> BaseException | None:
        """Returns the data set's exception since the last call, or None."""
        failure, self._failure = self._failure, None
        return failure

    def restart(self) -> None:
        """An epoch begins: its first batch starts a new iteration of the data set."""
        self._begins = True  # with the first batch, as in a worker: a failure belongs to that batch

    def fetch(self, task: _core.Task) -> int | None:
        """Writes the batch and returns its number of rows. None: an iterable data set has ended."""
        if not self._batches.job.iterable:
            return self._batches.make(task)
        with maker.inline_shard(self._batches.job):
            if self._begins:
                self._begins = False
                self._batches.restart()
            return self._batches.make(task) or None

    def failed(self, reason: BaseException) -> tuple[bytes, bytes, int]:
        """Returns text, traceback and sample (-1: none) for the library."""
        self._failure = reason = self._batches.in_words(reason)
        if isinstance(reason, maker.SampleFailed):
            reason = reason.__cause__ or reason
        said = errors.one_line(reason), errors.story(reason), errors.named_sample(reason)
        if self.rows is not None:
            _forget_arrays(reason)
        return said


def _forget_arrays(reason: BaseException | None) -> None:
    """Clears the frames of an exception of a BatchDataset. They hold arrays over the slot, which is reused, and whose memory
    may be unmapped while the exception still exists."""
    seen = set()
    while reason is not None and id(reason) not in seen:
        seen.add(id(reason))
        traceback.clear_frames(reason.__traceback__)
        reason = reason.__cause__ or reason.__context__
