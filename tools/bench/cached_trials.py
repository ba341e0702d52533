#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processor time of trials over one cache of decoded pictures, compared with decoding.

A folder of JPEGs (photographs.py) is decoded and resized by Pillow, 64 in a batch, by a feedlane.Loader. Alternating rounds:
  decoding   one trial of one epoch, without an arena
  trials     eight trials of three epochs, one after another, over feedlane.cached() and one new arena
Each trial is a process of its own. Processor time is that of its epochs, and of the arena's owner from first to last; what an
interpreter takes to start and to import is not counted. All trials run with MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_
raised: otherwise the layout of the heap decides by chance whether each picture's memory goes back to the system, which makes
decoding up to 1.5 times as slow. Every batch of the trials must have the bytes of the batch that decoding makes. Skips (77)
without Pillow or the photographs.

Usage: cached_trials.py [--pictures N] [--trials N] [--epochs N] [--rounds N] [--json]"""
import argparse
import json
import multiprocessing
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
import zlib

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent.parent))

import photographs
from rounds import alternate, cell, ratios, spread

try:
    import feedlane
    import numpy as np
    from PIL import Image
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

BATCH, SIDE = 64, 224
SPAWN = multiprocessing.get_context("spawn")


class Pictures:
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as picture:
            return np.asarray(picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)), index


def run(dataset, epochs, digests):
    """Seconds of processor time of this process. Appends a digest of each batch of one more epoch, which does not count."""
    with feedlane.Loader(dataset, batch_size=BATCH, shuffle=True, seed=1) as loader:
        began = time.process_time()
        for _ in range(epochs):
            for _ in loader:
                pass
        seconds = time.process_time() - began
        for pictures, labels in loader:
            digests.append(zlib.crc32(np.asarray(labels), zlib.crc32(np.asarray(pictures))))
        return seconds


def trial(paths, arena, epochs, results):
    digests = []
    dataset = Pictures(paths) if arena is None else feedlane.cached(Pictures(paths), arena)
    results.send((run(dataset, epochs, digests), digests))


def in_process(*arguments):
    results, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=trial, args=(*arguments, theirs))
    process.start()
    theirs.close()
    found = results.recv()
    process.join()
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", type=int, default=1024)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            photographs.make(os.path.join(folder, "pictures"), chosen.pictures)
        except (ImportError, OSError, subprocess.CalledProcessError) as missing:
            print("skipped: no photographs:", missing)
            return 77
        paths = sorted(str(path) for path in pathlib.Path(folder, "pictures").rglob("*.jpg"))
        os.environ |= {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
        _, decoded = in_process(paths, None, chosen.epochs)

        def decoding():
            return in_process(paths, None, 1)[0]

        def trials():
            path = os.path.join(folder, "arena")
            began = time.process_time()
            total = 0.0
            with feedlane.Arena(len(paths) * (SIDE * SIDE * 3 + 8192) + (16 << 20), path=path) as arena:
                for _ in range(chosen.trials):
                    seconds, digests = in_process(paths, path, chosen.epochs)
                    if digests != decoded:
                        sys.exit("cached_trials.py: a batch over the cache differs from the batch that decoding makes")
                    total += seconds
                stats = arena.stats()
            if stats["published"] != len(paths):
                sys.exit(f"cached_trials.py: {stats['published']} entries published for {len(paths)} pictures")
            return total + time.process_time() - began

        got = alternate({"decoding": decoding, "trials": trials}, chosen.rounds)
    over = ratios(got["trials"], got["decoding"])
    name = f"{chosen.trials} trials of {chosen.epochs} epochs over one cache"
    if chosen.json:
        row = {"pictures": len(paths), "decoding_s": spread(got["decoding"]), "trials_s": spread(got["trials"])}
        machine = {"processors": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version()}
        print(json.dumps({"machine": machine, "groups": {"cached": {"rows": [row], "ratios": {"cached.trials_over_decoding":
                                                                                             spread(over)}}}}, indent=1))
    else:
        print(f"one epoch decoded: {cell(got['decoding'])} s of processor time, {len(paths)} pictures")
        print(f"{name}: {cell(got['trials'])} s; over it: {cell(over)}; every batch has the same bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
