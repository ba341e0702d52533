# SPDX-License-Identifier: Apache-2.0
"""What the Python package promises, with numpy alone: batches and errors. Memory is memory_test.py's, processes are
contract_test.py's.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python loader_test.py [unittest's arguments]"""
import os
import tempfile
import time
import unittest

from numpy_or_skip import np
import feedlane
from datasets import (SAMPLES, Endless, Equals, Flaky, Map, Numbers, Point, Ranked, Shards, Stuck, Unprintable, Whoami, as_list,
                      broken_index, broken_worker_init, equal_value, next_index, no_index, plain, worker_init)

DEADLINE_S = 60


def has_line(path, beginning):
    with open(path, encoding="ascii") as file:
        return any(line.startswith(beginning) for line in file)


def ids(loader):
    return [int(row[0]) for batch in loader for row in batch]


class Batches(unittest.TestCase):
    def test_the_same_with_any_number_of_workers(self):
        expected = None
        for workers in range(5):
            with self.subTest(workers=workers), feedlane.Loader(Map(), 64, shuffle=True, seed=3,
                                                                num_workers=workers) as loader:
                self.assertEqual(len(loader), 16)
                found = [plain(batch) for batch in loader]
                expected = expected or found
                self.assertEqual(found, expected)

    def test_nested_samples(self):
        with feedlane.Loader(Map(), 2, num_workers=1) as loader:
            batch = next(iter(loader))
            self.assertEqual(list(batch), ["image", "label", "name", "flag", "pair", "point"])
            self.assertEqual(batch["image"].shape, (2, 4, 3))
            self.assertEqual(batch["name"], ["sample 0", "sample 1"])
            self.assertIsInstance(batch["point"], Point)
            self.assertEqual(batch["point"].x.tolist(), [0, 0.5])
            self.assertEqual(batch["pair"][1][0].dtype, np.int16)
            self.assertEqual(batch["flag"].tolist(), [True, False])

    def test_order_is_torchs(self):
        # What torch's DataLoader(range(10), 10, shuffle=True) yields in two epochs after torch.manual_seed(0).
        with feedlane.Loader(list(range(10)), 10, shuffle=True, seed=0) as loader:
            self.assertEqual([batch.tolist() for _ in range(2) for batch in loader],
                             [[6, 7, 1, 4, 2, 0, 9, 8, 3, 5], [2, 4, 7, 0, 8, 9, 5, 3, 6, 1]])
        # And torch.randperm(10) of generators seeded so.
        with feedlane.Loader(list(range(10)), 10, sampler=feedlane.samplers.random(10, seed=42)) as loader:
            self.assertEqual(next(iter(loader)).tolist(), [2, 6, 1, 8, 4, 5, 0, 9, 3, 7])
        self.assertEqual(list(feedlane.samplers.random(10)), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2])

    def test_samplers(self):
        batches = [[1, 2, 3], [4], [5, 6]]
        with feedlane.Loader(Numbers(), batch_sampler=batches, num_workers=1) as loader:
            self.assertEqual([batch[:, 0].tolist() for batch in loader], batches)
            self.assertEqual(len(loader), 3)
        with feedlane.Loader(Numbers(), 2, sampler=[5, 3, 9], drop_last=True) as loader:
            self.assertEqual([batch[:, 0].tolist() for batch in loader], [[5, 3]])
            self.assertEqual(len(loader), 1)
        with feedlane.Loader(Numbers(), batch_sampler=feedlane.samplers.batch(feedlane.samplers.sequential(5), 2)) as loader:
            self.assertEqual([batch[:, 0].tolist() for batch in loader], [[0, 1], [2, 3], [4]])
        self.assertEqual(sorted(feedlane.samplers.subset([3, 5, 7])), [3, 5, 7])
        self.assertEqual(list(feedlane.samplers.distributed(10, 1, 3, shuffle=False)), [1, 4, 7, 0])
        self.assertEqual(len(feedlane.samplers.weighted([1, 0, 1], 20)), 20)
        self.assertNotIn(1, list(feedlane.samplers.weighted([1, 0, 1], 20)))

    def test_batches_within_a_budget_of_tokens(self):
        lengths = [9, 1, 5, 5, 3, 8, 2]
        order = feedlane.samplers.tokens(lengths, 10, 4, seed=3)
        batches = list(order)
        self.assertEqual(len(order), len(batches))
        self.assertEqual(sorted(sum(batches, [])), list(range(7)))
        for batch in batches:
            self.assertLessEqual(sum(lengths[i] for i in batch), 10)
        with feedlane.Loader(Numbers(), batch_sampler=order, num_workers=1) as loader:
            self.assertEqual([batch[:, 0].tolist() for batch in loader], batches)
        ranks = [feedlane.samplers.tokens(lengths, 10, 4, rank=rank, world=3) for rank in range(3)]
        self.assertEqual(len({len(list(rank)) for rank in ranks}), 1)
        self.assertEqual(ranks[2].rank, 2)
        with self.assertRaisesRegex(feedlane.ArgumentError, r"lengths\[1\] is 11"):
            feedlane.samplers.tokens([1, 11], 10, 4)
        self.assertEqual(list(feedlane.samplers.tokens([1, 11], 10, 4, drop_long=True)), [[0]])

    def test_a_mixture_of_sources(self):
        lengths = [5, 2, 3]
        order = feedlane.samplers.mixture(lengths, [2, 1, 1], 100, seed=3)
        indices = list(order)
        self.assertEqual(len(order), 100)
        of = [sum(i < 5 for i in indices), sum(5 <= i < 7 for i in indices), sum(i >= 7 for i in indices)]
        for found, wanted in zip(of, [50, 25, 25]):
            self.assertAlmostEqual(found, wanted, delta=60)  # a window is larger than this epoch
        with feedlane.Loader(Numbers(), sampler=order, batch_size=10, num_workers=1) as loader:
            self.assertEqual([i for batch in loader for i in batch[:, 0].tolist()], indices)
        staged = feedlane.samplers.mixture([5, 2], {0: [1, 0], 4: [0, 1]}, 6, window=1, shuffle=False)
        self.assertEqual(list(staged), [0, 1, 2, 3, 5, 6])
        ranks = [list(feedlane.samplers.mixture(lengths, [1, 1, 1], 7, rank=rank, world=2)) for rank in range(2)]
        self.assertEqual([len(rank) for rank in ranks], [4, 4])
        with self.assertRaisesRegex(feedlane.ArgumentError, "source 1 in stage 0"):
            feedlane.samplers.mixture([1, 1], [1, -1])
        with self.assertRaisesRegex(ValueError, "3 weights"):
            feedlane.samplers.mixture([1, 1], [1, 2, 3])

    def test_a_sampler_that_raises(self):
        def indices():
            yield from range(4)
            raise KeyError("no more")
        with feedlane.Loader(Numbers(), 2, sampler=indices()) as loader:
            with self.assertRaisesRegex(feedlane.SampleError, "no more") as caught:
                for _ in loader:
                    pass
            self.assertIsInstance(caught.exception.__cause__, KeyError)

    def test_iterable(self):
        for workers in 0, 1, 3:
            for drop_last in False, True:
                with self.subTest(workers=workers, drop_last=drop_last), \
                        feedlane.Loader(Shards(100), 8, num_workers=workers, drop_last=drop_last,
                                        persistent_workers=workers > 0) as loader:
                    for _ in range(2):
                        batches = [batch["i"].tolist() for batch in loader]
                        shards = [list(range(100))[w::max(workers, 1)] for w in range(max(workers, 1))]
                        whole = sum(len(shard) // 8 * 8 if drop_last else len(shard) for shard in shards)
                        self.assertEqual(len({i for batch in batches for i in batch}), whole)
                        self.assertEqual(batches[0], shards[0][:8])

    def test_ranks_of_an_iterable(self):
        for workers in 0, 2:
            with self.subTest(workers=workers):
                rows = []
                for rank in range(3):
                    with feedlane.Loader(Ranked(), 8, num_workers=workers, world=3, rank=rank, seed=5) as loader:
                        rows += [tuple(row) for batch in loader for row in batch.tolist()]
                self.assertEqual(sorted(row[0] for row in rows), list(range(SAMPLES)))
                count = 3 * max(workers, 1)
                self.assertEqual({row[1:3] for row in rows}, {(shard, count) for shard in range(count)})
                self.assertEqual(len({row[3] for row in rows}), count if workers else 1)
        self.assertEqual(feedlane.get_shard(), (0, 1))
        with self.assertRaisesRegex(feedlane.ArgumentError, "config.rank is 3: must be less than config.world, 3"):
            feedlane.Loader(Ranked(), world=3, rank=3)
        with self.assertRaisesRegex(feedlane.ArgumentError, "config.world is 2"):
            feedlane.Loader(Numbers(8), world=2)

    def test_max_batches(self):
        for dataset in Ranked(), Numbers(100):
            for workers in 0, 2:
                with self.subTest(dataset=type(dataset).__name__, workers=workers), \
                        feedlane.Loader(dataset, 8, num_workers=workers, max_batches=3,
                                        deterministic=isinstance(dataset, Ranked)) as loader:
                    whole = [batch.copy() for batch in loader]
                    self.assertEqual(len(whole), 3)
                    self.assertEqual(len(list(loader)), 3)
                    loader.set_epoch(0)
                    iterator = iter(loader)
                    next(iterator)
                    loader.load_state_dict(loader.state_dict())
                    rest = [batch.copy() for batch in loader]
                    self.assertEqual([b.tolist() for b in rest], [b.tolist() for b in whole[1:]])
        with feedlane.Loader(Numbers(100), 8, max_batches=3) as loader:
            self.assertEqual(len(loader), 3)

    def test_without_batches_and_with_a_collate_fn(self):
        with feedlane.Loader(Map(), None, num_workers=1) as loader:
            sample = next(iter(loader))
            self.assertEqual((sample["image"].shape, sample["label"], sample["name"]), ((4, 3), 0, "sample 0"))
            self.assertEqual(sample["point"].y.shape, ())
        for workers in 0, 1:
            with feedlane.Loader(Numbers(10), 4, num_workers=workers, collate_fn=as_list) as loader:
                last = list(loader)[-1]
                self.assertEqual((last["n"], last["all"].shape, last["odd"]), (2, (2, 8), ({"set": {1, 2}},)))

    def test_equal_values_that_are_not_the_same(self):
        for workers in 0, 1:
            with feedlane.Loader(Equals(), 1, num_workers=workers, collate_fn=equal_value) as loader:
                self.assertEqual([repr(batch["value"]) for batch in loader], list(map(repr, Equals.VALUES)))

    def test_worker_init_and_info(self):
        with feedlane.Loader(Whoami(), 10, num_workers=3, worker_init_fn=worker_init, dispatch="round_robin") as loader:
            tags = [batch[0, 1] for batch in loader]
        self.assertEqual(tags, [100 + i % 3 for i in range(100)])
        self.assertIsNone(feedlane.get_worker_info())
        with feedlane.Loader(Whoami(), 10, num_workers=2, worker_init_fn=broken_worker_init) as loader:
            with self.assertRaisesRegex(feedlane.InitError, "RuntimeError: worker [01] can't begin"):
                next(iter(loader))

    def test_kept_workers_are_the_same_processes(self):
        for kept in True, False:
            with feedlane.Loader(Numbers(40), 4, num_workers=2, persistent_workers=kept) as loader:
                seen = set()
                for _ in range(3):
                    for _ in loader:
                        while not all(worker["pid"] for worker in loader.workers()):
                            loader.poll()  # it learns a worker's number when the worker attaches
                        seen |= {worker["pid"] for worker in loader.workers()}
                self.assertEqual(len(seen) == 2, kept)

    def test_state(self):
        def make(workers):
            return feedlane.Loader(Numbers(100), 7, shuffle=True, seed=5, num_workers=workers, held=20)
        with make(1) as loader:
            iterator = iter(loader)
            for _ in range(6):
                next(iterator)
            state = loader.state_dict()
            rest, following = ids(iterator), ids(loader)
        for workers in 0, 2:
            with make(workers) as loader:
                loader.load_state_dict(state)
                self.assertEqual(ids(loader), rest)
                self.assertEqual(ids(loader), following)


class Errors(unittest.TestCase):
    def test_samples_that_dont_fit_together(self):
        for samples, words in (([np.zeros(3), np.zeros(4)], "shape"), ([np.zeros(3), [0, 0, 0]], "list"),
                               ([object(), object()], "collate_fn"), ([np.array(["a"]), np.array(["b"])], "<U1"),
                               ([[1, 2], [1]], "length"), ([2**70, 1], "int64"), ([1.0, None], "NoneType"),
                               ([1, None], "NoneType"), ([1.0, "2.5"], "str"), ([np.float32(1), None], "NoneType")):
            with self.subTest(words), feedlane.Loader(samples, 2) as loader:
                with self.assertRaisesRegex(feedlane.SampleError, words):
                    next(iter(loader))

    def test_a_sample_that_contains_itself(self):
        for workers in 0, 1:
            with feedlane.Loader(Endless(), 1, num_workers=workers) as loader:
                with self.assertRaisesRegex(feedlane.SampleError, "RecursionError"):
                    next(iter(loader))
                self.assertEqual(loader.stats()["restarts"], 0)

    def test_wrong_dtype_of_a_declared_field(self):
        fields = {"x": (np.float32, (3,))}
        for workers in 0, 1:
            with feedlane.Loader([np.zeros(3)] * 4, 2, num_workers=workers, fields=fields) as loader:
                with self.assertRaisesRegex(feedlane.SampleError, "'x' was declared as float32.*float64"):
                    next(iter(loader))
        with feedlane.Loader([np.ones(3, np.float32)] * 4, 2, num_workers=1, fields=fields) as loader:
            self.assertEqual(np.sum(next(iter(loader))), 6)

    def test_a_batch_beyond_the_slot_says_what_it_takes(self):
        with feedlane.Loader([np.zeros(1 << 20)] * 2, 2, slot_bytes=1 << 20) as loader:
            with self.assertRaisesRegex(feedlane.SampleError, r"Loader\(slot_bytes=\d+\)") as caught:
                next(iter(loader))
        needed = caught.exception.__cause__.needed
        with feedlane.Loader([np.zeros(1 << 20)] * 2, 2, slot_bytes=needed) as loader:
            self.assertEqual(next(iter(loader)).shape, (2, 1 << 20))

    def test_refusals(self):
        for wrong in (dict(shuffle=True, sampler=[1]), dict(batch_size=0), dict(num_workers=-1), dict(timeout=-1),
                      dict(prefetch_factor=2), dict(persistent_workers=True), dict(batch_sampler=[[1]], drop_last=True),
                      dict(tensors="jax"), dict(batch_size=None, drop_last=True), dict(generator=1)):
            with self.subTest(wrong), self.assertRaises(ValueError):
                feedlane.Loader(Numbers(), **wrong)
        with self.assertRaises(ValueError):
            feedlane.Loader(Shards(), shuffle=True)
        with self.assertRaises(Exception) as caught:  # a lambda can't go to another process
            feedlane.Loader(Numbers(), num_workers=1, collate_fn=lambda samples: samples)
        self.assertIn("pickled: define them in a module", caught.exception.__notes__[0])

    def test_timeout(self):
        with tempfile.TemporaryDirectory() as folder:
            go = os.path.join(folder, "go")
            with feedlane.Loader(Stuck(go), 8, num_workers=1, timeout=0.3) as loader:
                iterator = iter(loader)
                batch = None
                while batch is None:
                    try:
                        batch = next(iterator)
                    except feedlane.Timeout:  # the worker is slow to start
                        pass
                with self.assertRaises(TimeoutError):
                    next(iterator)
                with open(go, "x", encoding="ascii"):
                    loader.timeout = 30
                self.assertEqual(int(next(iterator)[0, 0]), 8)


ALWAYS = [ValueError] * 100


class Policies(unittest.TestCase):
    """Inline and with workers: what becomes of samples that fail."""

    def each(self, failing, *, batch_size=4, log=None, **arguments):
        """(loader, [Batch ...]) of one epoch, without workers and with two."""
        for workers in 0, 2:
            with feedlane.Loader(Flaky(failing, log), batch_size, num_workers=workers, held=32, seed=7, **arguments) as loader:
                yield loader, list(loader.batches())

    def kinds(self, loader):
        return [(event.kind, event.sample) for event in loader.events() if event.kind.startswith("sample")]

    def test_retries(self):
        failing = {5: [OSError, TimeoutError], 9: [OSError]}
        expected = None
        for loader, batches in self.each(failing, retries=2):
            self.assertEqual([int(row[0]) for batch in batches for row in batch.data], list(range(32)))
            seeds = [int(row[1]) for batch in batches for row in batch.data]
            expected = expected or seeds
            self.assertEqual(seeds, expected)
            self.assertEqual(loader.stats()["retried"], 2)
            self.assertEqual(self.kinds(loader), [("sample retried", 5), ("sample retried", 9)])

    def test_what_isnt_transient_isnt_tried_again(self):
        for workers in 0, 2:
            with self.subTest(workers=workers), feedlane.Loader(Flaky({5: ALWAYS}), 4, num_workers=workers,
                                                                retries=3) as loader:
                batches = iter(loader)
                next(batches)
                with self.assertRaisesRegex(feedlane.SampleError, "sample 5, try 0") as raised:
                    next(batches)
                self.assertEqual(raised.exception.sample, 5)
                self.assertEqual(loader.stats()["retried"], 0)
                self.assertEqual(int(next(batches)[0][0]), 8)

    def test_retries_that_dont_help_are_told_all_the_same(self):
        for workers in 0, 2:
            with self.subTest(workers=workers), feedlane.Loader(Flaky({1: ALWAYS}), 4, num_workers=workers, retries=2,
                                                                retry_on=(KeyError, ValueError)) as loader:
                with self.assertRaisesRegex(feedlane.SampleError, "sample 1, try 2"):
                    next(iter(loader))
                self.assertEqual(loader.stats()["retried"], 1)

    def test_each_wait_is_twice_as_long(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            for _, batches in self.each({0: [OSError] * 3}, log=log, retries=3, retry_backoff=0.02):
                self.assertEqual(len(batches), 8)
                with open(log, encoding="ascii") as file:
                    times = [float(line.split()[1]) for line in file if line.startswith("0 ")]
                os.unlink(log)
                waits = [b - a for a, b in zip(times, times[1:])]
                for wait, least in zip(waits, (0.02, 0.04, 0.08), strict=True):
                    self.assertGreaterEqual(wait, least)

    def test_substitutes_with_retries_of_their_own_and_the_rows_seed(self):
        plain_seeds = None
        for failing in {}, {5: [OSError] * 100, 6: [OSError]}:
            for loader, batches in self.each(failing, retries=1, substitute=next_index):
                batch = batches[1]
                self.assertEqual(batch.data[:, 0].tolist(), [4, 6, 6, 7] if failing else [4, 5, 6, 7])
                self.assertEqual(batch.indices, batch.data[:, 0].tolist())
                plain_seeds = plain_seeds or batch.data[:, 1].tolist()
                self.assertEqual(batch.data[:, 1].tolist(), plain_seeds)
                self.assertEqual(loader.stats()["substituted"], 1 if failing else 0)

    def test_a_row_gets_sixteen_others_at_most(self):
        failing = dict.fromkeys(range(32), ALWAYS)
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            with feedlane.Loader(Flaky(failing, log, 1), 1, substitute=next_index) as loader:
                with self.assertRaises(feedlane.SampleError):
                    next(iter(loader))
            with open(log, encoding="ascii") as file:
                self.assertEqual([int(line.split()[0]) for line in file], list(range(17)))

    def test_what_no_other_helps_is_left_out(self):
        failing = dict.fromkeys([5, 6, 16, 17, 18, 19], ALWAYS)
        for loader, batches in self.each(failing, substitute=no_index, skip_budget=6):
            self.assertEqual([batch.number for batch in batches], [0, 1, 2, 3, 5, 6, 7])
            self.assertEqual(batches[1].data[:, 0].tolist(), [4, 7])
            self.assertEqual((batches[1].indices, batches[1].skipped, batches[1].rows), ([4, 7], [5, 6], 2))
            self.assertEqual(batches[0].skipped, [])
            self.assertEqual(loader.stats()["skipped"], 6)
            self.assertEqual(self.kinds(loader), [("sample skipped", i) for i in failing])

    def test_without_batches(self):
        for loader, batches in self.each({5: ALWAYS, 7: [OSError]}, batch_size=None, retries=1, skip_budget=1):
            self.assertEqual([int(batch.data[0]) for batch in batches], [i for i in range(32) if i != 5])
            self.assertEqual((loader.stats()["skipped"], loader.stats()["retried"]), (1, 1))

    def test_what_the_exception_says_need_not_be_utf8(self):
        for loader, batches in self.each({5: [Unprintable] * 100}, retries=1, skip_budget=1):
            self.assertEqual(batches[1].skipped, [5])
            self.assertIn(r"can't read caf\udce9", [event.text for event in loader.events()][-1])
        for workers in 0, 2:
            with self.subTest(workers=workers), feedlane.Loader(Flaky({0: [Unprintable]}), None, num_workers=workers) as loader:
                with self.assertRaisesRegex(feedlane.SampleError, "can't read caf"):
                    next(iter(loader))

    def test_what_substitute_raises_is_the_batchs_error_with_the_samples_behind_it(self):
        for workers in 0, 2:
            with self.subTest(workers=workers), feedlane.Loader(Flaky({1: ALWAYS}), 4, num_workers=workers, skip_budget=9,
                                                                substitute=broken_index) as loader:
                with self.assertRaisesRegex(feedlane.SampleError, "nothing instead of 1") as raised:
                    next(iter(loader))
                self.assertIn("sample 1, try 0", raised.exception.traceback)

    def test_a_worker_that_waits_for_a_retry_is_there_for_the_next_epoch(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            with feedlane.Loader(Flaky({4: [OSError]}, log), 4, num_workers=1, persistent_workers=True, timeout=DEADLINE_S,
                                 retries=1, retry_backoff=DEADLINE_S * 10) as loader:
                next(iter(loader))
                deadline = time.monotonic() + DEADLINE_S
                while time.monotonic() < deadline and not has_line(log, "4 "):
                    time.sleep(0.01)
                self.assertEqual(ids(loader), list(range(32)))
                self.assertEqual(loader.stats()["restarts"], 0)

    def test_beyond_the_budget_it_is_an_error(self):
        for workers in 0, 2:
            with self.subTest(workers=workers), feedlane.Loader(Flaky({1: ALWAYS, 9: ALWAYS}), 4, num_workers=workers,
                                                                skip_budget=1) as loader:
                batches = iter(loader)
                self.assertEqual([len(next(batches)), len(next(batches))], [3, 4])
                with self.assertRaisesRegex(feedlane.SampleError, "config.skip_budget, which is 1"):
                    next(batches)
                self.assertEqual(len(next(batches)), 4)

    def test_refusals(self):
        for arguments in {"retries": 1}, {"skip_budget": 1}, {"substitute": next_index}:
            with self.subTest(arguments), self.assertRaisesRegex(ValueError, "map-style"):
                feedlane.Loader(Shards(), 4, **arguments)
        with self.assertRaisesRegex(feedlane.ArgumentError, "config.retries"):
            feedlane.Loader(Numbers(), 4, retries=-1)
        with self.assertRaises(ValueError):
            feedlane.Loader(Numbers(), 4, retries=1, retry_backoff=-1)
        with self.assertRaises(TypeError):
            feedlane.Loader(Numbers(), 4, retries=1, retry_on=[OSError, "TimeoutError"])
        feedlane.Loader(Numbers(), 4, retries=1, retry_on=[OSError, TimeoutError]).close()


if __name__ == "__main__":
    unittest.main()
