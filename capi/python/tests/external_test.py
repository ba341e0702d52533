# SPDX-License-Identifier: Apache-2.0
"""Loader(start=function): workers that the program starts.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python external_test.py [unittest's arguments]"""
import asyncio
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import unittest

import numpy_or_skip  # noqa: F401
import feedlane
import numpy as np
from datasets import Numbers

LENGTH = 60


class Pids:
    """Each sample has its worker's pid."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return np.full(3, index), os.getpid()


class Endless:
    """Iterable: each shard is endless."""

    def __iter__(self):
        return ((np.full(3, number), 0) for number in itertools.count())


def consume(place, numbers):
    with feedlane.join(place) as consumer:
        numbers.put([int(batch[0][0, 0]) for batch in consumer])


class Case(unittest.TestCase):
    method = "spawn"

    def setUp(self):
        self.context = multiprocessing.get_context(self.method)
        self.processes = []

    def start(self, place):
        process = self.context.Process(target=feedlane.run_worker, args=(place,))
        process.start()
        self.addCleanup(process.kill)
        self.processes.append(process)

    def loader(self, dataset=None, **options):
        options = {"num_workers": 2, "start": self.start, **options}
        loader = feedlane.Loader(Pids() if dataset is None else dataset, 2, **options)
        self.addCleanup(loader.close)
        return loader

    def fed(self, dataset):
        """A feeder that a consumer in another process has joined, and the queue of what that has received."""
        feeder, numbers = self.loader(dataset, share="every"), self.context.SimpleQueue()
        with feeder.open_consumer() as place:
            consumer = self.context.Process(target=consume, args=(place, numbers))
            consumer.start()
            self.addCleanup(consumer.kill)
        self.assertTrue(feeder.wait_for_consumers())
        return feeder, numbers

    def ends(self):
        for process in self.processes:
            process.join()
        return [process.exitcode for process in self.processes]


class Spawned(Case):
    def test_the_same_batches_although_workers_are_killed(self):
        with feedlane.Loader(Pids(), 2, shuffle=True, seed=3) as inline:
            expected = [numbers.tolist() for numbers, _ in inline]
        loader = self.loader(shuffle=True, seed=3, persistent_workers=True)
        for epoch in range(2):
            loader.set_epoch(0)
            received = []
            for numbers, pids in loader:
                received.append(numbers.tolist())
                if len(received) == 4:
                    os.kill(int(pids[0]), signal.SIGKILL)
            self.assertEqual(received, expected)
        loader.close()
        ends = self.ends()
        self.assertGreaterEqual(ends.count(-signal.SIGKILL), 2)  # close kills a replacement that is opening its data set
        self.assertEqual(set(ends), {-signal.SIGKILL, 0})
        self.assertGreater(len(ends), 2)

    def test_all_workers_killed_at_once(self):
        loader = self.loader(prefetch_factor=1)
        batches = iter(loader)
        received = [next(batches)[0][0, 0]]
        for process in self.processes:
            process.kill()
            process.join()
        received.extend(numbers[0, 0] for numbers, _ in batches)
        self.assertEqual(received, list(range(0, LENGTH, 2)))
        self.assertEqual(len(self.processes), 4)

    def test_an_exception_of_the_function_reaches_the_loop(self):
        fails = [True]

        def start(place):
            if fails:
                raise KeyError(fails.pop())
            self.start(place)
        loader = self.loader(start=start)
        with self.assertRaises(KeyError):
            iter(loader)
        self.assertEqual(sum(1 for _ in loader), LENGTH // 2)

    def test_a_function_that_starts_nothing(self):
        loader = self.loader(start=lambda place: place.close(), timeout=60)
        with self.assertRaises(feedlane.InitError):
            list(loader)

    def test_timeout(self):
        kept = []
        self.addCleanup(lambda: [os.close(fd) for fd in kept])
        loader = self.loader(start=lambda place: kept.append(place.detach()), timeout=0.3)
        batches = iter(loader)
        for _ in range(2):
            with self.assertRaises(feedlane.Timeout):
                next(batches)

    def test_a_worker_by_subprocess(self):
        def start(place):
            self.processes.append(subprocess.Popen([sys.executable, "-c", "import sys, feedlane; feedlane.run_worker(int(sys.argv[1]))",
                                                    str(place.fd)], pass_fds=[place.fd]))
            self.addCleanup(self.processes[-1].wait)
        with self.loader(start=start) as loader:
            self.assertEqual([int(numbers[0, 0]) for numbers, _ in loader], list(range(0, LENGTH, 2)))

    def test_asyncio(self):
        loader = self.loader()

        async def run():
            received = []
            async for numbers, pids in loader:
                received.append(int(numbers[0, 0]))
                if len(received) == 4:
                    os.kill(int(pids[0]), signal.SIGKILL)
            return received
        self.assertEqual(asyncio.run(run()), list(range(0, LENGTH, 2)))

    def test_asyncio_with_all_workers_killed(self):
        loader = self.loader(num_workers=1, prefetch_factor=1)

        async def run():
            batches = aiter(loader)
            received = [(await anext(batches))[0][0, 0]]
            self.processes[0].kill()
            self.processes[0].join()
            return received + [numbers[0, 0] async for numbers, _ in batches]
        self.assertEqual(asyncio.run(run()), list(range(0, LENGTH, 2)))

    def test_the_loss_of_a_shard_is_an_error(self):
        feeder, _ = self.fed(Endless())
        while sum(worker["tasks"] > 0 for worker in feeder.workers()) < 2:
            feeder.serve(0)
        self.processes[1].kill()
        with self.assertRaisesRegex(feedlane.PeerDead, "shard"):
            while not feeder.serve():
                pass

    def test_a_feeder_whose_workers_are_killed(self):
        feeder, numbers = self.fed(Pids())
        while not self.processes:
            feeder.serve(0)
        for process in self.processes[:2]:
            process.kill()
        while not feeder.serve():
            pass
        feeder.finish()
        self.assertEqual(numbers.get(), list(range(0, LENGTH, 2)))


class Forked(Case):
    method = "fork"

    def test_batches(self):
        with self.loader() as loader:
            self.assertEqual([int(numbers[0, 0]) for numbers, _ in loader], list(range(0, LENGTH, 2)))
        ends = self.ends()
        self.assertIn(0, ends)
        self.assertLessEqual(set(ends), {0, -signal.SIGKILL}, "one may not have attached when the other had made all")


class BadInput(unittest.TestCase):
    def test_bad_arguments(self):
        for call, error, text in (
                (lambda: feedlane.Loader(Numbers(4), start=print), ValueError, "num_workers=0"),
                (lambda: feedlane.Loader(Numbers(4), num_workers=1, start="remote"), ValueError, "'spawn', 'fork', 'thread'"),
                (lambda: feedlane.Loader(worker=["true"], num_workers=1, start=print), ValueError, "start is not allowed with worker"),
                (lambda: feedlane.run_worker(-1), ValueError, "place=-1")):
            with self.assertRaisesRegex(error, text):
                call()
        ours, theirs = os.pipe()
        os.close(theirs)
        with self.assertRaises(feedlane.FeedlaneError):
            feedlane.run_worker(ours)


if __name__ == "__main__":
    unittest.main()
