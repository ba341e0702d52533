# SPDX-License-Identifier: Apache-2.0
"""Data sets that are written for torch's DataLoader."""
import feedlane
import torch


class TorchShards(torch.utils.data.IterableDataset):
    """Worker w of n yields w, w + n, w + 2n ..."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, 1000, step):
            yield {"i": i, "x": torch.full((3,), i)}


def look_at_seed(_worker):
    Drawn.seed_at_start = torch.initial_seed()


class Drawn:
    """A random number, and what is said of the seed."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        mask = 2**62 - 1
        return torch.tensor([int(torch.randint(1 << 60, ())), feedlane.get_worker_info().seed & mask,
                             torch.utils.data.get_worker_info().seed & mask, Drawn.seed_at_start & mask])
