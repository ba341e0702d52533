# SPDX-License-Identifier: Apache-2.0
"""Data sets that write whole batches in place."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from . import _core, collate, dtypes, tree

if TYPE_CHECKING:
    import numpy.typing as npt

    from .maker import Job


class BatchDataset:
    """A map-style data set whose `fetch` writes the rows of a whole batch straight into the memory that the trainer reads, without
    a call and an array for each sample. For Loader(fields=...), without collate_fn, retries, substitute and skip_budget. A batch is
    a dict of the fields. A subclass has `fetch` and `__len__`.

    numpy's functions write in place by their argument `out`:

        def fetch(self, indices, seeds, out):
            np.take(self.tokens, indices, axis=0, out=out["tokens"], mode="clip")
    """

    def fetch(self, indices: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64], out: dict[str, npt.NDArray[Any]]) -> None:
        """Writes row r of each array of `out`, of shape (rows, *shape of the field), for sample indices[r]. `seeds`: of each row,
        what sample_seed() is elsewhere: the same in any worker, after a crash and a resume too. `indices` and `seeds` can't be
        written. All arrays are the loader's again when this returns: one that is kept fails the batch. So does what it raises, whose
        traceback has no local variables then. What an array is a view of (its `base`) is the loader's, to be left alone."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> NoReturn:
        """TypeError: there are only batches."""
        raise TypeError("a BatchDataset makes whole batches: it is for Loader(fields=...)")


def check(dataset: object, *, fields: bool, batched: bool, iterable: bool, collate_fn: bool, policy: bool) -> None:
    """ValueError: a Loader's arguments that don't go with a BatchDataset."""
    if not isinstance(dataset, BatchDataset):
        return
    if iterable:
        raise ValueError("a BatchDataset is asked for indices: it can't be an iterable data set too")
    if not fields:
        raise ValueError("a BatchDataset writes declared arrays: give fields")
    if not batched:
        raise ValueError("a BatchDataset makes batches: batch_size can't be None")
    if collate_fn:
        raise ValueError("a BatchDataset leaves nothing to collate: no collate_fn")
    if policy:
        raise ValueError("retries, substitute and skip_budget are for data sets that are asked for single samples")


def rows_of(job: Job) -> _core.Rows | None:
    """What makes the batches of a BatchDataset; None: of another data set."""
    if not isinstance(job.dataset, BatchDataset) or not job.fields:
        return None
    fields, sample = [], {}
    for name, dtype, shape in job.fields:
        code, stored = dtypes.of_numpy(dtype)
        fields.append((name, name.encode(), code, np.dtype(stored), tuple(shape)))
        sample[name] = np.empty(shape, stored)
    return _core.Rows(fields, tree.dump(collate.batch([sample], collate.Leaves(packs=False))))
