# SPDX-License-Identifier: Apache-2.0
"""tools/bench/goals.py holds what it says it holds: with made-up figures.  Usage: goals_test.py BENCH_GOALS"""
import contextlib
import importlib.util
import io
import json
import pathlib
import sys
import tempfile
import unittest

PATH = pathlib.Path(sys.argv.pop(1)).resolve()
spec = importlib.util.spec_from_file_location("bench_goals", PATH)
goals = importlib.util.module_from_spec(spec)
spec.loader.exec_module(goals)

PLACE = {"processor": "a processor", "processors": 2, "placement": "cores"}


class Goals(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name, value in (("BASELINE", pathlib.Path(folder.name) / "baseline.json"), ("measure", self.measure)):
            self.addCleanup(setattr, goals, name, getattr(goals, name))
            setattr(goals, name, value)
        self.place, self.asked = dict(PLACE), []

    def measure(self, group, _feedlane, rounds):
        self.asked.append(rounds)
        if isinstance(self.figures, Exception):
            raise self.figures
        values = self.figures.pop(0) if isinstance(self.figures, list) else self.figures
        return {**self.place, "ratios": {name: list(rounds_of) for name, rounds_of in values.items()}}

    def record(self, median, least, most, name="lanes.1.over_queue", **place):
        ratios = {name: {"median": median, "min": least, "max": most}}
        goals.BASELINE.write_text(json.dumps([{"group": "lanes", **PLACE, **place, "ratios": ratios}]), encoding="ascii")

    def run_tool(self, figures, *arguments):
        """Its exit status, and what it says."""
        self.figures, said = figures, io.StringIO()
        sys.argv = ["goals.py", "--group", "lanes", *arguments, "feedlane"]
        with contextlib.redirect_stdout(said):
            status = goals.main()
        return status, said.getvalue()

    def test_the_median_counts_and_must_reach_three_quarters_of_the_record(self):
        self.record(10, 9, 11)
        self.assertEqual(self.run_tool({"lanes.1.over_queue": [1, 7.6, 100]})[0], 0)
        status, said = self.run_tool({"lanes.1.over_queue": [7.4, 7.4, 100]})
        self.assertEqual(status, 1)
        self.assertRegex(said, r"lanes\.1\.over_queue +7\.400 >= +7\.500, recorded 10 \[9 \.\. 11\]: MISSED")
        self.assertIn("1 ratios missed", said)

    def test_of_what_is_to_be_low_a_third_more_at_most(self):
        name = "startup.fork.1.end_over_pages"
        self.record(0.9, 0.8, 1, name)
        self.assertEqual(self.run_tool({name: [1.19]})[0], 0)
        self.assertEqual(self.run_tool({name: [1.21]})[0], 1)

    def test_a_wider_record_is_a_wider_tolerance_and_said(self):
        self.record(10, 7.4, 11)
        status, said = self.run_tool({"lanes.1.over_queue": [5.6]})
        self.assertEqual(status, 0)
        self.assertIn("whose spread is wider than 25 %", said)
        self.assertEqual(self.run_tool({"lanes.1.over_queue": [5.5]})[0], 1)

    def test_what_says_nothing_of_a_single_run_is_shown_and_not_held(self):
        self.record(10, 6, 13)
        status, said = self.run_tool({"lanes.1.over_queue": [1]})
        self.assertEqual(status, 0)
        self.assertIn("not held: its recorded runs are more than 1.5 times apart", said)
        name = "handoff.4096.1.trainer_over_line"
        self.record(1, 1, 1, name)
        status, said = self.run_tool({name: [9]})
        self.assertEqual(status, 0)
        self.assertIn("not held: the line's time changes", said)

    def test_a_miss_is_measured_again_and_all_rounds_count(self):
        self.record(10, 9, 11)
        self.assertEqual(self.run_tool([{"lanes.1.over_queue": [5]}, {"lanes.1.over_queue": [9, 9]}])[0], 0)
        self.assertEqual(self.asked, [3, 6])
        self.assertEqual(self.run_tool([{"lanes.1.over_queue": [5, 5]}, {"lanes.1.over_queue": [5, 100]}])[0], 1)

    def test_skips_are_told_and_counted(self):
        self.record(10, 9, 11)
        status, said = self.run_tool(goals.Skipped("other programs took 40% of the processors"))
        self.assertEqual(status, 77)
        self.assertIn("skipped: lanes: other programs took 40%", said)
        self.assertIn("1 groups skipped", said)
        self.record(10, 9, 11, processor="another one")
        status, said = self.run_tool({"lanes.1.over_queue": [10]})
        self.assertEqual(status, 77)
        self.assertIn("no record of 2 x a processor (cores)", said)

    def test_what_has_no_record_is_shown_and_the_others_are_held(self):
        for first, expected in ((10, 0), (1, 1)):
            self.record(10, 9, 11)
            status, said = self.run_tool({"lanes.1.over_queue": [first], "lanes.2.over_queue": [1]})
            self.assertEqual(status, expected, said)
            self.assertRegex(said, r"lanes.2.over_queue +1.000: not held: no record of it")

    def test_a_record_is_of_the_runs_medians(self):
        status, said = self.run_tool([{"lanes.1.over_queue": [1, 9, 20]}, {"lanes.1.over_queue": [10]},
                                      {"lanes.1.over_queue": [12]}], "--record", "3")
        self.assertEqual(status, 0, said)
        entry, = json.loads(goals.BASELINE.read_text(encoding="ascii"))
        self.assertEqual(entry["ratios"], {"lanes.1.over_queue": {"median": 10, "min": 9, "max": 12}})
        self.assertEqual(self.run_tool({"lanes.1.over_queue": [9]})[0], 0)
        self.run_tool({"lanes.1.over_queue": [20]}, "--record", "1")
        entry, = json.loads(goals.BASELINE.read_text(encoding="ascii"))
        self.assertEqual(entry["ratios"]["lanes.1.over_queue"]["median"], 20, "in place of the old one")

    def test_every_recorded_ratio_has_its_words(self):
        listed = json.loads(goals.GOALS.read_text(encoding="ascii"))
        for name, words in (("handoff.65536.2.over_copiers", "64 KiB by 2 worker(s)"),
                            ("handoff.1048576.1.over_copiers", "1 MiB by 1 worker(s)"),
                            ("handoff.4194304.1.over_copiers", "4194304 bytes by 1"),
                            ("startup.fork.1.end_over_pages", "end, fork, 1 worker(s)")):
            self.assertIn(words, goals.goal_of(listed, name)["what"])
        with self.assertRaises(SystemExit):
            goals.goal_of(listed, "lanes.1.over_nothing")
        recorded = PATH.parent / "baseline.json"
        if recorded.exists():
            for entry in json.loads(recorded.read_text(encoding="ascii")):
                for name in entry["ratios"]:
                    goals.goal_of(listed, name)


if __name__ == "__main__":
    unittest.main()
