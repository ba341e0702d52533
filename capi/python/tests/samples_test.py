# SPDX-License-Identifier: Apache-2.0
"""What data sets do, and what becomes of it: seeds, samples that are too many, errors, numbers.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python samples_test.py [unittest's arguments]"""
import os
import tempfile
import threading
import unittest
from unittest import mock

from numpy_or_skip import np
import feedlane
from feedlane import maker
from datasets import Drawing, Flaky, Groups, Mute, Numbers, Shrinking, Unreadable, outcomes


class Seeds(unittest.TestCase):
    def test_workers_that_arent_kept_draw_other_numbers_in_each_epoch(self):
        def run():
            with feedlane.Loader(Drawing(), 2, num_workers=2, seed=5, dispatch="round_robin") as loader:
                return [[row.tolist() for batch in loader for row in batch] for _ in range(3)]
        epochs = run()
        self.assertEqual(epochs, run(), "the same in every run")
        for column in 1, 2, 3:
            per_epoch = [{row[column] for row in rows} for rows in epochs]
            self.assertFalse(per_epoch[0] & per_epoch[1] | per_epoch[1] & per_epoch[2] | per_epoch[0] & per_epoch[2])
        self.assertEqual([len({(row[0], row[1]) for row in rows}) for rows in epochs], [2, 2, 2], "one seed a worker")

    def test_the_mixing(self):
        self.assertEqual(maker.worker_seed(77, 0), 77)
        # SplitMix64's first outputs of the seed 0: its state has grown by one step.
        self.assertEqual([maker.worker_seed(0, 1), maker.worker_seed(0, 2)], [0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4])
        self.assertEqual(len({maker.worker_seed(2**64 - 50 + worker & 2**64 - 1, epoch) for worker in range(100)
                              for epoch in range(100)}), 10_000)

    def test_ranks_with_the_same_seed_draw_other_numbers(self):
        def drawn(size=2, **arguments):
            with feedlane.Loader(Drawing(), size, num_workers=2, seed=5, dispatch="round_robin", **arguments) as loader:
                return [row.tolist()[1:] for batch in loader for row in batch]
        ranks = [drawn(sampler=feedlane.samplers.distributed(8, rank, 3, shuffle=False)) for rank in range(3)]
        ranks.append(drawn(1, batch_sampler=feedlane.samplers.batch(feedlane.samplers.distributed(8, 3, 4), 2)))
        for column in range(3):
            seen = [{row[column] for row in rows} for rows in ranks]
            self.assertEqual(len(set.union(*seen)), sum(map(len, seen)), "no two ranks have one in common")
        with mock.patch.dict(os.environ, RANK="2", WORLD_SIZE="3"):
            self.assertEqual({row[0] for row in drawn()}, {row[0] for row in ranks[2]}, "the launcher's rank counts too")
        self.assertEqual({row[0] for row in drawn()}, {row[0] for row in ranks[0]}, "rank 0 draws what a single process does")

    def test_the_mixing_of_ranks(self):
        self.assertEqual(maker.worker_seed(77, 0, 0), 77)
        self.assertEqual(len({maker.worker_seed(2**64 - 5 + worker & 2**64 - 1, epoch, rank) for worker in range(10)
                              for epoch in range(10) for rank in range(100)}), 10_000)

    def test_sample_seed_is_each_threads_own_and_none_afterwards(self):
        inside, outside = threading.Event(), threading.Event()
        seen = {}

        class Meeting:
            def __len__(self):
                return 1

            def __getitem__(self, i):
                first = feedlane.sample_seed()
                if threading.current_thread() is threading.main_thread():
                    inside.set()
                    outside.wait(60)
                else:
                    inside.wait(60)
                    outside.set()
                seen[threading.current_thread().name] = first, feedlane.sample_seed()
                return i

        def run(seed):
            with feedlane.Loader(Meeting(), seed=seed) as loader:
                list(loader)
        thread = threading.Thread(target=run, args=(1,))
        thread.start()
        run(2)
        thread.join()
        (a, b), (c, d) = seen.values()
        self.assertTrue(a == b and c == d and a != c)
        self.assertIsNone(feedlane.sample_seed())
        with feedlane.Loader(Numbers(failing=[0]), 2) as loader:
            self.assertRaises(feedlane.SampleError, next, iter(loader))
        self.assertIsNone(feedlane.sample_seed())


