# SPDX-License-Identifier: Apache-2.0
"""Tasks that a data set sees ahead, and data sets whose samples are read by coroutines.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python async_test.py [unittest's arguments]"""
import asyncio
import os
import pickle
import signal
import tempfile
import time
import unittest

from numpy_or_skip import np
import feedlane

LATENCY_S = 0.02


class Watching:
    """Each sample says whether it was announced, and whether the announcement was right. A worker that makes `batches` waits with
    each until the next one is announced."""

    def __init__(self, length, batches=0):
        self.length, self.batches, self.made, self.announced = length, batches, 0, {}

    def __len__(self):
        return self.length

    def __getitems__(self, indices):
        known = [a for a in self.announced.values() if a.indices == indices]
        self.made += 1
        deadline = time.monotonic() + 60
        while True:
            newest = max(self.announced, default=0)
            for task in feedlane.tasks_ahead(newest):
                assert task.id > newest
                self.announced[task.id] = task
            if self.made >= self.batches or len(self.announced) >= self.made:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"batch {self.made}: no task was announced behind it")
            time.sleep(0.001)
        return [np.array([index, len(known)]) for index in indices]


class Store(feedlane.AsyncDataset):
    """A store with latency; says how many reads were in flight at most, and tells a file of its life."""

    def __init__(self, length, reads=16, log=None, bad=(), worst=(), latency=LATENCY_S):
        self.length, self.reads_in_flight, self.log, self.latency = length, reads, log, latency
        self.bad, self.worst, self.now, self.most, self.failed = set(bad), set(worst), 0, 0, set()

    def __len__(self):
        return self.length

    def tell(self, word):
        if self.log:
            with open(self.log, "a", encoding="ascii") as f:
                f.write(f"{word}\n")

    async def open(self):
        self.tell("open")

    async def close(self):
        self.tell("close")

    async def fetch(self, index):
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.latency)
            if index in self.worst or index in self.bad and index not in self.failed:
                self.failed.add(index)
                raise OSError(f"no object {index}")
            return np.array([index, self.most])
        except asyncio.CancelledError:
            self.tell("cancelled")
            raise
        finally:
            self.now -= 1


class Late(Store):
    """The same, one read at a time."""

    def __getitem__(self, index):
        time.sleep(LATENCY_S)
        return np.array([index, 1])


