# SPDX-License-Identifier: Apache-2.0
"""feedlane.Loader: data sets that are told of epochs, the state after a batch that is held, and a script without its main guard.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python epochs_test.py [unittest's arguments]"""
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import unittest

import numpy_or_skip  # noqa: F401
import feedlane


class Told:
    """Samples say which epoch this copy was told."""

    epoch = 0

    def __len__(self):
        return 6

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, i):
        return [i, self.epoch, os.getpid()]


class Refusing(Told):
    def __init__(self):
        self.trainer = os.getpid()

    def set_epoch(self, epoch):
        if os.getpid() != self.trainer:
            raise LookupError("no such epoch")


class Stream:
    def set_epoch(self, epoch):
        self.epoch = epoch

    epoch = 0

    def __iter__(self):
        return iter([[i, self.epoch] for i in range(3)])


class Sampling:
    """A sampler of the user's, whose order is its epoch's."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 6

    def __iter__(self):
        return iter([(i + self.epoch) % 6 for i in range(6)])


class Epochs(unittest.TestCase):
    def epochs(self, loader):
        """Which ones an iteration's samples say."""
        return sorted({int(e) for batch in loader for e in batch[1]})

    def every(self):
        for dataset in Told, Stream:
            for workers, keeps in (0, False), (1, False), (2, True):
                with self.subTest(dataset=dataset.__name__, workers=workers, persistent=keeps):
                    made = dataset()
                    with feedlane.Loader(made, 3, num_workers=workers, persistent_workers=keeps) as loader:
                        yield made, loader

    def test_what_the_trainers_copy_is_told_reaches_the_workers(self):
        for dataset, loader in self.every():
            for epoch in 0, 1, 2, 7, 5:
                dataset.set_epoch(epoch)
                self.assertEqual(self.epochs(loader), [epoch])

    def test_without_being_told_the_numbers_are_the_loaders(self):
        for dataset, loader in self.every():
            self.assertEqual([self.epochs(loader) for _ in range(3)], [[0], [1], [2]])
            loader.set_epoch(9)
            self.assertEqual((self.epochs(loader), dataset.epoch), ([9], 9))

    def test_the_place_of_a_dead_worker_is_told_too(self):
        with feedlane.Loader(Told(), 1, num_workers=1, persistent_workers=True, prefetch_factor=1) as loader:
            list(loader)
            iterator = iter(loader)
            first = next(iterator)
            os.kill(int(first[2][0]), signal.SIGKILL)
            self.assertEqual({int(batch[1][0]) for batch in iterator}, {1})

    def test_a_resumed_epoch_keeps_its_number(self):
        with feedlane.Loader(Told(), 1, num_workers=1, seed=1) as loader:
            list(loader)
            iterator = iter(loader)
            next(iterator)
            state = loader.state_dict()
        dataset = Told()
        with feedlane.Loader(dataset, 1, num_workers=1, seed=1) as loader:
            loader.load_state_dict(state)
            dataset.set_epoch(0)
            self.assertEqual([(int(b[0][0]), int(b[1][0])) for b in loader], [(i, 1) for i in range(1, 6)])

    def test_what_set_epoch_raises_in_a_worker_is_the_batchs_error(self):
        with feedlane.Loader(Refusing(), 2, num_workers=1) as loader:
            with self.assertRaisesRegex(feedlane.SampleError, "LookupError: no such epoch"):
                next(iter(loader))

    def test_samplers_are_told_where_they_are(self):
        sampler = Sampling()
        with feedlane.Loader(range(6), 6, sampler=sampler, num_workers=1) as loader:
            for epoch in range(3):
                sampler.set_epoch(epoch)
                self.assertEqual([b.tolist() for b in loader], [[(i + epoch) % 6 for i in range(6)]])


@unittest.skipIf(importlib.util.find_spec("torch") is None, "there is no torch")
class EpochsOfDataLoader(unittest.TestCase):
    """As torch has it: workers have the data set as it was when they started."""

    def test_as_with_torch(self):
        import torch
        for keeps in False, True:
            found = []
            for kind in torch.utils.data.DataLoader, feedlane.DataLoader:
                dataset = Told()
                loader = kind(dataset, 6, num_workers=1, persistent_workers=keeps)
                found.append([])
                for epoch in 1, 2, 3:
                    dataset.set_epoch(epoch)
                    found[-1] += [batch[1].tolist() for batch in loader]
            self.assertEqual(found[1], found[0])


class StatesOfABatch(unittest.TestCase):
    def rest(self, state, **arguments):
        with feedlane.Loader(range(20), 2, seed=1, **arguments) as loader:
            loader.load_state_dict(state)
            return [batch.tolist() for batch in loader]

    def test_after_a_batch_that_is_held(self):
        for workers in 0, 2:
            with feedlane.Loader(range(20), 2, seed=1, num_workers=workers) as loader:
                batches = loader.batches()
                ahead = [next(batches) for _ in range(3)]
                for number, batch in enumerate(ahead):
                    self.assertEqual(self.rest(loader.state_dict(batch), num_workers=workers)[0], [2 * number + 2, 2 * number + 3])
                self.assertEqual(loader.state_dict(), loader.state_dict(ahead[-1]))
                ahead[0].release()
                with self.assertRaises(feedlane.StaleBatch):
                    loader.state_dict(ahead[0])
                with self.assertRaises(TypeError):
                    loader.state_dict(3)
                with feedlane.Loader(range(20), 2) as other, self.assertRaisesRegex(feedlane.ArgumentError, "another loader"):
                    other.state_dict(ahead[1])

    @unittest.skipIf(importlib.util.find_spec("torch") is None, "there is no torch")
    def test_of_a_dataloader_so_many_batches_ago(self):
        for workers in 0, 2:
            for shuffle in False, True:
                def made():
                    return feedlane.DataLoader(range(20), 2, num_workers=workers, shuffle=shuffle)
                loader = made()
                iterator = iter(loader)
                batches = [next(iterator).tolist() for _ in range(5)]
                states = [loader.state_dict(behind) for behind in range(6)]
                with self.assertRaisesRegex(ValueError, "behind=6"):
                    loader.state_dict(6)
                batches += [batch.tolist() for batch in iterator]
                self.assertEqual(len(batches), 10)
                for behind, state in enumerate(states):
                    other = made()
                    other.load_state_dict(state)
                    self.assertEqual([b.tolist() for b in other], batches[5 - behind:])


class Scripts(unittest.TestCase):
    def test_without_a_main_guard(self):
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write("import feedlane\nlist(feedlane.Loader(range(4), num_workers=1))\n")
            file.flush()
            found = subprocess.run([sys.executable, file.name], check=False, capture_output=True, text=True, timeout=300).stderr
        self.assertIn("feedlane.errors.InitError", found.splitlines()[-1])
        self.assertIn('must be under `if __name__ == "__main__":`', found.splitlines()[-1])

    def test_the_version(self):
        self.assertRegex(feedlane.__version__, r"^\d+\.\d+\.\d+")


if __name__ == "__main__":
    unittest.main()
