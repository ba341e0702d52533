# SPDX-License-Identifier: Apache-2.0
"""Measures batches per second of torch's DataLoader, of feedlane.DataLoader in its place, and of feedlane.Loader, all with the
same data set in Python. The loaders alternate in one process, with the same workers and prefetch factor. Workers are kept, and
the first epoch of each loader does not count.

A sample is an array of random bytes from a pool of up to 128 MiB, which each worker fills at its first sample, in the epoch
that does not count. The data set returns samples one by one (__getitem__) or all samples of a batch as a list (__getitems__), so
collating and the transport of batches are measured. Each loop reads a byte of every page of every batch; the sums over an epoch
must be equal.

torch's loader transports batches in the form that a search finds fastest for that size and number of workers: as tensors (its
default collating), as one array made by np.stack, or as one bytes object. The latter two go through its pipe.
feedlane.DataLoader uses torch's default collating. Processor time per batch is measured for the trainer, with all its threads,
and for all workers together.

With --command, each round also measures a data set in C with the same number of bytes, by `feedlane bench handoff`.

Usage: PYTHONPATH=capi/python compare_torch.py [--quick] [--json] [--rounds N] [--workers N]... [--bytes N]... [--command FEEDLANE]"""
import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time

try:
    import numpy as np
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

import feedlane

ROWS, PREFETCH = 16, 4
SIZES = {4 << 10: 5000, 64 << 10: 5000, 1 << 20: 1000, 16 << 20: 60}
QUICK = {4 << 10: 200, 64 << 10: 200, 1 << 20: 100, 16 << 20: 16}


POOL = 128 << 20  # size of the samples in each worker, in bytes: more than a processor's caches
PAGE = 4096


