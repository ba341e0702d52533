# SPDX-License-Identifier: Apache-2.0
"""Indices other than integers of 64 bits: keys, tuples, arrays, slices. The library sends batches of integers. Other indices that a
sampler yields are pickled, and the pickle is sent as integers: MARK, the pickle's length in bytes, and the bytes, eight each. So the
library keeps it like any indices, and sends it again when a worker dies.

A batch of integers that begins with MARK is pickled too, so that it is never mistaken for a pickle."""
from __future__ import annotations

import array
import pickle
from collections.abc import Sequence
from typing import Any

MARK = -2**63  # payload_mark of core/work.cpp
_HEAD = 2
LARGEST = 1 << 16  # integers of a batch whose size is not known before


def sent(wanted: Any, is_batch: bool, most: int = LARGEST) -> Sequence[int]:
    """The integers that the library sends of an index, or of a batch of indices: at most `most`. See `packed`."""
    if not is_batch:
        return (wanted,) if _is_plain(wanted) else packed(wanted, 1, most)
    rows = len(wanted) if hasattr(wanted, "__len__") else 1
    if rows > most:
        raise ValueError(f"a batch of {rows} indices, {most} at most: give the batch sampler an attribute batch_size")
    if type(wanted) is list and wanted and all(map(_is_plain, wanted)):
        return wanted
    return packed(wanted, rows, most)


def _is_plain(index: Any) -> bool:
    return type(index) is int and MARK < index < 2**63


def packed(index: Any, rows: int, most: int = LARGEST) -> array.array[int]:
    """The same of an index, or of a batch of indices for `rows` samples, pickled. What pickle raises. ValueError: too long."""
    blob = pickle.dumps(index, pickle.HIGHEST_PROTOCOL)  # multiprocessing's would send some things once only
    words = array.array("q", (MARK, len(blob)))
    words.frombytes(blob.ljust(max(-(-len(blob) // 8), rows - _HEAD, 1) * 8, b"\0"))  # as many as there are rows, or more
    if len(words) > most:
        raise ValueError(f"the indices of a batch take {len(blob)} bytes pickled, {(most - _HEAD) * 8} at most: let the sampler yield "
                         "short keys, and look the rest up in the data set")
    return words


def unpacked(words: Sequence[int]) -> Any:
    """What `packed` was given; `words` themselves are a batch of integers."""
    if words[0] != MARK:
        return words
    return pickle.loads(memoryview(array.array("q", words[_HEAD:])).cast("B")[:words[1]])
