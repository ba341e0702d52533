# SPDX-License-Identifier: Apache-2.0
"""Handling of a failed sample: it is retried, replaced by another sample, or left out. Each of these outcomes is recorded in
the sample's batch, and the trainer reports it in events()."""
from __future__ import annotations

import operator
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core, errors

if TYPE_CHECKING:
    from .records import Indexed


class Policy(NamedTuple):
    """Loader's arguments for samples that fail. retry_backoff: seconds before the first retry. `substitute`: (index, seed,
    earlier substitutes) -> another index, or None."""

    retries: int
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    retry_backoff: float
    may_skip: bool
    substitute: Callable[[int, int, int], int | None] | None


_MOST_SUBSTITUTES = 16  # for one sample, as in the library's own loop
_LONGEST_PAUSE_S = 3600  # this limit too is the library's
_LOOK_EVERY_S = 0.05


class Abandoned(Exception):
    """The trainer no longer needs the batch."""


def sample(dataset: Indexed, task: _core.Task, position: int, policy: Policy) -> list[Any]:
    """Returns the sample for row `position` of a task, in a list, or an empty list if it is left out. First retries, then takes
    other indices, each with its own retries, then leaves the sample out. If no policy helps, raises the data set's exception.
    Also raises exceptions of `substitute`."""
    index, seed = task.indices[position], task.seeds[position]
    tries = retries = substitutes = 0
    reason: Any = None  # the newest exception
    try:
        while True:
            try:
                found = dataset[index]
                break
            except Exception as failure:
                reason = failure
            if tries < policy.retries and isinstance(reason, policy.retry_on):
                _pause(task, policy.retry_backoff * 2 ** min(tries, 30))
                tries, retries = tries + 1, retries + 1
                continue
            other = _other(policy, index, seed, substitutes, reason)
            if other is not None:
                index, tries, substitutes = other, 0, substitutes + 1
            elif policy.may_skip:
                _record(task, position, _core.SAMPLE_SKIPPED, retries, 0, reason)
                return []
            else:
                if retries:
                    _record(task, position, _core.SAMPLE_RETRIED, retries, 0, reason)
                raise reason
        if substitutes:
            _record(task, position, _core.SAMPLE_SUBSTITUTED, retries, index, reason)
        elif retries:
            _record(task, position, _core.SAMPLE_RETRIED, retries, 0, reason)
        return [found]
    finally:
        reason = None  # its traceback holds this frame


def _other(policy: Policy, index: int, seed: int, tries: int, reason: Exception) -> int | None:
    if policy.substitute is None or tries == _MOST_SUBSTITUTES:
        return None
    try:
        other = policy.substitute(index, seed, tries)
        return None if other is None else operator.index(other)
    except Exception as failure:
        raise failure from reason


def _pause(task: _core.Task, seconds: float) -> None:
    """Waits. Raises Abandoned earlier if the trainer no longer needs this task or this worker. Without workers this is never
    known, because the trainer is waiting."""
    until = time.monotonic() + min(seconds, _LONGEST_PAUSE_S)
    while (left := until - time.monotonic()) > 0:
        if not task.is_wanted():
            raise Abandoned("the trainer no longer waits for this batch")
        time.sleep(min(left, _LOOK_EVERY_S))


def _record(task: _core.Task, position: int, outcome: int, retries: int, other: int, reason: Exception) -> None:
    task.record(position, outcome, retries, other, errors.one_line(reason))
