# SPDX-License-Identifier: Apache-2.0
"""The trainers of all languages print the digest that is computed here from the files: see examples/README.md.
Usage: digest_test.py FOLDER_OF_THE_DIGITS PYTHON_EXAMPLE C_DIGEST DIGITS_TRAINER JULIA JULIA_EXAMPLE
[another program that prints it]...; JULIA: the interpreter, or "none". JULIA_PROJECT says where the package is."""
import importlib.util
import os
import sys
import unittest

from programs import DEADLINE_S, describe, run
from reference import FNV_START, fnv1a, torch_randperm

FOLDER, PYTHON_EXAMPLE, C_DIGEST, CPP_TRAINER, JULIA, JULIA_EXAMPLE, *OTHERS = sys.argv[1:]
JULIA_DEADLINE_S = 240  # it compiles the package first
DIGITS, BATCH, EPOCHS, SEED = 1797, 64, 10, 1


def expected():
    with open(os.path.join(FOLDER, "optdigits-images-idx3-ubyte"), "rb") as file:
        images = file.read()[16:]
    with open(os.path.join(FOLDER, "optdigits-labels-idx1-ubyte"), "rb") as file:
        labels = file.read()[8:]
    value = FNV_START
    for epoch in range(EPOCHS):
        order = torch_randperm(DIGITS, SEED + epoch)
        for first in range(0, DIGITS, BATCH):
            batch = order[first:first + BATCH]
            data = b"".join(images[64 * i:64 * i + 64] for i in batch)
            data += b"".join(labels[i].to_bytes(8, "little") for i in batch)
            value = fnv1a(value, data)
    return f"digest: {value:016x}\n"


class Digest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = expected()

    def check(self, *command, deadline_s=DEADLINE_S):
        finished = run(*command, deadline_s=deadline_s)
        self.assertEqual((finished.code, finished.out), (0, self.expected), describe(command, finished))

    def test_c(self):
        self.check(C_DIGEST, FOLDER)

    def test_cpp(self):
        for workers in 0, 1, 3:
            self.check(CPP_TRAINER, "--digest", "--workers", workers)

    @unittest.skipUnless(PYTHON_EXAMPLE != "none" and importlib.util.find_spec("numpy"), "no numpy")
    def test_python(self):
        for workers in 0, 2:
            self.check(sys.executable, "-B", PYTHON_EXAMPLE, "--digest", "--workers", workers)

    @unittest.skipUnless(PYTHON_EXAMPLE != "none" and importlib.util.find_spec("numpy"), "no numpy")
    def test_python_with_a_worker_killed(self):
        """It trains as without: the same losses, and digits that it has not seen recognised."""
        said = []
        for options in ("--workers", 0), ("--kill-worker-at-batch", 100):
            finished = run(sys.executable, "-B", PYTHON_EXAMPLE, *options)
            self.assertEqual(finished.code, 0, finished.err)
            said.append(finished.out.replace("restarts: 1", "restarts: 0") if "--workers" not in options else finished.out)
        self.assertIn("restarts: 1", finished.out)
        self.assertEqual(*said)
        self.assertGreaterEqual(float(finished.out.split()[-1]), 0.95)

    @unittest.skipIf(JULIA == "none", "no julia")
    def test_julia(self):
        for workers in 0, 2:
            self.check(JULIA, "--startup-file=no", JULIA_EXAMPLE, "--digest", "--workers", workers, deadline_s=JULIA_DEADLINE_S)

    def test_others(self):
        for program in OTHERS:
            if os.path.exists(program):
                with self.subTest(program):
                    self.check(program, "--digest")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
