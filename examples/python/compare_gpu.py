# SPDX-License-Identifier: Apache-2.0
"""Measures a loop on a GPU that copies each batch to the device and works on it, with torch's DataLoader, with feedlane.DataLoader
in its place, and with feedlane.Loader, whose slots are registered with the device.

All three read the same data set in Python. For each size a search finds the number of workers, the prefetch factor and the value
of pin_memory with which torch's loader is fastest; the other two use that number of workers and prefetch factor, with
pin_memory=True. The loaders alternate; workers are kept, and the first epoch of each loader does not count. `device alone` is
the loop with batches that are on the device already. The sums that the device computes must be equal.

Usage: PYTHONPATH=capi/python compare_gpu.py [--quick] [--json] [--rounds N] [--workers N]... [--bytes N]..."""
import argparse
import itertools
import json
import sys
import time

try:
    import numpy as np
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

import feedlane
from compare_torch import Ready, spread

ROWS = 64
SIZES = {1 << 20: 400, 4 << 20: 200, 16 << 20: 60}
WIDTH = 256  # columns that the work multiplies a row with


class Floats(Ready):
    """Rows of floats, whose sums are exact."""

    def make(self, generator, rows):
        return generator.integers(0, 8, (rows, self.size // 4)).astype(np.float32)


def epoch(torch, loader, factors):
    """Returns milliseconds per batch, and the sum of all bytes as the device computes it."""
    total, batches = torch.zeros((), dtype=torch.float64, device="cuda"), 0
    torch.cuda.synchronize()
    began = time.perf_counter()
    for batch in loader:
        there = batch.to("cuda", non_blocking=True)
        batch = None  # the loader's again, as soon as it is copied
        torch.mm(there, factors)
        total += there.sum(dtype=torch.float64)
        batches += 1
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / batches, total.item()


def best_of_torch(torch, size, batches, factors, workers):
    """Returns the fastest (workers, prefetch_factor, pin_memory) by the better of two short epochs, and the milliseconds of each."""
    tried = {}
    for count, prefetch, pin in itertools.product(workers, (2, 4, 8), (True, False)):
        loader = torch.utils.data.DataLoader(Floats(max(batches // 4, 16) * ROWS, size // ROWS), ROWS, num_workers=count,
                                             prefetch_factor=prefetch, pin_memory=pin, persistent_workers=True)
        epoch(torch, loader, factors)
        tried[count, prefetch, pin] = min(epoch(torch, loader, factors)[0] for _ in range(2))
        del loader  # ends its workers
    return min(tried, key=tried.get), tried


def measure(torch, size, batches, workers, rounds):
    width = size // ROWS // 4
    factors = torch.rand(width, WIDTH, device="cuda")
    (count, prefetch, pin), tried = best_of_torch(torch, size, batches, factors, workers)
    dataset = Floats(batches * ROWS, size // ROWS)
    arguments = dict(batch_size=ROWS, num_workers=count, prefetch_factor=prefetch, persistent_workers=True)
    there = torch.from_numpy(np.stack(list(map(Floats(ROWS, size // ROWS).__getitem__, range(ROWS))))).to("cuda")
    found = []
    with feedlane.Loader(dataset, tensors="torch", pin_memory=True, fields={"x": (np.float32, (width,))}, **arguments) as ours:
        loaders = {"torch": torch.utils.data.DataLoader(dataset, pin_memory=pin, **arguments),
                   "in_place": feedlane.DataLoader(dataset, pin_memory=True, **arguments),
                   "feedlane": ours}
        for number in range(rounds + 1):
            measured = {name: epoch(torch, loader, factors) for name, loader in loaders.items()}
            if len({total for _, total in measured.values()}) != 1:
                sys.exit("compare_gpu.py: the loaders' batches have different bytes")
            measured["alone"] = epoch(torch, (there for _ in range(batches)), factors)
            if number > 0:
                found.append({name: time_ms for name, (time_ms, _) in measured.items()})
    row = {"bytes": size, "workers": count, "prefetch": prefetch, "torch_pin_memory": pin,
           "torch_searched": {f"{n} workers, prefetch_factor {p}, pin_memory {m}": time_ms for (n, p, m), time_ms in tried.items()}}
    row |= {f"{name}_ms": spread([times[name] for times in found]) for name in found[0]}
    row |= {f"torch_over_{name}": spread([times["torch"] / times[name] for times in found]) for name in ("in_place", "feedlane")}
    return row


def show(row):
    m = {name: value["median"] for name, value in row.items() if isinstance(value, dict) and "median" in value}
    print(f"{row['bytes']:>9} {row['workers']:>7} {row['prefetch']:>8} {row['torch_pin_memory']!s:>6} {m['alone_ms']:8.3f} {m['torch_ms']:8.3f} "
          f"{m['in_place_ms']:8.3f} {m['torch_over_in_place']:6.2f} {m['feedlane_ms']:8.3f} {m['torch_over_feedlane']:6.2f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8], help="that torch's search tries")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="fewer batches")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bytes", type=int, nargs="+", choices=SIZES, help="of a batch; else all three")
    chosen = parser.parse_args()
    try:
        import torch  # imported here, because Feedlane's workers import this module and do not need torch
    except ImportError as missing:
        print("skipped:", missing)
        return 77
    if not torch.cuda.is_available():
        print("skipped: torch finds no CUDA device")
        return 77
    rows = []
    if not chosen.json:
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, batches of {ROWS} samples, medians of {chosen.rounds} rounds, "
              "ms per batch")
        print(f"{'bytes':>9} {'workers':>7} {'prefetch':>8} {'pinned':>6} {'alone':>8} {'torch':>8} {'in place':>8} {'ratio':>6} {'Loader':>8} "
              f"{'ratio':>6}")
    for size, batches in SIZES.items():
        if not chosen.bytes or size in chosen.bytes:
            rows.append(measure(torch, size, batches // (4 if chosen.quick else 1), chosen.workers, chosen.rounds))
            if not chosen.json:
                show(rows[-1])
    if chosen.json:
        print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
