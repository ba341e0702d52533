# SPDX-License-Identifier: Apache-2.0
"""feedlane.DataLoader beside torch's: the same batches, and what it does that torch's doesn't."""
import inspect
import gc
import itertools
import os
import signal
import sys
import time
import unittest

import numpy_or_skip  # noqa: F401

try:
    import torch
    import torch.multiprocessing
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

import feedlane


class Augmented(torch.utils.data.Dataset):
    """Rows, and what the worker's generators say."""

    def __init__(self, length=40):
        self.rows, self.epoch = torch.arange(length * 8, dtype=torch.float32).reshape(length, 8), 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"x": self.rows[i] + torch.rand(8), "i": i, "name": f"sample {i}", "epoch": self.epoch}


class Shards(torch.utils.data.IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        return iter(range(info.id, 20, info.num_workers))


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return itertools.count()


class Unlucky(Augmented):
    def __getitem__(self, i):
        if i == 9:
            raise LookupError("nine is missing")
        return i


class AtOnce(Augmented):
    def __getitem__(self, indices):
        return self.rows[indices]


class Odd:
    def __init__(self, i):
        self.i = i


class Odds(Augmented):
    def __getitem__(self, i):
        return Odd(i)


class Counting(Augmented):
    def __init__(self):
        super().__init__()
        self.calls = torch.multiprocessing.get_context("fork").Value("i", 0)

    def __getitem__(self, i):
        with self.calls.get_lock():
            self.calls.value += 1
        return i


class Slow(Augmented):
    def __getitem__(self, i):
        time.sleep(60)


class Detections(Augmented):
    """An image, and boxes with what is known of each."""

    def __getitem__(self, i):
        count = i % 4
        return torch.full((3, 4, 4), i), {"boxes": torch.full((count, 4), float(i)), "labels": torch.arange(count), "area": i * 0.5,
                                          "masks": torch.zeros(count, 4, 4, dtype=torch.bool), "id": torch.tensor(i), "name": str(i)}


class Marked(torch.Tensor):
    """A subclass."""


class Unusual(Augmented):
    """A tensor of a kind that numpy or DLPack doesn't have."""

    def __init__(self, kind):
        super().__init__(8)
        self.kind = kind

    def __getitem__(self, i):
        whole = torch.full((1, 2) * 4 + (3,), float(i))
        makes = {"float8": lambda: whole.flatten().to(torch.float8_e4m3fn), "dimensions": lambda: whole,
                 "both": lambda: whole.to(torch.float8_e5m2), "array": whole.numpy, "bfloat16": whole.bfloat16,
                 "subclass": lambda: whole.as_subclass(Marked), "sparse": lambda: torch.eye(3).to_sparse() * i,
                 "columns": lambda: tuple(torch.tensor([i, j]) for j in range(100)),
                 "numbers": lambda: {j: i * j for j in range(100)}, "bool": lambda: whole > 3}
        return makes[self.kind]()


def columns(samples):
    return tuple(map(list, zip(*samples)))


def itself(samples):
    return samples


def first(samples):
    return samples[0]


def plain(batch):
    return {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in batch.items()}


def exists(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids(iterator):
    return [process.pid for process in iterator._workers]


class BesideTorch(unittest.TestCase):
    def both(self, **arguments):
        """Two epochs of either, and what torch's generator says afterwards."""
        found = []
        for kind in torch.utils.data.DataLoader, feedlane.DataLoader:
            torch.manual_seed(7)
            loader = kind(Augmented(), 8, **arguments)
            found.append(([plain(batch) for _ in range(2) for batch in loader], torch.rand(1).item()))
        return found

    def test_same_batches_and_generators(self):
        for arguments in ({"shuffle": True, "num_workers": 2}, {"num_workers": 3, "persistent_workers": True},
                          {"shuffle": True, "num_workers": 2, "generator": torch.Generator().manual_seed(3)}, {"num_workers": 0}):
            with self.subTest(arguments=arguments):
                if "generator" in arguments:
                    state = arguments["generator"].get_state()
                    theirs, _ = self.both(**arguments)
                    arguments["generator"].set_state(state)
                    torch.manual_seed(7)
                    ours = [plain(b) for _ in range(2) for b in feedlane.DataLoader(Augmented(), 8, **arguments)]
                    self.assertEqual(len(ours), len(theirs[0]))
                    continue
                theirs, ours = self.both(**arguments)
                self.assertEqual(ours, theirs)

    def test_same_however_workers_start(self):
        for way in "spawn", "forkserver":
            with self.subTest(way=way):
                theirs, ours = self.both(shuffle=True, num_workers=1, multiprocessing_context=way)
                self.assertEqual(ours, theirs)

    def test_iterable(self):
        found = [[batch.tolist() for batch in kind(Shards(), 4, num_workers=2)]
                 for kind in (torch.utils.data.DataLoader, feedlane.DataLoader)]
        self.assertEqual(found[0], found[1])

    def test_lists_of_indices_without_a_batch_size(self):
        lists = [[3, 1], [2], [5, 6, 7]]
        found = [[batch.tolist() for batch in kind(AtOnce(), None, sampler=lists, num_workers=2)]
                 for kind in (torch.utils.data.DataLoader, feedlane.DataLoader)]
        self.assertEqual(found[0], found[1])

    def test_errors_are_of_their_own_type_and_not_the_end(self):
        for kind in torch.utils.data.DataLoader, feedlane.DataLoader:
            batches, iterator = [], iter(kind(Unlucky(16), 4, num_workers=2))
            while True:
                try:
                    batches.append(next(iterator).tolist())
                except StopIteration:
                    break
                except LookupError as error:
                    self.assertIs(type(error), LookupError)
                    self.assertIn("nine is missing", str(error))
                    self.assertIn("in __getitem__", str(error))
            self.assertEqual(batches, [[0, 1, 2, 3], [4, 5, 6, 7], [12, 13, 14, 15]])

    def test_a_worker_that_cannot_begin(self):
        def refuse(_worker):
            raise ZeroDivisionError("no worker today")
        with self.assertRaisesRegex(ZeroDivisionError, "no worker today"):
            next(iter(feedlane.DataLoader(Augmented(), num_workers=1, worker_init_fn=refuse)))

    def test_is_a_loader_of_torch(self):
        loader = feedlane.DataLoader(Augmented(), 8, num_workers=2)
        self.assertIsInstance(loader, torch.utils.data.DataLoader)
        self.assertEqual((len(loader), loader.batch_size, type(loader.sampler).__name__), (5, 8, "SequentialSampler"))
        with self.assertRaises(ValueError):
            loader.batch_size = 4
        with self.assertRaisesRegex(ValueError, "held"):
            feedlane.DataLoader(Augmented(), held=0)


    def alike(self, ours, theirs):
        self.assertIs(type(ours), type(theirs))
        if isinstance(theirs, dict):
            self.assertEqual(list(ours), list(theirs))
            ours, theirs = list(ours.values()), list(theirs.values())
        if isinstance(theirs, (list, tuple)):
            self.assertEqual(len(ours), len(theirs))
            for one, other in zip(ours, theirs):
                self.alike(one, other)
            return
        if isinstance(theirs, torch.Tensor):
            self.assertEqual((ours.dtype, ours.shape, ours.layout), (theirs.dtype, theirs.shape, theirs.layout))
            ours, theirs = (t.to_dense().float().reshape(-1).tolist() for t in (ours, theirs))
        if hasattr(theirs, "tolist"):
            self.assertEqual(ours.dtype, theirs.dtype)
            ours, theirs = ours.tolist(), theirs.tolist()
        self.assertEqual(ours, theirs)

    def test_more_tensors_than_a_batch_has(self):
        for collate_fn in columns, itself:
            theirs, ours = (list(kind(Detections(), 16, num_workers=2, collate_fn=collate_fn))
                            for kind in (torch.utils.data.DataLoader, feedlane.DataLoader))
            self.alike(ours, theirs)

    def test_bools(self):
        theirs, ours = (list(loader(Unusual("bool"), 4, num_workers=1)) for loader in (torch.utils.data.DataLoader, feedlane.DataLoader))
        self.alike(ours, theirs)

    @unittest.skipUnless(hasattr(torch, "float8_e4m3fn"), "an old torch, whose workers can't send them all")
    def test_tensors_of_any_kind(self):
        for kind in "float8", "both", "dimensions", "array", "bfloat16", "subclass", "sparse", "columns", "numbers":
            for arguments in {"batch_size": 4}, {"batch_size": 4, "collate_fn": itself}, {"batch_size": None}:
                if kind == "sparse" and len(arguments) == 1 and arguments["batch_size"]:
                    continue  # torch refuses them
                with self.subTest(kind=kind, arguments=arguments):
                    theirs, ours = (list(loader(Unusual(kind), num_workers=1, **arguments))
                                    for loader in (torch.utils.data.DataLoader, feedlane.DataLoader))
                    self.alike(ours, theirs)


class OfItsOwn(unittest.TestCase):
    def test_the_data_set_as_it_is_when_workers_start(self):
        dataset = Augmented()
        loader = feedlane.DataLoader(dataset, 40, num_workers=1)
        for epoch in range(2):
            dataset.epoch = epoch
            self.assertEqual(next(iter(loader))["epoch"].tolist(), [epoch] * 40)

    def test_values_of_processes_are_shared(self):
        dataset = Counting()
        self.assertEqual(len(list(feedlane.DataLoader(dataset, 4, num_workers=2, multiprocessing_context="fork"))), 10)
        self.assertEqual(dataset.calls.value, 40)

    def test_two_iterations_at_once(self):
        loader = feedlane.DataLoader(Augmented(), 8, num_workers=1)
        self.assertEqual([(a["i"].tolist(), b["i"].tolist()) for a, b in zip(loader, loader)],
                         [(list(range(i, i + 8)),) * 2 for i in range(0, 40, 8)])

    def test_any_value_travels_unless_pickles_are_refused(self):
        loader = feedlane.DataLoader(Odds(), None, num_workers=1)
        self.assertEqual([odd.i for odd in loader], list(range(40)))
        with self.assertRaisesRegex(TypeError, "must be pickled"):
            next(iter(feedlane.DataLoader(Odds(), None, num_workers=1, allow_pickle=False)))

    def test_persistent_workers_are(self):
        loader = feedlane.DataLoader(Augmented(), 8, num_workers=2, persistent_workers=True)
        found = []
        for _ in range(2):
            self.assertEqual(len(list(loader)), 5)
            found.append(pids(loader._iterator))
        self.assertEqual(found[0], found[1])

    def test_a_shard_is_lost_with_its_worker(self):
        iterator = iter(feedlane.DataLoader(Endless(), 4, num_workers=1))
        next(iterator)
        os.kill(pids(iterator)[0], signal.SIGKILL)
        with self.assertRaisesRegex(feedlane.PeerDead, "worker 0"):
            for _ in iterator:
                pass

    def test_an_iterator_dropped_ends_its_workers(self):
        iterator = iter(feedlane.DataLoader(Augmented(), 8, num_workers=2))
        next(iterator)
        found = pids(iterator)
        del iterator
        gc.collect()
        self.assertEqual([exists(pid) for pid in found], [False, False])

    def test_a_timeout_says_so(self):
        with self.assertRaisesRegex(RuntimeError, "timed out after 0.1 seconds"):
            next(iter(feedlane.DataLoader(Slow(), num_workers=1, timeout=0.1)))

    def test_arguments_that_torch_refuses(self):
        for kind in torch.utils.data.DataLoader, feedlane.DataLoader:
            with self.assertRaises(AssertionError):
                iter(kind([1, 2], num_workers=1, prefetch_factor=0))

    def test_its_signature_is_torchs_and_more(self):
        theirs, ours = (list(inspect.signature(kind).parameters) for kind in (torch.utils.data.DataLoader, feedlane.DataLoader))
        self.assertEqual(ours[:len(theirs)], theirs)
        self.assertIn("task_timeout", ours)

    def test_a_subclass_may_make_iterators_of_its_own(self):
        class Other(feedlane.DataLoader):
            def _get_iterator(self):
                return iter([1, 2])
        self.assertEqual(list(Other([0])), [1, 2])

    def test_a_class_in_the_place_of_a_data_set_has_no_state(self):
        self.assertIsNone(feedlane.DataLoader(feedlane.DataLoader).state_dict()["dataset_state"])

    def test_what_a_collate_fn_returns(self):
        loader = feedlane.DataLoader(Augmented(), 8, num_workers=1, collate_fn=first)
        self.assertEqual([batch["i"] for batch in loader], [0, 8, 16, 24, 32])


if __name__ == "__main__":
    unittest.main()
