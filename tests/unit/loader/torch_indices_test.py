#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The random sampler yields the very indices that torch yields on CPU: a trainer that moves over keeps its data order.

Usage: torch_indices_test.py TORCH_INDICES VECTORS

TORCH_INDICES prints the sampler's indices; VECTORS is what torch itself answered.
"""

import hashlib
import json
import subprocess
import sys
import unittest


def indices(requests):
    """The answer to each (length, seed, epoch, cap), as text."""
    lines = "".join("{} {} {} {}\n".format(*request) for request in requests)
    answer = subprocess.run([program], input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout
    return answer.splitlines()


class TorchIndices(unittest.TestCase):
    def check(self, vector, text):
        numbers = [int(number) for number in text.split(",")]
        self.assertEqual(len(numbers), vector["len"])
        self.assertEqual(numbers[: len(vector["head"])], vector["head"])
        self.assertEqual(numbers[-len(vector["tail"]) :], vector["tail"])
        self.assertEqual(numbers, vector.get("all", numbers))
        self.assertEqual(hashlib.sha256(text.encode()).hexdigest(), vector["sha256"])

    def check_all(self, request):
        texts = indices([request(vector) for vector in vectors])
        self.assertEqual(len(texts), len(vectors))
        for vector, text in zip(vectors, texts):
            with self.subTest(n=vector["n"], seed=vector["seed"]):
                self.check(vector, text)

    def test_there_are_vectors(self):
        self.assertGreater(len(vectors), 0)
        self.assertIn(1000, [vector["n"] for vector in vectors])

    def test_epoch_0(self):
        self.check_all(lambda v: (v["n"], v["seed"], 0, v["n"]))

    def test_in_pieces(self):
        self.check_all(lambda v: (v["n"], v["seed"], 0, 7))

    def test_epoch_e_is_that_of_seed_plus_e(self):
        for epoch in (1, 3, 42, 2**40):
            self.check_all(lambda v: (v["n"], (v["seed"] - epoch) % 2**64, epoch, 64))


if __name__ == "__main__":
    program, path = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        vectors = json.load(file)["randperm"]
    unittest.main(argv=sys.argv[:1])
