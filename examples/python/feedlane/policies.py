# SPDX-License-Identifier: Apache-2.0
"""What becomes of a sample that fails: made by another try, replaced by another one, or left out. Each leaves a record with
its batch, and the trainer hears of it in events()."""
import time
from collections import namedtuple

from . import _abi, errors

# `substitute`: (index, seed, tries before this one) -> another index, or None.
Policy = namedtuple("Policy", "retries retry_on retry_backoff may_skip substitute")

_MOST_SUBSTITUTES = 16  # for one sample, as in the library's own loop


def sample(dataset, task, position, policy):
    """The sample for row `position` of a task: a list of it, or of nothing if it is left out. What the data set raised, if no
    policy helps: first retries, then other indices with retries of their own, then leaving it out."""
    index, seed = task.indices[position], task.seeds[position]
    tries = retries = substitutes = 0
    reason = None
    while True:
        try:
            found = dataset[index]
            break
        except Exception as failure:
            reason = failure
        if tries < policy.retries and isinstance(reason, policy.retry_on):
            time.sleep(policy.retry_backoff * 2**tries)
            tries, retries = tries + 1, retries + 1
            continue
        other = None
        if policy.substitute is not None and substitutes < _MOST_SUBSTITUTES:
            other = policy.substitute(index, seed, substitutes)
        if other is not None:
            index, tries, substitutes = other, 0, substitutes + 1
        elif policy.may_skip:
            _record(task, position, _abi.SAMPLE_SKIPPED, retries, 0, reason)
            return []
        else:
            if retries:
                _record(task, position, _abi.SAMPLE_RETRIED, retries, 0, reason)
            raise reason
    if substitutes:
        _record(task, position, _abi.SAMPLE_SUBSTITUTED, retries, index, reason)
    elif retries:
        _record(task, position, _abi.SAMPLE_RETRIED, retries, 0, reason)
    return [found]


def _record(task, position, outcome, retries, other, reason):
    text = f"{type(reason).__name__}: {reason}".encode().replace(b"\0", b"?")
    room = errors.ErrorRoom.shared()
    status = _abi.library.feedlane_task_record(task, position, outcome, _abi.E_SAMPLE, retries, other, text, room.struct)
    errors.check(status, room)
