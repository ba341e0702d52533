#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/semantics.md names tests that exist, all test cases of tests/semantics, and a test for every promise.

Usage: semantics_doc_test.py DOCUMENT TESTS [OTHER...]

TESTS is the folder tests/ of the source tree. Of the other documents only the tests that they name are looked at.
"""

import pathlib
import re
import sys
import unittest

COLUMNS = ["Promise", "Test", "Beside torch"]
NOT_THERE = "not there yet"
STRING = r'"(?:[^"\\]|\\.)*"'


def cases_of(path):
    """The names of a file's doctest cases."""
    text = path.read_text(encoding="utf-8")
    for found in re.findall(rf"TEST_CASE\(\s*((?:{STRING}\s*)+)\)", text):
        yield "".join(part[1:-1] for part in re.findall(STRING, found)).replace(r"\"", '"')


def names_of(folder):
    """`file: test case` of every doctest case, as the document writes them."""
    for path in sorted(folder.rglob("*.cpp")):
        file = path.relative_to(folder).with_suffix("").as_posix()
        file = file.removeprefix("semantics/").removesuffix("_test")
        for case in cases_of(path):
            yield f"{file}: {case}"


def rows_of(text):
    """(line number, section, cells) of every row of a table, its head included."""
    section = None
    for number, line in enumerate(text.splitlines(), 1):
        if heading := re.match(r"## (\d+)\. ", line):
            section = int(heading[1])
        elif line.startswith("|") and not line.startswith("|--"):
            yield number, section, [cell.strip() for cell in line.strip("|").split("|")]


class SemanticsDoc(unittest.TestCase):
    def setUp(self):
        heads_and_rows = list(rows_of(document.read_text(encoding="utf-8")))
        self.heads = [row for row in heads_and_rows if row[2] == COLUMNS]
        self.rows = [row for row in heads_and_rows if row[2] != COLUMNS]
        self.named = [(number, name) for number, _, cells in self.rows for name in re.findall("`([^`]+)`", cells[1])
                      if ": " in name or "/" in name]

    def test_every_test_named_exists(self):
        known = set(names_of(tests))
        for number, name in self.named:
            with self.subTest(name):
                exists = name in known if ": " in name else (tests / name).is_file()
                self.assertTrue(exists, f"{document.name}:{number} names a test that doesn't exist: {name}")

    def test_every_test_that_other_documents_name_exists(self):
        known = set(names_of(tests))
        for other in others:
            for name in re.findall(r"`([a-z_/]+: [^`]+|[a-z_]+/[a-z_/]+_(?:stress\.cpp|test\.py))`", other.read_text(encoding="utf-8")):
                with self.subTest(name):
                    exists = name in known if ": " in name else (tests / name.removeprefix("tests/")).is_file()
                    self.assertTrue(exists, f"{other.name} names a test that doesn't exist: {name}")

    def test_every_test_case_of_semantics_is_named(self):
        named = {name for _, name in self.named}
        for path in sorted((tests / "semantics").glob("*.cpp")):
            for case in cases_of(path):
                name = f"{path.stem.removesuffix('_test')}: {case}"
                with self.subTest(name):
                    self.assertTrue(name in named, f"{document.name} doesn't name {name}")

    def test_no_two_cases_have_one_name(self):
        known = list(names_of(tests / "semantics"))
        self.assertEqual(sorted({name for name in known if known.count(name) > 1}), [])

    def test_every_case_is_understood(self):
        for path in sorted((tests / "semantics").glob("*.cpp")):
            text = path.read_text(encoding="utf-8")
            self.assertEqual(len(re.findall(r"^TEST_CASE", text, re.MULTILINE)), len(list(cases_of(path))), path.name)

    def test_sections_are_there(self):
        self.assertEqual([section for _, section, _ in self.heads], list(range(1, 10)), "one table in each section")
        self.assertEqual({section for _, section, _ in self.rows}, set(range(1, 10)))

    def test_every_row_has_a_test_or_says_that_it_has_none(self):
        with_test = {number for number, _ in self.named}
        for number, _, cells in self.rows:
            where = f"{document.name}:{number}"
            with self.subTest(where):
                self.assertEqual(len(cells), len(COLUMNS), f"{where} hasn't three columns")
                self.assertTrue(all(cells), f"{where} has an empty column")
                self.assertTrue(number in with_test or NOT_THERE in cells[1],
                                f"{where} has no test and doesn't say '{NOT_THERE}': {cells[0]}")


if __name__ == "__main__":
    document, tests, *others = (pathlib.Path(argument) for argument in sys.argv[1:])
    unittest.main(argv=sys.argv[:1])
