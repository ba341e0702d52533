# SPDX-License-Identifier: Apache-2.0
"""Three slow runs, each with a different bottleneck, and the report that names it. See docs/observing.md.
Usage: PYTHONPATH=capi/python observing.py slow-dataset|slow-trainer|bad-worker [--seconds N] [--workers N] [--out-of-order]"""
import argparse
import time
import typing

import numpy as np

import feedlane

BATCH_SIZE = 32
BAD_WORKER = 2


class Case(typing.NamedTuple):
    """Seconds to read a sample, seconds to train on a batch, the factor by which the bad worker reads more slowly, and the
    resulting batches per second with four workers."""

    read_s: float
    train_s: float
    factor: int
    rate: int


CASES = {
    "slow-dataset": Case(read_s=0.001, train_s=0.002, factor=1, rate=110),
    "slow-trainer": Case(read_s=0.0001, train_s=0.02, factor=1, rate=50),
    "bad-worker": Case(read_s=0.001, train_s=0.005, factor=10, rate=25),
}


class Images:
    """Images of 64 x 64 pixels on a storage that takes `read_s` for each."""

    def __init__(self, count, case):
        self.count, self.case = count, case

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        is_bad = feedlane.get_worker_info().id == BAD_WORKER
        time.sleep(self.case.read_s * (self.case.factor if is_bad else 1))
        return np.full((64, 64), i % 256, np.uint8), i % 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--seconds", type=float, default=8, help="about how long the epoch takes")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--out-of-order", action="store_true", help="take batches as they arrive")
    options = parser.parse_args()
    case = CASES[options.case]
    dataset = Images(max(1, int(options.seconds * case.rate)) * BATCH_SIZE, case)
    with feedlane.Loader(dataset, BATCH_SIZE, shuffle=True, seed=1, num_workers=options.workers,
                         in_order=not options.out_of_order, name=options.case, progress=True) as loader:
        for _images, _labels in loader:
            time.sleep(case.train_s)  # a device trains on them
        print(loader.report(), end="")


if __name__ == "__main__":
    main()
