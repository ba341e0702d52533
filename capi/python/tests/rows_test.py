# SPDX-License-Identifier: Apache-2.0
"""Data sets that write whole batches in place.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python rows_test.py [unittest's arguments]"""
import os
import signal
import traceback
import unittest
import weakref

from numpy_or_skip import np
import feedlane

FIELDS = {"square": (np.int64, (3,)), "who": (np.uint64, ()), "half": (np.float16, (2, 2))}


class Squares(feedlane.BatchDataset):
    """Row i: the square of i three times, the row's seed, i / 2 four times."""

    def __init__(self, length=50, bad=None, kill_at=None):
        self.length, self.bad, self.kill_at, self.kept = length, bad, kill_at, None

    def __len__(self):
        return self.length

    def fetch(self, indices, seeds, out):
        if self.bad is not None and self.bad in indices:
            raise OSError(f"no sample {self.bad}")
        if self.kill_at is not None and self.kill_at in indices and feedlane.get_worker_info().generation == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        out["square"][:] = (indices * indices)[:, None]
        out["who"][:] = seeds
        out["half"][:] = indices[:, None, None] / 2


class Naming(Squares):
    """Fails in the batch that has sample 9, and names `sample`."""

    def __init__(self, sample):
        super().__init__(21, bad=9)
        self.sample = sample

    def fetch(self, indices, seeds, out):
        try:
            super().fetch(indices, seeds, out)
        except OSError:
            raise feedlane.SampleError("unreadable", sample=self.sample) from ValueError("cause of it")


class Together(list):
    """Samples of one call, of which one fails."""

    def __getitems__(self, indices):
        if 9 in indices:
            raise feedlane.SampleError("unreadable", sample=9)
        return [self[i] for i in indices]


class Keeping(Squares):
    """Keeps what it has to give back."""

    def __init__(self, what):
        super().__init__(8)
        self.what = what

    def fetch(self, indices, seeds, out):
        super().fetch(indices, seeds, out)
        self.kept = {"indices": indices, "seeds": seeds}.get(self.what, out["square"][0])


class Reshaping(Squares):
    """Changes the arrays themselves, and keeps the dict."""

    def fetch(self, indices, seeds, out):
        super().fetch(indices, seeds, out)
        indices.shape = out["square"].shape = out["half"].shape = (-1,)
        out["who"].flags.writeable = False
        self.kept = out


class Watching(Squares):
    """Fails if an array of the batch before is still there."""

    def fetch(self, indices, seeds, out):
        alive = [array for array in self.kept or () if array() is not None]
        self.kept = [weakref.ref(array) for array in (indices, seeds, *out.values())]
        super().fetch(indices, seeds, out)
        if alive:
            raise RuntimeError(f"{len(alive)} arrays of the batch before")


class Ones(feedlane.BatchDataset):
    """Its tensors fit the slot, but not what holds them together."""

    def __len__(self):
        return 8

    def fetch(self, indices, seeds, out):
        out["x"][:] = 1


class Seeds(Squares):
    """The same, sample by sample."""

    def __getitem__(self, index):
        return {"square": np.full(3, index * index), "who": np.uint64(feedlane.sample_seed()),
                "half": np.full((2, 2), index / 2, np.float16)}


class Plain:
    """What a Loader without `fetch` makes of it."""

    def __init__(self, length):
        self.rows = Seeds(length)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def batches(dataset, **arguments):
    with feedlane.Loader(dataset, arguments.pop("batch_size", 7), fields=FIELDS, seed=3, shuffle=True, **arguments) as loader:
        return [{name: array.copy() for name, array in batch.items()} for batch in loader]


