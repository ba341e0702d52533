#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The samplers yield the very indices that torch yields on CPU: a trainer that moves over keeps its data order.

Usage: torch_indices_test.py TORCH_INDICES VECTORS

TORCH_INDICES prints the samplers' indices; VECTORS is what torch itself answered.
"""

import hashlib
import json
import subprocess
import sys
import unittest

TORCH, TORCH_LOADER = 0, 2  # FEEDLANE_SHUFFLE_...


def answers(requests):
    """The answer to each request, as text."""
    lines = "".join(" ".join(str(part) for part in request) + "\n" for request in requests)
    answer = subprocess.run([program], input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout
    return answer.splitlines()


def random(v, epoch=0, cap=64, seed=None, replacement=0):
    seed = v["seed"] if seed is None else seed
    return "random", v["n"], seed, epoch, cap, v.get("num_samples") or 0, replacement, TORCH


# promise: sampler-torch-indices
class TorchIndices(unittest.TestCase):
    def check(self, vector, text):
        numbers = [int(number) for number in text.split(",")] if text else []
        self.assertEqual(len(numbers), vector["len"])
        self.assertEqual(numbers[: len(vector["head"])], vector["head"])
        self.assertEqual(numbers[len(numbers) - len(vector["tail"]) :], vector["tail"])
        self.assertEqual(numbers, vector.get("all", numbers))
        self.assertEqual(hashlib.sha256(text.encode()).hexdigest(), vector["sha256"])

    def check_all(self, section, request):
        self.assertGreater(len(vectors[section]), 0)
        texts = answers([request(vector) for vector in vectors[section]])
        self.assertEqual(len(texts), len(vectors[section]))
        for vector, text in zip(vectors[section], texts):
            with self.subTest(**{k: v for k, v in vector.items() if k not in ("head", "tail", "all", "sha256")}):
                self.check(vector, text)

    def test_every_section_is_looked_at(self):
        sections = {name for name, content in vectors.items() if isinstance(content, list)}
        self.assertEqual(
            sections,
            {"randperm", "random_sampler", "with_replacement", "distributed", "dataloader_shuffle"},
        )
        self.assertIn(1000, [vector["n"] for vector in vectors["randperm"]])

    def test_randperm(self):
        self.check_all("randperm", lambda v: random(v, cap=v["n"]))

    def test_randperm_in_pieces(self):
        self.check_all("randperm", lambda v: random(v, cap=7))

    # promise: sampler-order-by-epoch
    def test_epoch_e_is_that_of_seed_plus_e(self):
        for epoch in (1, 3, 42, 2**40):
            self.check_all("randperm", lambda v: random(v, epoch, seed=(v["seed"] - epoch) % 2**64))

    def test_only_the_low_32_bits_of_a_seed_count(self):
        for high in (2**32, 2**62, 2**63 - 2**32):
            self.check_all("randperm", lambda v: random(v, seed=v["seed"] + high))

    def test_random_sampler(self):
        self.check_all("random_sampler", random)

    def test_with_replacement(self):
        self.check_all("with_replacement", lambda v: random(v, replacement=1))

    # promise: sampler-distributed
    def test_distributed(self):
        self.check_all(
            "distributed",
            lambda v: ("distributed", v["n"], v["seed"], v["epoch"], 9, v["replicas"], v["rank"])
            + (0 if v["shuffle"] else 1, int(v["drop_last"])),
        )

    def test_subset(self):
        """SubsetRandomSampler takes its list in the order of torch.randperm."""
        randperm = vectors["randperm"]
        texts = answers([("subset", v["n"], v["seed"], 0, 64) for v in randperm])
        for vector, text in zip(randperm, texts):
            with self.subTest(n=vector["n"], seed=vector["seed"]):
                self.check(vector, ",".join(str((int(index) - 1000) // 3) for index in text.split(",")))

    def test_dataloader_shuffle(self):
        """Epoch after epoch, and with one sampler that goes to an epoch and back."""
        loaders = vectors["dataloader_shuffle"]
        for vector in loaders:
            requests = [
                ("random", vector["n"], vector["manual_seed"], epoch, 64, 0, 0, TORCH_LOADER)
                for epoch in range(len(vector["epochs"]))
            ]
            for epoch, (text, wanted) in enumerate(zip(answers(requests), vector["epochs"])):
                with self.subTest(n=vector["n"], manual_seed=vector["manual_seed"], epoch=epoch):
                    self.check(wanted, text)


if __name__ == "__main__":
    program, path = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        vectors = json.load(file)
    unittest.main(argv=sys.argv[:1])
