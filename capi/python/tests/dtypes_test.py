# SPDX-License-Identifier: Apache-2.0
"""Element types that numpy has from ml_dtypes: bfloat16, float8 and integers of less than 8 bits, without torch."""
import sys
import unittest

from numpy_or_skip import np

try:
    import ml_dtypes
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

import feedlane

NAMES = "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"


class Typed:
    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return {"x": np.full(3, i, getattr(ml_dtypes, self.name))}


class Types(unittest.TestCase):
    def test_come_back_as_they_were(self):
        for name in NAMES:
            for workers in 0, 1:
                with self.subTest(name=name, workers=workers), feedlane.Loader(Typed(name), 2, num_workers=workers) as loader:
                    found = [batch["x"] for batch in loader]
                    self.assertEqual([array.dtype.name for array in found], [name] * 2)
                    self.assertEqual([array.astype(float).tolist() for array in found], [[[0] * 3, [1] * 3], [[2] * 3, [3] * 3]])

    def test_bfloat16_is_a_tensor_of_the_batch(self):
        with feedlane.Loader(Typed("bfloat16"), 4, num_workers=1) as loader, next(loader.batches()) as batch:
            self.assertEqual((batch.tensors[0].dtype, batch.tensors[0].numpy().dtype), ("bfloat16", ml_dtypes.bfloat16))
            self.assertEqual(np.asarray(batch.tensors[0]).astype(float)[1].tolist(), [1, 1, 1])

    def test_no_tensor_is_of_a_type_that_only_its_name_makes_numpys(self):
        for name in "float8_e5m2", "float8_e4m3fn", "int4":  # numpy finds the first by its name, as a float
            for spelling in name, getattr(ml_dtypes, name), np.dtype(getattr(ml_dtypes, name)):
                with self.subTest(spelling=spelling), self.assertRaises(TypeError):
                    feedlane.dtypes.of_numpy(spelling)

    def test_fields_are_declared_by_any_name_of_it(self):
        spellings = ["bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)]
        if "torch" in sys.modules:
            spellings.append(sys.modules["torch"].bfloat16)
        for spelling in spellings:
            with self.subTest(spelling), feedlane.Loader(Typed("bfloat16"), 4, num_workers=1, fields={"x": (spelling, (3,))}) as loader:
                self.assertEqual([batch["x"].dtype for batch in loader], [ml_dtypes.bfloat16])


if __name__ == "__main__":
    unittest.main()
