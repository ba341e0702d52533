# SPDX-License-Identifier: Apache-2.0
"""Batches a second of one 4 KiB sample each, copied from memory that is there. See tools/bench/languages.py.
Usage: rate.py BATCHES"""
import sys
import time

import numpy as np

import feedlane


class Ready:
    def __init__(self, length):
        self.length, self.sample = length, np.zeros(512, np.int64)
        self.sample[0] = 1

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return self.sample


def epoch(loader):
    batches = total = 0
    for batch in loader:
        total += batch[0, 0]
        batches += 1
    assert total == batches
    return batches


if __name__ == "__main__":
    with feedlane.Loader(Ready(int(sys.argv[1])), 1, num_workers=1, prefetch_factor=8, persistent_workers=True,
                         fields={"x": (np.int64, (512,))}) as loader:
        epoch(loader)  # the worker starts
        began = time.perf_counter()
        print(round(epoch(loader) / (time.perf_counter() - began)))
