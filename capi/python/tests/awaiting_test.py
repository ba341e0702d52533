# SPDX-License-Identifier: Apache-2.0
"""Loaders and consumers in event loops: asyncio, and the program's own.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python awaiting_test.py [unittest's arguments]"""
import asyncio
import contextlib
import functools
import gc
import itertools
import select
import tempfile
import threading
import unittest

import numpy_or_skip  # noqa: F401
import feedlane
from datasets import Gate, Gated, Numbers
from memory_test import descriptors
from processes import DEADLINE_S, ended, watched
from share_cases import served


def first(batch):
    return int(batch[0, 0])


def run(main):
    """Runs the coroutine under a deadline."""
    return asyncio.run(asyncio.wait_for(main, DEADLINE_S))


async def firsts(batches):
    return [first(batch) async for batch in batches]


async def waiting(loader):
    """A task that is in the wait for a batch of this loader."""
    batches = aiter(loader) if not hasattr(loader, "__anext__") else loader
    task = asyncio.ensure_future(anext(batches))
    while batches._loader._asleep is None:
        await asyncio.sleep(0)
    return task


class Case(unittest.TestCase):
    def gated(self, **more):
        """(a gate, a Loader whose third batch waits at it)"""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        gate = Gate(folder)
        self.addCleanup(gate.close)
        self.addCleanup(gate.open)
        return gate, self.enterContext(feedlane.Loader(Gated(folder, 16), 4, num_workers=1, **more))


class Asyncio(Case):
    # promise: next-foreign-loop
    def test_batches_are_those_of_a_loop(self):
        async def epochs(loader):
            yielded = [await firsts(loader) for _ in range(2)]
            async for batch in loader.abatches():
                with batch:
                    yielded.append((batch.number, first(batch.data)))
            return yielded

        for workers in 0, 2:
            for is_kept in {False, workers > 0}:
                with feedlane.Loader(Numbers(40), 4, shuffle=True, seed=2, num_workers=workers,
                                     persistent_workers=is_kept) as loader, \
                        feedlane.Loader(Numbers(40), 4, shuffle=True, seed=2) as other:
                    wanted = [list(map(first, other)) for _ in range(2)] + list(enumerate(map(first, other)))
                    self.assertEqual(run(epochs(loader)), wanted)

    # promise: share-event-loops
    def test_a_consumer(self):
        with feedlane.Loader(Numbers(40), 4, num_workers=1, share="every") as feeder:
            self.assertRaisesRegex(feedlane.StateError, "yields no batches", aiter, feeder)
            join = functools.partial(feedlane.join, feeder.open_consumer())
            with served(feeder, 2) as failures, join() as consumer:
                for _ in range(2):
                    self.assertEqual(run(firsts(consumer)), list(range(0, 40, 4)))
            self.assertEqual(failures, [None])

    def test_other_tasks_run(self):
        """While a batch is made, and between batches that are ready."""
        gate, loader = self.gated()

        async def main():
            batches, found = aiter(loader), []
            for _ in range(2):
                found.append(first(await anext(batches)))
            task = await waiting(batches)
            self.assertFalse(task.done())
            gate.open()  # here, in another task than the one that waits
            return [*found, first(await task), *await firsts(batches)]

        self.assertEqual(run(main()), [0, 4, 8, 12])

        async def turns_of(loader):
            turns = []

            async def other():
                while True:
                    turns.append("other")
                    await asyncio.sleep(0)
            task = asyncio.ensure_future(other())
            async for _ in loader:
                turns.append("batch")
            task.cancel()
            return turns

        with feedlane.Loader(Numbers(16), 4) as loader:
            self.assertNotIn(("batch", "batch"), itertools.pairwise(run(turns_of(loader))))

    def test_a_cancelled_task_leaves_nothing(self):
        before = descriptors()
        gate, loader = self.gated(persistent_workers=True)
        with_gate = descriptors()

        async def main():
            batches = aiter(loader)
            self.assertEqual([first(await anext(batches)) for _ in range(2)], [0, 4])
            for _ in range(3):
                task = await waiting(batches)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                self.assertIsNone(loader._asleep)
                self.assertFalse(asyncio.get_running_loop().remove_reader(batches._fd))
            gate.open()
            return await firsts(batches)

        self.assertEqual(run(main()), [8, 12], "no batch is lost")
        gc.collect()
        loader.close()
        self.assertLessEqual(set(descriptors()) - set(before), set(with_gate))

    def test_leaving_early_ends_workers_that_are_not_kept(self):
        async def main(loader):
            async for _ in loader:
                while not all(worker["pid"] for worker in loader.workers()):
                    loader.poll()  # it learns a worker's number when the worker attaches
                return watched(self, [worker["pid"] for worker in loader.workers()])

        with feedlane.Loader(Numbers(400), 4, num_workers=2) as loader:
            self.assertTrue(ended(run(main(loader)), DEADLINE_S))
            self.assertEqual(run(firsts(loader)), list(range(0, 400, 4)))

    def test_what_ends_the_wait_of_a_task(self):
        def begin(loader):
            iter(loader)

        def close_in_a_thread(loader):
            closes = threading.Thread(target=loader.close)
            closes.start()
            closes.join()

        for what, words in ((feedlane.Loader.close, "closed"), (close_in_a_thread, "closed"), (begin, "another iteration")):
            with self.subTest(what):
                gate, loader = self.gated(persistent_workers=True)

                async def main():
                    batches = aiter(loader)
                    await anext(batches), await anext(batches)
                    task = await waiting(batches)
                    gate.open()  # close waits for the worker
                    what(loader)
                    with self.assertRaisesRegex(feedlane.StateError, words):
                        await task
                run(main())

    def test_errors(self):
        gate, loader = self.gated()

        async def late():
            batches = aiter(loader)
            await anext(batches), await anext(batches)
            loader.timeout = 0.01
            with self.assertRaisesRegex(feedlane.Timeout, r"within 0\.01 s"):
                await anext(batches)
            loader.timeout = 0
            task = await waiting(batches)
            with self.assertRaisesRegex(feedlane.Busy, "another task"):
                await anext(batches)
            gate.open()
            found = [first(await task), *await firsts(batches)]
            with self.assertRaises(StopAsyncIteration):
                await anext(batches)
            return found

        self.assertEqual(run(late()), [8, 12])

        async def broken(loader):
            batches, found = aiter(loader), []
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    try:
                        found.append(first(await anext(batches)))
                    except feedlane.SampleError as error:
                        found.append(error.sample)
            return found

        for workers in 0, 1:
            with feedlane.Loader(Numbers(12, failing=(5,)), 4, num_workers=workers) as loader:
                self.assertEqual(run(broken(loader)), [0, 5, 8])
        self.assertRaisesRegex(feedlane.StateError, "closed", aiter, loader)