class Ready:
    """Samples of `size` bytes that are made in advance: each worker makes the pool when it gets its first sample."""

    def __init__(self, samples, size):
        self.samples, self.size, self.pool = samples, size, None

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        if self.pool is None:
            self.pool = self.make(np.random.default_rng(7), min(self.samples, POOL // self.size))
        return self.pool[i % len(self.pool)]

    def make(self, generator, rows):
        """Returns the pool."""
        return generator.integers(0, 256, (rows, self.size), np.uint8)


class ReadyAtOnce(Ready):
    """As Ready, but returns all samples of a batch at once."""

    def __getitems__(self, indices):
        return [self[i] for i in indices]


def as_array(samples):
    return np.stack(samples)


def as_bytes(samples):
    return b"".join(samples)


# Forms in which torch's loader transports a batch: its collate_fn, None for the default.
WAYS = {"tensors": None, "arrays": as_array, "bytes": as_bytes}


def look(batch):
    """Reads a byte of every page."""
    if isinstance(batch, bytes):
        batch = np.frombuffer(batch, np.uint8)
    return int(batch.reshape(-1)[::PAGE].sum())


def processor_s(pids):
    """Returns the processor time that these processes have used so far, in seconds. /proc/PID/schedstat is not used, because it
    lacks a running thread's time since its last switch or tick."""
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)  # the clock's number, computed as in the C library's clock_getcpuclockid


def epoch(loader, pids):
    """Returns batches per second, microseconds of processor time per batch in the trainer and in the workers, and the sum of
    the bytes read."""
    batches, sum_of_bytes, workers = 0, 0, processor_s(pids)
    trainer, began = time.process_time(), time.perf_counter()
    for batch in loader:
        sum_of_bytes += look(batch)
        batches += 1
    lasted, trainer = time.perf_counter() - began, time.process_time() - trainer
    return batches / lasted, 1e6 * trainer / batches, 1e6 * (processor_s(pids) - workers) / batches, sum_of_bytes


def c_rate(command, size, workers):
    """Returns batches per second of a data set in C."""
    said = subprocess.run([command, "bench", "--json", "--rounds", "1", "--quick", "--no-pin", "handoff", "--rate-only", "--bytes",
                           str(size), "--workers", str(workers), "--prefetch", str(PREFETCH)], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    return json.loads(said)["groups"]["handoff"]["rows"][0]["batches_s"]["median"]


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": values}


def machine(torch):
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        model = [line.split(":", 1)[1].strip() for line in file if line.startswith(("model name", "CPU part"))]
    return {"processor": model[0] if model else "unknown", "processors": len(os.sched_getaffinity(0)),
            "kernel": " ".join(os.uname()[::2][:2]), "torch": torch.__version__, "numpy": np.__version__,
            "python": sys.version.split()[0]}


def best_way(torch, kind, size, batches, arguments):
    """Returns the fastest of WAYS, by the second of two short epochs, and the batches per second of each."""
    found = {}
    for way, collate in WAYS.items():
        loader = torch.utils.data.DataLoader(kind(max(batches // 4, 8) * ROWS, size // ROWS), collate_fn=collate, **arguments)
        epoch(loader, [])
        found[way] = epoch(loader, [])[0]
        del loader  # ends its workers
    return max(found, key=found.get), found


def measure(torch, kind, size, batches, workers, rounds, command):
    dataset = kind(batches * ROWS, size // ROWS)
    arguments = dict(batch_size=ROWS, num_workers=workers, persistent_workers=True, prefetch_factor=PREFETCH)
    way, tried = best_way(torch, kind, size, batches, arguments)
    theirs = torch.utils.data.DataLoader(dataset, collate_fn=WAYS[way], **arguments)
    in_place = feedlane.DataLoader(dataset, **arguments)
    found = []  # for each round: the result of epoch() for each loader
    with feedlane.Loader(dataset, tensors="torch", **arguments) as ours:
        loaders = {"torch": theirs, "in_place": in_place, "feedlane": ours}
        for number in range(rounds + 1):
            if number == 0:  # the workers start
                for loader in loaders.values():
                    epoch(loader, [])
                while not all(worker["pid"] for worker in ours.workers()):
                    ours.poll()  # it learns a worker's number when the worker attaches
                pids = {"torch": [worker.pid for worker in theirs._iterator._workers], "in_place": [],
                        "feedlane": [worker["pid"] for worker in ours.workers()]}
                continue
            found.append({name: epoch(loader, pids[name]) for name, loader in loaders.items()})
            if len({sum_of_bytes for _, _, _, sum_of_bytes in found[-1].values()}) != 1:
                sys.exit("compare_torch.py: the loaders' batches have different bytes")
            if command:
                found[-1]["c"] = c_rate(command, size, workers)
    row = {"bytes": size, "workers": workers, "prefetch": PREFETCH, "at_once": kind is ReadyAtOnce, "torch_way": way,
           "torch_searched": tried}
    for name in loaders:
        rates, trainers, crews, _ = zip(*(measured[name] for measured in found))
        row |= {f"{name}_batches_s": spread(rates), f"{name}_trainer_us": spread(trainers)}
        if pids[name]:
            row[f"{name}_workers_us"] = spread(crews)
    row["ratio"] = spread([measured["feedlane"][0] / measured["torch"][0] for measured in found])
    row["in_place_ratio"] = spread([measured["in_place"][0] / measured["torch"][0] for measured in found])
    if command:
        row["c_batches_s"] = spread([measured["c"] for measured in found])
        row["ratio_to_c"] = spread([measured["feedlane"][0] / measured["c"] for measured in found])
    return row


def show(row):
    m = {name: value["median"] for name, value in row.items() if isinstance(value, dict) and "median" in value}
    print(f"{row['bytes']:>9} {row['workers']:>7} {'at once' if row['at_once'] else 'each':>8} {row['torch_way']:>8} {m['torch_batches_s']:8.0f} "
          f"{m['in_place_batches_s']:10.0f} {m['in_place_ratio']:6.2f} {m['feedlane_batches_s']:10.0f} {m['ratio']:6.2f} "
          f"{m['torch_trainer_us']:7.1f} {m['in_place_trainer_us']:7.1f} {m['feedlane_trainer_us']:7.1f}"
          + (f" {m['ratio_to_c']:7.2f}" if "ratio_to_c" in m else ""))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="fewer batches")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bytes", type=int, nargs="+", choices=SIZES, help="of a batch; else all four")
    parser.add_argument("--command", help="the program `feedlane`")
    chosen = parser.parse_args()
    try:
        import torch  # imported here, because Feedlane's workers import this module and do not need torch
    except ImportError as missing:
        print("skipped:", missing)
        return 77
    rows = []
    if not chosen.json:
        print(f"torch {torch.__version__}, numpy {np.__version__}, prefetch {PREFETCH}, medians of {chosen.rounds} rounds; "
              f"us: of a processor, a batch")
        print(f"{'bytes':>9} {'workers':>7} {'samples':>8} {'torch by':>8} {'torch/s':>8} {'in place/s':>10} {'ratio':>6} {'Loader/s':>10} {'ratio':>6} "
              f"{'trainer us: torch, in place, Loader':>23}" + "  over C" * bool(chosen.command))
    for size, batches in (QUICK if chosen.quick else SIZES).items():
        if chosen.bytes and size not in chosen.bytes:
            continue
        for workers, kind in itertools.product(chosen.workers, (Ready, ReadyAtOnce)):
            row = measure(torch, kind, size, batches, workers, chosen.rounds, chosen.command)
            rows.append(row)
            if not chosen.json:
                show(row)
    if chosen.json:
        ratios = {f"python.{row['bytes']}.{row['workers']}" + ".at_once" * row["at_once"]: row["ratio"] for row in rows}
        print(json.dumps({"machine": machine(torch), "groups": {"python": {"rows": rows, "ratios": ratios}}}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
