# SPDX-License-Identifier: Apache-2.0
"""Exceptions of a data set, as feedlane.DataLoader raises them: of the type that torch's loader raises, where that works, and always
with the worker's traceback."""
import asyncio
import os
import subprocess
import sys
import traceback
import unittest

import numpy_or_skip  # noqa: F401

try:
    import torch
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

import feedlane

KINDS = torch.utils.data.DataLoader, feedlane.DataLoader


class Message(Exception):
    message = "bad sample"


class TakesMessage(Exception):
    message = "bad sample"

    def __init__(self, message):
        super().__init__(message)


class Silent(Exception):
    """Its text is not what it was made of."""

    def __init__(self, path):
        super().__init__(path)
        self.path = path

    def __str__(self):
        return "can't be read"


class TwoArguments(Exception):
    def __init__(self, path, line):
        super().__init__(path, line)


class Unmakable(Exception):
    def __new__(cls, *arguments):
        return super().__new__(cls)

    def __init__(self, *, path=None):
        super().__init__()


class NotItself(Exception):
    """Making one raises another."""

    def __init__(self, text):
        super().__init__(text)
        if len(text) > 100:
            raise ZeroDivisionError


async def fail():
    raise OSError("the marked line")


async def gather():
    async with asyncio.TaskGroup() as group:
        group.create_task(fail())


class Raising:
    def __len__(self):
        return len(MAKE)

    def __getitem__(self, i):
        raise MAKE[i]() if i else IndexError("the marked line")


class Leaving(Raising):
    def __init__(self, leave):
        self.leave = leave

    def __getitem__(self, i):
        self.leave(3)


class Nested(Raising):
    def __getitem__(self, i):
        asyncio.run(gather())


MAKE = [lambda: IndexError("the marked line"), lambda: KeyError("the marked line"), lambda: Message("the marked line"),
        lambda: TakesMessage("the marked line"), lambda: Silent("the marked line"), lambda: TwoArguments("the marked line", 3),
        lambda: Unmakable(path="the marked line"), lambda: NotItself("the marked line"),
        lambda: ExceptionGroup("the marked line", [OSError("host a")]), lambda: UnicodeDecodeError("utf8", b"", 0, 1, "the marked line"),
        lambda: OSError(2, "the marked line", "file"), lambda: RuntimeError("the marked line")]


def refuse(worker):
    raise LookupError(f"the marked line of worker {worker}")


def whole(error):
    return "".join(traceback.format_exception(error))


class Failures(unittest.TestCase):
    def raised(self, loader):
        """The exception of each batch."""
        iterator, found = iter(loader), []
        while True:
            try:
                next(iterator)
            except StopIteration:
                return found
            except Exception as error:
                found.append(error)

    def test_the_workers_traceback_is_always_there(self):
        found = self.raised(feedlane.DataLoader(Raising(), num_workers=1))
        self.assertEqual(len(found), len(MAKE))
        for error in found:
            with self.subTest(type(error)):
                self.assertIn("in __getitem__", whole(error))
                self.assertIn("worker process 0", whole(error))

    def test_types_are_those_of_torch_where_it_can_make_them(self):
        theirs, ours = (self.raised(kind(Raising(), num_workers=1)) for kind in KINDS)
        for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
            with self.subTest(number=number, their=their, our=our):
                if type(their) not in (TypeError, ZeroDivisionError):  # which torch's own attempt to make it raised
                    self.assertIs(type(our), type(their))
        self.assertIs(type(ours[2]), Message)
        self.assertIs(type(ours[8]), ExceptionGroup)

    def test_of_a_module_that_only_the_worker_has_imported(self):
        program = ("import sys, torch, feedlane\n"
                   "class Data:\n"
                   "    def __len__(self): return 1\n"
                   "    def __getitem__(self, i): import sqlite3; raise sqlite3.OperationalError('the marked line')\n"
                   "assert 'sqlite3' not in sys.modules\n"
                   "for kind in torch.utils.data.DataLoader, feedlane.DataLoader:\n"
                   "    try: next(iter(kind(Data(), num_workers=1)))\n"
                   "    except Exception as error: print(type(error).__module__, type(error).__name__)\n"
                   "    del sys.modules['sqlite3']\n")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.stdout.split(), ["sqlite3", "OperationalError"] * 2, done.stderr)

    def test_a_worker_that_exits_says_its_status(self):
        for leave in sys.exit, os._exit:
            with self.subTest(leave), self.assertRaisesRegex(RuntimeError, r"exited unexpectedly.* 3\b"):
                list(feedlane.DataLoader(Leaving(leave), num_workers=1, max_restarts=1))

    def test_a_group_of_a_task_group_can_be_taken_apart(self):
        try:
            list(feedlane.DataLoader(Nested(), num_workers=1))
        except* Exception as found:
            self.assertIn("OSError: the marked line", whole(found))

    def test_what_a_worker_raises_before_its_first_batch(self):
        for kind in KINDS:
            with self.subTest(kind=kind):
                iterator = iter(kind(range(8), 2, num_workers=2, worker_init_fn=refuse))
                for worker in range(2):
                    with self.assertRaisesRegex(LookupError, f"(?s)worker process {worker}.*in refuse.*the marked line of worker {worker}"):
                        next(iterator)

    def test_of_an_iterable_data_set_that_comes_once_for_each_worker(self):
        found = self.raised(feedlane.DataLoader(Stream(), 2, num_workers=2, worker_init_fn=refuse))
        self.assertEqual([type(error) for error in found], [LookupError] * 2)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(10))


class RunsOut:
    """An inner iterator ends with sample 4."""

    def __init__(self):
        self.inner = iter([0, 1, 2, 3])

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return next(self.inner)


def stop(samples):
    raise StopIteration


class Stopping(unittest.TestCase):
    """A StopIteration that isn't of the iterator of an iterable data set is no end of the epoch."""

    def test_of_a_sample(self):
        for workers, what in (0, "batch 2"), (1, "sample 4"):
            with self.subTest(workers=workers):
                iterator = iter(feedlane.DataLoader(RunsOut(), 2, num_workers=workers))
                self.assertEqual([next(iterator).tolist() for _ in range(2)], [[0, 1], [2, 3]])
                with self.assertRaisesRegex(RuntimeError, f"StopIteration was raised for {what}") as caught:
                    next(iterator)
                self.assertIn("in __getitem__", whole(caught.exception))

    def test_of_a_collate_fn(self):
        for dataset in range(4), Stream():
            for workers in 0, 1:
                for size in 2, None:
                    with self.subTest(workers=workers, size=size, dataset=type(dataset)):
                        with self.assertRaisesRegex(RuntimeError, "StopIteration was raised for"):
                            next(iter(feedlane.DataLoader(dataset, size, num_workers=workers, collate_fn=stop)))

    def test_iterables_end_as_ever(self):
        for workers in 0, 1:
            for size in 3, None:
                self.assertEqual(sum(len(b) if size else 1 for b in feedlane.DataLoader(Stream(), size, num_workers=workers)), 10)


if __name__ == "__main__":
    unittest.main()
