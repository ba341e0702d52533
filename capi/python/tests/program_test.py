# SPDX-License-Identifier: Apache-2.0
"""Workers that are a program in another language, and batches of a feeder with such workers.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python program_test.py PROGRAM_WORKER [unittest's arguments]"""
import functools
import os
import sys
import tempfile
import unittest

from numpy_or_skip import np
import feedlane
from datasets import Numbers, outcomes
from share_cases import served

PROGRAM = os.path.abspath(sys.argv[1])
HERE = os.path.dirname(os.path.abspath(__file__))
FIELDS = {"index": (np.int64, ())}


def loader(mode, *arguments, **more):
    return feedlane.Loader(None, 4, worker=[PROGRAM, mode, *arguments], **{"fields": FIELDS, "num_workers": 1, **more})


def indices(batch):
    return batch["index"].tolist()


class Programs(unittest.TestCase):
    # promise: start-any-language
    def test_batches_are_dicts_by_the_fields_names(self):
        for tensors in "numpy", "torch":
            with self.subTest(tensors):
                try:
                    made = loader("rows", length=10, tensors=tensors)
                except ImportError as missing:
                    self.skipTest(str(missing))
                with made:
                    self.assertEqual(len(made), 3)
                    batches = list(made)
                    self.assertEqual([list(batch) for batch in batches], [["index"]] * 3)
                    self.assertEqual([indices(batch) for batch in batches], [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]])
                    self.assertEqual(type(batches[0]["index"]).__module__, tensors)

    def test_order(self):
        """By length and shuffle, samplers and batch samplers, as with a data set in Python."""
        for more in ({"length": 40, "shuffle": True, "seed": 3}, {"sampler": [3, 1, 2, 9, 0]}, {"sampler": feedlane.samplers.random(9, 2)},
                     {"length": 10, "drop_last": True}, {"length": 9, "max_batches": 1}):
            with self.subTest(more):
                mine = {name: value for name, value in more.items() if name != "length"}
                with loader("rows", **more) as found, feedlane.Loader(Numbers(more.get("length", 40)), 4, **mine) as wanted:
                    self.assertEqual(len(found), len(wanted))
                    for _ in range(2):
                        self.assertEqual([indices(batch) for batch in found], [batch[:, 0].tolist() for batch in wanted])

    def test_state(self):
        with loader("rows", length=20) as first, loader("rows", length=20, num_workers=2) as second:
            batches = iter(first)
            next(batches), next(batches)
            second.load_state_dict(first.state_dict())
            self.assertEqual([indices(batch)[0] for batch in second], [8, 12, 16])

    # promise: loader-metadata
    def test_metadata_and_configuration(self):
        for config in b"", b"small", bytearray(b"\xff["):
            with loader("rows", length=8, worker_config=config) as made:
                for number, batch in enumerate(made.batches()):
                    with batch:
                        self.assertEqual(batch.metadata, b"batch %d, config %s" % (number, config))
                        self.assertEqual(indices(batch.data), list(range(4 * number, 4 * number + 4)))
                        self.assertEqual(batch.tensors[0].name, "index")

    def test_metadata_of_an_entry(self):
        with feedlane.Arena(1 << 20) as arena:
            with arena.reserve("key", {"x": ("int64", (2,))}, metadata=b"{a note}") as arrays:
                arrays["x"][:] = 7, 8
            with arena.get("key") as entry:
                self.assertEqual((entry.metadata, entry.data["x"].tolist()), (b"{a note}", [7, 8]))

    def test_iterable(self):
        with loader("shard", num_workers=2) as made:
            self.assertRaises(TypeError, len, made)
            for _ in range(2):
                self.assertEqual(sorted(sum(map(indices, made), [])), [0, 1, 2, 3, 4, 5])
        with loader("shard", world=3, rank=1) as made:
            self.assertEqual(sum(map(indices, made), []), [1, 4])

    def test_kept_workers(self):
        for is_kept in True, False:
            with loader("rows", length=8, persistent_workers=is_kept) as made:
                pids = []
                for _ in range(2):
                    pids += {made.workers()[0]["pid"] for _ in made}
                self.assertEqual(len(set(pids)) == 1, is_kept)


