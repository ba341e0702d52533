# SPDX-License-Identifier: Apache-2.0
"""What the tests of shared loaders have in common: processes that train, threads that serve, and the case with a folder."""
import contextlib
import os
import pathlib
import tempfile
import threading
import unittest

import feedlane
import share_programs
from processes import DEADLINE_S, Trainer
from share_programs import firsts, loader

PROGRAMS = pathlib.Path(share_programs.__file__)
SAMPLES = 402  # the last batch has 2


def trainer(kind, where, *more):
    """A process of share_programs.py. `where`: a path, or a Place, which is closed here."""
    if not isinstance(where, feedlane.Place):
        return Trainer(PROGRAMS, kind, where, *more)
    with where:
        return Trainer(PROGRAMS, kind, where.fd, *more, pass_fds=[where.fd])


def told(process):
    """What it has printed of an epoch: batches, and the length that it ends with; None: it has ended."""
    batches = []
    while line := process.line():
        if line.startswith("end"):
            return batches, int(line.split()[1])
        batches.append(list(map(int, line.split())))
    return batches, None


def order(samples, epochs=1):
    """The batches of each epoch, as a loader that isn't shared yields them."""
    with loader(samples) as own:
        return [[firsts(batch) for batch in own] for _ in range(epochs)]


@contextlib.contextmanager
def served(shared, epochs=1):
    """Another thread serves so many epochs. Its exception, or None, is in the list that this yields, once the `with` is over."""
    failures = []

    def run():
        try:
            for _ in range(epochs):
                shared.serve()
            shared.finish()
            failures.append(None)
        except Exception as failure:
            failures.append(failure)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield failures
    finally:
        thread.join(DEADLINE_S)


@contextlib.contextmanager
def attended(shared):
    """Another thread has consumers join, without an epoch."""
    is_over = threading.Event()

    def run():
        while not is_over.is_set():
            shared.wait_for_consumers(1024, timeout=0.02)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(DEADLINE_S)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.path = os.path.join(self.folder, "feeder.sock")

    def shared(self, share, samples=SAMPLES, **more):
        return self.enterContext(loader(samples, share=share, **more))

    def started(self, *arguments):
        return self.enterContext(trainer(*arguments))

    def joined(self, shared, *place, **more):
        return self.enterContext(feedlane.join(shared.open_consumer(*place), **more))
