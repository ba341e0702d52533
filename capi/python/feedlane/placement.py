# SPDX-License-Identifier: Apache-2.0
"""Processors for workers that the library does not start."""
from __future__ import annotations

import os
import re

from . import _core, errors


def cpu_lists(text: str | None) -> list[list[int]]:
    """Reads lists of processors, such as "0-3,8;4-7". Raises ArgumentError, also for a processor that this process may not use."""
    if text is None:
        return []
    lists = []
    for words in text.split(";"):
        ends = [re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", word.strip()) for word in words.split(",")]
        ranges = [range(int(end[1]), int(end[2] or end[1]) + 1) for end in ends if end]
        cpus = [cpu for one in ranges for cpu in one]
        if None in ends or not all(ranges):
            raise _refusal(f"worker_cpus={text!r}: {words!r} is not a list of processors like 0-3,8 (separate lists with ;)")
        lists.append(cpus)
    allowed = os.sched_getaffinity(0)
    if missing := {cpu for cpus in lists for cpu in cpus} - allowed:
        raise _refusal(f"worker_cpus={text!r}: processor {min(missing)} does not exist, or this process may not use it")
    return lists


def _refusal(text: str) -> errors.FeedlaneError:
    return errors.make(_core.E_ARGUMENT, text, argument="config.worker_cpus")
