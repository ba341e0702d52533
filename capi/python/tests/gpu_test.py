# SPDX-License-Identifier: Apache-2.0
"""Frameworks on a GPU: batches in registered memory, copied to the device asynchronously. Skipped without torch, or without a GPU;
the tests of JAX and CuPy also without these.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python gpu_test.py [unittest's arguments]"""
import gc
import os
import signal
import sys
import unittest

try:
    import numpy as np
    import torch
except ModuleNotFoundError as missing:
    print("skipped:", missing)
    sys.exit(77)

import feedlane

ROWS, BATCH, WIDTH = 512, 8, 16 << 10  # 1 MiB per batch
FIELDS = {"x": (np.int64, (WIDTH,))}


class Rows:
    """Row i: its number, repeated."""

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        return torch.full((WIDTH,), i, dtype=torch.int64)


class Gpu(unittest.TestCase):
    def setUp(self):
        self.addCleanup(gc.collect)

    def busy(self, milliseconds=2):
        """Keeps the current stream busy, so that a copy enqueued now is pending when the loop takes the next batch."""
        torch.cuda._sleep(int(milliseconds * 1.5e6))

    def whole(self, copies):
        torch.cuda.synchronize()
        numbers = torch.cat(copies).cpu().numpy()
        self.assertEqual(numbers.min(axis=1).tolist(), list(range(ROWS)))
        self.assertEqual(numbers.max(axis=1).tolist(), list(range(ROWS)))

    def test_tensors_are_pinned(self):
        for workers in 0, 2:
            with feedlane.Loader(Rows(), BATCH, num_workers=workers, tensors="torch", pin_memory=True, fields=FIELDS) as loader:
                for batch in loader:
                    self.assertTrue(batch.is_pinned())
                    self.assertEqual(batch.device.type, "cpu")
                    break

    def test_batches_may_be_dropped_while_they_are_copied(self):
        for workers in 0, 2:
            with self.subTest(workers=workers), feedlane.Loader(Rows(), BATCH, num_workers=workers, tensors="torch", pin_memory=True,
                                                                fields=FIELDS, persistent_workers=workers > 0) as loader:
                for _ in range(2):
                    copies = []
                    for batch in loader:
                        self.busy()
                        copies.append(batch.to("cuda", non_blocking=True))
                        batch = None
                    self.whole(copies)
                self.assertEqual(loader.stats()["slots_held"], 0)

    def test_a_recorded_stream_keeps_the_batch(self):
        stream = torch.cuda.Stream()
        with feedlane.Loader(Rows(), BATCH, num_workers=2, tensors="torch", pin_memory=True, fields=FIELDS) as loader:
            copies = []
            for batch in loader.batches():
                batch.record_stream(stream)
                tensor = batch.data
                with torch.cuda.stream(stream):
                    self.busy()
                    copies.append(tensor.to("cuda", non_blocking=True))
                batch.release()
                tensor = batch = None
            self.whole(copies)

    def test_a_worker_dies_and_nothing_is_lost(self):
        with feedlane.Loader(Rows(), BATCH, num_workers=2, tensors="torch", pin_memory=True, fields=FIELDS) as loader:
            copies = []
            for number, batch in enumerate(loader):
                if number % 16 == 3:
                    os.kill(max(worker["pid"] for worker in loader.workers()), signal.SIGKILL)
                self.busy(1)
                copies.append(batch.to("cuda", non_blocking=True))
                batch = None
            self.whole(copies)
            self.assertGreater(loader.stats()["restarts"], 0)

    def test_torchs_loader_and_ours_copy_the_same(self):
        for workers, context in (0, None), (2, "spawn"), (2, "fork"):
            for kind in torch.utils.data.DataLoader, feedlane.DataLoader:
                with self.subTest(kind=kind.__module__, workers=workers, context=context):
                    copies = []
                    for batch in kind(Rows(), BATCH, num_workers=workers, multiprocessing_context=context, pin_memory=True):
                        self.assertTrue(batch.is_pinned())
                        self.busy(1)
                        copies.append(batch.to("cuda", non_blocking=True))
                        batch = None
                    self.whole(copies)


class OtherFrameworks(unittest.TestCase):
    def loader(self):
        return feedlane.Loader(Rows(), BATCH, num_workers=2, pin_memory=feedlane.Pool(), fields=FIELDS)

    def whole(self, arrays):
        numbers = np.concatenate(arrays)
        self.assertEqual(numbers.min(axis=1).tolist(), list(range(ROWS)))
        self.assertEqual(numbers.max(axis=1).tolist(), list(range(ROWS)))

    def test_jax_copies_batches_that_were_dropped(self):
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        try:
            import jax
        except ImportError as missing:
            self.skipTest(str(missing))
        try:
            device = jax.devices("gpu")[0]
        except RuntimeError as missing:
            self.skipTest(str(missing))
        with jax.enable_x64(True), self.loader() as loader:
            copies = []
            for batch in loader:
                copies.append(jax.device_put(batch, device))  # returns before the copy has ended
                batch = None
            self.whole([np.asarray(copy) for copy in copies])

    def test_cupy_copies_on_a_recorded_stream(self):
        try:
            import cupy
        except ImportError as missing:
            self.skipTest(str(missing))
        stream = cupy.cuda.Stream(non_blocking=True)
        with self.loader() as loader:
            copies = []
            for batch in loader.batches():
                batch.record_stream(stream.ptr)
                copy = cupy.empty(batch.data.shape, batch.data.dtype)
                torch.cuda.synchronize()
                with stream:
                    copy.set(batch.data, stream)
                batch.release()
                copies.append(copy)
            stream.synchronize()
            self.whole([copy.get() for copy in copies])


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("skipped: torch finds no GPU")
        sys.exit(77)
    unittest.main()
