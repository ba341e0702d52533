#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small samples in Python: 64 of 256 bytes in a batch, shuffled, out of a file of 256 MiB that is mapped. Samples a second of a loop that takes
each batch's rows by numpy's take into one buffer, and of a feedlane.Loader over the same order: by a BatchDataset, which takes
into the slot; by __getitems__, which returns a list of arrays; by __getitem__. The trainer reads a byte of each row. All of them
in each round; a ratio is that of a round, over as many loops as there are workers, one at least. Each loop and the trainer are
on processors of their own as far as there are any; workers are where the kernel has them.

--rows N: batches of N samples. The fewer they are, the more of the time is what a batch costs by itself.

Usage: rows.py [--rounds N] [--seconds S] [--rows N] [--quick] [--json]
With the library's and the package's place in the environment: FEEDLANE_LIBRARY, PYTHONPATH. Skips (77) without numpy."""
import argparse
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time

try:
    import numpy as np
except ImportError:
    print("skipped: there is no numpy for", sys.executable)
    sys.exit(77)

import feedlane
from rounds import alternate, ratios, spread

ROWS, BYTES, SAMPLES = 64, 256, 1 << 20


class Mapped:
    """The file's rows, mapped in each process, every page of them from the start."""

    def __init__(self, path):
        self.path, self.data = path, np.load(path, mmap_mode="r").view(np.ndarray)
        self.data[::4096 // BYTES, 0].sum()

    def __getstate__(self):
        return self.path

    def __setstate__(self, path):
        self.__init__(path)

    def __len__(self):
        return len(self.data)


class Takes(Mapped, feedlane.BatchDataset):
    """Rows by one take."""

    def fetch(self, indices, seeds, out):
        np.take(self.data, indices, axis=0, out=out["row"], mode="clip")


class Single(Mapped):
    """Row by row."""

    def __getitem__(self, index):
        return {"row": self.data[index]}


class Lists(Single):
    """A list of rows by one call."""

    def __getitems__(self, indices):
        return [{"row": row} for row in self.data[indices]]


def loop(data, rows, seconds):
    """Samples a second of a bare loop."""
    order, buffer, done = np.random.permutation(len(data)), np.empty((rows, BYTES), np.uint8), 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for first in range(done % (len(order) - 100 * rows), len(order), rows)[:100]:
            np.take(data, order[first:first + rows], axis=0, out=buffer, mode="clip")
            buffer[:, 0].max()
        done += 100 * rows
    return done / (time.perf_counter() - began)


def loops(data, count, rows, seconds):
    """The sum of so many processes at once."""
    if count == 1:
        return loop(data, rows, seconds)
    with multiprocessing.get_context("fork").Pool(count) as pool:
        return sum(pool.starmap(loop, [(data, rows, seconds)] * count))


def loaded(loader, seconds):
    """Samples a second of a loader, from its tenth batch on."""
    done = 0
    for number, batch in enumerate(loader):
        if number == 10:
            began, done = time.perf_counter(), 0
        batch["row"][:, 0].max()
        done += len(batch["row"])
        if number % 64 == 63 and time.perf_counter() - began > seconds:
            break
    return done / (time.perf_counter() - began)


def machine():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        model = [line.split(":", 1)[1].strip() for line in file if line.startswith(("model name", "CPU part"))]
    return {"processor": model[0] if model else "unknown", "processors": len(os.sched_getaffinity(0)),
            "kernel": " ".join(os.uname()[::2][:2]), "numpy": np.__version__, "python": sys.version.split()[0]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"samples of a batch; {ROWS} by default")
    parser.add_argument("--quick", action="store_true", help="a third of a second for each")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if not 1 <= chosen.rows <= SAMPLES // 200:
        parser.error(f"--rows is {chosen.rows}; it must be 1 .. {SAMPLES // 200}")
    if chosen.quick:
        chosen.seconds = 0.3
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.npy")
        np.save(path, np.random.randint(0, 256, (SAMPLES, BYTES), np.uint8))
        measure(path, chosen)


def measure(path, chosen):
    data = Mapped(path).data
    kinds = {"take into the slot": Takes, "__getitems__": Lists, "__getitem__": Single}
    cases = [(name, workers) for workers in (0, 1, 2) for name in kinds]
    seeds = itertools.count()

    def rate(name, workers):
        if name == "loops":
            return loops(data, max(workers, 1), chosen.rows, chosen.seconds)
        with feedlane.Loader(kinds[name](path), chosen.rows, shuffle=True, seed=next(seeds), num_workers=workers,
                             fields={"row": (np.uint8, (BYTES,))}) as loader:
            return loaded(loader, chosen.seconds)
    rates = alternate({(name, workers): lambda name=name, workers=workers: rate(name, workers)
                       for workers in (0, 1, 2) for name in ("loops", *kinds)}, chosen.rounds)
    rows = [{"by": name, "workers": workers, "batch_size": chosen.rows, "samples_per_second": spread(rates[name, workers]),
             "over_loops": spread(ratios(rates[name, workers], rates["loops", workers]))} for name, workers in cases]
    if chosen.json:
        # The goals are for batches of ROWS.
        said = {f"rows.{row['by'].split()[0].strip('_')}.{row['workers']}": row["over_loops"]
                for row in rows if chosen.rows == ROWS}
        print(json.dumps({"machine": machine(), "groups": {"rows": {"rows": rows, "ratios": said}}}, indent=1))
        return
    print(f"{'by':>20} {'workers':>8} {'samples/s':>12} {'of as many loops':>22}")
    for row in rows:
        rate, share = row["samples_per_second"]["median"], row["over_loops"]
        print(f"{row['by']:>20} {row['workers']:>8} {rate:>12,.0f} {share['median']:>8.2f} [{share['min']:.2f} .. {share['max']:.2f}]")


if __name__ == "__main__":
    main()
