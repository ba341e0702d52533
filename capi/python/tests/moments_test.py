# SPDX-License-Identifier: Apache-2.0
"""feedlane.DataLoader calls samplers, generators, data sets and functions when torch's does: the calls in the trainer's process, in
their order, with the trainer's own steps between them."""
import os
import sys
import time
import unittest

import numpy_or_skip  # noqa: F401

try:
    import torch
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

import feedlane

KINDS = torch.utils.data.DataLoader, feedlane.DataLoader


class Log(list):
    """What has happened, and what torch's generator says then."""

    newest = None

    def __init__(self):
        super().__init__()
        Log.newest = self

    def note(self, what):
        self.append((what, hash(torch.get_rng_state().numpy().tobytes())))


os.register_at_fork(before=lambda: Log.newest is not None and Log.newest.note("a worker starts"))


class Order:
    """Indices, one by one: each costs a number of torch's generator. `eager`: the first is drawn when it is iterated."""

    def __init__(self, log, eager, batches=False, length=12, fails_at=None):
        self.log, self.eager, self.batches, self.length, self.fails_at = log, eager, batches, length, fails_at

    def __len__(self):
        self.log.note("len(sampler)")
        return self.length

    def __iter__(self):
        self.log.note("iter(sampler)")
        if self.eager:
            torch.rand(1)
            return Drawing(self)
        return self.lazily()

    def lazily(self):
        self.log.note("first draw")
        for i in range(self.length):
            yield self.drawn(i)

    def drawn(self, i):
        self.log.note(f"draw {i}")
        if i == self.fails_at:
            raise LookupError("the sampler fails")
        drawn = int(torch.randint(100, (1,)))
        return [drawn, i] if self.batches else drawn

    def set_epoch(self, epoch):
        self.log.note(f"set_epoch({epoch})")


class Drawing:
    def __init__(self, order):
        self.order, self.at = order, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.order.length:
            raise StopIteration
        self.at += 1
        return self.order.drawn(self.at - 1)


class Hundred(torch.utils.data.Dataset):
    def __init__(self, log):
        self.log = log

    def __len__(self):
        self.log.note("len(dataset)")
        return 100

    def __getitem__(self, i):
        self.log.note(f"sample {i}")  # in a worker, in its copy of the log
        return i


class Failing(Hundred):
    def __getitem__(self, i):
        raise ValueError(i)


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, log):
        self.log = log

    def __iter__(self):
        self.log.note("iter(dataset)")
        return iter(range(8))


class Seeded(torch.utils.data.RandomSampler):
    """As accelerate's SeedableRandomSampler: reseeds its own generator when it is iterated."""

    epoch = 0

    def __iter__(self):
        if self.generator is None:
            self.generator = torch.Generator()
        self.generator.manual_seed(7 + self.epoch)
        yield from super().__iter__()
        self.epoch += 1


