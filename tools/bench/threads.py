#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Worker threads on free-threaded Python: feedlane.Loader(start="thread") compared with its own processes and with dataloader-rs
(PyPI: dataloader-rs), in alternating rounds.

A batch has 32 samples. A sample is an array of 4 or 64 KiB, which `__getitem__` fills; before that it computes in plain Python,
for about 50 us. All have two workers; dataloader-rs collates by np.stack and prefetches as many batches as feedlane.

Each measurement is a process. It reports the time from the loader's creation to the first batch, batches/s from then on to the end
of the second epoch, and the memory (PSS, in which shared pages count once) of the process and its workers when it ends. Skips (77)
with a GIL.

Usage: threads.py [--quick] [--json] [--rounds N]"""
import argparse
import importlib
import json
import os
import pathlib
import subprocess
import sys
import time

TOOLS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(1, str(TOOLS))

from processes import memory_mib
from rounds import alternate, cell, ratios, spread

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy for", sys.executable)
    sys.exit(77)

WORKERS, BATCH, PREFETCH = 2, 32, 2
SIZES = {"4 KiB": 4 << 10, "64 KiB": 64 << 10}


class Samples:
    def __init__(self, size, batches):
        self.size, self.count = size, BATCH * batches

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        total = 0
        for i in range(600):
            total += i ^ index
        return np.full(self.size // 8, total)


def ours(start):
    def make(size, batches):
        import feedlane
        return feedlane.Loader(Samples(size, batches), BATCH, num_workers=WORKERS, prefetch_factor=PREFETCH, start=start,
                               persistent_workers=True)
    return make


def theirs(size, batches):
    import dataloader_rs

    class Data(dataloader_rs.PyDataset):
        __len__, __getitem__ = Samples.__len__, Samples.__getitem__
    data = Data()
    data.size, data.count = size, BATCH * batches
    return dataloader_rs.PyDataloader(data, BATCH, prefetch_depth=WORKERS * PREFETCH, num_workers=WORKERS, collate_fn=np.stack)


WAYS = {"threads": ours("thread"), "processes": ours("forkserver"), "dataloader-rs": theirs}


def measure(way, size, batches):
    importlib.import_module("dataloader_rs" if way == "dataloader-rs" else "feedlane")  # it isn't part of the time
    began = time.perf_counter()
    loader = WAYS[way](size, batches)
    epoch = iter(loader)
    touched = int(next(epoch)[0, 0])
    first = time.perf_counter()
    count = 0
    for number in range(2):
        for batch in epoch if number == 0 else loader:
            touched += int(batch.reshape(-1)[::512].sum())  # a number of every page
            count += 1
    seconds = time.perf_counter() - first
    return {"first_ms": 1e3 * (first - began), "batches_s": count / seconds, "memory_mib": memory_mib()}


def run(way, size, batches):
    done = subprocess.run([sys.executable, __file__, "--one", way, str(size), str(batches)], stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few batches")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=3, metavar=("WAY", "SIZE", "BATCHES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], *map(int, options.one[1:]))))
        return
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        print("skipped: this Python has a GIL")
        sys.exit(77)
    found = {}
    for name, size in SIZES.items():
        batches = 20 if options.quick else 600
        ways = [way for way in WAYS if run(way, size, 4) is not None]
        values = alternate({way: lambda way=way: run(way, size, batches) for way in ways}, options.rounds)
        found[name] = {way: {key: spread([value[key] for value in values[way]]) for key in values[way][0]} for way in ways}
        for way in ways:
            rows = {key: [value[key] for value in values[way]] for key in values[way][0]}
            over = ratios([v["batches_s"] for v in values["threads"]], rows["batches_s"])
            found[name][way]["threads_over"] = spread(over)
            if not options.json:
                print(f"{name}, {way}: {cell(rows['batches_s'])} batches/s, first after {cell(rows['first_ms'])} ms, "
                      f"{cell(rows['memory_mib'])} MiB; threads are {cell(over)} times as fast")
    if options.json:
        print(json.dumps({"python": sys.version.split()[0], "processors": os.cpu_count(), "threads": found}, indent=1))


if __name__ == "__main__":
    main()
