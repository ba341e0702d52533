# SPDX-License-Identifier: Apache-2.0
"""Trainers that contract_test.py starts, and how it makes loaders of both kinds.
Usage: contract_programs.py Loader|DataLoader WORKERS FOLDER_OF_A_GATE idle|busy|interrupt|return|raise|exit|_exit
Prints the workers' process ids, then does what it is asked to: what ends it, after a line of input."""
import os
import signal
import sys

import feedlane
from datasets import Gated, Numbers

LOADER, DATALOADER = "Loader", "DataLoader"


def make(kind, dataset, workers, **arguments):
    return getattr(feedlane, kind)(dataset, 4, num_workers=workers, **arguments)


def next_of(iterator):
    return next(iterator).tolist()


def pids(kind, loader, iterator):
    """Of the worker processes."""
    if kind == DATALOADER:
        return [process.pid for process in iterator._workers]
    while not all(worker["pid"] for worker in loader.workers()):
        loader.poll()  # it learns a worker's number when the worker attaches
    return [worker["pid"] for worker in loader.workers()]


def print_pids(*of):
    print(*pids(*of), flush=True)


def idle(kind, workers):
    loader = make(kind, Numbers(16), workers, persistent_workers=True)
    iterator = iter(loader)
    for _ in iterator:
        pass
    print_pids(kind, loader, iterator)
    signal.pause()


def interrupted(iterator):
    try:
        for _ in iterator:
            pass
    except KeyboardInterrupt:
        print("KeyboardInterrupt", flush=True)
        sys.exit(130)


def main(kind, workers, folder, what):
    if what == "idle":
        return idle(kind, workers)
    loader = make(kind, Gated(folder), workers)
    iterator = iter(loader)
    next(iterator), next(iterator)
    print_pids(kind, loader, iterator)
    if what == "interrupt":
        return interrupted(iterator)
    if what == "busy":
        signal.pause()
    sys.stdin.readline()  # once the workers are busy
    if what == "raise":
        raise RuntimeError("uncaught")
    if what == "exit":
        sys.exit(3)
    if what == "_exit":
        os._exit(4)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
