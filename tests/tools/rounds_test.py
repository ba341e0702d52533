#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/bench/rounds.py alternates and summarises as it says. Usage: rounds_test.py ROOT"""

import sys
import unittest

sys.path.insert(0, sys.argv[1] + "/tools/bench")

import rounds  # noqa: E402


class Rounds(unittest.TestCase):
    def test_every_other_round_runs_from_the_last_to_the_first_and_one_is_not_counted(self):
        calls = []

        def contender(name):
            return lambda: calls.append(name) or len(calls)
        values = rounds.alternate({name: contender(name) for name in "abc"}, 2)
        self.assertEqual("".join(calls), "cba" "abc" "cba")
        self.assertEqual(values, {"a": [4, 9], "b": [5, 8], "c": [6, 7]})

    def test_ratios_are_taken_within_a_round(self):
        self.assertEqual(rounds.ratios([2, 9], [1, 3]), [2, 3])
        with self.assertRaises(ValueError):
            rounds.ratios([1], [1, 2])

    def test_spread(self):
        self.assertEqual(rounds.spread([4, 1, 2]), {"median": 2, "min": 1, "max": 4, "rounds": [4, 1, 2]})
        self.assertEqual(rounds.cell([4, 1, 2], ".1f"), "2.0 [1.0 .. 4.0]")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
