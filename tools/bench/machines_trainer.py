# SPDX-License-Identifier: Apache-2.0
"""The trainer of machines.py, in the namespace of Ray's head. Prints one line of JSON.
Usage: machines_trainer.py rate WORKERS BATCHES | epoch WORKERS BATCHES"""
import hashlib
import json
import os
import sys
import time

import numpy as np
import ray

import feedlane
import feedlane.ray

ROWS, WIDTH = 256, 4096


class Table(feedlane.BatchDataset):
    """Rows of 4 KiB."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def fetch(self, indices, seeds, out):
        out["x"][:] = (indices & 127).astype(np.uint8)[:, None]


class Samples:
    """Samples of 40 KiB that depend on index and seed, each of which takes some seconds to make."""

    def __init__(self, length, seconds):
        self.length, self.seconds = length, seconds

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return index, np.random.default_rng(feedlane.sample_seed()).integers(0, 256, 40_960, dtype=np.uint8)


def times_of(pids):
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def rate(workers, batches):
    with feedlane.Loader(Table(batches * ROWS), ROWS, num_workers=workers, fields={"x": ("uint8", (WIDTH,))}, prefetch_factor=8,
                         persistent_workers=True, start=feedlane.ray.remote_workers(num_cpus=0.5)) as loader:
        began = time.perf_counter()
        next(iter(loader))
        first = time.perf_counter() - began
        for _ in loader:  # a whole epoch as warm-up
            pass
        relays = [worker["pid"] for worker in loader.workers()]
        cpu, theirs, began = time.process_time(), times_of(relays), time.perf_counter()
        count = sum(1 for _ in loader)
        seconds = time.perf_counter() - began
        return {"rate": count * ROWS * WIDTH / seconds / 1e6, "first": first, "cpu": (time.process_time() - cpu) / count * 1e6,
                "relays": (times_of(relays) - theirs) / count * 1e6}


def epoch(workers, batches):
    """WORKERS 0: inline, which nothing disturbs."""
    digest, stall, count = hashlib.sha256(), 0.0, 0
    there = {"num_workers": workers, "max_restarts": 100_000, "max_kills_per_batch": 1000, "task_timeout": 3,
             "start": feedlane.ray.remote_workers(num_cpus=0.5)} if workers else {}
    with feedlane.Loader(Samples(batches * 8, 0.005 if workers else 0), 8, shuffle=True, seed=11, **there) as loader:
        last = None
        for indices, data in loader:
            now = time.perf_counter()
            if last is None:
                print("begun", flush=True)
            stall, last = max(stall, now - (last or now)), now
            digest.update(indices.tobytes())
            digest.update(data.tobytes())
            count += 1
        return {"batches": count, "digest": digest.hexdigest(), "stall": stall, "restarts": loader.stats()["restarts"]}


def main():
    part, workers, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    forwarded = {name: os.environ[name] for name in ("PYTHONPATH", "FEEDLANE_LIBRARY")}
    ray.init(address="10.77.0.1:6379", _node_ip_address="10.77.0.1", logging_level="error", log_to_driver=False,
             runtime_env={"env_vars": forwarded})
    print(json.dumps({"rate": rate, "epoch": epoch}[part](workers, batches)), flush=True)


if __name__ == "__main__":
    import machines_trainer  # so that the data sets are pickled by reference to a module, which nodes have too
    machines_trainer.main()
