# SPDX-License-Identifier: Apache-2.0
"""What examples/cpp/minimal.cpp promises: the bytes that are computed here from scratch, with any number of workers.
Usage: minimal_test.py MINIMAL [unittest's arguments]"""
import struct
import sys
import unittest

from programs import describe, run
from reference import FNV_START, fnv1a, row_seed, torch_randperm

MINIMAL = sys.argv.pop(1)
SAMPLES, FEATURES, BATCH, EPOCHS, SEED = 1000, 16, 32, 2, 1


def sample(index, seed):
    x = [i % 97 / 97 for i in range(index * FEATURES, (index + 1) * FEATURES)]
    return x[::-1] if seed % 2 else x


def expected():
    value = FNV_START
    for epoch in range(EPOCHS):
        order = torch_randperm(SAMPLES, SEED + epoch)
        for first in range(0, SAMPLES, BATCH):
            positions = range(first, min(first + BATCH, SAMPLES))
            for position in positions:
                x = sample(order[position], row_seed(SEED, epoch, position))
                value = fnv1a(value, struct.pack(f"={FEATURES}f", *x))
            for position in positions:
                value = fnv1a(value, struct.pack("=q", order[position] % 10))
    return f"checksum: {value:016x}\n"


class Minimal(unittest.TestCase):
    def test_the_checksum_is_the_same_with_any_number_of_workers(self):
        for workers in [], ["1"], ["3"]:
            with self.subTest(workers):
                finished = run(MINIMAL, *workers)
                self.assertEqual((finished.code, finished.out), (0, expected()), describe([MINIMAL, *workers], finished))

    def test_a_refused_number_of_workers_is_an_error(self):
        for workers in "-1", "0":
            with self.subTest(workers):
                finished = run(MINIMAL, workers)
                self.assertEqual((finished.code, finished.out), (1, ""), describe([MINIMAL, workers], finished))
                self.assertRegex(finished.err, r"^minimal: E_ARGUMENT: .+", describe([MINIMAL, workers], finished))


if __name__ == "__main__":
    unittest.main()
