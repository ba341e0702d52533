# SPDX-License-Identifier: Apache-2.0
"""The LuaJIT binding: at most 60 lines over the minimal set that feedlane.h names, which trains the digits, with a killed worker
too. Usage: luajit_test.py LUAJIT BINDING PROGRAM FOLDER_OF_THE_DIGITS INCLUDE_FOLDER LIBFEEDLANE"""
import os
import re
import sys
import unittest

from programs import describe, run

LUAJIT, BINDING, PROGRAM, FOLDER, INCLUDE, LIBRARY = sys.argv[1:]


def source(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def minimal_set():
    """The functions that the comment of feedlane.h lists, whose names after the first of a group are short."""
    text = re.search(r"A binding to another language needs (\d+) functions:(.*?)\.\s", " ".join(
        line.strip(" *") for line in source(os.path.join(INCLUDE, "feedlane.h")).splitlines()))
    names, prefix = set(), ""
    for name in re.findall(r"\b(feedlane_\w+|_\w+)", text[2]):
        if name.startswith("feedlane_"):
            prefix = "_".join(name.split("_")[:2])
        names.add(name if name.startswith("feedlane_") else prefix + name)
    assert len(names) == int(text[1]), sorted(names)
    return names


class LuaJit(unittest.TestCase):
    def train(self, *arguments):
        command = [LUAJIT, PROGRAM, FOLDER, *arguments]
        finished = run(*command, env=os.environ | {"FEEDLANE_INCLUDE": INCLUDE, "FEEDLANE_LIBRARY": LIBRARY})
        self.assertEqual(finished.code, 0, describe(command, finished))
        return finished

    def test_sixty_lines_over_the_minimal_set(self):
        binding = source(BINDING)
        self.assertLessEqual(len(binding.splitlines()), 60)
        used = set(re.findall(r"\bC\.(feedlane_\w+)", binding + source(PROGRAM)))
        self.assertEqual(used, minimal_set())

    def test_trains_the_digits(self):
        out = self.train().out
        self.assertGreater(float(re.search(r"^test accuracy: ([\d.]+)$", out, re.M)[1]), 0.88, out)

    def test_a_killed_worker_changes_nothing(self):
        killed = self.train("kill")
        self.assertRegex(killed.err, r"worker \d kills itself")
        self.assertEqual(killed.out, self.train().out)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
