# SPDX-License-Identifier: Apache-2.0
"""What the Python package promises of memory: no copy, no leak, no use of what was given back, no crash at exit.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python memory_test.py [unittest's arguments]"""
import gc
import os
import random
import subprocess
import sys
import unittest

from numpy_or_skip import np
import feedlane
from datasets import Numbers

BATCHES = 10_000
KEPT = 60


def mappings(name="feedlane"):
    """(first address, one past the last, offset) of the mapped segments of loaders in this process."""
    found = []
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            if f"/memfd:{name}" in line:
                span, _, offset = line.split()[:3]
                found.append((*(int(end, 16) for end in span.split("-")), int(offset, 16)))
    return found


def descriptors():
    return sorted(os.listdir("/proc/self/fd"))


def slots_held(loader):
    gc.collect()
    return loader.stats()["slots_held"]


class NoCopy(unittest.TestCase):
    def test_numpys_arrays_may_be_written_whatever_its_version(self):
        samples = [(np.float32(i), i % 2 == 0, np.zeros((0, 3), np.int16)) for i in range(4)]
        with feedlane.Loader(samples, 4, held=2) as loader:
            whole = next(loader.batches())
            tensors, (numbers, flags, empty) = whole.tensors, whole.data
            self.assertEqual((flags.dtype, flags.tolist()), (np.bool_, [True, False, True, False]))
            self.assertEqual((empty.shape, empty.dtype), ((4, 0, 3), np.int16))
            numbers[1], flags[1] = 7, True
            self.assertEqual((tensors[0].numpy()[1], bool(tensors[1].numpy()[1])), (7, True))
            part = flags[2:]
            whole.release()
            del whole, tensors, numbers, flags, empty
            self.assertEqual(slots_held(loader), 1)
            self.assertEqual(part.tolist(), [True, False])
            del part
            self.assertEqual(slots_held(loader), 0)

    def test_what_a_loop_gets_lies_there_too(self):
        with feedlane.Loader([{"a": np.ones(100), "b": (1.5, np.zeros(3, np.uint8))}] * 4, 2, num_workers=1) as loader:
            for batch in loader:
                for array in (batch["a"], *batch["b"]):
                    address = array.__array_interface__["data"][0]
                    self.assertTrue(any(m[0] <= address < m[1] for m in mappings("feedlane-data")))
            del array, batch


class Misuse(unittest.TestCase):
    def setUp(self):
        self.loader = feedlane.Loader(Numbers(40), 4, held=4)
        self.addCleanup(self.loader.close)
        self.batches = self.loader.batches()


    def test_what_dlpack_cant_do(self):
        tensor = next(self.batches).tensors[0]
        for wrong in (dict(stream=1), dict(copy=True), dict(dl_device=(2, 0))):
            with self.assertRaises(BufferError):
                tensor.__dlpack__(**wrong)


class References(unittest.TestCase):
    def test_capsules_that_nobody_takes(self):
        with feedlane.Loader(Numbers(8), 4) as loader:
            batch = next(loader.batches())
            capsules = [batch.tensors[0].__dlpack__(), batch.tensors[0].__dlpack__(max_version=(1, 0))]
            batch.release()
            self.assertEqual(slots_held(loader), 1)
            capsules.pop()
            self.assertEqual(slots_held(loader), 1)
            try:
                raise KeyError(capsules.pop())  # dropped with an exception on its way
            except KeyError:
                pass
            self.assertEqual(slots_held(loader), 0)

    def test_many_batches_kept_and_dropped_in_random_order(self):
        draw = random.Random(1)
        for workers in 0, 2:
            before = descriptors(), len(mappings())
            with feedlane.Loader(Numbers(BATCHES, size=64), 1, num_workers=workers, held=KEPT + 4) as loader:
                kept, seen = [], 0
                for number, array in enumerate(loader):
                    kept.append((number, array, array[0, 3:5]))
                    seen += 1
                    while len(kept) > draw.randrange(KEPT):
                        number, array, part = kept.pop(draw.randrange(len(kept)))
                        self.assertTrue((array == number).all() and (part == number).all(), number)
                        del array, part
                self.assertEqual(seen, BATCHES)
                opened = len(descriptors())
                for number, array, _ in kept:
                    self.assertTrue((array == number).all())
                del array, _
                kept.clear()
                self.assertEqual(slots_held(loader), 0)
                self.assertLess(opened, len(before[0]) + 20, "a handful of descriptors")
            self.assertEqual((descriptors(), len(mappings())), before)

    def test_a_loader_that_is_only_dropped(self):
        before = descriptors(), len(mappings())
        loader = feedlane.Loader(Numbers(32), 4, num_workers=1)
        iterator = iter(loader)
        next(iterator)
        del loader, iterator
        gc.collect()
        self.assertEqual((descriptors(), len(mappings())), before)


EXITS = {
    "arrays, a batch, a tensor and capsules": "kept = [array, batch, batch.tensors[0], batch.tensors[0].__dlpack__(),"
                                              " batch.tensors[0].__dlpack__(max_version=(1, 0))]",
    "a cycle": "kept = [array, batch, loader, batch.tensors[0].__dlpack__()]; kept.append(kept); del kept",
    "builtins": "import builtins; builtins.kept = [array, batch, batch.tensors[0].__dlpack__(max_version=(1, 0))]",
    "an object whose end uses them": "Last.kept = Last(array, batch)",
    "what was read of a loader": "kept = [loader.stats(), loader.info(), array]",
    "a loader closed before": "loader.close(); kept = [array, batch]",
    "a thread": "threading.Thread(target=lambda: (time.sleep(0.3), array.sum()), daemon=True).start()",
    "an exception": "raise SystemExit(0)",
}
EXIT = """
import gc, sys, threading, time
import feedlane
from datasets import Numbers

class Last:
    def __init__(self, *kept):
        self.kept = kept
    def __del__(self):
        assert self.kept[0][1, 0] == 1

if __name__ == "__main__":
    if {disable}: gc.disable()
    loader = feedlane.Loader(Numbers(64), 4, num_workers={workers}, held=8)
    iterator = loader.batches()
    batch = next(iterator)
    array = next(iterator).data
    array = batch.data
    {what}
"""


class Exit(unittest.TestCase):
    def test_whatever_is_left_when_the_interpreter_ends(self):
        for number, (title, what) in enumerate(EXITS.items()):
            with self.subTest(title):
                script = EXIT.format(what=what, workers=number % 2, disable=number % 3 == 0)
                finished = subprocess.run([sys.executable, "-X", "faulthandler", "-c", script], cwd=os.path.dirname(
                    os.path.abspath(__file__)), capture_output=True, text=True, timeout=60, env={
                        **os.environ, "PYTHONMALLOC": "debug", "PYTHONDONTWRITEBYTECODE": "1"})
                self.assertEqual((finished.returncode, finished.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