class Errors(unittest.TestCase):
    def test_getitems_with_another_number_of_samples(self):
        for workers in 0, 1:
            for extra in 4, -2, -4:
                with self.subTest(workers=workers, extra=extra), \
                        feedlane.Loader(Groups(extra, samples=12, failing=[5]), 4, num_workers=workers) as loader:
                    found = outcomes(iter(loader))
                    self.assertEqual([found[0], *found[2:]], [0, 8])
                    self.assertIsInstance(found[1], feedlane.SampleError)
                    self.assertRegex(str(found[1]), f"RuntimeError: .*4 indices.* {4 + extra} samples")
                    self.assertEqual(loader.stats()["restarts"], 0)

    def test_a_shard_that_cant_be_iterated_is_one_error(self):
        for workers in 0, 1, 2:
            with self.subTest(workers=workers), feedlane.Loader(Unreadable(), 4, num_workers=workers) as loader:
                for _ in range(2):
                    found = outcomes(iter(loader))
                    self.assertEqual(len(found), max(workers, 1))
                    for error in found:
                        self.assertIsInstance(error, feedlane.SampleError)
                        self.assertIn("FileNotFoundError: no such shard", str(error))

    def test_a_shard_with_less_than_was_delivered_is_at_its_end(self):
        with tempfile.TemporaryDirectory() as folder, \
                feedlane.Loader(Shrinking(os.path.join(folder, "marker")), 4, num_workers=1, deterministic=True) as loader:
            self.assertEqual(outcomes(iter(loader)), [0, 4, 8, 12, 16])
            self.assertEqual(loader.stats()["restarts"], 1)

    def test_exceptions_without_words(self):
        for workers in 0, 1:
            with self.subTest(workers=workers), feedlane.Loader(Flaky({5: [Mute] * 9}, samples=12), None, held=16,
                                                                num_workers=workers) as loader:
                found = outcomes(iter(loader), 16)
                self.assertEqual(found[:5] + found[6:], [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11])
                self.assertIn("Mute: its __str__ raised ValueError", str(found[5]))
                self.assertEqual(loader.stats()["restarts"], 0)

    def test_the_systems_number(self):
        self.assertEqual(feedlane.errors.make(-8, "no", os_errno=12).errno, 12)
        self.assertTrue(issubclass(feedlane.Timeout, RuntimeError) and issubclass(feedlane.Timeout, TimeoutError))

    def test_an_iterable_that_cant_say_its_length(self):
        for unknown in TypeError, NotImplementedError:
            class Unknown:
                def __len__(self):
                    raise unknown("unknown")

                def __iter__(self):
                    return iter(range(4))
            with feedlane.Loader(Unknown(), 2) as loader:
                self.assertEqual([batch.tolist() for batch in loader], [[0, 1], [2, 3]])
                self.assertRaises(TypeError, len, loader)


class Types(unittest.TestCase):
    def test_are_of_torchs_types(self):
        for samples, dtype in ([1, 2], "int64"), ([True, False], "bool"), ([True, 2], "int64"), \
                ([1, 2.5], "float32"), ([True, 2.5], "float32"), ([np.float32(1), 2.0], "float32"), ([2.5, 1], "float64"), \
                ([np.int16(1), np.float64(2)], "float64"), ([np.uint8(1), np.int8(2)], "int16"):
            with self.subTest(samples), feedlane.Loader(samples, 2) as loader:
                batch = next(iter(loader))
                self.assertEqual((str(batch.dtype), batch.tolist()), (dtype, samples))
        for samples in [-1, 2**63], [2**63, 2**63], [2**70, 1]:
            with self.subTest(samples), feedlane.Loader(samples, 2) as loader:
                with self.assertRaisesRegex(feedlane.SampleError, "OverflowError.*int64"):
                    next(iter(loader))


if __name__ == "__main__":
    unittest.main()