class OwnLoop(Case):
    # promise: next-foreign-loop
    def test_poll_and_descriptor(self):
        gate, loader = self.gated()
        batches, found, waits = iter(loader), [], select.poll()
        waits.register(loader, select.POLLIN)
        while len(found) < 4:
            if loader.poll():
                found.append(first(next(batches)))
            else:
                if len(found) == 2:
                    gate.open()
                self.assertTrue(waits.poll(DEADLINE_S * 1000))
        while not loader.poll():
            self.assertTrue(waits.poll(DEADLINE_S * 1000))
        self.assertRaises(StopIteration, next, batches)
        self.assertEqual(found, [0, 4, 8, 12])
        loader.close()
        self.assertRaisesRegex(feedlane.StateError, "closed", loader.fileno)
        self.assertRaisesRegex(feedlane.StateError, "closed", loader.poll)

    # promise: share-event-loops
    def test_poll_of_a_consumer(self):
        with feedlane.Loader(Numbers(8), 4, num_workers=1, share="every") as feeder:
            join = functools.partial(feedlane.join, feeder.open_consumer())
            with served(feeder) as failures, join() as consumer:
                batches, found, waits = iter(consumer), [], select.poll()
                waits.register(consumer.fileno(), select.POLLIN)
                while len(found) < 2:
                    if consumer.poll():
                        found.append(first(next(batches)))
                    else:
                        self.assertTrue(waits.poll(DEADLINE_S * 1000))
                self.assertEqual(found, [0, 4])
            self.assertEqual(failures, [None])

    def test_without_workers(self):
        with feedlane.Loader(Numbers(4), 4) as loader:
            self.assertFalse(loader.poll(), "no epoch has begun")
            batches = iter(loader)
            self.assertTrue(loader.poll())
            self.assertEqual(first(next(batches)), 0)


if __name__ == "__main__":
    unittest.main()
