# SPDX-License-Identifier: Apache-2.0
"""Python iterables as samplers: drawn to their end, what they raise, what they say of their length.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python samplers_test.py [unittest's arguments]"""
import itertools
import os
import unittest

import numpy_or_skip  # noqa: F401
import feedlane
from feedlane import samplers
from datasets import Numbers, outcomes


class Says:
    """Says one length and yields another number of indices. `raises`: in the first epoch, behind them."""

    def __init__(self, length, yields, raises=None):
        self.length, self.yields, self.raises = length, yields, raises

    def __len__(self):
        if isinstance(self.length, type):
            raise self.length("unknown")
        return self.length

    def __iter__(self):
        yield from itertools.count() if self.yields is None else range(self.yields)
        if self.raises is not None:
            raises, self.raises = self.raises, None
            raise raises


def firsts(loader):
    return [int(batch[0, 0]) for batch in loader]


def told(iterator, most):
    """Numbers of first samples, names of exceptions, up to the end."""
    return [outcome if isinstance(outcome, int) else type(outcome).__name__ for outcome in outcomes(iterator, most)]


class Lengths(unittest.TestCase):
    def test_what_it_yields_counts_not_what_it_says(self):
        for workers in 0, 1:
            for says, yields in (4, 8), (8, 4), (0, 4), (TypeError, 4):
                with self.subTest(workers=workers, says=says, yields=yields), \
                        feedlane.Loader(Numbers(), 2, sampler=Says(says, yields), num_workers=workers) as loader:
                    for _ in range(2):
                        self.assertEqual(firsts(loader), list(range(0, yields, 2)))

    def test_one_without_an_end(self):
        for workers in 0, 1:
            with self.subTest(workers=workers), \
                    feedlane.Loader(Numbers(), 2, sampler=Says(4, None), num_workers=workers) as loader:
                self.assertEqual([int(batch[0, 0]) for _, batch in zip(range(6), loader)], [0, 2, 4, 6, 8, 10])

    def test_len_asks_when_it_is_asked(self):
        sampler = Says(5, 5)
        with feedlane.Loader(Numbers(), 2, sampler=sampler) as loader, \
                feedlane.Loader(Numbers(), 2, sampler=sampler, drop_last=True) as short, \
                feedlane.Loader(Numbers(), None, sampler=sampler) as unbatched, \
                feedlane.Loader(Numbers(), batch_sampler=samplers.batch(samplers.of(sampler), 3)) as batches:
            self.assertEqual([len(each) for each in (loader, short, unbatched, batches)], [3, 2, 5, 2])
            sampler.length = 9
            self.assertEqual([len(each) for each in (loader, short, unbatched, batches)], [5, 4, 9, 3])
            for unknown in TypeError, NotImplementedError:
                sampler.length = unknown
                for each in loader, short, unbatched, batches, samplers.of(sampler):
                    self.assertRaises(TypeError, len, each)
                self.assertEqual(list(samplers.of(sampler)), list(range(5)))

    def test_a_batch_sampler_that_says_no_batch_size_and_fields(self):
        fields = {"x": ("int64", (8,))}
        with self.assertRaisesRegex(ValueError, "batch_size"):
            feedlane.Loader(Numbers(), batch_sampler=[[0, 1], [2]], fields=fields)

        class Batches(list):
            batch_size = 2
        with feedlane.Loader(Numbers(), batch_sampler=Batches([[0, 1], [2]]), fields=fields) as loader:
            self.assertEqual(firsts(loader), [0, 2])


