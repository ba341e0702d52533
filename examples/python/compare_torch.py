# SPDX-License-Identifier: Apache-2.0
"""Batches a second by torch's DataLoader and by Feedlane's Loader over the same data set, Python on both sides, alternating in
one process: the same workers, prefetch factor and collating, kept workers, the first epoch of each left out. What is measured is
the way of a batch: a sample is an array that is there.

Usage: PYTHONPATH=capi/python compare_torch.py [--quick] [--json] [--rounds N] [--workers N]..."""
import argparse
import json
import os
import statistics
import sys
import time

try:
    import numpy as np
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

import feedlane

ROWS, PREFETCH = 16, 4
SIZES = {4 << 10: 1000, 64 << 10: 1000, 1 << 20: 300, 16 << 20: 60}
QUICK = {4 << 10: 200, 64 << 10: 200, 1 << 20: 100, 16 << 20: 16}


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


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": values}


def machine(torch):
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        model = [line.split(":", 1)[1].strip() for line in file if line.startswith(("model name", "CPU part"))]
    return {"processor": model[0] if model else "unknown", "processors": len(os.sched_getaffinity(0)),
            "kernel": " ".join(os.uname()[::2][:2]), "torch": torch.__version__, "numpy": np.__version__,
            "python": sys.version.split()[0]}


def measure(torch, size, batches, workers, rounds):
    dataset = Ready(batches * ROWS, size // ROWS)
    arguments = dict(batch_size=ROWS, num_workers=workers, persistent_workers=True, prefetch_factor=PREFETCH)
    theirs = torch.utils.data.DataLoader(dataset, **arguments)
    with feedlane.Loader(dataset, tensors="torch", **arguments) as ours:
        pairs = [(rate(theirs), rate(ours)) for _ in range(rounds + 1)][1:]
    return {"bytes": size, "workers": workers, "prefetch": PREFETCH, "torch_batches_s": spread([their for their, _ in pairs]),
            "feedlane_batches_s": spread([our for _, our in pairs]), "ratio": spread([our / their for their, our in pairs])}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="fewer batches")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    try:
        import torch  # here, since Feedlane's workers import this module, and need none of torch's
    except ImportError as missing:
        print("skipped:", missing)
        return 77
    rows = []
    if not chosen.json:
        print(f"torch {torch.__version__}, numpy {np.__version__}, prefetch {PREFETCH}, medians of {chosen.rounds} rounds")
        print(f"{'bytes':>9} {'workers':>8} {'torch/s':>10} {'feedlane/s':>10} {'ratio':>6}  lowest and highest ratio of a round")
    for size, batches in (QUICK if chosen.quick else SIZES).items():
        for workers in chosen.workers:
            row = measure(torch, size, batches, workers, chosen.rounds)
            rows.append(row)
            ratio = row["ratio"]
            if not chosen.json:
                print(f"{size:>9} {workers:>8} {row['torch_batches_s']['median']:10.0f} "
                      f"{row['feedlane_batches_s']['median']:10.0f} {ratio['median']:6.2f}  {ratio['min']:.2f} {ratio['max']:.2f}")
    if chosen.json:
        ratios = {f"python.{row['bytes']}.{row['workers']}": row["ratio"] for row in rows}
        print(json.dumps({"machine": machine(torch), "groups": {"python": {"rows": rows, "ratios": ratios}}}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