class Failures(unittest.TestCase):
    def test_retries(self):
        with loader("flaky", length=8) as made:
            found = outcomes(map(lambda batch: batch["index"][:, None], made))
            self.assertIsInstance(found[1], feedlane.SampleError)
            self.assertIn("the store is busy", str(found[1]))
        with loader("flaky", length=8, retries=1) as made:
            self.assertEqual(sum(map(indices, made), []), list(range(8)))
            self.assertEqual(made.stats()["retried"], 1)
        with loader("flaky", length=8, skip_budget=1) as made:
            self.assertEqual(sum(map(indices, made), []), [0, 1, 2, 3, 4, 6, 7])

    def test_workers_that_die_or_hang(self):
        for mode, more, count in ("killed", {}, "restarts_signal"), ("stuck", {"task_timeout": 0.2}, "restarts_hung"):
            with self.subTest(mode), loader(mode, length=8, **more) as made:
                self.assertEqual(sum(map(indices, made), []), list(range(8)))
                self.assertEqual(made.stats()[count], 1)

    # promise: start-failure-named
    def test_arguments_that_are_refused(self):
        for error, words, arguments in (
                (ValueError, "dataset is not allowed with worker", {"dataset": Numbers(4), "length": 4}),
                (ValueError, "collate_fn is not allowed", {"collate_fn": list}),
                (ValueError, "worker_init_fn is not allowed", {"worker_init_fn": print}),
                (ValueError, "substitute is not allowed", {"substitute": print}),
                (ValueError, "retry_on is not allowed", {"retry_on": KeyError}),
                (ValueError, "num_workers=0: worker needs 1 or more", {"num_workers": 0}),
                (ValueError, "length cannot be combined with sampler", {"length": 4, "sampler": [0]}),
                (ValueError, "length='4': must be an integer", {"length": "4"}),
                (ValueError, "length=-1: must be from 0", {"length": -1}),
                (ValueError, "not allowed for an iterable data set", {"shuffle": True}),
                (ValueError, "must be a list of the program", {"worker": PROGRAM}),
                (ValueError, "must be a list of the program", {"worker": []}),
                (ValueError, "zero byte", {"worker": [PROGRAM, "a\0b"]}),
                (TypeError, "worker_config='text': must be bytes", {"worker_config": "text"}),
                (FileNotFoundError, "worker program .*'/nowhere/decoder'", {"worker": ["/nowhere/decoder"]}),
                (FileNotFoundError, "worker program .*'no-such-decoder'", {"worker": ["no-such-decoder"]}),
                (FileNotFoundError, "executable file", {"worker": [__file__]}),
                (ValueError, "allowed only with worker", {"worker": None, "dataset": Numbers(4), "length": 4}),
                (ValueError, "allowed only with worker", {"worker": None, "dataset": Numbers(4), "worker_config": b"x"}),
                (ValueError, "needs a data set, or worker", {"worker": None})):
            with self.subTest(words), self.assertRaisesRegex(error, words):
                feedlane.Loader(**{"worker": [PROGRAM, "rows"], "fields": FIELDS, "num_workers": 1, **arguments})

    def test_a_program_that_is_no_worker(self):
        for program in ["/bin/true"], [PROGRAM, "rows", "one word too many"]:
            with self.subTest(program), feedlane.Loader(worker=program, fields=FIELDS, length=4, num_workers=1) as made:
                self.assertRaises(feedlane.InitError, next, iter(made))


class Python(unittest.TestCase):
    """Programs in Python, with worker_main."""

    def loader(self, make, **more):
        code = f"import sys; sys.path.insert(0, {HERE!r}); import feedlane; from datasets import *; feedlane.worker_main({make})"
        return self.enterContext(feedlane.Loader(worker=[sys.executable, "-c", code], batch_size=4,
                                                 **{"num_workers": 1, "length": 8, "fields": {"x": (np.int64, (8,))}, **more}))

    # promise: start-any-language
    def test_batches(self):
        """They have the structure of the program's samples."""
        made = self.loader("lambda config: Numbers(int(config))", worker_config=b"8")
        self.assertEqual([batch[:, 0].tolist() for batch in made], [[0, 1, 2, 3], [4, 5, 6, 7]])
        made = self.loader("lambda _: [(i, {'y': i / 2}) for i in range(8)]", fields={"x": (np.int64, ()), "y": (np.float64, ())})
        self.assertEqual([(x.tolist(), rest["y"].tolist()) for x, rest in made][1], ([4, 5, 6, 7], [2, 2.5, 3, 3.5]))

    def test_iterable(self):
        """Each worker iterates its shard, again in each epoch."""
        for drop_last, count in (False, 11), (True, 8):
            made = self.loader("lambda _: Shards(11)", length=None, num_workers=2, drop_last=drop_last, persistent_workers=True,
                               fields={"x": (np.float32, (3,)), "i": (np.int64, ())})
            received = [sum((batch["i"].tolist() for batch in made), []) for _ in range(2)]
            self.assertEqual([sorted(numbers) for numbers in received], [list(range(count))] * 2)

    def test_failures(self):
        for make, more, error, words in (
                ("lambda _: 1 / 0", {}, feedlane.InitError, "ZeroDivisionError"),
                ("lambda _: iter(())", {}, feedlane.InitError, "must return a data set with __getitem__"),
                ("lambda _: Numbers(8)", {"length": None}, feedlane.InitError, "must return an iterable"),
                ("lambda _: [1.5] * 8", {}, feedlane.SampleError, "field 'x' was declared as int64"),
                ("lambda _: Numbers(8, failing=(1,))", {"retries": 1}, feedlane.SampleError, "sample 1 is broken")):
            with self.subTest(make), self.assertRaisesRegex(error, words):
                next(iter(self.loader(make, **more)))
        made = self.loader("lambda _: Flaky({1: [OSError]}, samples=8)", retries=1, fields={"x": (np.int64, (2,))})
        self.assertEqual([batch[:, 0].tolist() for batch in made], [[0, 1, 2, 3], [4, 5, 6, 7]])
        made = self.loader("lambda _: Numbers(8, failing=(1,))", skip_budget=1)
        self.assertEqual([batch[:, 0].tolist() for batch in made], [[0, 2, 3], [4, 5, 6, 7]])

    def test_without_a_trainer(self):
        self.assertIsNone(feedlane.worker_main(self.fail))


class Consumers(unittest.TestCase):
    # promise: share-any-language
    def test_of_a_feeder_with_such_workers(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "feeder")
            with loader("rows", length=10, share="every", share_path=path) as feeder:
                join = functools.partial(feedlane.join, feeder.open_consumer())
                with served(feeder) as failures, join() as consumer:
                    found = []
                    for batch in consumer.batches():
                        with batch:
                            found.append((indices(batch.data), batch.metadata))
            self.assertEqual(failures, [None])
            self.assertEqual(found, [([0, 1, 2, 3], b"batch 0, config "), ([4, 5, 6, 7], b"batch 1, config "),
                                     ([8, 9], b"batch 2, config ")])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
