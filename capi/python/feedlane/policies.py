# SPDX-License-Identifier: Apache-2.0
"""What becomes of a sample that fails: made by another try, replaced by another one, or left out. Each leaves a record with
its batch, and the trainer hears of it in events()."""
from __future__ import annotations

import operator
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core, errors

if TYPE_CHECKING:
    from .records import Indexed


class Policy(NamedTuple):
    """What Loader's arguments say of samples that fail. retry_backoff: seconds before the first retry. `substitute`: (index,
    seed, tries before this one) -> another index, or None."""

    retries: int
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    retry_backoff: float
    may_skip: bool
    substitute: Callable[[int, int, int], int | None] | None


_MOST_SUBSTITUTES = 16  # for one sample, as in the library's own loop
_LONGEST_PAUSE_S = 3600  # and this too
_LOOK_EVERY_S = 0.05


class Abandoned(Exception):
    """Nobody wants the batch any more."""


def sample(dataset: Indexed, task: _core.Task, position: int, policy: Policy) -> list[Any]:
    """The sample for row `position` of a task: a list of it, or of nothing if it is left out. What the data set raised, if no
    policy helps: first retries, then other indices with retries of their own, then leaving it out. What `substitute` raises
    is raised as it is."""
    index, seed = task.indices[position], task.seeds[position]
    tries = retries = substitutes = 0
    reason: Any = None  # what the newest try has raised
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
    """Ends early, by Abandoned, when the trainer wants no more of this task, or nothing at all. Without workers that is never
    known: the trainer is waiting."""
    until = time.monotonic() + min(seconds, _LONGEST_PAUSE_S)
    while (left := until - time.monotonic()) > 0:
        if not task.is_wanted():
            raise Abandoned("nobody waits for this batch any more")
        time.sleep(min(left, _LOOK_EVERY_S))


def _record(task: _core.Task, position: int, outcome: int, retries: int, other: int, reason: Exception) -> None:
    task.record(position, outcome, retries, other, errors.one_line(reason))
