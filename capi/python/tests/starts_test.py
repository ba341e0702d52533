# SPDX-License-Identifier: Apache-2.0
"""Loader(start=...): how worker processes start, and what they leave.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python starts_test.py [unittest's arguments]"""
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

import numpy_or_skip  # noqa: F401
import feedlane
import numpy as np
from processes import DEADLINE_S, ended, watched

STARTS = "forkserver", "spawn", "fork"
LENGTH = 80


class Pids:
    """A sample has its index, the worker's pid and the pid of the worker's parent."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return np.array([index, os.getpid(), os.getppid()])


class WithProgram(Pids):
    """Each worker has started a program, whose pid takes the place of the parent's."""

    program = None

    def __getitem__(self, index):
        if self.program is None:
            self.program = subprocess.Popen(["sleep", "1000"])
        return np.array([index, os.getpid(), self.program.pid])


class Unpicklable(Pids):
    def __reduce__(self):
        raise TypeError("not to be pickled")


class Broken(Pids):
    def __setstate__(self, _state):
        raise OSError("the data set cannot be opened")

    def __getstate__(self):
        return {"some": "state"}


class Reopened:
    """Reads at the offset of a file that each process opens when it gets the data set."""

    def __init__(self, path):
        self.path, self.file = path, None

    def __len__(self):
        return LENGTH

    def __getstate__(self):
        return {"path": self.path}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.file = open(self.path, "rb", buffering=0)

    def __getitem__(self, i):
        self.file.seek(i)
        time.sleep(0.0005)
        return self.file.read(1)[0]


class Exiting:
    def __len__(self):
        return LENGTH

    def __getitem__(self, i):
        if i == 5:
            sys.exit(3)
        return i


class Large:
    """Writes its own array."""

    def __init__(self):
        self.rows = np.arange(3 * LENGTH).repeat(1 << 10).reshape(-1, 1 << 10)[::3].copy()

    def __len__(self):
        return LENGTH

    def __getitem__(self, i):
        self.rows[i] += 1
        return self.rows[i]


class Nested:
    def __len__(self):
        return LENGTH

    def __getitem__(self, i):
        feedlane.Loader(Pids(), 4, num_workers=1)
        return i


MODULES = {"import_opens": """
import tempfile, time
FILE = tempfile.TemporaryFile(buffering=0)
FILE.write(bytes(range(80)))
class Rows:
    def __len__(self):
        return 80
    def __getitem__(self, i):
        FILE.seek(i)
        time.sleep(0.0005)
        return FILE.read(1)[0]
""", "import_threads": """
import queue, threading
QUESTIONS, ANSWERS = queue.Queue(), queue.Queue()
def answer():
    while True:
        ANSWERS.put(QUESTIONS.get())
threading.Thread(target=answer, daemon=True).start()
class Rows:
    def __len__(self):
        return 80
    def __getitem__(self, i):
        QUESTIONS.put(i)
        return ANSWERS.get()
""", "import_finalizes": """
import os, tempfile
FOLDER = tempfile.TemporaryDirectory()
class Rows:
    def __len__(self):
        return 80
    def __getitem__(self, i):
        return i if os.path.isdir(FOLDER.name) else -1
"""}


class OwnedBytes(bytearray):
    """As the documentation of pickle has it for buffers without a copy."""

    def __reduce_ex__(self, _protocol):
        return type(self)._made, (pickle.PickleBuffer(self),)

    @classmethod
    def _made(cls, data):
        with memoryview(data) as view:
            owner = view.obj
            return owner if type(owner) is cls else cls(owner)


class Owning:
    def __init__(self):
        self.bytes = OwnedBytes(100_000)

    def __len__(self):
        return LENGTH

    def __getitem__(self, i):
        return len(self.bytes)


