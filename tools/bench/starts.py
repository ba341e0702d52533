# SPDX-License-Identifier: Apache-2.0
"""How workers start: the time to the first batch, and the memory of the trainer and its workers, for each start of feedlane.Loader
and for torch's DataLoader by fork. Each measurement is a new process that has imported torch before; the data set has a tensor of
64 MiB, which workers read. Times are seconds, memory is PSS of all processes in MiB.

Usage: PYTHONPATH=capi/python python3 tools/bench/starts.py [--workers N] [--rounds N]   (a python3 that has torch)"""
import argparse
import json
import statistics
import subprocess
import sys
import time

import processes

KINDS = ("DataLoader", "forkserver", "fork", "spawn")


class Rows:
    def __init__(self, torch):
        self.table = torch.arange(1 << 24, dtype=torch.float32).reshape(-1, 1024)

    def __len__(self):
        return len(self.table)

    def __getitem__(self, i):
        return self.table[i]


def first(loader):
    """Seconds to the first batch, and the iterator, whose workers are there."""
    began = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    return time.perf_counter() - began, iterator


def measure(kind, workers):
    import torch

    import feedlane
    rows = Rows(torch)
    began = time.perf_counter()
    if kind == "DataLoader":
        loader = torch.utils.data.DataLoader(rows, 64, num_workers=workers, multiprocessing_context="fork")
    else:
        loader = feedlane.Loader(rows, 64, num_workers=workers, start=kind, tensors="torch")
    made = time.perf_counter() - began
    seconds, iterator = first(loader)
    figures = {"first": made + seconds}
    for _ in range(2 * workers):
        next(iterator)
    figures["pss"] = processes.memory_mib()
    for _ in iterator:
        pass
    figures["next_epoch"] = first(loader)[0]
    print(json.dumps(figures))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kind", choices=KINDS, help="measure this one here")
    arguments = parser.parse_args()
    if arguments.kind:
        return measure(arguments.kind, arguments.workers)
    found = {kind: [] for kind in KINDS}
    for _ in range(arguments.rounds):
        for kind in KINDS:
            command = [sys.executable, __file__, "--kind", kind, "--workers", str(arguments.workers)]
            found[kind].append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    for kind in KINDS:
        for name in "first", "next_epoch", "pss":
            values = [one[name] for one in found[kind]]
            ratios = [one[name] / peer[name] for one, peer in zip(found[kind], found["DataLoader"])]
            print(f"{arguments.workers} workers  {kind:11} {name:11} {statistics.median(values):9.3f} "
                  f"over DataLoader {statistics.median(ratios):6.2f} [{min(ratios):.2f} .. {max(ratios):.2f}]")


if __name__ == "__main__":
    main()
