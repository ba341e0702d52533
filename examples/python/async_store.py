# SPDX-License-Identifier: Apache-2.0
"""Reads objects from a store with 20 ms latency: many at once with coroutines, then one at a time.
Usage: PYTHONPATH=capi/python async_store.py [--samples N] [--reads N]"""
import argparse
import asyncio
import time

import numpy as np

import feedlane

LATENCY_S, BATCH_SIZE, WORKERS = 0.02, 8, 2


class Store(feedlane.AsyncDataset):
    def __init__(self, samples, reads):
        self.samples, self.reads_in_flight = samples, reads

    def __len__(self):
        return self.samples

    async def fetch(self, index):
        await asyncio.sleep(LATENCY_S)  # a request to an object store
        return np.full(256, index, np.float32)


class OneByOne(Store):
    def __getitem__(self, index):
        time.sleep(LATENCY_S)
        return np.full(256, index, np.float32)


def samples_per_second(dataset, batches_ahead):
    """Measures a complete epoch, with workers that are already running."""
    with feedlane.Loader(dataset, BATCH_SIZE, num_workers=WORKERS, prefetch_factor=batches_ahead,
                         persistent_workers=True) as loader:
        for _ in range(2):
            started, count = time.monotonic(), 0
            for batch in loader:
                assert batch[0, 0] == count
                count += len(batch)
        return count / (time.monotonic() - started)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=6400)
    parser.add_argument("--reads", type=int, default=32, help="in flight in each worker")
    arguments = parser.parse_args()
    batches_ahead = 2 + 2 * arguments.reads // BATCH_SIZE
    rate = samples_per_second(Store(arguments.samples, arguments.reads), batches_ahead)
    before = samples_per_second(OneByOne(160, 1), batches_ahead)
    most = WORKERS * arguments.reads / LATENCY_S
    print(f"{rate:.0f} samples/s with {WORKERS} x {arguments.reads} reads in flight, {rate / most:.2f} of what they allow")
    print(f"{before:.0f} samples/s with one read in flight in each worker")


if __name__ == "__main__":
    main()
