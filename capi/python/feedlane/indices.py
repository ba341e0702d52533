# SPDX-License-Identifier: Apache-2.0
"""Indices other than 64-bit integers: keys, tuples, arrays, slices. The library only sends batches of integers. Other indices
of a sampler are pickled, and the pickle is sent as integers: MARK, the length of the pickle in bytes, then its bytes, eight per
integer. So the library stores these integers like any indices, and sends them again when a worker dies.

A batch of integers that begins with MARK is pickled too, so that it is never mistaken for a pickle."""
from __future__ import annotations

import array
import pickle
from collections.abc import Sequence
from typing import Any

MARK = -2**63  # payload_mark of core/work.cpp
_HEAD = 2
LARGEST = 1 << 16  # most integers of a batch whose size is not known in advance


def sent(wanted: Any, is_batch: bool, most: int = LARGEST) -> Sequence[int]:
    """Returns the integers, at most `most`, that the library sends for an index or a batch of indices. See `packed`."""
    if not is_batch:
        return (wanted,) if _is_plain(wanted) else packed(wanted, 1, most)
    rows = len(wanted) if hasattr(wanted, "__len__") else 1
    if rows > most:
        raise ValueError(f"the batch sampler yielded {rows} indices, but at most {most} are allowed: give it an "
                         f"attribute batch_size")
    if type(wanted) is list and wanted and all(map(_is_plain, wanted)):
        return wanted
    return packed(wanted, rows, most)


def _is_plain(index: Any) -> bool:
    return type(index) is int and MARK < index < 2**63


def packed(index: Any, rows: int, most: int = LARGEST) -> array.array[int]:
    """Pickles an index, or the indices of a batch of `rows` samples, and returns the pickle as integers. Raises pickle's
    errors, and ValueError if the pickle is too long."""
    blob = pickle.dumps(index, pickle.HIGHEST_PROTOCOL)  # not by multiprocessing, some of whose pickles can be read only once
    words = array.array("q", (MARK, len(blob)))
    words.frombytes(blob.ljust(max(-(-len(blob) // 8), rows - _HEAD, 1) * 8, b"\0"))  # at least one integer per row
    if len(words) > most:
        raise ValueError(f"the indices of a batch take {len(blob)} bytes pickled, but at most {(most - _HEAD) * 8} are allowed: yield "
                         "short keys, and look the rest up in the data set")
    return words


def unpacked(words: Sequence[int]) -> Any:
    """Reverses `packed`. A batch of plain integers is returned unchanged."""
    if words[0] != MARK:
        return words
    return pickle.loads(memoryview(array.array("q", words[_HEAD:])).cast("B")[:words[1]])
