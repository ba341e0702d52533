# SPDX-License-Identifier: Apache-2.0
"""How loaders end: closed beside another thread, dropped in cycles, left in mid-epoch. More is in
contract_test.py.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python life_test.py [unittest's arguments]"""
import gc
import os
import tempfile
import threading
import time
import unittest
import weakref

import numpy_or_skip  # noqa: F401
import feedlane
from feedlane import lifetime, samplers
from datasets import Numbers, Stuck
from memory_test import descriptors, mappings


def pids(loader):
    return [worker["pid"] for worker in loader.workers() if worker["pid"]]


def exists(pid):
    return os.path.exists(f"/proc/{pid}")


class Blocked(Numbers):
    """Sample 0, without workers, waits for the test. The epoch is not over before the loader is closed."""

    def __init__(self):
        super().__init__(2**40)
        self.inside, self.go_on = threading.Event(), threading.Event()

    def __getitem__(self, i):
        self.inside.set()
        self.go_on.wait(60)
        return super().__getitem__(i)


class Trainer:
    """Has a loader that has it."""

    def __init__(self, **arguments):
        self.loader = feedlane.Loader(Numbers(8), 2, collate_fn=self.collate, sampler=Order(self), **arguments)

    def collate(self, samples):
        return samples[0]


class Order:
    def __init__(self, owner):
        self.owner = owner

    def __iter__(self):
        return iter(range(8))


class Closing(unittest.TestCase):
    def in_thread(self, loader, told):
        def run():
            try:
                for _ in loader:
                    pass
            except feedlane.FeedlaneError as error:
                told.append(error)
        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def test_while_another_thread_is_in_a_sample(self):
        gc.collect()
        before = descriptors(), len(mappings())
        dataset, told = Blocked(), []
        loader = feedlane.Loader(dataset, 4)
        thread = self.in_thread(loader, told)
        dataset.inside.wait(60)
        self.assertEqual(loader.stats()["epochs"], 1)
        closing = threading.Thread(target=loader.close)
        closing.start()  # waits for the sample
        while not loader._core.is_closed:
            pass
        for read in loader.stats, loader.info, loader.report, loader.timings, loader.workers, loader.__len__:
            self.assertRaisesRegex(feedlane.StateError, "the loader was closed", read)
        dataset.go_on.set()
        closing.join(60)
        thread.join(60)
        self.assertEqual([type(error) for error in told], [feedlane.StateError])
        told.clear()
        self.assertEqual((descriptors(), len(mappings())), before)

    def test_no_epoch_begins_while_another_thread_waits_for_a_batch(self):
        with tempfile.TemporaryDirectory() as folder:
            with feedlane.Loader(Stuck(os.path.join(folder, "go")), 8, num_workers=1) as loader:
                told, iterator = [], iter(loader)
                next(iterator)

                def take():
                    while not told:
                        try:
                            told.append(next(iterator))
                        except feedlane.Busy:  # the test's call, below
                            pass
                thread = threading.Thread(target=take)
                thread.start()
                while True:
                    try:
                        loader.state_dict()
                    except feedlane.Busy:  # the thread is there
                        break
                self.assertRaises(feedlane.Busy, iter, loader)
                open(os.path.join(folder, "go"), "x").close()
                thread.join(60)
                self.assertEqual(int(told[0][0, 0]), 8)

    def test_in_a_sample_of_its_own(self):
        class Closing(Numbers):
            def __getitem__(self, i):
                loader.close()
        loader = feedlane.Loader(Closing(), 4)
        with self.assertRaises(feedlane.SampleError) as caught:
            next(iter(loader))
        self.assertIsInstance(caught.exception.__cause__, feedlane.Busy)
        self.assertEqual(loader.stats()["batches"], 0)  # it is there still
        loader.close()

    def test_an_iteration_that_has_ended_stays_so(self):
        with feedlane.Loader(Numbers(8), 4) as loader:
            first = iter(loader)
            self.assertEqual(len(list(first)), 2)
            self.assertRaises(StopIteration, next, first)
            second = iter(loader)
            self.assertRaises(StopIteration, next, first)
            self.assertEqual(len(list(second)), 2)
        self.assertRaises(StopIteration, next, second)
        for use in lambda: iter(loader), lambda: len(loader), loader.stats, loader.state_dict:
            self.assertRaises(feedlane.StateError, use)


