# SPDX-License-Identifier: Apache-2.0
"""Each argument of Loader, of its samplers and of what it gives back does what it says, or is refused.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python arguments_test.py [unittest's arguments]"""
import array
import os
import tempfile
import unittest
from unittest import mock

from numpy_or_skip import np
import feedlane
from feedlane import _core, maker, samplers
from datasets import Deadly, Ending, Handles, Numbers, Once, Stuck, end_worker, outcomes


def order(loader):
    return [int(sample[0]) for batch in loader for sample in batch]


class Orders(unittest.TestCase):
    def test_set_epoch(self):
        with feedlane.Loader(Numbers(16), 2, shuffle=True, seed=3) as loader:
            epochs = [order(loader) for _ in range(3)]
            self.assertEqual(len({tuple(epoch) for epoch in epochs}), 3)
            loader.set_epoch(1)
            self.assertEqual(order(loader), epochs[1])
            self.assertEqual(order(loader), epochs[2])

    def test_seed(self):
        def drawn(seed):
            with feedlane.Loader(Numbers(16), 2, shuffle=True, seed=seed) as loader:
                return order(loader)
        self.assertEqual(drawn(5), drawn(np.int64(5)))
        self.assertNotEqual(drawn(5), drawn(6))
        self.assertEqual(drawn(-1), drawn(2**64 - 1))

    def test_out_of_order(self):
        for in_order in True, False:
            with tempfile.TemporaryDirectory() as folder:
                go = os.path.join(folder, "go")
                with feedlane.Loader(Stuck(go), 4, num_workers=2, in_order=in_order, dispatch="round_robin",
                                     timeout=1 if in_order else 60, sampler=[8, 9, 10, 11, 0, 1, 2, 3]) as loader:
                    batches = iter(loader)
                    if in_order:
                        self.assertRaises(feedlane.Timeout, next, batches)
                        loader.timeout = 60
                    else:
                        self.assertEqual(next(batches)[0, 0], 0)
                    open(go, "x").close()
                    self.assertEqual(outcomes(batches), [8, 0] if in_order else [8])

    def test_samplers_own(self):
        weights = [0, 1, 5, 1, 3]
        for make, other in (
                (lambda **k: samplers.random(9, 1, **k), {"shuffle": "feistel"}),
                (lambda **k: samplers.random(9, 1, **k), {"shuffle": "torch_loader"}),
                (lambda seed=1, **k: samplers.random(9, seed, **k), {"seed": 2}),
                (lambda **k: samplers.random(40, 1, **k), {"replacement": True}),
                (lambda **k: samplers.random(9, 1, **k), {"num_samples": 4}),
                (lambda **k: samplers.subset([4, 7, 1, 9], 1, **k), {"shuffle": False}),
                (lambda seed=1, **k: samplers.subset([4, 7, 1, 9, 0], seed, **k), {"seed": 2}),
                (lambda seed=1, **k: samplers.weighted(weights, 40, seed, **k), {"seed": 2}),
                (lambda **k: samplers.weighted(weights, 4, 1, **k), {"replacement": False}),
                (lambda rank=0, **k: samplers.distributed(9, rank, 2, 1, **k), {"rank": 1}),
                (lambda **k: samplers.distributed(9, 1, 2, 1, **k), {"drop_last": True}),
                (lambda **k: samplers.distributed(9, 0, 2, 1, **k), {"shuffle": False})):
            with self.subTest(other):
                plain, changed = list(make()), list(make(**other))
                self.assertEqual(plain, list(make()))
                self.assertNotEqual(plain, changed)
                self.assertEqual(len(changed), len(make(**other)))
        self.assertEqual(sorted(samplers.random(9, 1, shuffle="feistel")), list(range(9)))
        self.assertEqual(list(samplers.subset([4, 7, 1], shuffle=False)), [4, 7, 1])
        self.assertEqual(sorted(samplers.weighted(weights, 4, 1, replacement=False)), [1, 2, 3, 4])
        self.assertGreater(len(set(samplers.random(40, 1))), len(set(samplers.random(40, 1, replacement=True))))

    def test_fields_of_a_compiled_sampler(self):
        two, three = array.array("q", [1, 2]), array.array("q", [1, 2, 3])
        for error, words, kind, members in (
                (TypeError, "no such field: 'size'", samplers._Kind.SEQUENTIAL, {"size": 8}),
                (OverflowError, "length=.*64 bits", samplers._Kind.SEQUENTIAL, {"length": 2**63}),
                (TypeError, "not a Sampler", samplers._Kind.BATCH, {"inner": [0]}),
                (ValueError, "2 lengths, 3 weights", samplers._Kind.MIXTURE, {"lengths": two, "weights": array.array("d", three)}),
                (ValueError, "indices .*combined with lengths", samplers._Kind.TOKENS, {"lengths": two, "indices": three}),
                (ValueError, "indices .*or weights", samplers._Kind.SUBSET, {"weights": array.array("d", three), "indices": three}),
                (feedlane.ArgumentError, "config.kind", 99, {})):
            with self.subTest(words), self.assertRaisesRegex(error, words):
                _core.Sampler(kind, **members)
        self.assertEqual(_core.Sampler(samplers._Kind.SUBSET, indices=three, no_shuffle=True).next(9), [1, 2, 3])

    def test_rows_that_would_mean_an_exhausted_shard(self):
        with mock.patch.object(maker.Maker, "make", lambda _, task: task.commit(2**64 - 1)), \
                feedlane.Loader(list(range(4)), 2) as loader, self.assertRaisesRegex(feedlane.SampleError, "2\\^64 - 1"):
            next(iter(loader))

    def test_what_says_the_rank(self):
        found = {"RANK": "1", "WORLD_SIZE": "2"}
        for environment, expected in (({}, (0, 1, "none")), (found, (1, 2, "torchrun")),
                                      ({**found, "FEEDLANE_RANK": "3", "FEEDLANE_WORLD_SIZE": "8"}, (3, 8, "feedlane"))):
            with self.subTest(environment), mock.patch.dict(os.environ, environment):
                rank = feedlane.rank_detect()
                self.assertEqual(rank[:3], expected)
                self.assertEqual("RANK is 1" in rank.warning, expected[2] == "feedlane")
                sampler = samplers.distributed(9)
                self.assertEqual(sampler.rank, expected[0])
                with feedlane.Loader(list(range(9)), 3, sampler=sampler) as loader:
                    self.assertEqual(loader.stats()["rank_source"], expected[2])
        with feedlane.Loader(list(range(9)), 3) as loader:
            self.assertEqual(loader.stats()["rank_source"], "")
        with mock.patch.dict(os.environ, RANK="1"), self.assertRaisesRegex(feedlane.ArgumentError, "WORLD_SIZE"):
            feedlane.rank_detect()

    def test_an_iteration_ends_the_one_before_it(self):
        for sampler in samplers.random(8), samplers.batch(samplers.sequential(8), 2), samplers.of(range(8)):
            first = iter(sampler)
            next(first)
            whole = list(sampler)
            with self.assertRaisesRegex(feedlane.StateError, "another iteration"):
                for _ in range(8):
                    next(first)
            self.assertEqual(list(sampler), whole)


