# SPDX-License-Identifier: Apache-2.0
"""The tasks that are queued behind a worker's current one."""
from __future__ import annotations

from typing import NamedTuple

from . import _core


class Ahead(NamedTuple):
    """A task that is queued behind the current one. id: ascends in the order in which the worker gets its tasks. epoch, batch:
    their numbers. indices: the data set's index of each row. seeds: the sample_seed() of each row."""

    id: int
    epoch: int
    batch: int
    indices: list[int]
    seeds: list[int]


def tasks_ahead(after: int = 0) -> list[Ahead]:
    """Called by a map-style data set in a worker: returns the tasks that were sent to this worker and are queued behind the
    current one, in order, at most prefetch_factor - 1. after: return only tasks with a larger id. The tasks are a hint: each
    arrives with these indices and seeds, or never, if the trainer gives it to another worker or ends the epoch. Elsewhere, and in other
    threads, the list is empty."""
    in_hand = _core.task_id()
    return [] if in_hand is None else [Ahead(*task) for task in _core.tasks(max(after, in_hand))]
