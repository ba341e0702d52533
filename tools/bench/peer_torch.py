#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Feedlane compared with torch's DataLoader, in alternating rounds: handing over batches, and start-up. peers.py has the work of trainers.

torch's at its best: persistent forked workers, no collating, and for that size the fastest of a search over the way of a batch,
the number of workers and the prefetch factor. The ways: `tensors`, which a worker makes by one copy straight into torch's shared
memory, as its default collate does; `arrays` and `bytes`, which go through its pipe. Feedlane runs with the same workers and
prefetch factor, through the C API by `feedlane bench`; nobody pins a processor.
Either trainer reads a byte of every page. examples/python/compare_torch.py has Python on both sides. Skips (77) without torch.

Usage: peer_torch.py [--quick] [--json] [--rounds N] [--feedlane PATH]"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

TOOLS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(1, str(TOOLS))

from feedlane_command import Group, find_feedlane
from rounds import alternate, cell, ratios, spread

try:
    import numpy as np
    import torch
    import torch.utils.data
except ImportError:
    print("skipped: torch or numpy is missing for", sys.executable)
    sys.exit(77)

KIB, MIB = 1 << 10, 1 << 20
SIZES = {4 * KIB: 4000, 64 * KIB: 4000, MIB: 1500, 16 * MIB: 120, 147 * MIB: 16}  # bytes of a batch: torch's batches a round
QUICK = {4 * KIB: 300, 64 * KIB: 300, MIB: 150, 16 * MIB: 24, 147 * MIB: 5}
SEARCHED = {"workers": (1, 2), "prefetch": (2, 4, 8, 16)}
IN_FLIGHT = 1 << 30  # bytes, at most
PAGE = 4096


# ---- torch's side ----

class Copies(torch.utils.data.Dataset):
    """Batches of `size` bytes, each a copy of memory that the worker has written."""

    def __init__(self, way, size, batches):
        self.way, self.size, self.batches, self.source = way, size, batches, None

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        if self.source is None:
            self.source = {"tensors": torch.ones(self.size, dtype=torch.uint8), "arrays": np.ones(self.size, np.uint8),
                           "bytes": b"\1" * self.size}[self.way]
        if self.way != "tensors":
            return self.source  # pickling copies it
        out = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(self.size))
        return out.copy_(self.source)


WAYS = ("tensors", "arrays", "bytes")
# multiprocessing reads a pickle by os.read, which allocates what is still to come for each 64 KiB. Beyond what malloc takes from
# its heap that is a mapping each time: seconds to minutes for a batch, by how fragmented the machine's memory is.
PIPED = 32 * MIB


def ways(size, quick):
    return WAYS[:1] if quick and size > PIPED else WAYS


def as_it_is(sample):
    return sample


def torch_loader(way, size, batches, workers, prefetch=2):
    return torch.utils.data.DataLoader(Copies(way, size, batches), batch_size=None, num_workers=workers, prefetch_factor=prefetch,
                                       persistent_workers=True, multiprocessing_context="fork", collate_fn=as_it_is)


def touch(batch):
    if isinstance(batch, bytes):
        batch = np.frombuffer(batch, np.uint8)
    return batch[::PAGE].sum()


def torch_rate(loader):
    """Batches a second, from the first one on."""
    batches = iter(loader)
    touch(next(batches))
    began, count = time.perf_counter(), 0
    for batch in batches:
        touch(batch)
        count += 1
    return count / (time.perf_counter() - began)


def torch_start(workers):
    """Milliseconds to the first batch, for a new epoch's first batch with workers that sleep, and to the end."""
    clock = time.perf_counter
    times = []
    loader = None
    for _ in range(2):
        time.sleep(0.01)
        began = clock()
        loader = loader or torch_loader("tensors", PAGE, 8, workers)
        batches = iter(loader)
        touch(next(batches))
        times.append(clock() - began)
        for _ in batches:
            pass
    began = clock()
    del batches, loader  # its iterator's destructor ends the workers
    times.append(clock() - began)
    return [1e3 * seconds for seconds in times]


# ---- what is measured ----

def settings(size, searched, ways):
    return [(way, workers, prefetch) for way in ways for workers in searched["workers"] for prefetch in searched["prefetch"]
            if prefetch == min(searched["prefetch"]) or size * workers * prefetch <= IN_FLIGHT]


