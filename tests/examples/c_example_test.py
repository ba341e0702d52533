# SPDX-License-Identifier: Apache-2.0
"""What examples/c promises: the same bytes through the callback and the pull form, and the very bytes that are computed
here from scratch. Usage: c_example_test.py TRAINER WORKER [unittest's arguments]"""
import sys
import unittest

from programs import describe, run
from reference import torch_randperm, worker_checksum

TRAINER, WORKER = sys.argv.pop(1), sys.argv.pop(1)


class CExample(unittest.TestCase):
    def check(self, *arguments):
        command = [TRAINER, *arguments]
        finished = run(*command)
        story = describe(command, finished)
        self.assertEqual(finished.code, 0, story)
        self.assertEqual(finished.out, worker_checksum(), "must be the one that is computed here" + story)

    def test_reference_order_is_torchs(self):
        self.assertEqual(torch_randperm(10, 0), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2])
        self.assertEqual(torch_randperm(10, 42), [2, 6, 1, 8, 4, 5, 0, 9, 3, 7])

    def test_callback_form_beside_the_trainer(self):
        self.check()

    def test_callback_form_named(self):
        self.check(WORKER)

    def test_pull_form(self):
        self.check(WORKER, "pull")

    def test_missing_worker_is_an_error(self):
        command = [TRAINER, "/nowhere/worker"]
        finished = run(*command)
        self.assertEqual(finished.code, 1, describe(command, finished))
        self.assertRegex(finished.err, r"trainer: E_\w+: .+", describe(command, finished))

    def test_worker_alone_says_what_it_is_for(self):
        finished = run(WORKER)
        self.assertEqual(finished.code, 2, describe([WORKER], finished))
        self.assertIn("started by a trainer", finished.err, describe([WORKER], finished))


if __name__ == "__main__":
    unittest.main()
