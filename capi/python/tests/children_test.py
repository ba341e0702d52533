# SPDX-License-Identifier: Apache-2.0
"""The worker processes of feedlane.DataLoader, whoever reaps them: hosts that ignore SIGCHLD or reap every child, children that the
program forks, the interpreter's end, and contexts whose workers are threads."""
import contextlib
import multiprocessing
import multiprocessing.context
import multiprocessing.process
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import unittest
import unittest.mock

import numpy_or_skip  # noqa: F401

try:
    import torch
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

import feedlane
from feedlane import child


class Pids:
    def __len__(self):
        return 60

    def __getitem__(self, i):
        return os.getpid() if i % 2 else i


class Leaving(Pids):
    def __getitem__(self, i):
        os._exit(3)


def leave(_worker):
    os._exit(4)


def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


class Printing(Pids):
    def __getitem__(self, i):
        for number in 1, 2:
            with contextlib.suppress(OSError):
                os.write(number, b"x" * 4096)
        return i


class Closed(unittest.TestCase):
    def test_a_worker_that_prints_where_the_trainer_has_closed_its_descriptors(self):
        for method in "fork", "spawn", "forkserver":
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    for number in range(3):
                        os.close(number)
                    loader = feedlane.DataLoader(Printing(), 4, num_workers=2, multiprocessing_context=method)
                    code = 0 if [i for batch in loader for i in batch.tolist()] == list(range(60)) else 2
                finally:
                    os._exit(code)
            with self.subTest(method):
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)


class Reaped(unittest.TestCase):
    """The exit codes of children are lost."""

    def setUp(self):
        self.addCleanup(signal.signal, signal.SIGCHLD, signal.getsignal(signal.SIGCHLD))

    def every_way(self):
        """In each, children are reaped by something else."""
        with self.subTest(way="SIGCHLD is ignored"):
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            yield
        with self.subTest(way="a handler"):
            signal.signal(signal.SIGCHLD, reap)
            yield
        with self.subTest(way="a thread"):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            stop = threading.Event()
            thread = threading.Thread(target=lambda: [reap() for _ in iter(lambda: stop.wait(0.001), True)])
            thread.start()
            try:
                yield
            finally:
                stop.set()
                thread.join()

    def test_a_killed_worker_is_replaced(self):
        for _ in self.every_way():
            iterator = iter(feedlane.DataLoader(Pids(), 2, num_workers=2))
            batches = [next(iterator)]
            os.kill(int(batches[0][1]), signal.SIGKILL)
            batches += iterator
            self.assertEqual([int(batch[0]) for batch in batches], list(range(0, 60, 2)))

    def test_workers_that_end_again_and_again_are_an_error_that_says_what_is_known(self):
        for _ in self.every_way():
            with self.assertRaisesRegex((RuntimeError, feedlane.Quarantined), r"DataLoader worker \(pid \d+\) (has ended; its exit code is unknown"
                                                                              r"|exited unexpectedly with exit code 3)"):
                list(feedlane.DataLoader(Leaving(), 2, num_workers=1))

    def test_at_the_end_nothing_is_left_to_signal(self):
        for _ in self.every_way():
            iterator = iter(feedlane.DataLoader(Pids(), 2, num_workers=2))
            next(iterator)
            workers = iterator._workers
            del iterator
            self.assertEqual([worker.is_alive() for worker in workers], [False, False])
            self.assertEqual(set(multiprocessing.active_children()) & set(workers), set())

    def test_signals_go_by_pidfd(self):
        """Not by the pid, which may be another process's once something else has reaped the child."""
        with unittest.mock.patch("os.kill", side_effect=AssertionError("by pid")):
            process = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
            process.start()
            one = child.Child(process)
            self.assertFalse(one.wait(0))
            one.end(0)
            self.assertEqual(one.code, -signal.SIGTERM)
            self.assertEqual(process.exitcode, -signal.SIGTERM)
            one.send(signal.SIGKILL)  # nothing happens


