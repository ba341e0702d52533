# SPDX-License-Identifier: Apache-2.0
"""Data sets that are written for torch's DataLoader and know nothing of Feedlane."""
import torch


class TorchShards(torch.utils.data.IterableDataset):
    """Worker w of n yields w, w + n, w + 2n ..."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, 1000, step):
            yield {"i": i, "x": torch.full((3,), i)}
