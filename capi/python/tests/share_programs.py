# SPDX-License-Identifier: Apache-2.0
"""Feeders and trainers of a shared loader, which the share tests start as processes of their own. A trainer prints the first
number of each sample, a line for each batch, and "end" after each epoch.
Usage: share_programs.py trainer FD|PATH [ID] | PROGRAM ARGUMENT"""
import ctypes
import os
import signal
import sys

import feedlane
from datasets import Numbers

BATCH = 4


def firsts(batch):
    return [int(sample[0]) for sample in batch]


def show(*words):
    print(*words, flush=True)


def loader(samples, **more):
    return feedlane.Loader(Numbers(samples), BATCH, shuffle=True, seed=5, num_workers=1, persistent_workers=True, **more)


def consumer(where, *place):
    if where.isdecimal():
        return feedlane.join(int(where))
    return feedlane.join(where, id=int(place[0]) if place else None)


def trainer(where, *place):
    """Two epochs."""
    with consumer(where, *place) as batches:
        for _ in range(2):
            for batch in batches:
                show(*firsts(batch))
            show("end", len(batches))


def newcomer(where):
    """One epoch."""
    with consumer(where) as batches:
        for batch in batches:
            show(*firsts(batch))
        show("end", len(batches))


def killed(where):
    """Killed with its third batch in its hands."""
    for number, batch in enumerate(consumer(where)):
        show(*firsts(batch))
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def failing(where):
    """An error in the user's code, after two batches."""
    for number, batch in enumerate(consumer(where)):
        show(*firsts(batch))
        if number == 1:
            raise ValueError("the trainer's own error")


def writing(where):
    """Writes to a batch past numpy."""
    with next(consumer(where).batches()) as batch:
        show("writes")
        ctypes.memset(batch.tensors[0].address, 0, 8)
        show("has written")


def feeder(path):
    """Its batches are more than fit."""
    with loader(4000, share="every", consumers=2, share_path=path) as shared:
        show("ready")
        shared.wait_for_consumers()
        shared.serve()


def interrupted(_):
    """A consumer that takes nothing: the feeder waits."""
    with loader(4000, share="every") as shared, shared.open_consumer() as place, feedlane.join(place):
        show("ready")
        try:
            shared.serve()
        except KeyboardInterrupt:
            show("interrupted")


def in_process(place, results):
    """For multiprocessing's Process: what the trainer would print, of one epoch."""
    with feedlane.join(place) as batches:
        results.put((place.id, [firsts(batch) for batch in batches]))


if __name__ == "__main__":
    {f.__name__: f for f in (trainer, newcomer, killed, failing, writing, feeder, interrupted)}[sys.argv[1]](*sys.argv[2:])
