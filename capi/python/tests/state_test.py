# SPDX-License-Identifier: Apache-2.0
"""state_dict() and load_state_dict() of feedlane.DataLoader: an iteration goes on where another one was."""
import copy
import itertools
import json
import os
import pickle
import signal
import sys
import unittest

import numpy_or_skip  # noqa: F401

try:
    import torch
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

import feedlane


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, i):
        return i


class Counting(Numbers):
    """Its samples depend on how many this worker has made."""

    def __init__(self):
        self.made = {"count": 0}

    def __getitem__(self, i):
        self.made["count"] += 1
        return i * 1000 + self.made["count"]

    def state_dict(self):
        return self.made

    def load_state_dict(self, state):
        self.made = dict(state)


class Failing(Numbers):
    def __getitem__(self, i):
        if i == 5:
            raise LookupError("five is missing")
        return i


class Shards(torch.utils.data.IterableDataset):
    """Worker w of n yields w, w + n ...: shards of several lengths."""

    lengths = (3, 40, 17)

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        number = info.id if info else 0
        return iter(range(100 * number, 100 * number + self.lengths[number]))


class Short(Shards):
    """It has more batches than it says it has samples."""

    lengths = (40, 40)

    def __len__(self):
        return 7


class Position:
    """An iterator with a state."""

    def __init__(self, start, end):
        self.at, self.end = start, end

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.end:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Positions(Shards):
    def __iter__(self):
        whole = super().__iter__()
        first = next(whole)
        return Position(first, first + len(list(whole)) + 1)


class Evens:
    """A sampler with a state."""

    def __init__(self):
        self.next = 0

    def __len__(self):
        return 25

    def __iter__(self):
        while self.next < 50:
            self.next += 2
            yield self.next - 2
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def loader(dataset, workers, **arguments):
    if callable(arguments.get("sampler")):
        arguments["sampler"] = arguments["sampler"]()
    return feedlane.DataLoader(dataset, 4, num_workers=workers, **arguments)


