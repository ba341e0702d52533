# SPDX-License-Identifier: Apache-2.0
"""Data sets that write complete batches in place."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from . import _core, collate, dtypes, tree

if TYPE_CHECKING:
    import numpy.typing as npt


class BatchDataset:
    """A map-style data set whose `fetch` writes all rows of a batch directly into the memory that the trainer reads, without
    one call and one array per sample. It needs Loader(fields=...) and excludes collate_fn, retries, substitute and skip_budget.
    A batch is a dict of the fields. A subclass defines `fetch` and `__len__`.

    numpy's functions write in place with their argument `out`:

        def fetch(self, indices, seeds, out):
            np.take(self.tokens, indices, axis=0, out=out["tokens"], mode="clip")
    """

    def fetch(self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64], out: dict[str, npt.NDArray[Any]]) -> None:
        """Writes row r of each array in `out`, of shape (rows, *shape of the field), for sample indices[r]. `seeds` has one
        seed per row, the one that sample_seed() returns in other data sets: it is the same in any worker, and after a crash or
        a resume. `indices` and `seeds` are read-only.

        When `fetch` returns, all arrays belong to the loader again. Keeping an array fails the batch. Do not use the
        `base` of an array: it belongs to the loader.

        An exception fails the batch, and its traceback then has no local variables. To name the sample that failed, raise
        feedlane.SampleError(text, sample=indices[r]): the trainer's SampleError has this `sample`."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> NoReturn:
        """Raises TypeError, because there are only batches."""
        raise TypeError("a BatchDataset has no single samples: use it with Loader(fields=...)")


def check(dataset: object, *, fields: bool, batched: bool, iterable: bool, collate_fn: bool, policy: bool) -> None:
    """Raises ValueError if a Loader's arguments are not allowed with a BatchDataset."""
    if not isinstance(dataset, BatchDataset):
        return
    if iterable:
        raise ValueError("a BatchDataset cannot be an iterable data set")
    if not fields:
        raise ValueError("a BatchDataset needs fields, the arrays that it writes")
    if not batched:
        raise ValueError("batch_size=None is not allowed with a BatchDataset")
    if collate_fn:
        raise ValueError("collate_fn is not allowed with a BatchDataset, which makes batches itself")
    if policy:
        raise ValueError("retries, substitute and skip_budget are not allowed with a BatchDataset, which has no single samples")


def rows_of(dataset: Any, declared: Sequence[tuple[Any, ...]] | None) -> _core.Rows | None:
    """Returns the object that makes a BatchDataset's batches; None: the data set is of another kind. declared: (name, numpy
    dtype, shape) of each field."""
    if not isinstance(dataset, BatchDataset) or not declared:
        return None
    fields = []
    for name, dtype, shape in declared:
        code, stored = dtypes.of_numpy(dtype)
        fields.append((name, name.encode(), code, np.dtype(stored), tuple(shape)))
    return _core.Rows(fields, plan_of(declared))


def plan_of(declared: Sequence[tuple[Any, ...]]) -> bytes:
    """Returns the metadata of each batch of a BatchDataset."""
    sample = {name: np.empty(shape, dtypes.of_numpy(dtype)[1]) for name, dtype, shape in declared}
    return tree.dump(collate.batch([sample], collate.Leaves(packs=False)))
