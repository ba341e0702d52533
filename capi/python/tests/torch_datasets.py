# SPDX-License-Identifier: Apache-2.0
"""Data sets that are written for torch's DataLoader."""
import collections

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


class Tagged(dict):
    """Made with more than what is in it."""

    def __init__(self, count=None, **items):
        super().__init__(**items)
        self.count = count


class Doubled(collections.namedtuple("Doubled", "x twice")):
    def __new__(cls, x):
        return super().__new__(cls, x, 2 * x)

    def __reduce__(self):
        return Doubled, (self.x,)


def tagged(samples):
    batch = Tagged(len(samples))
    batch["x"] = torch.tensor(samples)
    return batch


def doubled(samples):
    return Doubled(torch.tensor(samples))


def grouped(samples):
    return collections.defaultdict(list, x=torch.tensor(samples))


def unchanged(samples):
    return samples


class Columns:
    """__getitems__ makes a batch by itself."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return i

    def __getitems__(self, indices):
        return torch.tensor(indices), torch.tensor(indices) * 10


class Eager:
    """Draws its order when it is iterated, not with its first batch."""

    def __init__(self, batches):
        self.batches, self.batch_size = batches, 2

    def __len__(self):
        return 4 if self.batches else 8

    def __iter__(self):
        drawn = torch.randperm(8)
        return iter((drawn.view(4, 2) if self.batches else drawn).tolist())
