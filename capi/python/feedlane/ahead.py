# SPDX-License-Identifier: Apache-2.0
"""What a worker is to make after the batch in hand."""
from __future__ import annotations

from typing import NamedTuple

from . import _core


class Ahead(NamedTuple):
    """A task that waits behind the one in hand. id: ascends in the order in which the worker gets its tasks. epoch, batch: their
    numbers. indices: the data set's index of each row."""

    id: int
    epoch: int
    batch: int
    indices: list[int]


def tasks_ahead(after: int = 0) -> list[Ahead]:
    """In a map-style data set, in a worker: the tasks that were sent to this worker already and wait behind the one in hand, at most
    prefetch_factor - 1, in order. after: only those with a larger id. They are a hint: each one comes with these indices, or never,
    if the trainer gives it to another worker or ends the epoch. Empty in any other place, in other threads too."""
    in_hand = _core.task_id()
    return [] if in_hand is None else [Ahead(*task) for task in _core.tasks(max(after, in_hand))]