class Mapped:
    """Another order of a Store."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.inner[(index * 7 + 3) % len(self.inner)]


def rows_of(loader):
    return [tuple(int(number) for number in row) for batch in loader for row in batch]


class Ahead(unittest.TestCase):
    def test_what_is_seen_ahead_comes(self):
        with feedlane.Loader(Watching(120, batches=15), 4, num_workers=2, dispatch="round_robin", prefetch_factor=4, seed=1,
                             shuffle=True) as loader:
            rows = rows_of(loader)
        self.assertEqual(sorted(index for index, _ in rows), list(range(120)))
        self.assertLessEqual({known for _, known in rows}, {0, 1})
        self.assertEqual(sum(known for _, known in rows), 120 - 2 * 4, "all but each worker's first batch")

    def test_nothing_is_seen_without_workers_and_outside_of_data_sets(self):
        self.assertEqual(feedlane.tasks_ahead(), [])
        with feedlane.Loader(Watching(8), 4) as loader:
            self.assertEqual({known for _, known in rows_of(loader)}, {0})


class Async(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.log = os.path.join(self.folder.name, "log")

    def lines(self):
        with open(self.log, encoding="ascii") as f:
            return f.read().split()

    def test_samples_are_right_and_in_order_and_reads_are_bounded(self):
        for workers in 0, 2:
            with self.subTest(workers=workers), feedlane.Loader(
                    Store(96, 6), 4, num_workers=workers, **({"prefetch_factor": 6} if workers else {})) as loader:
                rows = rows_of(loader)
                self.assertEqual([index for index, _ in rows], list(range(96)))
                # Without workers no other batch is known: the reads are those of the batch in hand.
                self.assertEqual(max(most for _, most in rows), 6 if workers else 4)

    def test_reads_of_many_batches_are_in_flight(self):
        def rate(dataset, batches):
            with feedlane.Loader(dataset, 4, num_workers=2, prefetch_factor=16, persistent_workers=True) as loader:
                for _ in loader:  # starts the workers
                    pass
                started = time.monotonic()
                count = sum(len(batch) for batch in loader)
                self.assertEqual(count, 4 * batches)
                return count / (time.monotonic() - started)
        ideal = 2 * 16 / LATENCY_S
        ahead, one_by_one = rate(Store(1600, 16), 400), rate(Late(80), 20)
        print(f"{ahead:.0f} samples/s of {ideal:.0f}; one read at a time {one_by_one:.0f}")
        self.assertGreater(ahead, ideal / 2)
        self.assertLess(one_by_one, 2 / LATENCY_S * 1.05)

    def test_a_read_that_fails_fails_its_batch_alone_and_is_named(self):
        with feedlane.Loader(Store(48, worst=[21]), 4, num_workers=2, prefetch_factor=4) as loader:
            rows, failures, batches = [], [], iter(loader)
            while True:
                try:
                    rows += [int(row[0]) for row in next(batches)]
                except StopIteration:
                    break
                except feedlane.SampleError as failure:
                    failures.append(failure)
        self.assertEqual(rows, [i for i in range(48) if i // 4 != 5])
        self.assertEqual([failure.sample for failure in failures], [21])
        self.assertIn("no object 21", str(failures[0]))

    def test_retries_and_skips_read_anew(self):
        with feedlane.Loader(Store(48, bad=[5, 30], worst=[11]), 4, num_workers=2, prefetch_factor=4, retries=1,
                             skip_budget=1) as loader:
            self.assertEqual([index for index, _ in rows_of(loader)], [i for i in range(48) if i != 11])

    def test_a_killed_worker_costs_no_batch(self):
        with feedlane.Loader(Store(400), 4, num_workers=2, prefetch_factor=6) as loader:
            indices = []
            for number, batch in enumerate(loader):
                indices += [int(row[0]) for row in batch]
                if number in (20, 50):
                    os.kill(max(worker["pid"] for worker in loader.workers()), signal.SIGKILL)
            self.assertEqual(indices, list(range(400)))
            self.assertGreaterEqual(loader.stats()["restarts"], 1)

    def test_reads_are_cancelled_and_the_data_set_closed_at_the_end(self):
        with feedlane.Loader(Store(4000, 6, self.log, latency=0.2), 4, num_workers=1, prefetch_factor=8) as loader:
            for number, _ in enumerate(loader):
                if number == 3:
                    break
        lines = self.lines()
        self.assertEqual((lines[0], lines[-1]), ("open", "close"))
        self.assertIn("cancelled", lines)

    def test_a_data_set_that_maps_indices_gets_the_samples_that_it_asks_for(self):
        with feedlane.Loader(Mapped(Store(50)), 5, num_workers=1, prefetch_factor=3) as loader:
            self.assertEqual([index for index, _ in rows_of(loader)], [(i * 7 + 3) % 50 for i in range(50)])

    def test_a_data_set_that_is_asked_for_other_things_than_indices_gets_them(self):
        class Pairs(feedlane.AsyncDataset):
            async def fetch(self, index):
                return sum(index)

        self.assertEqual(Pairs()[[3, 4]], 7)

    def test_a_second_loader_without_workers_reads_its_batches_at_once_too(self):
        store = Store(16)
        for _ in range(2):
            store.most = 0
            with feedlane.Loader(store, 4) as loader:
                self.assertEqual([index for index, _ in rows_of(loader)], list(range(16)))
            self.assertEqual(store.most, 4)
        store.stop_reads()

    def test_in_the_trainers_own_hands(self):
        store = Store(10, log=self.log)
        self.assertEqual(int(store[4][0]), 4)
        self.assertEqual(int(pickle.loads(pickle.dumps(store))[5][0]), 5)
        store.stop_reads()
        self.assertEqual(int(store[6][0]), 6)
        store.stop_reads()
        self.assertEqual(self.lines().count("close"), 2)


if __name__ == "__main__":
    unittest.main()