class Numbered(unittest.TestCase):
    def test_what_a_batch_says_of_itself(self):
        with tempfile.TemporaryDirectory() as folder:
            deadly = Deadly(os.path.join(folder, "died"), 12, 8, failing=[9])
            with feedlane.Loader(deadly, 4, num_workers=1) as loader:
                batches = loader.batches()
                self.assertEqual(len(batches), 3)
                said = [(b.epoch, b.number, b.worker, b.attempt, b.rows, b.indices) for b in batches]
                self.assertEqual([row[:3] + row[4:] for row in said],
                                 [(0, n, 0, 4, [4 * n, 4 * n + 1, 4 * n + 2, 4 * n + 3]) for n in range(3)])
                self.assertEqual(said[2][3], 1)
                self.assertEqual([b.epoch for b in loader.batches()], [1, 1, 1])
        with feedlane.Loader(Numbers(4), 4) as loader:
            self.assertEqual([b.worker for b in loader.batches()], [-1])

    def test_prefetch_factor(self):
        for factor in 1, 5:
            with feedlane.Loader(Numbers(64), 1, num_workers=1, prefetch_factor=factor, held=1) as loader:
                self.assertEqual(loader.stats()["slots"], factor + 2)

        with feedlane.Loader(Numbers(64), 1, num_workers=1, prefetch_factor="auto", held=1, arena_bytes=2**24,
                             slot_bytes=2**18) as loader:
            self.assertEqual(loader.info()["prefetch_factor"], 2)
            self.assertEqual(sum(1 for _ in loader), 64)
        with self.assertRaisesRegex(feedlane.ArgumentError, "config.arena_bytes is 0"):
            feedlane.Loader(Numbers(64), 1, num_workers=1, prefetch_factor="auto")

    def test_placement(self):
        cpu = str(max(os.sched_getaffinity(0)))
        with feedlane.Loader(Numbers(64), 1, num_workers=1, persistent_workers=True, worker_cpus=cpu) as loader:
            self.assertEqual(sum(1 for _ in loader), 64)
            pid = loader.workers()[0]["pid"]
            self.assertEqual(os.sched_getaffinity(pid), {int(cpu)})
        for arguments, words in (({"worker_cpus": "8000"}, "processor 8000 does not exist"),
                                 ({"worker_cpus": "a"}, "'a' is not a list"), ({"memory_nodes": "first"}, "'first' is not a list")):
            with self.subTest(arguments), self.assertRaisesRegex(feedlane.ArgumentError, words):
                feedlane.Loader(Numbers(64), 1, num_workers=1, **arguments)

    def test_max_restarts(self):
        with feedlane.Loader(Ending(), 1, num_workers=1, max_restarts=1) as loader:
            self.assertIsInstance(outcomes(iter(loader), 1)[0], feedlane.TooManyRestarts)
            self.assertEqual(loader.stats()["restarts"], 1)

    def test_task_timeout(self):
        with tempfile.TemporaryDirectory() as folder:
            with feedlane.Loader(Once(folder), 1, num_workers=1, task_timeout=1) as loader:
                self.assertEqual(order(loader), [0, 1, 2])
                self.assertEqual(loader.stats()["hung"], 1)

    def test_a_worker_that_exits_as_it_starts_is_told_and_not_started_again(self):
        with feedlane.Loader(Numbers(8), 2, num_workers=2, worker_init_fn=end_worker, timeout=60) as loader:
            with self.assertRaisesRegex(feedlane.InitError, "SystemExit"):
                next(iter(loader))
            self.assertEqual(loader.stats()["restarts"], 0)

    def test_workers_have_the_data_set_as_it_was(self):
        dataset = Numbers(8)
        with feedlane.Loader(dataset, 2, num_workers=1, seed=1) as loader:
            dataset.samples, dataset.failing = Unpicklable(), ()
            self.assertEqual(order(loader), list(range(8)))
            loader.load_state_dict(loader.state_dict())
            self.assertEqual(order(loader), list(range(8)))

    def test_a_managers_dict(self):
        import multiprocessing
        with multiprocessing.get_context("spawn").Manager() as manager:
            seen = manager.dict()
            with feedlane.Loader(Handles(seen), 2, num_workers=2) as loader:
                self.assertEqual(order(loader), list(range(8)))
            self.assertEqual(dict(seen), {i: i for i in range(8)})