class Rows(unittest.TestCase):
    def same(self, one, other):
        self.assertEqual(len(one), len(other))
        for a, b in zip(one, other):
            self.assertEqual(list(a), list(b))
            for name in a:
                self.assertEqual(a[name].dtype, b[name].dtype)
                np.testing.assert_array_equal(a[name], b[name])

    def test_bytes_and_seeds_are_those_of_a_data_set_of_samples(self):
        for workers in 0, 1, 2:
            self.same(batches(Squares(), num_workers=workers), batches(Plain(50), num_workers=workers))

    def test_a_worker_that_is_killed_costs_nothing(self):
        self.same(batches(Squares(kill_at=20), num_workers=2), batches(Squares()))

    def test_the_last_batch_and_a_batch_of_one_row(self):
        self.assertEqual([len(batch["who"]) for batch in batches(Squares(15), num_workers=1)], [7, 7, 1])
        self.assertEqual(len(batches(Squares(3), batch_size=1)), 3)

    def test_what_fetch_raises_is_the_error_of_its_batch(self):
        for workers in 0, 1:
            with feedlane.Loader(Squares(21, bad=9), 7, num_workers=workers, fields=FIELDS) as loader:
                seen = 0
                with self.assertRaisesRegex(feedlane.SampleError, "no sample 9"):
                    for _ in loader:
                        seen += 1
                self.assertEqual(seen, 1)

    def test_fetch_names_the_sample_that_failed(self):
        for named, found in (9, 9), (np.int64(9), 9), (3, -1), (-5, -1), ("nine", -1):
            for workers in 0, 1:
                with self.subTest(named=named, workers=workers):
                    with feedlane.Loader(Naming(named), 7, num_workers=workers, fields=FIELDS) as loader:
                        loop = iter(loader)
                        next(loop)
                        with self.assertRaisesRegex(feedlane.SampleError, "unreadable") as caught:
                            next(loop)
                        self.assertEqual((caught.exception.batch, caught.exception.sample), (1, found))
                        self.assertIn("cause of it", caught.exception.traceback)
                        self.assertEqual(next(loop)["square"][0, 0], 14 * 14)

    def test_getitems_names_the_sample_that_failed(self):
        for workers in 0, 1:
            with feedlane.Loader(Together(range(21)), 7, num_workers=workers) as loader:
                with self.assertRaisesRegex(feedlane.SampleError, "unreadable") as caught:
                    list(loader)
                self.assertEqual((caught.exception.batch, caught.exception.sample), (1, 9))

    def test_an_array_that_is_kept_fails_the_batch(self):
        for what in "indices", "seeds", "rows":
            for workers in 0, 1:
                with feedlane.Loader(Keeping(what), 4, num_workers=workers, fields=FIELDS) as loader:
                    with self.assertRaisesRegex(feedlane.SampleError, "Keeping.fetch has kept"):
                        next(iter(loader))

    def test_what_fetch_does_to_the_arrays_themselves_is_gone_with_its_batch(self):
        for workers in 0, 1:
            self.same(batches(Reshaping(), num_workers=workers), batches(Squares()))

    def test_arrays_are_gone_when_fetch_returns(self):
        for workers in 0, 1:
            self.same(batches(Watching(), num_workers=workers), batches(Squares()))

    def test_an_exception_has_no_arrays(self):
        for bad in 1, 5:
            with feedlane.Loader(Squares(8, bad=bad), 4, fields=FIELDS) as loader:
                try:
                    list(loader)
                    cause = None
                except feedlane.SampleError as failure:
                    cause = failure.__cause__
                self.assertIn("no sample", str(cause))
                frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
                self.assertIn("fetch", [frame.f_code.co_name for frame in frames])
                self.assertEqual([frame.f_locals for frame in frames], [{}] * len(frames))

    def test_a_slot_that_is_too_small_says_which_argument(self):
        for workers in 0, 1:
            with feedlane.Loader(Ones(), 4, num_workers=workers, fields={"x": (np.uint8, (8,))}, slot_bytes=256) as loader:
                with self.assertRaisesRegex(feedlane.SampleError, r"Loader\(slot_bytes=\d+\)"):
                    list(loader)

    def test_a_batch_after_one_that_has_failed(self):
        with feedlane.Loader(Squares(8, bad=0), 1, fields=FIELDS) as loader:
            for _ in range(3):  # the exceptions keep the arrays of their batches
                with self.assertRaisesRegex(feedlane.SampleError, "no sample 0"):
                    next(iter(loader))
            loader.set_epoch(3)
            iterator, seen = iter(loader), []
            while True:
                try:
                    seen.append(int(next(iterator)["square"][0, 0]))
                except feedlane.SampleError:
                    continue
                except StopIteration:
                    break
            self.assertEqual(seen, [i * i for i in range(1, 8)])

    def test_indices_and_seeds_cant_be_written(self):
        class Writing(Squares):
            def fetch(self, indices, seeds, out):
                indices[0] = 1
        with self.assertRaisesRegex(feedlane.SampleError, "read-only"):
            batches(Writing())

    def test_another_shape_is_numpys_error(self):
        class Narrow(Squares):
            def fetch(self, indices, seeds, out):
                out["square"][:] = np.zeros((len(indices), 2))
        with self.assertRaisesRegex(feedlane.SampleError, "broadcast"):
            batches(Narrow())

    def test_resumes_in_mid_epoch(self):
        whole = batches(Squares(), num_workers=2)
        with feedlane.Loader(Squares(), 7, fields=FIELDS, seed=3, shuffle=True, num_workers=2) as loader:
            iterator = iter(loader)
            first = [{name: array.copy() for name, array in next(iterator).items()} for _ in range(3)]
            state = loader.state_dict()
        with feedlane.Loader(Squares(), 7, fields=FIELDS, seed=3, shuffle=True, num_workers=1) as loader:
            loader.load_state_dict(state)
            rest = [{name: array.copy() for name, array in batch.items()} for batch in loader]
        self.same(first + rest, whole)

    def test_an_iterable_one_is_refused(self):
        try:
            from torch.utils.data import IterableDataset
        except ImportError:
            self.skipTest("no torch")

        class Both(Squares, IterableDataset):
            def __iter__(self):
                return iter(())

        with self.assertRaisesRegex(ValueError, "cannot be an iterable data set"):
            feedlane.Loader(Both(), 4, fields=FIELDS)

    def test_arguments_that_dont_go_with_it(self):
        for arguments, wanted in (({}, "needs fields"), ({"batch_size": None, "fields": FIELDS}, "batch_size"),
                                  ({"collate_fn": list, "fields": FIELDS}, "collate_fn"), ({"retries": 1, "fields": FIELDS}, "retries")):
            with self.assertRaisesRegex(ValueError, wanted):
                feedlane.Loader(Squares(), **{"batch_size": 4, **arguments})
        with self.assertRaisesRegex(TypeError, "no single samples"):
            Squares()[0]


if __name__ == "__main__":
    unittest.main()