class Moments(unittest.TestCase):
    def compare(self, run, make_dataset=Hundred, **arguments):
        """The log of both loaders, run(loader, log) each; what is in `arguments` and takes a log is made with it."""
        logs = []
        for kind in KINDS:
            log = Log()
            torch.manual_seed(5)
            made = {k: v(log) if k in ("sampler", "batch_sampler") else v for k, v in arguments.items()}
            loader = kind(make_dataset(log), multiprocessing_context="fork" if arguments["num_workers"] else None, **made)
            log.note("made")
            run(loader, log)
            log.note("end")
            logs.append(log)
        if arguments["batch_size"] is None:
            # Workers start one draw later: whether the sampler yields lists of indices says what they have to do.
            logs = [[entry for entry in log if entry[0] != "a worker starts"] for log in logs]
        self.assertEqual([what for what, _ in logs[1]], [what for what, _ in logs[0]])
        self.assertEqual(logs[1], logs[0])

    def every_sampler(self):
        for eager in False, True:
            yield {"sampler": lambda log, e=eager: Order(log, e), "batch_size": 2}
            yield {"batch_sampler": lambda log, e=eager: Order(log, e, batches=True), "batch_size": 1}
            yield {"sampler": lambda log, e=eager: Order(log, e), "batch_size": None}
            yield {"sampler": lambda log, e=eager: Order(log, e), "batch_size": 5, "drop_last": True}
        yield {"shuffle": True, "batch_size": 30}
        yield {"sampler": lambda log: Seeded(range(100)), "batch_size": 30}

    def every(self, run, **more):
        for workers, keeps in (0, False), (2, False), (2, True):
            for arguments in self.every_sampler():
                with self.subTest(workers=workers, persistent=keeps, arguments=arguments):
                    self.compare(run, num_workers=workers, persistent_workers=keeps, **arguments, **more)

    def test_whole_epochs(self):
        def run(loader, log):
            for epoch in range(3):
                log.append((len(loader), 0))
                for holder in loader.sampler, loader.batch_sampler:
                    if hasattr(holder, "set_epoch"):
                        holder.set_epoch(epoch)
                iterator = iter(loader)
                log.note("iterator made")
                torch.rand(2)  # the trainer's own
                for _ in iterator:
                    log.note("batch")
                    torch.rand(1)
                log.note("epoch over")
        self.every(run)

    def test_epochs_that_are_left(self):
        def run(loader, log):
            for epoch in range(3):
                for number, _ in enumerate(loader):
                    log.note("batch")
                    torch.rand(1)
                    if number == epoch:
                        break
        self.every(run)

    def test_samples_that_fail(self):
        def run(loader, log):
            iterator = iter(loader)
            while True:
                try:
                    next(iterator)
                except ValueError:
                    log.note("failed")
                except StopIteration:
                    break
        self.every(run, make_dataset=Failing)

    def test_a_generator_of_the_loader(self):
        for workers in 0, 1:
            states = []
            for kind in KINDS:
                loader = kind(range(40), 8, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(3))
                states.append([loader.generator.get_state().tolist() for _ in range(2) for _ in loader])
            self.assertEqual(states[1], states[0])

    def test_iterables(self):
        def run(loader, log):
            for _ in range(2):
                for _ in loader:
                    log.note("batch")
        for workers in 0, 1:
            self.compare(run, make_dataset=Stream, num_workers=workers, batch_size=2)

    def test_a_state_of_a_loader_that_has_not_begun(self):
        """As accelerate asks for it, before it changes the sampler: the iteration is the one that it would have been."""
        for arguments in self.every_sampler():
            for workers in 0, 1:
                logs = []
                for asks in False, True:
                    log = Log()
                    torch.manual_seed(5)
                    made = {k: v(log) if k in ("sampler", "batch_sampler") else v for k, v in arguments.items()}
                    loader = feedlane.DataLoader(Hundred(log), num_workers=workers, **made)
                    log.clear()
                    if asks:
                        self.assertTrue(loader.state_dict())
                    for batch in loader:
                        log.note(str(batch))
                    logs.append(log)
                self.assertEqual(logs[1], logs[0])

    def test_a_sampler_that_is_set_after_a_state_was_asked_for(self):
        loader = feedlane.DataLoader(range(8), 4, sampler=range(8), num_workers=1, persistent_workers=True)
        loader.state_dict()
        loader.batch_sampler.sampler = range(7, -1, -1)
        for _ in range(2):
            self.assertEqual([b.tolist() for b in loader], [[7, 6, 5, 4], [3, 2, 1, 0]])

    def test_a_state_of_the_beginning(self):
        for workers in 0, 2:
            def made():
                return feedlane.DataLoader(range(40), 4, shuffle=True, num_workers=workers)
            torch.manual_seed(2)
            loader = made()
            state = loader.state_dict()
            wanted = [b.tolist() for b in loader]
            torch.manual_seed(3)
            loader = made()
            loader.load_state_dict(state)
            self.assertEqual([b.tolist() for b in loader], wanted)

    def test_nothing_is_drawn_twice_after_a_timeout(self):
        """The order is as far ahead of the loop as before."""
        log = Log()
        loader = feedlane.DataLoader(Slow(), 1, sampler=Order(log, False), num_workers=1, timeout=0.05)
        iterator = iter(loader)
        for _ in range(3):
            with self.assertRaisesRegex(RuntimeError, "timed out"):
                next(iterator)
        self.assertEqual(sum(what.startswith("draw") for what, _ in log), 3)


class Slow:
    def __len__(self):
        return 100

    def __getitem__(self, i):
        time.sleep(60)


if __name__ == "__main__":
    unittest.main()