def in_child(work):
    """Runs it in a forked child, and returns the exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            status = work()
        except BaseException:
            traceback.print_exc()
            status = 1
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def children():
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return file.read().split()


class Starts(unittest.TestCase):
    def loader(self, start, dataset=None, **options):
        options = {"num_workers": 2, "seed": 1, **options}
        return self.enterContext(feedlane.Loader(Pids() if dataset is None else dataset, 4, start=start, **options))

    def test_the_same_batches(self):
        expected = [batch[:, 0].tolist() for batch in self.loader("spawn", shuffle=True, num_workers=0)]
        for start in STARTS:
            for kept in False, True:
                with self.subTest(start, kept=kept):
                    loader, seen = self.loader(start, shuffle=True, persistent_workers=kept), []
                    for _ in range(2):
                        loader.set_epoch(0)
                        batches = [batch.copy() for batch in loader]
                        self.assertEqual([batch[:, 0].tolist() for batch in batches], expected)
                        seen.append({pid for batch in batches for pid in batch[:, 1]})
                    self.assertEqual(not kept, seen[0].isdisjoint(seen[1]))

    def test_a_killed_worker_is_replaced(self):
        for start in STARTS:
            with self.subTest(start):
                loader = self.loader(start, num_workers=1, prefetch_factor=1)
                batches = iter(loader)
                pid = int(next(batches)[0, 1])
                os.kill(pid, signal.SIGKILL)
                received = [batch[:, 0].tolist() for batch in batches]
                self.assertEqual(received, [list(range(first, first + 4)) for first in range(4, LENGTH, 4)])
                self.assertEqual(loader.stats()["restarts_signal"], 1)
                self.assertTrue(any("killed by signal 9" in event.text for event in loader.events()), start)

    def test_nothing_is_left(self):
        before = children(), sorted(os.listdir("/proc/self/fd"))
        for start in STARTS:
            with self.subTest(start):
                with feedlane.Loader(Pids(), 4, num_workers=2, start=start) as loader:
                    pids = {int(pid) for batch in loader for pid in batch[:, 1:].flat} - {os.getpid()}
                self.assertTrue(ended(watched_existing(self, pids), DEADLINE_S))
                self.assertEqual((children(), sorted(os.listdir("/proc/self/fd"))), before)

    def test_a_dropped_loader_leaves_nothing(self):
        for start in STARTS:
            with self.subTest(start):
                loader = feedlane.Loader(WithProgram(), 4, num_workers=1, start=start, persistent_workers=True)
                pids = {int(pid) for batch in loader for pid in batch[:, 1:].flat} - {os.getpid()}
                watch = watched(self, pids)
                del loader
                self.assertTrue(ended(watch, DEADLINE_S))

    def test_programs_of_a_killed_worker_end(self):
        for start in STARTS:
            with self.subTest(start):
                loader = self.loader(start, WithProgram(), num_workers=1, prefetch_factor=1)
                batches = iter(loader)
                _, pid, program = next(batches)[0].tolist()
                watch = watched(self, [program])
                os.kill(pid, signal.SIGKILL)
                self.assertEqual(sum(1 for _ in batches), len(loader) - 1)  # a batch that was ready tells the loop nothing
                self.assertTrue(ended(watch, DEADLINE_S))

    def test_a_killed_server_is_started_again(self):
        loader = self.loader("forkserver")
        for _ in range(2):
            server = {int(pid) for batch in loader for pid in batch[:, 2]}
            self.assertEqual(len(server), 1)
            os.kill(server.pop(), signal.SIGKILL)

    def test_a_data_set_that_cannot_be_opened(self):
        for start in "forkserver", "spawn":
            with self.subTest(start), self.assertRaisesRegex(feedlane.InitError, "OSError: the data set cannot be opened"):
                next(iter(self.loader(start, Broken())))

    def test_fork_pickles_nothing(self):
        self.assertEqual(sum(len(batch) for batch in self.loader("fork", Unpicklable())), LENGTH)
        with self.assertRaisesRegex(TypeError, "not to be pickled"):
            self.loader("forkserver", Unpicklable())

    def test_what_a_data_set_opens_is_each_workers_own(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(8 * i % 251 for i in range(LENGTH)))
            file.flush()
            for start in "forkserver", "spawn":
                with self.subTest(start):
                    found = [int(x) for batch in self.loader(start, Reopened(file.name)) for x in batch]
                    self.assertEqual(found, [8 * i % 251 for i in range(LENGTH)])

    def test_an_exit_of_the_data_set_is_a_death(self):
        for start in STARTS:
            with self.subTest(start), self.assertRaises(feedlane.TooManyRestarts):
                for _ in self.loader(start, Exiting(), max_restarts=-1):
                    pass

    def test_a_death_is_told_as_it_was_also_much_later(self):
        for start in STARTS:
            with self.subTest(start):
                loader = self.loader(start, num_workers=1, prefetch_factor=1)
                batches = iter(loader)
                pid = int(next(batches)[0, 1])
                watch = watched(self, [pid])
                os.kill(pid, signal.SIGKILL)
                if start in ("forkserver", "spawn"):
                    self.assertTrue(ended(watch, DEADLINE_S))
                    time.sleep(1.5)  # nothing is reaped by the clock
                for _ in batches:
                    pass
                self.assertEqual(loader.stats()["restarts_signal"], 1)

    def test_modules_that_open_files_start_threads_or_have_finalizers(self):
        with tempfile.TemporaryDirectory() as folder:
            sys.path.insert(0, folder)
            self.addCleanup(sys.path.remove, folder)
            for name, text in MODULES.items():
                with open(os.path.join(folder, name + ".py"), "w", encoding="ascii") as file:
                    file.write(text)
                for start in "forkserver", "spawn":
                    with self.subTest(name, start=start):
                        loader = self.loader(start, importlib.import_module(name).Rows(), timeout=DEADLINE_S)
                        for _ in range(2):
                            self.assertEqual([int(x) for batch in loader for x in batch], list(range(80)))

    def test_a_buffer_is_its_own_owner(self):
        for start in "forkserver", "spawn":
            with self.subTest(start):
                self.assertEqual({int(x) for batch in self.loader(start, Owning()) for x in batch}, {100_000})

    def test_an_unused_server_is_not_waited_for(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "import_waits.py"), "w", encoding="ascii") as file:
                file.write(f"import os, time\nif os.getpid() != {os.getpid()}:\n    time.sleep(1000)\nclass Rows(list):\n    pass\n")
            sys.path.insert(0, folder)
            self.addCleanup(sys.path.remove, folder)
            import import_waits
            began = time.monotonic()
            self.loader("forkserver", import_waits.Rows(range(8))).close()
            self.assertLess(time.monotonic() - began, 5, "it is not waited for")

    def test_poll_is_true_when_the_epoch_is_over(self):
        for start in STARTS:
            with self.subTest(start):
                loader = self.loader(start)
                self.assertFalse(loader.poll())
                for _ in loader:
                    pass
                self.assertTrue(loader.poll())
                self.assertEqual(sum(1 for _ in loader), LENGTH // 4)

    def test_a_forked_child_of_the_trainer_leaves_the_workers_alone(self):
        for start in "forkserver", "fork":
            with self.subTest(start):
                loader = self.loader(start, persistent_workers=True)
                batches = iter(loader)
                next(batches)

                def child(loader=loader):
                    loader.close()
                    return in_child(lambda: 0)
                self.assertEqual(in_child(child), 0)
                self.assertEqual(sum(1 for _ in batches), len(loader) - 1)

    def test_a_state_is_loaded_after_close(self):
        for start in STARTS:
            with self.subTest(start):
                loader = self.loader(start)
                batches = iter(loader)
                next(batches)
                state = loader.state_dict()
                del batches
                loader.close()
                loader.load_state_dict(state)
                self.assertEqual(sum(1 for _ in loader), LENGTH // 4 - 1)

    def test_arrays_are_the_workers_to_write(self):
        expected = [[3 * i + 1 for i in range(first, first + 4)] for first in range(0, LENGTH, 4)]
        for start in "forkserver", "spawn":
            with self.subTest(start):
                self.assertEqual([batch[:, 0].tolist() for batch in self.loader(start, Large())], expected)

    def test_no_loader_with_workers_in_a_worker(self):
        for start in STARTS:
            with self.subTest(start), self.assertRaisesRegex(feedlane.SampleError, "StateError"):
                next(iter(self.loader(start, Nested())))

    def test_processors(self):
        cpu = max(os.sched_getaffinity(0))
        for start in STARTS:
            loader = self.loader(start, worker_cpus=str(cpu), persistent_workers=True)
            for batch in loader:
                self.assertEqual(os.sched_getaffinity(int(batch[0, 1])), {cpu})


def watched_existing(test, pids):
    found = []
    for pid in pids:
        try:
            found += watched(test, [pid])
        except ProcessLookupError:
            pass
    return found


if __name__ == "__main__":
    unittest.main()
