# SPDX-License-Identifier: Apache-2.0
"""Batches a second by torch's DataLoader and by Feedlane's Loader over the same data set, Python on both sides, alternating in
one process: the same workers, prefetch factor and collating, kept workers, the first epoch of each left out. What is measured is
the way of a batch: a sample is an array that is there, which the data set returns one by one (__getitem__) or as a list of a
batch's (__getitems__). The processor time a batch is the trainer's, all its threads, and that of all workers.

With --command, between the two: the same bytes by a data set in C, from `feedlane bench handoff`.

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


class Ready:
    """Samples of `size` bytes that cost nothing to make."""

    def __init__(self, samples, size):
        self.samples, self.sample = samples, np.zeros(size, np.uint8)

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        return self.sample


class ReadyAtOnce(Ready):
    """The same, asked for a batch's samples at once."""

    def __getitems__(self, indices):
        return [self.sample] * len(indices)


def processor_s(pids):
    """What these processes have had of a processor, in seconds, up to now: /proc/PID/schedstat lacks the time since a running thread
    was last switched or ticked."""
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)  # as clock_getcpuclockid of the C library makes the clock's number


def epoch(loader, pids):
    """Batches a second; microseconds of processor a batch in the trainer and in the workers."""
    batches, workers = 0, processor_s(pids)
    trainer, began = time.process_time(), time.perf_counter()
    for batch in loader:
        batch[0, 0].item()
        batches += 1
    lasted, trainer = time.perf_counter() - began, time.process_time() - trainer
    return batches / lasted, 1e6 * trainer / batches, 1e6 * (processor_s(pids) - workers) / batches


def c_rate(command, size, workers):
    """Batches a second of a data set in C."""
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


def measure(torch, kind, size, batches, workers, rounds, command):
    dataset = kind(batches * ROWS, size // ROWS)
    arguments = dict(batch_size=ROWS, num_workers=workers, persistent_workers=True, prefetch_factor=PREFETCH)
    theirs = torch.utils.data.DataLoader(dataset, **arguments)
    found = []
    with feedlane.Loader(dataset, tensors="torch", **arguments) as ours:
        for number in range(rounds + 1):
            if number == 0:  # the workers start
                for loader in theirs, ours:
                    epoch(loader, [])
                pids = [worker.pid for worker in theirs._iterator._workers], [worker["pid"] for worker in ours.workers()]
                continue
            c = c_rate(command, size, workers) if command else None
            found.append((epoch(theirs, pids[0]), c, epoch(ours, pids[1])))
    row = {"bytes": size, "workers": workers, "prefetch": PREFETCH, "at_once": kind is ReadyAtOnce,
           "torch_batches_s": spread([their[0] for their, _, _ in found]),
           "feedlane_batches_s": spread([our[0] for _, _, our in found]),
           "torch_trainer_us": spread([their[1] for their, _, _ in found]),
           "feedlane_trainer_us": spread([our[1] for _, _, our in found]),
           "torch_workers_us": spread([their[2] for their, _, _ in found]),
           "feedlane_workers_us": spread([our[2] for _, _, our in found]),
           "ratio": spread([our[0] / their[0] for their, _, our in found])}
    if command:
        row["c_batches_s"] = spread([c for _, c, _ in found])
        row["ratio_to_c"] = spread([our[0] / c for _, c, our in found])
    return row


def show(row):
    m = {name: value["median"] for name, value in row.items() if isinstance(value, dict)}
    print(f"{row['bytes']:>9} {row['workers']:>7} {'at once' if row['at_once'] else 'each':>8} {m['torch_batches_s']:8.0f} "
          f"{m['feedlane_batches_s']:10.0f} {m['ratio']:6.2f} {m['torch_trainer_us']:7.1f} {m['feedlane_trainer_us']:7.1f} "
          f"{m['torch_workers_us']:7.1f} {m['feedlane_workers_us']:7.1f}"
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
        import torch  # here, since Feedlane's workers import this module, and need none of torch's
    except ImportError as missing:
        print("skipped:", missing)
        return 77
    rows = []
    if not chosen.json:
        print(f"torch {torch.__version__}, numpy {np.__version__}, prefetch {PREFETCH}, medians of {chosen.rounds} rounds; "
              f"us: of a processor, a batch")
        print(f"{'bytes':>9} {'workers':>7} {'samples':>8} {'torch/s':>8} {'feedlane/s':>10} {'ratio':>6} {'trainer us':>15} "
              f"{'workers us':>15}" + "  over C" * bool(chosen.command))
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