class Unpicklable:
    def __reduce__(self):
        raise AssertionError("pickled again")


class Refused(unittest.TestCase):
    def test_arguments(self):
        for arguments, words in (
                ({"batch_size": 0}, "batch_size=0"), ({"batch_size": -1}, "batch_size=-1"),
                ({"batch_size": True}, "batch_size=True"), ({"batch_size": 2.5}, "batch_size=2.5"),
                ({"seed": 2**64}, "seed"), ({"seed": 0.5}, "seed"), ({"held": 2**32 + 2}, "held"),
                ({"num_workers": 2**32}, "num_workers"), ({"max_restarts": 2**31}, "max_restarts"),
                ({"skip_budget": 2**63}, "skip_budget"), ({"dispatch": "rr"}, "dispatch='rr'.*'round_robin'"),
                ({"prefetch_factor": 0, "num_workers": 1}, "prefetch_factor=0"),
                ({"prefetch_factor": "all", "num_workers": 1}, "prefetch_factor"), ({"dispatch": []}, "dispatch"),
                ({"batch_sampler": samplers.sequential(8)}, "single indices")):
            with self.subTest(arguments), self.assertRaisesRegex(ValueError, words):
                feedlane.Loader(Numbers(8), **arguments)
        with self.assertRaisesRegex(ValueError, "shuffle='rr'.*'feistel'"):
            samplers.random(4, shuffle="rr")
        with feedlane.Loader(Numbers(8), np.int64(4), num_workers=np.int32(0), seed=np.uint8(3)) as loader:
            self.assertEqual(len(loader), 2)

    def test_indices_that_are_none(self):
        for index, error in (1.9, TypeError), ("3", TypeError), (2**63, OverflowError), (None, TypeError):
            for arguments in {"batch_size": 1, "sampler": [0, index]}, {"batch_sampler": [[0], [index]]}:
                with self.subTest(arguments), feedlane.Loader(Numbers(8), **arguments) as loader:
                    first, second = outcomes(iter(loader), 2)
                    self.assertEqual(first, 0)
                    self.assertIsInstance(second.__cause__, error)
            with self.subTest(index), self.assertRaises(error):
                samplers.subset([1, index])
        self.assertEqual(list(samplers.subset(np.flatnonzero([1, 0, 1]), shuffle=False)), [0, 2])


if __name__ == "__main__":
    unittest.main()
