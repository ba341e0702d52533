# SPDX-License-Identifier: Apache-2.0
"""Each package of capi/ has the tests that the last table of docs/integrating.md names.
Usage: contract_test.py SOURCE_FOLDER [unittest's arguments]"""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
COUNT = 16  # of names, so that a table that isn't found is none of no names
CANNOT_FORK = {"fork"}


def names():
    """Of the table, in its order."""
    text = (ROOT / "docs/integrating.md").read_text(encoding="utf-8")
    table = text[text.rindex("| Test | What it shows |"):]
    return re.findall(r"^\| `(\w+)` \|", table, flags=re.M)


def found(pattern, *globs):
    """What the group of the pattern matches in these files of capi/."""
    files = [path for glob in globs for path in sorted((ROOT / "capi").glob(glob))]
    return {match for path in files for match in re.findall(pattern, path.read_text(encoding="utf-8"), flags=re.M)}


def snake(name):
    """worker_killed of WorkerKilled."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class Names(unittest.TestCase):
    def check(self, tests, without=frozenset()):
        self.assertEqual([name for name in names() if name not in tests and name not in without], [], "are missing")

    def test_the_table(self):
        self.assertEqual((len(names()), len(set(names()))), (COUNT, COUNT))

    def test_python(self):
        self.check(found(r"^    def test_(\w+)\(self", "python/tests/contract_test.py"))

    def test_go(self):
        self.check(set(map(snake, found(r"^func Test(\w+)\(", "go/*_test.go"))), CANNOT_FORK)

    def test_julia(self):
        self.check(found(r'^@testset "(\w+)"', "julia/test/*.jl"), CANNOT_FORK)

    def test_rust(self):
        self.check(found(r"^ *fn (\w+)\(\)", "rust/feedlane*/tests/**/*.rs", "rust/feedlane-sys/src/lib.rs"))


if __name__ == "__main__":
    unittest.main()
