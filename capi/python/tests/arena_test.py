# SPDX-License-Identifier: Apache-2.0
"""Arenas: values that several processes share.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python arena_test.py [unittest's arguments]"""
import asyncio
import gc
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import unittest

import numpy_or_skip  # noqa: F401
import feedlane
import numpy as np
from feedlane import errors

DEADLINE_S = 60


class Numbers:
    """A map-style data set that notes in `made` each sample that it makes."""

    def __init__(self, length, made=None):
        self.length, self.made = length, made

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.made is not None:
            with self.made.get_lock():
                self.made.value += 1
        return np.full(100, index), {"label": index, "name": f"sample {index}"}


def read_samples(path, length, made, sums):
    data = feedlane.cached(Numbers(length, made), path)
    sums.put(sum(int(array.sum()) + rest["label"] for array, rest in (data[i] for i in range(length))))


def member(path, kind, results):
    with feedlane.Arena.join(path) as arena:
        if kind == "send":
            for number in range(100):
                arena.put(None, np.full(number + 1, number))
        elif kind == "receive":
            results.put([int(value.data[0]) for value in arena.stream()])
        elif kind == "hold and die":
            batch = arena.get("held")
            arena.put("left", batch.data.sum())
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "make and die":
            arena.get_or_put("made", lambda: os.kill(os.getpid(), signal.SIGKILL))


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "socket")
        self.context = multiprocessing.get_context("spawn")

    def arena(self, size=4 << 20, **options):
        arena = feedlane.Arena(size, **options)
        self.addCleanup(arena.close)
        return arena

    def wait_until(self, holds):
        end = time.monotonic() + DEADLINE_S
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.001)

    def started(self, function, *arguments):
        process = self.context.Process(target=function, args=arguments)
        process.start()
        self.addCleanup(process.kill)
        return process


class Values(Case):
    def test_values_come_back(self):
        arena = self.arena()
        value = {"a": np.arange(6).reshape(2, 3), "b": [1, 2.5, None, "text", (np.float32(3), True)], "c": {"d": np.zeros((0, 4))}}
        arena.put("key", value)
        with arena.get("key") as batch:
            data = batch.data
            np.testing.assert_array_equal(data["a"], value["a"])
            self.assertEqual(data["b"], [1, 2.5, None, "text", (np.float32(3), True)])
            self.assertEqual(data["c"]["d"].shape, (0, 4))
            self.assertFalse(data["a"].flags.writeable)

    def test_every_dtype(self):
        arena = self.arena()
        for dtype in "bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64":
            with self.subTest(dtype):
                arena.put(dtype, np.ones((3, 2), dtype))
                with arena.get(dtype) as batch:
                    self.assertEqual(batch.data.dtype, dtype)
                    self.assertTrue(batch.data.all())

    def test_arrays_keep_the_memory(self):
        arena = self.arena()
        arena.put("key", np.arange(1000))
        array = arena.get("key").data
        arena.drop("key")
        for number in range(50):
            arena.put("other", np.full(100_000, number))
        np.testing.assert_array_equal(array, np.arange(1000))
        self.assertEqual(arena.stats()["entries"], 2)
        del array
        gc.collect()
        self.assertEqual(arena.stats()["entries"], 1)

    def test_without_close_no_thread_is_left(self):
        """A thread that wanted the GIL at the interpreter's end would abort the process."""
        arena = feedlane.Arena(1 << 20)
        server, = (thread for thread in threading.enumerate() if thread.name == "feedlane-arena")
        del arena
        self.assertFalse(server.is_alive())

    def test_in_place(self):
        arena = self.arena()
        with arena.reserve("key", {"x": ("float32", (2, 2)), "y": ("int64", ())}) as arrays:
            arrays["x"][:] = 3
            arrays["y"][...] = 4
            with self.assertRaises(KeyError):
                arena.get("key")
        with arena.get("key") as batch:
            self.assertEqual(sorted(batch.data), ["x", "y"])
            self.assertEqual(batch.data["x"].sum(), 12)
        with self.assertRaises(ZeroDivisionError), arena.reserve("no", {"x": ("int8", (1,))}):
            raise ZeroDivisionError
        with self.assertRaises(KeyError):
            arena.get("no")
        with self.assertRaises(errors.StateError), arena.reserve("kept", {"x": ("int8", (1,))}) as arrays:
            kept = arrays["x"]
        del kept

    def test_refusals(self):
        arena = self.arena(1 << 20, when_full="fail")
        with self.assertRaises(errors.LimitError) as caught:
            arena.put("key", np.zeros(1 << 20))
        self.assertGreater(caught.exception.needed, caught.exception.found)
        with self.assertRaises(errors.ArgumentError):
            arena.put("k" * 65, 1)
        with self.assertRaises(errors.ArgumentError):
            arena.get("")
        with self.assertRaises(TypeError):
            arena.put("key", object())
        with self.assertRaises(ValueError):
            feedlane.Arena(1 << 20, when_full="never")
        with self.assertRaises(errors.ArgumentError):
            feedlane.Arena(1)
        arena.close()
        with self.assertRaises(errors.StateError):
            arena.get("key")

    def test_get_or_put(self):
        arena, calls, results = self.arena(), [], []
        lock = threading.Lock()

        def make():
            with lock:
                calls.append(1)
            return np.arange(10)

        def use():
            with arena.get_or_put("key", make) as batch:
                results.append(int(batch.data.sum()))

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        self.assertEqual((results, len(calls)), ([45] * 8, 1))
        with self.assertRaises(ZeroDivisionError):
            arena.get_or_put("failed", lambda: 1 / 0)
        with arena.get_or_put("failed", lambda: np.ones(1)) as batch:
            self.assertEqual(batch.data[0], 1)

    def test_asyncio(self):
        arena = self.arena()

        async def main():
            waiting = asyncio.create_task(arena.aget("key", timeout=DEADLINE_S))
            await arena.aput("key", np.ones(4))
            with await waiting as batch:
                return int(batch.data.sum())

        self.assertEqual(asyncio.run(main()), 4)
        with self.assertRaises(KeyError):
            asyncio.run(arena.aget("none", timeout=0))


