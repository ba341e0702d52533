# SPDX-License-Identifier: Apache-2.0
"""Handling of a failed sample: the library decides whether it is retried, replaced by another sample, or skipped."""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from . import errors

if TYPE_CHECKING:
    from . import _core
    from .records import Indexed

_LOOK_EVERY_S = 0.05


class Policy(NamedTuple):
    """Loader's arguments that a worker needs. `substitute`: (index, seed, earlier substitutes) -> another index, or None."""

    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    substitute: Callable[[int, int, int], int | None] | None


class Abandoned(Exception):
    """The trainer no longer needs the batch."""


def sample(dataset: Indexed, task: _core.Task, position: int, policy: Policy) -> list[Any]:
    """Returns the sample for row `position` of a task, in a list, or an empty list if it is skipped. Raises the data set's
    exception if no policy helps. Also raises exceptions of `substitute`."""
    index = task.indices[position]
    reason: Any = None  # the newest exception
    try:
        while True:
            try:
                return [dataset[index]]
            except Exception as failure:
                reason = failure
            may_succeed = isinstance(reason, policy.retry_on)
            try:
                decided = task.sample_failed(position, errors.one_line(reason), may_succeed, policy.substitute)
            except Exception as failure:
                raise failure from reason
            if decided is None:
                return []
            if decided is False:
                raise reason
            index, wait_ns = decided
            pause(task, wait_ns / 1e9)
    finally:
        reason = None  # its traceback holds this frame


def pause(task: _core.Task, seconds: float) -> None:
    """Waits. Raises Abandoned earlier if the trainer no longer needs this task or this worker. Without workers this is never
    known, because the trainer is waiting."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if not task.is_wanted():
            raise Abandoned("the trainer no longer waits for this batch")
        time.sleep(min(left, _LOOK_EVERY_S))