def search(size, rate_of, searched, ways):
    """The fastest of the settings, and the rates of all."""
    found = {setting: rate_of(*setting) for setting in settings(size, searched, ways)}
    best = max(found, key=found.get)
    return best, [{"way": way, "workers": w, "prefetch": p, "batches_s": rate} for (way, w, p), rate in found.items()]


def measure_handoff(feedlane, group, chosen, say):
    searched = {"workers": (1, 2), "prefetch": (2, 8)} if chosen.quick else SEARCHED
    say(f"\n{'batch':>8} {'torch by':>8} {'workers':>8} {'prefetch':>9} {'torch/s':>24} {'feedlane/s':>26} {'ratio':>24}   feedlane's own best")
    for size, batches in (QUICK if chosen.quick else SIZES).items():
        (way, workers, prefetch), tried = search(
            size, lambda way, w, p, size=size, n=max(batches // 4, 5): torch_rate(torch_loader(way, size, n, w, p)), searched,
            ways(size, chosen.quick))
        (_, *our_best), our_tried = ((way, workers, prefetch), []) if chosen.quick else search(
            size, lambda _, w, p, size=size: feedlane.rate(size, w, p), searched, ["slots"])
        loader = torch_loader(way, size, batches, workers, prefetch)
        got = alternate({"torch": lambda loader=loader: torch_rate(loader),
                         "feedlane": lambda size=size, w=workers, p=prefetch: feedlane.rate(size, w, p)}, chosen.rounds)
        theirs, ours = got["torch"], got["feedlane"]
        del loader
        ratio = spread(ratios(ours, theirs))
        group.ratios[f"torch.{size}.over_best"] = ratio
        best = max((row["batches_s"] for row in our_tried), default=None)
        group.rows.append({"bytes": size, "way": way, "workers": workers, "prefetch": prefetch, "torch_batches_s": spread(theirs),
                           "feedlane_batches_s": spread(ours), "ratio": ratio, "torch_searched": tried,
                           "feedlane_searched": our_tried, "feedlane_best": [*our_best, best]})
        say(f"{name_of(size):>8} {way:>8} {workers:>8} {prefetch:>9} {cell(theirs):>24} {cell(ours):>26} {cell(ratio['rounds']):>24}   "
            + (f"{best:.4g} ({our_best[0]} workers, prefetch {our_best[1]})" if best else "-"))


def measure_startup(feedlane, group, chosen, say):
    say(f"\n{'workers':>8} {'first batch, ms':>26} {'new epoch, ms':>26} {'end, ms':>26}    (torch, feedlane by fork)")
    names = ("first_batch", "new_epoch", "end")
    for workers in (1, 2):
        got = alternate({"torch": lambda workers=workers: torch_start(workers),
                         "feedlane": lambda workers=workers: feedlane.start(workers)}, chosen.rounds)
        theirs, ours = (list(zip(*got[name])) for name in ("torch", "feedlane"))
        row = {"workers": workers}
        for name, their, our in zip(names, theirs, ours):
            row[name + "_ms"] = {"torch": spread(list(their)), "feedlane": spread(list(our))}
            group.ratios[f"torch.startup.{workers}.{name}"] = spread(ratios(our, their))
        group.rows.append(row)
        say(f"{workers:>8}", *(f"{statistics.median(their):>14.3f} {statistics.median(our):>11.3f}"
                               for their, our in zip(theirs, ours)))
    say("\nfeedlane's arena has 64 MiB, whose pages it fills before the first batch; torch's batches there have a page each")


# ---- reports ----

def name_of(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer batches, a smaller search")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=9, help="of which the medians are taken")
    parser.add_argument("--feedlane", help="path of the feedlane command")
    chosen = parser.parse_args()
    say = (lambda *_: None) if chosen.json else print
    feedlane = find_feedlane(chosen.feedlane)
    said = feedlane.bench("floor", "--quick")
    result = {"machine": {**said["machine"], "torch": torch.__version__}, "groups": {}}
    say(f"torch {torch.__version__}, {len(os.sched_getaffinity(0))} processors, medians of {chosen.rounds} rounds")
    group = result["groups"]["torch"] = Group()
    measure_handoff(feedlane, group, chosen, say)
    measure_startup(feedlane, group, chosen, say)
    if chosen.json:
        print(json.dumps(result, default=vars, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
