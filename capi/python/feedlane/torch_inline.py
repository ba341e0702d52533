# SPDX-License-Identifier: Apache-2.0
"""One iteration of a DataLoader without workers: torch's, which knows where it stands."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import dataloader as torch_dataloader

from . import torch_state

if TYPE_CHECKING:
    from .dataloader import DataLoader


class Iterator(torch_dataloader._SingleProcessDataLoaderIter):
    """`state`: of a loader, or None."""

    unknown: tuple[int, ...] = ()

    def __init__(self, loader: DataLoader[Any], state: torch_state.State | None) -> None:
        if state is None:
            super().__init__(loader)  # type: ignore[no-untyped-call]  # torch's has no types
            self._indices, self.is_over = torch_state.Indices(self._index_sampler), False
            random = torch_state.draw_as_saved(loader, self)
            if random is not None:
                self._indices.start_as_saved(random)
            self._sampler_iter, self._seeds = iter(self._indices), torch_state.generator_state(loader)
            return
        resume = torch_state.Resume(state, 0)
        with torch_state.no_draw(loader.generator):
            torch_dataloader._BaseDataLoaderIter.__init__(self, loader)
        resume.restore_generator(loader)
        self._seeds = torch_state.generator_state(loader)
        self._num_yielded, self.is_over = resume.step, False
        self._IterableDataset_len_called = resume.main["_IterableDataset_len_called"]
        torch_state.load(self._dataset, resume.dataset)
        self._dataset_fetcher = torch_dataloader._DatasetKind.create_fetcher(  # type: ignore[no-untyped-call]  # nor has this
            self._dataset_kind, self._dataset, self._auto_collation, self._collate_fn, self._drop_last)
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
        """How many batches must be made again, because nothing else says where the iterable data set stands."""
        if fetcher is None:
            return 0
        if not torch_state.is_stateful(self._dataset) and not torch_state.is_stateful(self._dataset_fetcher.dataset_iter):
            if self._num_yielded:
                torch_state.warn_of_forwarding(self._num_yielded)
            return self._num_yielded
        torch_state.load(self._dataset_fetcher.dataset_iter, fetcher["dataset_iter_state"])
        self._dataset_fetcher.ended = fetcher["fetcher_ended"]
        return 0

    @property
    def position(self) -> Iterator:
        """What has state_dict: the iteration itself."""
        return self

    def look_ahead(self) -> None:
        """Nothing: all is known. See the iteration with workers."""

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except StopIteration:
            self.is_over = True
            raise

    next = __next__

    def state_dict(self) -> torch_state.State:
        """Where it stands, in torchdata's form."""
        fetcher: Any = self._dataset_fetcher
        is_iterable = self._dataset_kind == torch_dataloader._DatasetKind.Iterable
        state = torch_state.worker_state(None, is_iterable, fetcher.dataset, getattr(fetcher, "dataset_iter", None),
                                         getattr(fetcher, "ended", False))
        return {**self._indices.state_dict(), **self._seeds, **torch_state.next_random(self._indices, self.is_over),
                "_num_yielded": self._num_yielded, "_shared_seed": None,
                "_IterableDataset_len_called": self._IterableDataset_len_called, **state, "_iterator_finished": self.is_over}
