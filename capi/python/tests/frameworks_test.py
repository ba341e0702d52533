# SPDX-License-Identifier: Apache-2.0
"""docs/frameworks.md: how a batch becomes an array of other packages, and their arrays become samples. Each package is tested in its
own process, because their libraries do not always get along, and is skipped where it is missing.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python:tests/support frameworks_test.py [unittest's arguments]"""
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import unittest

from numpy_or_skip import np
import feedlane

ROWS, WIDTH = 8, 3


def expected():
    return np.repeat(np.arange(ROWS, dtype=np.float32)[:, None], WIDTH, axis=1)


class Counted:
    """Sample i is make(i) or, by default, an array of a type of numpy or ml_dtypes, of WIDTH elements i."""

    def __init__(self, dtype="float32", make=None):
        self.dtype, self.make = dtype, make

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        if self.make is not None:
            return {"x": self.make(i)}
        kind = np.dtype(self.dtype) if self.dtype == "float32" else getattr(importlib.import_module("ml_dtypes"), self.dtype)
        return {"x": np.full(WIDTH, i, kind)}


def is_mapped(address):
    with open("/proc/self/maps", encoding="ascii") as file:
        ranges = [line.split()[0].split("-") for line in file]
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


class Case(unittest.TestCase):
    """What all packages share. `package`: the module to import, as self.module."""

    package = "numpy"

    @classmethod
    def setUpClass(cls):
        try:
            cls.module = importlib.import_module(cls.package)
        except ImportError as missing:
            raise unittest.SkipTest(str(missing)) from None

    def own(self, convert, dtype="float32"):
        """convert(tensor) of a loader's batch, and its address; the batch and the loader have ended."""
        with feedlane.Loader(Counted(dtype), ROWS, num_workers=1) as loader, next(loader.batches()) as batch:
            tensor, = batch.tensors
            return convert(tensor), tensor.address

    def read_only(self, convert):
        """As own, for read-only memory: an arena's entry. A consumer's batch is the same to the packages."""
        with feedlane.Arena(1 << 20) as arena:
            arena.put("key", {"x": expected()})
            with arena.get("key") as batch:
                tensor, = batch.tensors
                self.assertTrue(batch.is_read_only)
                return convert(tensor), tensor.address

    def check(self, take, convert, holds, numpy=np.asarray):
        """Takes an array: it has the batch's values. If it holds the batch's memory, it is no copy."""
        value, address = take(convert)
        gc.collect()
        self.assertEqual(is_mapped(address), holds)
        np.testing.assert_array_equal(np.array(numpy(value), dtype=np.float32), expected())
        del value
        gc.collect()
        self.assertFalse(is_mapped(address), "the memory is never freed")

    def shares(self, convert, numpy=np.asarray):
        for take in self.own, self.read_only:
            self.check(take, convert, True, numpy)

    def copies(self, convert, numpy=np.asarray):
        for take in self.own, self.read_only:
            self.check(take, convert, False, numpy)

    def refuses_read_only(self, convert):
        with self.assertRaisesRegex(BufferError, r"read-only.*jax\.device_put\(tensor\.numpy\(\)\)"):
            self.read_only(convert)

    def samples(self, make, dtype="float32"):
        """Samples make(i), of WIDTH elements i, are arrays of the batch."""
        with feedlane.Loader(Counted(make=make), ROWS) as loader:
            array = next(iter(loader))["x"]
        self.assertEqual(array.dtype.name, dtype)
        np.testing.assert_array_equal(array.astype(np.float32), expected())


class Numpy(Case):
    def test_batch(self):
        self.shares(lambda tensor: tensor.numpy())
        self.shares(np.asarray)
        self.check(self.own, np.from_dlpack, True)

    def test_read_only(self):
        self.assertFalse(self.read_only(np.asarray)[0].flags.writeable)
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
            self.assertFalse(self.read_only(np.from_dlpack)[0].flags.writeable)
        else:
            self.refuses_read_only(np.from_dlpack)


class Torch(Case):
    package = "torch"

    def test_batch(self):
        self.shares(lambda tensor: tensor.as_torch())
        self.check(self.own, self.module.from_dlpack, True)
        with self.assertWarns(feedlane.ReadOnlyWarning):
            self.read_only(lambda tensor: tensor.torch())

    @unittest.skipUnless(importlib.util.find_spec("ml_dtypes"), "No module named 'ml_dtypes'")
    def test_bfloat16(self):
        self.check(lambda convert: self.own(convert, "bfloat16"), lambda tensor: tensor.torch(), True, lambda value: value.float())


class Jax(Case):
    package = "jax"

    def test_batch(self):
        self.shares(lambda tensor: self.module.device_put(tensor.numpy()))
        self.check(self.own, self.module.numpy.from_dlpack, True)
        self.refuses_read_only(self.module.numpy.from_dlpack)

    def test_samples(self):
        for name in "float32", "bfloat16", "float8_e4m3fn":
            self.samples(lambda i: self.module.numpy.full(WIDTH, i, name), name)

    def test_types_beyond_numpy(self):
        self.check(lambda convert: self.own(convert, "bfloat16"), lambda tensor: self.module.device_put(tensor.numpy()), True)
        with feedlane.Loader(Counted("float8_e4m3fn"), ROWS, num_workers=1) as loader:
            array = next(iter(loader))["x"]
            value = self.module.device_put(array)
            self.assertEqual((value.dtype, value.unsafe_buffer_pointer()), (array.dtype, array.ctypes.data))


