# SPDX-License-Identifier: Apache-2.0
"""Registered memory: pools, and streams that keep what is copied.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python pinned_test.py THREAD_DEVICE [unittest's arguments]"""
import ctypes as c
import gc
import sys
import unittest
import warnings

from numpy_or_skip import np
import feedlane
from feedlane import _core
from datasets import Numbers
from share_cases import served


def load(path):
    library, address = c.CDLL(path), c.c_void_p
    for name, result, *arguments in (
            ("device_create", address), ("device_destroy", None, address), ("device_backend", address, address),
            ("device_registrations", c.c_uint64, address), ("device_stream", address, address), ("stream_hold", None, address),
            ("stream_go_on", None, address), ("stream_copy", None, address, address, address, c.c_uint64)):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


device = load(sys.argv.pop(1)) if __name__ == "__main__" else None  # workers import this too
FIELDS = {"x": (np.int64, (8,))}


class Pinned(unittest.TestCase):
    def setUp(self):
        self.device = device.device_create()
        self.stream = device.device_stream(self.device)
        self.addCleanup(device.device_destroy, self.device)
        self.addCleanup(gc.collect)

    def registrations(self):
        return device.device_registrations(self.device)

    def pool(self):
        return feedlane.Pool(custom=device.device_backend(self.device))

    def copied(self, batches):
        """The first column of an epoch's 40 rows, copied by the stream from arrays that are dropped before."""
        there = np.full((40, 8), -1)
        for batch in batches.batches():
            batch.record_stream(self.stream)
            array, number = batch.data, batch.number
            batch.release()
            device.stream_copy(self.stream, there[4 * number:].ctypes.data, array.ctypes.data, array.nbytes)
            batch = array = None
        device.stream_go_on(self.stream)
        return there[:, 0].tolist()

    def test_the_slots_are_registered_as_long_as_a_loader_has_them(self):
        pool = self.pool()
        with feedlane.Loader(Numbers(8), 2, pin_memory=pool, fields=FIELDS) as loader:
            registered = self.registrations()
            self.assertGreater(registered, 0)
            self.assertGreaterEqual(pool.stats()["registered_bytes"], 2 * 64 * loader.stats()["slots"])
            kept = next(iter(loader))
        self.assertEqual(self.registrations(), registered)  # an array of it is here
        del pool, loader
        self.assertEqual((kept[1, 0], _core.Pool.end_unused()), (1, 1))
        del kept
        self.assertEqual((_core.Pool.end_unused(), self.registrations()), (0, 0))

    def test_a_consumer_registers_the_feeders_slots(self):
        pool = self.pool()
        with feedlane.Loader(Numbers(40), 4, num_workers=1, fields=FIELDS, share="every", consumers=1) as feeder:
            slots, place = feeder.stats()["slots"], feeder.open_consumer()
            with served(feeder), feedlane.join(place, pin_memory=pool) as consumer:
                self.assertEqual(self.registrations(), slots)
                numbers = self.copied(consumer)
            self.assertEqual(numbers, list(range(40)))
        del pool, consumer
        gc.collect()
        self.assertEqual((_core.Pool.end_unused(), self.registrations()), (0, 0))

    def test_arrays_may_be_dropped_while_they_are_copied(self):
        for workers in 0, 2:
            with feedlane.Loader(Numbers(40), 4, num_workers=workers, pin_memory=self.pool(), fields=FIELDS) as loader:
                self.assertEqual(self.copied(loader), list(range(40)))
                self.assertEqual(loader.stats()["slots_held"], 0)

    def test_the_slot_waits_for_the_stream(self):
        with feedlane.Loader(Numbers(40), 4, pin_memory=self.pool(), fields=FIELDS, held=1) as loader:
            batches = loader.batches()
            batch = next(batches)
            batch.record_stream(self.stream)
            array = batch.data
            device.stream_hold(self.stream)
            batch.release()
            self.assertRaises(feedlane.StaleBatch, batch.record_stream, self.stream)
            del array, batch
            self.assertEqual(loader.stats()["slots_held"], 1)
            device.stream_go_on(self.stream)
            self.assertEqual(loader.stats()["slots_held"], 0)

    def test_a_loop_records_torchs_current_stream(self):
        class Streams(feedlane.Pool):
            """As one of CUDA's."""
            asked = 0

            def current_stream(self):
                self.asked += 1
                return Pinned.current
        pool = Streams(custom=device.device_backend(self.device))
        Pinned.current = self.stream
        with feedlane.Loader(Numbers(40), 4, pin_memory=pool, fields=FIELDS, held=2) as loader:
            loader._streams = True
            device.stream_hold(self.stream)
            iterator = iter(loader)
            for held in 1, 2:
                next(iterator)
                self.assertEqual((pool.asked, loader.stats()["slots_held"]), (held, held))
            device.stream_go_on(self.stream)
            self.assertEqual(loader.stats()["slots_held"], 0)

    def test_backends_without_streams(self):
        for backend in "none", "mlock":
            pool = feedlane.Pool(backend)
            with feedlane.Loader(Numbers(8), 2, num_workers=1, pin_memory=pool, fields=FIELDS) as loader:
                self.assertGreater(pool.stats()["registered_bytes"], 0)
                self.assertEqual([int(batch[0, 0]) for batch in loader], [0, 2, 4, 6])
            self.assertEqual(pool.stats()["registered_bytes"], 0)

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "fields"):
            feedlane.Loader(Numbers(8), 2, pin_memory=feedlane.Pool("none"))
        with self.assertRaisesRegex(ValueError, "feedlane.Pool"):
            feedlane.Loader(Numbers(8), 2, pin_memory=True)
        with self.assertRaisesRegex(feedlane.Unsupported, 'config.backend is "gpu"'):
            feedlane.Pool("gpu")
        with self.assertRaisesRegex(feedlane.LimitError, "budget"):
            pool = feedlane.Pool("none", budget_bytes=4096)
            feedlane.Loader(Numbers(8), 2, pin_memory=pool, fields=FIELDS, held=200)
        with feedlane.Loader(Numbers(8), 2) as loader, next(loader.batches()) as batch:
            self.assertRaisesRegex(feedlane.StateError, "has no pool", batch.record_stream, 0)

    def test_without_a_device_it_warns_as_torch_does(self):
        try:
            import torch
        except ModuleNotFoundError:
            self.skipTest("no torch")
        if torch.cuda.is_available():
            self.skipTest("there is a device")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with feedlane.Loader(Numbers(8), 2, pin_memory=True, tensors="torch") as loader:
                self.assertEqual(next(iter(loader)).shape, (2, 8))
        self.assertEqual((len(told), told[0].filename), (1, __file__))


if __name__ == "__main__":
    unittest.main()
