# SPDX-License-Identifier: Apache-2.0
"""Batches a second by torch's DataLoader and by Feedlane's Loader over the same data set, by turns in one process: kept
workers, the first epoch of each left out. What is measured is the way of a batch: a sample is an array that is there."""
import argparse
import statistics
import time

import numpy as np

import feedlane

ROWS = 16


class Ready:
    """Samples of `size` bytes that cost nothing to make."""

    def __init__(self, samples, size):
        self.samples, self.sample = samples, np.zeros(size, np.uint8)

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        return self.sample


def rate(loader):
    began, batches = time.perf_counter(), 0
    for batch in loader:
        batch[0, 0].item()
        batches += 1
    return batches / (time.perf_counter() - began)


def main():
    import torch
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    print(f"torch {torch.__version__}, numpy {np.__version__}, {chosen.workers} workers, median of {chosen.rounds} rounds")
    print(f"{'batch':>8} {'torch/s':>10} {'feedlane/s':>10} {'ratio':>6}  {'lowest and highest ratio of a round'}")
    for name, size, batches in ("4 KiB", 4 << 10, 1000), ("1 MiB", 1 << 20, 300), ("16 MiB", 16 << 20, 60):
        dataset = Ready(batches * ROWS, size // ROWS)
        arguments = dict(batch_size=ROWS, num_workers=chosen.workers, persistent_workers=True)
        theirs = torch.utils.data.DataLoader(dataset, **arguments)
        with feedlane.Loader(dataset, tensors="torch", **arguments) as ours:
            rounds = [(rate(theirs), rate(ours)) for _ in range(chosen.rounds + 1)][1:]
        ratios = [our / their for their, our in rounds]
        their, our = (statistics.median(column) for column in zip(*rounds))
        print(f"{name:>8} {their:10.0f} {our:10.0f} {statistics.median(ratios):6.2f}  {min(ratios):.2f} {max(ratios):.2f}")
        del theirs


if __name__ == "__main__":
    main()
