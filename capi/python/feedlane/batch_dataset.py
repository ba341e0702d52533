# SPDX-License-Identifier: Apache-2.0
"""Data sets that write whole batches in place."""
from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from . import collate, dtypes, tree

if TYPE_CHECKING:
    import numpy.typing as npt

    from . import _core
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
        written. All arrays are the loader's again when this returns: one that is kept fails the batch. So does what it raises."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> NoReturn:
        """TypeError: there are only batches."""
        raise TypeError("a BatchDataset makes whole batches: it is for Loader(fields=...)")


def check(dataset: object, *, fields: bool, batched: bool, collate_fn: bool, policy: bool) -> None:
    """ValueError: a Loader's arguments that don't go with a BatchDataset."""
    if not isinstance(dataset, BatchDataset):
        return
    if not fields:
        raise ValueError("a BatchDataset writes declared arrays: give fields")
    if not batched:
        raise ValueError("a BatchDataset makes batches: batch_size can't be None")
    if collate_fn:
        raise ValueError("a BatchDataset leaves nothing to collate: no collate_fn")
    if policy:
        raise ValueError("retries, substitute and skip_budget are for data sets that are asked for single samples")


class Rows:
    """Makes the batches of a BatchDataset."""

    def __init__(self, job: Job) -> None:
        self._dataset = job.dataset
        self._declared = []
        for number, (name, dtype, shape) in enumerate(job.fields or ()):
            code, stored = dtypes.of_numpy(dtype)
            self._declared.append((number, name, name.encode(), code, stored, tuple(shape)))
        sample = {name: np.empty(shape, stored) for _, name, _, _, stored, shape in self._declared}
        self._metadata = tree.dump(collate.batch([sample], collate.Leaves(packs=False)))

    def write(self, task: _core.Task) -> int:
        """The batch of a task, tensors and metadata. Its number of rows. What `fetch` raises; TypeError: it has kept an array."""
        count = task.count
        indices = np.ndarray(count, np.int64, buffer=task.index_list)
        seeds = np.ndarray(count, np.uint64, buffer=task.seed_list)
        out = {name: np.ndarray((count, *shape), stored, buffer=task.tensor(number, encoded, code, (count, *shape)))
               for number, name, encoded, code, stored, shape in self._declared}
        given = [weakref.ref(array) for array in (indices, seeds, *out.values())]
        self._dataset.fetch(indices, seeds, out)
        del indices, seeds
        out.clear()
        if any(array() is not None for array in given):  # also by a view of it
            raise TypeError(f"{type(self._dataset).__name__}.fetch has kept an array: its memory is the loader's again when it "
                            f"returns")
        task.metadata(self._metadata)
        return count