class Restarts(unittest.TestCase):
    def test_without_restarts_the_first_death_ends_the_iteration(self):
        iterator = iter(feedlane.DataLoader(Pids(), 2, num_workers=2, max_restarts=-1))
        os.kill(int(next(iterator)[1]), signal.SIGKILL)
        with self.assertRaisesRegex(RuntimeError, "max_restarts allows"):
            list(iterator)

    def test_the_rule_is_the_librarys_for_either_loader(self):
        said = set()
        for kind, more in (feedlane.Loader, {"tensors": "torch"}), (feedlane.DataLoader, {}):
            with self.subTest(kind):
                with self.assertRaises(feedlane.TooManyRestarts) as caught:
                    list(kind(Leaving(), 2, num_workers=1, max_restarts=1, **more))
                found = re.search(r"replacing it would be more than max_restarts allows: [^;(]*", str(caught.exception))
                said.add(found[0].strip())
        self.assertEqual(said, {"replacing it would be more than max_restarts allows: 1 of at most 1 workers were replaced"})

    def test_workers_that_end_before_they_are_ready(self):
        with self.assertRaisesRegex(feedlane.InitError, r"before it was ready \(5 times in a row\); DataLoader worker \(pid \d+\) "
                                                        "exited unexpectedly with exit code 4"):
            list(feedlane.DataLoader(Pids(), 2, num_workers=1, worker_init_fn=leave))


class Forking(unittest.TestCase):
    """Children that the program forks while an iteration is under way."""

    def fork(self, run):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run()
                code = 0
            finally:
                multiprocessing.util._exit_function()  # as at the interpreter's end
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def test_the_parents_workers_outlive_a_child(self):
        for way in "fork", "forkserver":
            iterator = iter(feedlane.DataLoader(Pids(), 2, num_workers=2, multiprocessing_context=way))
            batches = [next(iterator)]
            pids = {worker.pid for worker in iterator._workers}
            self.assertEqual(self.fork(lambda: None), 0)
            batches += iterator
            self.assertEqual([int(batch[0]) for batch in batches], list(range(0, 60, 2)))
            self.assertEqual({int(batch[1]) for batch in batches} - pids, set())


    def test_a_child_iterates_a_loader_whose_workers_are_kept(self):
        loader = feedlane.DataLoader(Pids(), 2, num_workers=1, persistent_workers=True)
        iterator = iter(loader)
        next(iterator)
        self.assertEqual(self.fork(lambda: self.assertEqual(len(list(loader)), 30)), 0)
        self.assertEqual(len(list(iterator)), 29)
        self.assertEqual(len(list(loader)), 30)


_AT_EXIT = """
import sys, feedlane
class D:
    def __len__(self): return 60
    def __getitem__(self, i): return i
if __name__ == "__main__":
    loader = feedlane.DataLoader(D(), 2, num_workers=2, persistent_workers={})
    iterator = iter(loader)
    next(iterator)
    {}
"""


class Exit(unittest.TestCase):
    def test_nothing_is_printed(self):
        for keeps in True, False:
            for last in "", "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "list(iterator)", "loader.me = loader":
                with self.subTest(persistent=keeps, last=last):
                    found = subprocess.run([sys.executable, "-c", _AT_EXIT.format(keeps, last)], capture_output=True, text=True,
                                           timeout=120)
                    self.assertEqual((found.returncode, found.stderr), (0, ""))


class ProcessLike(threading.Thread):
    pid = property(id)

    def run(self):
        try:
            super().run()
        finally:
            torch.utils.data._utils.worker._worker_info = None


class Queue(queue.Queue):
    def close(self):
        pass

    def cancel_join_thread(self):
        pass


class Threads(multiprocessing.context.SpawnContext):
    """As MONAI's ThreadDataLoader has it."""

    _name = "threads"
    Process = ProcessLike
    Queue = Queue


class WorkersThatAreThreads(unittest.TestCase):
    def test_torchs_loader_runs_them(self):
        for _ in range(2):
            loader = feedlane.DataLoader(range(12), 3, num_workers=2, multiprocessing_context=Threads())
            for _ in range(2):
                self.assertEqual([batch.tolist() for batch in loader], [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]])
            self.assertIsNone(torch.utils.data.get_worker_info())
            self.assertIsNone(feedlane.get_worker_info())
            self.assertIn("workers that are threads", loader.report())
            with self.assertRaisesRegex(feedlane.Unsupported, "workers that are threads"):
                loader.state_dict()

    def test_a_thread_is_refused_where_a_process_has_to_be(self):
        from feedlane import _core
        loader = _core.Loader({"workers": 1, "start": _core.START_EXTERNAL, "batch_size": 1, "slot_bytes": 4096},
                              sampler=feedlane.samplers.sequential(2).handle)
        self.addCleanup(loader.close)
        loader.begin(0)
        _, descriptor = loader.open_worker()
        with self.assertRaisesRegex(feedlane.ArgumentError, "the loader belongs to this process"):
            _core.Worker(descriptor)


if __name__ == "__main__":
    unittest.main()