class Resumed(unittest.TestCase):
    def resumes(self, dataset, workers, at, **arguments):
        """What is left after `at` batches, in this loader and in another one."""
        one = loader(dataset(), workers, **arguments)
        iterator = iter(one)
        for _ in range(at):
            next(iterator)
        state = pickle.loads(pickle.dumps(one.state_dict()))
        rest = [batch.tolist() for batch in iterator]
        other = loader(dataset(), workers, **arguments)
        other.load_state_dict(state)
        self.assertEqual([batch.tolist() for batch in other], rest)
        return state

    def test_in_mid_epoch(self):
        for dataset, at, every in itertools.product((Numbers, Counting, Shards, Positions), (0, 1, 5, 9), (1, 6, 0)):
            with self.subTest(dataset=dataset.__name__, at=at, every=every):
                self.resumes(dataset, 3, at, snapshot_every_n_steps=every)

    def test_orders(self):
        for workers, arguments in itertools.product((0, 2), (
                {"shuffle": True}, {"shuffle": True, "generator": torch.Generator().manual_seed(5)}, {"sampler": Evens},
                {"sampler": torch.utils.data.WeightedRandomSampler(torch.ones(50), 30)},
                {"sampler": torch.utils.data.RandomSampler(Numbers(), replacement=True, num_samples=70)})):
            with self.subTest(workers=workers, arguments=arguments):
                self.resumes(Numbers, workers, 3, **arguments)

    def test_loading_draws_nothing(self):
        one = loader(Numbers(), 2, shuffle=True)
        next(iter(one))
        other, before = loader(Numbers(), 2, shuffle=True), torch.get_rng_state()
        other.load_state_dict(one.state_dict())
        list(other)
        self.assertTrue(torch.equal(before, torch.get_rng_state()))

    def test_without_workers(self):
        self.resumes(Counting, 0, 4)
        self.resumes(Numbers, 0, 0)

    def test_another_number_of_workers(self):
        """If nobody but the sampler has a state."""
        for before, after in (0, 2), (2, 0), (2, 3):
            one = loader(Numbers(), before, shuffle=True)
            iterator = iter(one)
            next(iterator)
            other = loader(Numbers(), after, shuffle=True)
            other.load_state_dict(one.state_dict())
            self.assertEqual([b.tolist() for b in other], [b.tolist() for b in iterator])
        one, other = loader(Counting(), 2), loader(Counting(), 3)
        other.load_state_dict(one.state_dict())
        with self.assertRaisesRegex(AssertionError, "with 2 workers"):
            iter(other)

    def test_the_end_of_an_epoch(self):
        for workers, persistent in (0, False), (2, False), (2, True):
            with self.subTest(workers=workers, persistent=persistent):
                torch.manual_seed(3)
                one = loader(Numbers(), workers, shuffle=True, persistent_workers=persistent)
                list(one)
                state = one.state_dict()
                following = [batch.tolist() for batch in one]
                torch.manual_seed(99)
                other = loader(Numbers(), workers, shuffle=True, persistent_workers=persistent)
                other.load_state_dict(state)
                self.assertEqual([batch.tolist() for batch in other], following)

    def test_after_break(self):
        one = loader(Numbers(), 2)
        for _, _batch in zip(range(3), one):
            pass
        other = loader(Numbers(), 2)
        other.load_state_dict(one.state_dict())
        self.assertEqual(next(iter(other)).tolist(), [12, 13, 14, 15])

    def test_twice(self):
        """A state of an iteration that itself was resumed."""
        one = loader(Positions(), 3)
        whole, state = [batch.tolist() for batch in one], None
        found = []
        for _ in range(len(whole)):
            one = loader(Positions(), 3)
            if state:
                one.load_state_dict(state)
            found.append(next(iter(one)).tolist())
            state = one.state_dict()
        self.assertEqual(found, whole)

    def test_a_batch_that_failed_is_past(self):
        one = loader(Failing(), 2)
        iterator = iter(one)
        next(iterator)
        with self.assertRaises(LookupError):
            next(iterator)
        next(iterator)
        other = loader(Failing(), 2)
        other.load_state_dict(one.state_dict())
        self.assertEqual([b.tolist() for b in other], [b.tolist() for b in iterator])

    def test_a_worker_killed_keeps_its_state(self):
        one = loader(Counting(), 1, persistent_workers=True)
        list(one)
        os.kill(one._iterator._workers[0].pid, signal.SIGKILL)
        self.assertEqual(next(iter(one))[0].item(), 51)

    def test_a_length_that_was_asked_for(self):
        """Of an iterable data set: what goes on from a state warns of the batches beyond it, as torch does."""
        for workers in 0, 2:
            with self.subTest(workers=workers):
                one, lengths, states = loader(Short(), workers), [], []
                for _ in range(2):
                    next(iter(one))
                    states.append(one.state_dict())
                    main = states[-1]["_snapshot"]["_main_snapshot"] if workers else states[-1]
                    lengths.append(main["_IterableDataset_len_called"])
                    self.assertEqual(len(one), 2)
                self.assertEqual(lengths, [None, 7])
                other = loader(Short(), workers)
                other.load_state_dict(states[-1])
                with self.assertWarnsRegex(UserWarning, "reported to be 7"):
                    list(other)

    def test_without_pickles(self):
        self.resumes(Positions, 3, 4, allow_pickle=False)

    def test_is_json_where_states_are(self):
        one = loader(Positions(), 2)
        next(iter(one))
        state = json.loads(json.dumps(one.state_dict()))
        other = loader(Positions(), 2)
        other.load_state_dict(state)
        self.assertEqual(next(iter(other)).tolist(), [100, 101, 102, 103])

    def test_copies_of_a_loader(self):
        for persistent in False, True:
            one = loader(Numbers(), 2, shuffle=True, persistent_workers=persistent)
            next(iter(one))
            for other in copy.deepcopy(one), pickle.loads(pickle.dumps(one)):
                self.assertEqual(sorted(i for batch in other for i in batch.tolist()), list(range(50)))


if __name__ == "__main__":
    unittest.main()
