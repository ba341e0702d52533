# SPDX-License-Identifier: Apache-2.0
"""A program over the package's DataLoader, with types. types_test.py has mypy check it where there is torch."""
from __future__ import annotations

from typing import Any, assert_type

import torch
from torch.utils.data import Dataset

import feedlane
from feedlane import records


class Rows(Dataset[torch.Tensor]):
    """A data set of torch's kind."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), index)


def main() -> None:
    """Iterates, with a state, over a data set that says its type, and over a list."""
    loader = feedlane.DataLoader(Rows(), 2, shuffle=True, generator=torch.Generator(), held=2, snapshot_every_n_steps=None)
    assert_type(loader, feedlane.DataLoader[torch.Tensor])
    assert_type(loader.dataset, Dataset[torch.Tensor])
    for batch in loader:
        assert batch.shape == (2, 2)
    assert_type(loader.report(), str)
    assert_type(loader.diagnose(), records.Diagnosis)
    state = assert_type(loader.state_dict(), dict[str, Any])
    loader.load_state_dict(state)
    plain = feedlane.DataLoader([1, 2, 3], batch_size=2, name="plain", trace=4, progress=False)
    assert_type(plain, feedlane.DataLoader[Any])
    as_torch: torch.utils.data.DataLoader[Any] = plain
    assert len(as_torch) == 2
    own = feedlane.Loader(Rows(), 2, tensors="torch", pin_memory=False)
    for held in own.batches():
        with held:
            assert_type(held.tensors[0].torch(), torch.Tensor)


if __name__ == "__main__":
    main()
