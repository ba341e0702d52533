#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/promises.py finds each kind of mistake in a made-up tree, and none in a correct one. Usage: promises_test.py ROOT"""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, sys.argv[1] + "/tools")

import promises  # noqa: E402

PAGE = """Text `not-a-tag`

| Promise | Compared with torch | Tag |
|---|---|---|
| A batch comes once | Same | `batch-once` |
| A batch comes whole | Same | `batch-whole`; in part: only its head |

| Fault | Effect | Tag |
|---|---|---|
| power cut | none | `power-cut`; no test yet: it needs a switch |
"""
# "@" keeps these lines from being comments of this file.
CASES = """// A file.
@// promise: batch-once
@// promise: batch-whole
TEST_CASE("a batch" " with \\"quotes\\"") {}
""".replace("@", "")
SCRIPT = '"""A program without test cases."""\n# promise: batch-whole\nimport os\n\n\n# promise: batch-once\ndef test_once():\n    pass\n'


class Promises(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name, text in (("docs/semantics.md", PAGE), ("docs/failure-semantics.md", ""),
                           ("tests/semantics/batch_test.cpp", CASES), ("tests/script_test.py", SCRIPT)):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def change(self, name, old, new):
        path = self.root / name
        self.assertIn(old, path.read_text())
        path.write_text(path.read_text().replace(old, new))

    def found(self, *words):
        problems = list(promises.problems(self.root))
        self.assertEqual(len(problems), 1, problems)
        for word in words:
            self.assertIn(word, problems[0])

    def test_correct_tree(self):
        self.assertEqual(list(promises.problems(self.root)), [])
        self.assertEqual([(test.file, test.line, test.name, test.tags) for test in promises.tests_of(self.root)],
                         [("tests/script_test.py", 1, "", ["batch-whole"]), ("tests/script_test.py", 7, "test_once", ["batch-once"]),
                          ("tests/semantics/batch_test.cpp", 4, 'a batch with "quotes"', ["batch-once", "batch-whole"])])

    def test_promise_without_a_test(self):
        self.change("docs/semantics.md", "; no test yet: it needs a switch", "")
        self.found("docs/semantics.md:10", "power-cut has no test")

    def test_no_test_yet_needs_a_reason(self):
        self.change("docs/semantics.md", "no test yet: it needs a switch", "no test yet")
        self.found("power-cut has no test")

    def test_no_test_yet_although_there_is_one(self):
        self.change("docs/semantics.md", "in part: only its head", "no test yet: large")
        self.found("batch-whole", "but has one")

    def test_unknown_tag(self):
        self.change("tests/script_test.py", "# promise: batch-whole", "# promise: batch-hole")
        self.found("tests/script_test.py:1", "batch-hole")

    def test_case_of_semantics_without_a_promise(self):
        with (self.root / "tests/semantics/batch_test.cpp").open("a") as file:
            file.write('TEST_CASE("bare") {}\n')
        self.found("tests/semantics/batch_test.cpp:5", "bare")

    def test_row_without_a_tag(self):
        self.change("docs/semantics.md", "`power-cut`;", "power cut;")
        self.found("docs/semantics.md:10", "a tag in the last one")

    def test_tag_twice(self):
        self.change("docs/semantics.md", "`power-cut`; no test yet: it needs a switch", "`batch-once`")
        self.assertEqual(len(list(promises.problems(self.root))), 2)

    def test_tag_within_another(self):
        self.change("docs/semantics.md", "power-cut", "batch-once-more")
        self.found("docs/semantics.md:5", "git grep batch-once would also find batch-once-more")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