class Failures(unittest.TestCase):
    def test_an_empty_batch_isnt_the_end(self):
        for workers in 0, 1:
            with self.subTest(workers=workers), \
                    feedlane.Loader(Numbers(), batch_sampler=[[0, 1], [], [2, 3]], num_workers=workers) as loader:
                with self.assertRaisesRegex(feedlane.SampleError, "batch sampler list.*empty") as caught:
                    firsts(loader)
                self.assertIsInstance(caught.exception.__cause__, ValueError)

    def test_one_that_has_raised_goes_on_raising_until_the_next_epoch(self):
        for workers in 0, 1:
            for wrap in (lambda it: {"sampler": it, "batch_size": 2},
                         lambda it: {"batch_sampler": samplers.batch(samplers.of(it), 2)}):
                arguments = wrap(Says(8, 4, KeyError("why")))
                with self.subTest(workers=workers, **arguments), \
                        feedlane.Loader(Numbers(), num_workers=workers, **arguments) as loader:
                    batches = iter(loader)
                    self.assertEqual([int(next(batches)[0, 0]) for _ in range(2)], [0, 2])
                    for _ in range(3):
                        with self.assertRaisesRegex(feedlane.SampleError, "why") as caught:
                            next(batches)
                        self.assertIsInstance(caught.exception.__cause__, KeyError)
                    self.assertEqual(firsts(loader), [0, 2])

    def test_what_came_before_it_isnt_lost(self):
        found = []
        with self.assertRaises(feedlane.SampleError):
            found.extend(samplers.of(Says(8, 3, KeyError("why"))))
        self.assertEqual(found, [])  # the library gives as many at once as were asked for, or says why not
        with feedlane.Loader(Numbers(), 1, sampler=Says(8, 3, KeyError("why"))) as loader:
            self.assertEqual(told(iter(loader), 4), [0, 1, 2, "SampleError"])

    def ahead(self, reason, **arguments):
        """(loader, iterator): four batches, and the sampler has raised `reason` behind them; not all of them were yielded."""
        sampler = Says(8, 8, reason)
        loader = feedlane.Loader(sampler=sampler, batch_size=2, num_workers=1, held=1, **arguments)
        self.addCleanup(loader.close)
        batches = iter(loader)
        while sampler.raises is not None:
            last = int(next(batches)[0, 0])
            self.assertLess(last, 6)
        return loader, batches

    def test_an_interruption_isnt_kept_until_the_batches_before_it_are_used_up(self):
        for reason in KeyboardInterrupt, SystemExit:
            _, batches = self.ahead(reason(), dataset=Numbers())
            self.assertRaises(reason, next, batches)
            self.assertEqual(told(batches, 4)[-1], "SampleError")

    def test_an_interruption_of_an_epoch_that_was_left_isnt_lost(self):
        loader, batches = self.ahead(KeyboardInterrupt(), dataset=Numbers(), persistent_workers=True)
        self.assertRaises(KeyboardInterrupt, iter, loader)
        del batches
        self.assertEqual(firsts(loader), [0, 2, 4, 6])

    def test_what_an_earlier_epoch_kept_is_no_cause_of_anything(self):
        loader, batches = self.ahead(KeyError("of the first epoch"), dataset=Numbers(failing=[7]))
        batches = iter(loader)
        with self.assertRaisesRegex(feedlane.SampleError, "sample 7 is broken") as caught:
            for _ in batches:
                pass
        self.assertIsNone(caught.exception.__cause__)

    def test_the_samplers_failure_is_only_that_of_the_samplers_error(self):
        _, batches = self.ahead(KeyError("the sampler's"), dataset=Numbers(failing=[7]))
        causes = []
        while len(causes) < 2:
            try:
                next(batches)
            except feedlane.SampleError as error:
                causes.append(type(error.__cause__))
        self.assertEqual(causes, [type(None), KeyError])

    def test_exceptions_that_cant_be_written_down(self):
        class Mute(Exception):
            def __str__(self):
                raise ValueError("no")
        for reason, words in (FileNotFoundError(os.fsdecode(b"no \xff")), r"no \\udcff"), (Mute(), "its __str__ raised"):
            with feedlane.Loader(Numbers(), 2, sampler=Says(4, 4, reason)) as loader:
                self.assertEqual(told(iter(loader), 3), [0, 2, "SampleError"])
                with self.assertRaisesRegex(feedlane.SampleError, words):
                    sampler = samplers.of(Says(4, 0, reason))
                    list(sampler)

    def test_state_says_what_has_one(self):
        with feedlane.Loader(Numbers(), 2, sampler=[1, 2, 3, 4]) as loader:
            next(iter(loader))
            with self.assertRaisesRegex(feedlane.Unsupported, "seed=.*feedlane.samplers"):
                loader.state_dict()


if __name__ == "__main__":
    unittest.main()
