#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/all_runs.py keeps the last result of each part; docs/proofs.md describes each part of tools/check. Usage: all_runs_test.py ROOT"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1])


class AllRuns(unittest.TestCase):
    def run_tool(self, *arguments):
        command = [sys.executable, "-B", str(ROOT / "tools/all_runs.py"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def test_last_result_of_each_part_is_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "runs.tsv"
            for part, *counts in (("tsan", 1, 0, 2), ("fuzz", 12, 0, 0), ("tsan", 3, 1, 0)):
                self.run_tool(file, "record", part, *counts)
            rows = [line.split() for line in self.run_tool(file).splitlines()]
        self.assertEqual(rows[0], ["part", "date", "commit", "passed", "failed", "skipped"])
        self.assertEqual([[row[0], *row[3:]] for row in rows[1:]], [["fuzz", "12", "0", "0"], ["tsan", "3", "1", "0"]])
        self.assertRegex(rows[1][1], r"^\d{4}-\d\d-\d\d$")

    def test_every_part_is_described(self):
        parts = re.search(r"^parts=\((.*)\)$", (ROOT / "tools/check").read_text(encoding="utf-8"), re.M)[1].split()
        page = (ROOT / "docs/proofs.md").read_text(encoding="utf-8")
        table = page[page.index("| Part (`--only`)"):]
        described = re.findall(r"^\| ([a-z0-9-]+) \|", table[:table.index("\n\n")], re.M)
        self.assertEqual(sorted(described), sorted(parts))
        recorded = [line.split("\t")[0] for line in (ROOT / "tests/all-runs.tsv").read_text(encoding="utf-8").splitlines()[1:]]
        self.assertEqual(set(recorded) - set(parts), set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