class Dropped(unittest.TestCase):
    def test_one_that_its_own_data_set_reaches(self):
        for workers in 0, 1:
            gc.collect()
            before = descriptors(), len(mappings())
            trainer = Trainer() if workers == 0 else None
            if trainer is None:  # what goes to another process has no loader in it
                trainer = type("Owner", (), {})()
                trainer.loader = feedlane.Loader(Numbers(8), 2, sampler=Order(trainer), num_workers=1)
            next(iter(trainer.loader))
            gone = weakref.ref(trainer)
            del trainer
            gc.collect()
            self.assertIsNone(gone())
            self.assertEqual((descriptors(), len(mappings())), before)

    def test_a_sampler_that_its_own_iterable_reaches(self):
        order = Order(None)
        order.owner = samplers.of(order)
        gone = weakref.ref(order)
        self.assertEqual(list(order.owner), list(range(8)))
        del order
        gc.collect()
        self.assertIsNone(gone())


class Left(unittest.TestCase):
    def test_workers_that_arent_kept_end_with_the_loop(self):
        for kept in False, True:
            with feedlane.Loader(Numbers(400), 4, num_workers=2, persistent_workers=kept, seed=1, held=100) as loader:
                for number, batch in enumerate(loader.batches()):
                    if number == 3:
                        found = pids(loader)
                        break
                gc.collect()
                self.assertEqual({exists(pid) for pid in found}, {kept})
                self.assertEqual(batch.data[0, 0], 12)
                state = loader.state_dict()
                loader.load_state_dict(state)
                self.assertEqual([int(batch[0, 0]) for batch in loader], list(range(16, 400, 4)))

    def test_an_older_iteration_ends_nothing(self):
        with feedlane.Loader(Numbers(400), 4, num_workers=1) as loader:
            first = iter(loader)
            next(first)
            second = iter(loader)
            next(second)
            found = pids(loader)
            del first
            gc.collect()
            self.assertEqual([exists(pid) for pid in found], [True])
            self.assertEqual(int(next(second)[0, 0]), 4)


class Memory(unittest.TestCase):
    def test_a_state_is_loaded_beside_the_old_loader_or_in_its_place(self):
        with feedlane.Loader(Numbers(40), 4) as loader:
            next(iter(loader))
            state = loader.state_dict()
            create, old_closed, refusals = lifetime.create, [], []

            def creates(*arguments, **rest):
                old_closed.append(loader._core.is_closed)
                if refusals:
                    raise refusals.pop()
                return create(*arguments, **rest)
            lifetime.create = creates
            try:
                loader.load_state_dict(state)
                self.assertEqual(old_closed, [False])
                for short in feedlane.OutOfMemory, feedlane.LimitError:
                    old_closed.clear()
                    refusals.append(short("too little"))
                    loader.load_state_dict(state)
                    self.assertEqual(old_closed, [False, True])
                refusals.append(feedlane.SystemCallError("no descriptor"))
                self.assertRaises(feedlane.SystemCallError, loader.load_state_dict, state)
                self.assertFalse(loader._core.is_closed)
            finally:
                lifetime.create = create
            self.assertEqual([int(batch[0, 0]) for batch in loader], list(range(4, 40, 4)))

    def test_a_short_timeout_isnt_rounded_up(self):
        waits = []
        with tempfile.TemporaryDirectory() as folder:
            with feedlane.Loader(Stuck(os.path.join(folder, "never")), 8, num_workers=1, timeout=0.01) as loader:
                batches = iter(loader)
                for _ in range(20):
                    before = time.monotonic()
                    try:
                        next(batches)
                    except feedlane.Timeout:
                        waits.append(time.monotonic() - before)
                self.assertGreater(len(waits), 10)
                self.assertLess(min(waits), 0.1)  # a slice of a wait is twice that
        self.assertGreaterEqual(min(waits), 0.01)


class Attributes(unittest.TestCase):
    def test_what_was_passed_can_be_read(self):
        sampler = [1, 2]
        with feedlane.Loader(Numbers(), 2, sampler=sampler, collate_fn=list, in_order=False) as loader:
            self.assertEqual((loader.sampler, loader.batch_sampler, loader.collate_fn, loader.generator),
                             (sampler, None, list, None))
            self.assertEqual((loader.worker_init_fn, loader.prefetch_factor, loader.persistent_workers, loader.in_order),
                             (None, None, False, False))


if __name__ == "__main__":
    unittest.main()
