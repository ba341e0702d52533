# SPDX-License-Identifier: Apache-2.0
"""One iteration of a DataLoader without workers: torch's own iterator, extended by its position."""
from __future__ import annotations

import functools
from typing import Any

from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import pin_memory

from . import _core, errors, torch_arguments, torch_failures, torch_state


class Iterator(torch_dataloader._SingleProcessDataLoaderIter):
    """`state`: a loader's state, or None."""

    unknown: tuple[int, ...] = ()

    def __init__(self, loader: torch_arguments.Arguments[Any], state: torch_state.State | None) -> None:
        self._failed: list[int] = []  # for each failed batch, the number of batches yielded before it
        if state is None:
            super().__init__(loader)  # type: ignore[no-untyped-call]  # torch's constructor has no types
            self._indices, self.is_over = torch_state.Indices(self._index_sampler, self._sampler_iter), False
            random = torch_state.draw_as_saved(loader, self)
            if random is not None:
                self._indices.start_as_saved(random)
            self._sampler_iter, self._seeds = iter(self._indices), torch_state.generator_state(loader)
            self._guard_collate_fn()
            return
        resume = torch_state.Resume(state, 0)
        with torch_state.no_draw(loader.generator):
            torch_dataloader._BaseDataLoaderIter.__init__(self, loader)
        resume.restore_generator(loader)
        self._seeds = torch_state.generator_state(loader)
        self._num_yielded, self.is_over = resume.step, False
        self._IterableDataset_len_called = resume.main["_IterableDataset_len_called"]
        torch_state.load(self._dataset, resume.dataset)
        self._dataset_fetcher = torch_dataloader._DatasetKind.create_fetcher(  # type: ignore[no-untyped-call]  # nor has this method
            self._dataset_kind, self._dataset, self._auto_collation, self._collate_fn, self._drop_last)
        self._guard_collate_fn()
        forward = resume.since + self._restore_shard(resume.fetcher)
        self._indices = torch_state.Indices(self._index_sampler)
        self._indices.load_state_dict(resume.main)
        self._sampler_iter = iter(self._indices)
        self._num_yielded -= forward - resume.since
        for _ in range(forward):
            next(self)
        if resume.finished:
            self._indices.exhaust()
            loader._next_random = resume.next_random
        self.is_over = resume.finished

    def _restore_shard(self, fetcher: Any) -> int:
        """Restores the iterable data set's position. Returns how many batches must be made again, if no state contains this
        position."""
        if fetcher is None:
            return 0
        if not torch_state.is_stateful(self._dataset) and not torch_state.is_stateful(self._dataset_fetcher.dataset_iter):
            if self._num_yielded:
                torch_state.warn_of_forwarding(self._num_yielded)
            return self._num_yielded
        torch_state.load(self._dataset_fetcher.dataset_iter, fetcher["dataset_iter_state"])
        self._dataset_fetcher.ended = fetcher["fetcher_ended"]
        return 0

    def _guard_collate_fn(self) -> None:
        """Ensures that a StopIteration of the collate_fn does not count as the end of an iterable data set."""
        if self._dataset_kind == torch_dataloader._DatasetKind.Iterable:
            self._dataset_fetcher.collate_fn = functools.partial(_collated, self._collate_fn)

    @property
    def position(self) -> Iterator:
        """The object that has state_dict: the iteration itself."""
        return self

    def look_ahead(self) -> None:
        """Has no effect, because all states are known. See the iteration with workers."""

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except StopIteration:
            self.is_over = True
            raise

    next = __next__

    def _next_data(self) -> Any:
        """As torch's method, but a StopIteration of the data set or the collate_fn does not end the loop as if all batches had
        come."""
        index = self._next_index()  # type: ignore[no-untyped-call]
        try:
            data = self._dataset_fetcher.fetch(index)
        except StopIteration as reason:
            if self._dataset_kind == torch_dataloader._DatasetKind.Iterable:
                raise
            self._failed.append(self._num_yielded)
            raise RuntimeError(torch_failures.stopped(f"batch {self._num_yielded}")) from reason
        except Exception:
            self._failed.append(self._num_yielded)
            raise
        return pin_memory.pin_memory(data, self._pin_memory_device) if self._pin_memory else data  # type: ignore[no-untyped-call]

    def state_dict(self, behind: int = 0) -> torch_state.State:
        """Returns the position in torchdata's format, after the newest batch or `behind` batches earlier. Raises ValueError if
        fewer than `behind` batches have come, and StateError with `behind` if the data set or the sampler has a state, which is
        always the one after the newest batch."""
        torch_state.check_behind(behind, self._num_yielded)
        if behind:
            return self._state_before(behind)
        fetcher: Any = self._dataset_fetcher
        is_iterable = self._dataset_kind == torch_dataloader._DatasetKind.Iterable
        state = torch_state.worker_state(None, is_iterable, fetcher.dataset, getattr(fetcher, "dataset_iter", None),
                                         getattr(fetcher, "ended", False))
        return {**self._indices.state_dict(), **self._seeds, **torch_state.next_random(self._indices, self.is_over),
                "_num_yielded": self._num_yielded, "_shared_seed": None,
                "_IterableDataset_len_called": self._IterableDataset_len_called, **state, "_iterator_finished": self.is_over}

    def _state_before(self, behind: int) -> torch_state.State:
        state = self.state_dict()
        inner = state["fetcher_state"]
        if self._indices.is_stateful or state["dataset_state"] is not None or (inner and inner["dataset_iter_state"] is not None):
            raise errors.make(_core.E_STATE, f"behind={behind}: the data set or the sampler has its own state, known only after the "
                              "newest batch; call state_dict() before you take the next batch")
        if inner is not None:
            state["fetcher_state"] = {**inner, "fetcher_ended": False}
        state.pop("_default_generator", None)
        step = self._num_yielded - behind
        drawn = self._indices.yielded - behind - sum(at >= step for at in self._failed)
        return {**state, **self._indices.state_dict(drawn), "_num_yielded": step,
                "_iterator_finished": False}


def _collated(collate_fn: Any, samples: Any) -> Any:
    try:
        return collate_fn(samples)
    except StopIteration as reason:
        raise RuntimeError(torch_failures.stopped("a batch by the collate_fn")) from reason