class Processes(Case):
    def test_streams(self):
        results = self.context.SimpleQueue()
        arena = self.arena(path=self.path)
        sender = self.started(member, self.path, "send", None)
        numbers = []
        for _ in range(100):
            with arena.receive(timeout=DEADLINE_S) as value:
                self.assertEqual(len(value.data), value.data[0] + 1)
                numbers.append(int(value.data[0]))
        self.assertEqual(numbers, list(range(100)))
        sender.join(DEADLINE_S)
        receiver = self.started(member, self.path, "receive", results)
        self.wait_until(lambda: arena.stats()["members"] == 2)
        for number in range(100):
            arena.put(None, np.full(3, number))
        arena.put("end", 1)
        arena.get("end").release()
        # The receiver keeps its newest value while it waits.
        self.wait_until(lambda: arena.stats()["entries"] <= 2)
        arena.close()
        self.assertEqual(results.get(), list(range(100)))
        receiver.join(DEADLINE_S)
        self.assertEqual(receiver.exitcode, 0)

    def test_deaths(self):
        arena = self.arena(path=self.path)
        arena.put("held", np.arange(5))
        seen = feedlane.Arena.observe(os.getpid())
        self.assertEqual((seen["entries"], seen["members"], seen["published"], len(seen["processes"])), (1, 1, 1, 1))
        self.assertEqual((seen["processes"][0]["pid"], seen["processes"][0]["held"]), (os.getpid(), 0))
        self.assertIsNone(feedlane.Arena.observe(os.getpid(), 1))
        self.assertRaises(errors.PeerDead, feedlane.Arena.observe, 2**31 - 1)
        for _ in range(3):
            process = self.started(member, self.path, "hold and die", None)
            process.join(DEADLINE_S)
            with arena.get("left", timeout=DEADLINE_S) as batch:
                self.assertEqual(batch.data, 10)
            self.wait_until(lambda: arena.stats()["members"] == 1)
            self.assertEqual(arena.stats()["leased"], 0)
        process = self.started(member, self.path, "make and die", None)
        process.join(DEADLINE_S)
        with arena.get_or_put("made", lambda: np.ones(2), timeout=DEADLINE_S) as batch:
            self.assertEqual(batch.data.sum(), 2)
        self.assertTrue(any("has ended" in text for text in arena.events()))

    def test_cached(self):
        arena = self.arena(path=self.path)
        made, sums = self.context.Value("q", 0), self.context.SimpleQueue()
        processes = [self.started(read_samples, self.path, 200, made, sums) for _ in range(3)]
        for process in processes:
            process.join(DEADLINE_S)
        self.assertEqual([sums.get() for _ in processes], [101 * sum(range(200))] * 3)
        self.assertEqual(made.value, 200)
        own = feedlane.cached(Numbers(200), self.path)
        self.assertEqual(own[7][1], {"label": 7, "name": "sample 7"})
        self.assertEqual((len(own), own.length), (200, 200))
        self.assertEqual(arena.stats()["entries"], 200)

    def test_loaders_use_a_cached_data_set(self):
        arena = self.arena(path=self.path)
        data = feedlane.cached(Numbers(64), self.path)
        with feedlane.Loader(data, batch_size=8, num_workers=2) as loader:
            for _ in range(2):
                self.assertEqual([int(batch[0][0, 0]) for batch in loader], list(range(0, 64, 8)))
        self.assertEqual((arena.stats()["published"], arena.stats()["entries"]), (64, 64))


if __name__ == "__main__":
    unittest.main()