class TensorFlow(Case):
    package = "tensorflow"

    def test_batch(self):
        self.shares(self.module.convert_to_tensor)
        self.copies(lambda tensor: self.module.convert_to_tensor(tensor.numpy()))
        self.refuses_read_only(lambda tensor: self.module.experimental.dlpack.from_dlpack(tensor.__dlpack__()))

    def test_samples(self):
        self.samples(lambda i: self.module.fill(WIDTH, float(i)))
        self.samples(lambda i: self.module.cast(self.module.fill(WIDTH, float(i)), self.module.bfloat16), "bfloat16")

    def test_types_beyond_numpy(self):
        self.check(lambda convert: self.own(convert, "bfloat16"), self.module.convert_to_tensor, True)
        with feedlane.Loader(Counted("float8_e4m3fn"), ROWS, num_workers=1) as loader:
            value = self.module.convert_to_tensor(next(iter(loader))["x"])
            self.assertEqual(value.dtype, self.module.dtypes.experimental.float8_e4m3fn)
            np.testing.assert_array_equal(value.numpy().astype(np.float32), expected())


class Paddle(Case):
    package = "paddle"

    def test_batch(self):
        self.check(self.own, self.module.from_dlpack, True)
        self.copies(lambda tensor: self.module.to_tensor(tensor.numpy()))

    def test_writing_to_read_only_memory_ends_the_process(self):
        program = "import feedlane, numpy, paddle; arena = feedlane.Arena(1 << 20); arena.put('key', numpy.ones(3)); " \
                  "value = paddle.from_dlpack(arena.get('key').tensors[0]); print(value.sum().item(), flush=True); value.add_(value)"
        ended = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True)
        self.assertEqual((ended.stdout.split()[:1], ended.returncode), (["3.0"], -signal.SIGSEGV), ended.stderr)

    def test_samples(self):
        self.samples(lambda i: self.module.full([WIDTH], i, "float32"))

    def test_bfloat16(self):
        self.check(lambda convert: self.own(convert, "bfloat16"), self.module.from_dlpack, True, lambda value: value.astype("float32"))


class Tinygrad(Case):
    package = "tinygrad"

    def test_batch(self):
        self.shares(lambda tensor: self.module.Tensor(tensor.numpy()), lambda value: value.numpy())
        self.copies(lambda tensor: self.module.Tensor(tensor.numpy()).realize(), lambda value: value.numpy())

    def test_samples(self):
        self.samples(lambda i: self.module.Tensor([float(i)] * WIDTH).numpy())

    def test_bfloat16(self):
        value, address = self.own(lambda tensor: self.module.Tensor(tensor.numpy()), "bfloat16")
        self.assertEqual((value.dtype, is_mapped(address)), (self.module.dtypes.bfloat16, True))


class Mlx(Case):
    package = "mlx.core"

    def test_batch(self):
        self.copies(lambda tensor: self.module.array(tensor.numpy()))

    def test_samples(self):
        self.samples(lambda i: self.module.full((WIDTH,), i, self.module.float32))

    def test_bfloat16(self):
        self.check(lambda convert: self.own(convert, "bfloat16"), lambda tensor: self.module.array(tensor.numpy()), False,
                   lambda value: value.astype(self.module.float32))


class OnnxRuntime(Case):
    package = "onnxruntime"

    def test_batch(self):
        self.shares(lambda tensor: self.module.OrtValue.ortvalue_from_numpy(tensor.numpy()), lambda value: value.numpy())
        self.check(self.own, self.module.OrtValue.from_dlpack, True, lambda value: value.numpy())
        self.refuses_read_only(self.module.OrtValue.from_dlpack)

    def test_bfloat16(self):
        value, address = self.own(self.module.OrtValue.from_dlpack, "bfloat16")
        self.assertEqual((value.element_type(), value.data_ptr()), (16, address))  # ONNX's number of bfloat16


class Arrow(Case):
    package = "pyarrow"

    def test_batch(self):
        self.shares(lambda tensor: self.module.FixedShapeTensorArray.from_numpy_ndarray(tensor.numpy()),
                    lambda value: value.to_numpy_ndarray())
        self.shares(lambda tensor: self.module.Tensor.from_numpy(tensor.numpy()))

    def test_samples(self):
        self.samples(lambda i: self.module.array([i] * WIDTH, self.module.float32()))


class Polars(Case):
    package = "polars"

    def test_batch(self):
        self.shares(lambda tensor: self.module.Series("x", tensor.numpy()))

    def test_samples(self):
        self.samples(lambda i: self.module.Series([float(i)] * WIDTH, dtype=self.module.Float32))


def run_each():
    """Runs each class in its own process. Returns 1 if one has failed, otherwise 77 if one was skipped."""
    codes = []
    for name, case in list(globals().items()):
        if isinstance(case, type) and issubclass(case, Case) and case is not Case:
            print(f"{name}:", flush=True)
            codes.append(subprocess.run([sys.executable, "-B", __file__, "-v", name]).returncode)
    return 1 if set(codes) - {0, 77} else max(codes)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if len(sys.argv) == 1:
        sys.exit(run_each())
    result = unittest.main(exit=False).result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
