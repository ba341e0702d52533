# SPDX-License-Identifier: Apache-2.0
"""What becomes of a sample that fails: made by another try, replaced by another one, or left out. Each leaves a record with
its batch, and the trainer hears of it in events()."""
import operator
import time
from collections import namedtuple

from . import _core, errors

# `substitute`: (index, seed, tries before this one) -> another index, or None.
Policy = namedtuple("Policy", "retries retry_on retry_backoff may_skip substitute")

_MOST_SUBSTITUTES = 16  # for one sample, as in the library's own loop
_LONGEST_PAUSE_S = 3600  # and this too
_LOOK_EVERY_S = 0.05


class Abandoned(Exception):
    """Nobody wants the batch any more."""


def sample(dataset, task, position, policy):
    """The sample for row `position` of a task: a list of it, or of nothing if it is left out. What the data set raised, if no
    policy helps: first retries, then other indices with retries of their own, then leaving it out. What `substitute` raises
    is raised as it is."""
    index, seed = task.indices[position], task.seeds[position]
    tries = retries = substitutes = 0
    reason = None
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


def _other(policy, index, seed, tries, reason):
    if policy.substitute is None or tries == _MOST_SUBSTITUTES:
        return None
    try:
        other = policy.substitute(index, seed, tries)
        return None if other is None else operator.index(other)
    except Exception as failure:
        raise failure from reason


def _pause(task, seconds):
    """Ends early, by Abandoned, when the trainer wants no more of this task, or nothing at all. Without workers that is never
    known: the trainer is waiting."""
    until = time.monotonic() + min(seconds, _LONGEST_PAUSE_S)
    while (left := until - time.monotonic()) > 0:
        if not task.is_wanted():
            raise Abandoned("nobody waits for this batch any more")
        time.sleep(min(left, _LOOK_EVERY_S))


def _record(task, position, outcome, retries, other, reason):
    task.record(position, outcome, retries, other, errors.one_line(reason))
