#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the Ninja targets that the tests of some suites need, one a line.

Usage: test_targets.py BUILD SUITE...

A check that runs some suites only has no use for the programs of the others. No output, and status 1, if a suite has no test:
Ninja would build everything then.
"""

import json
import os
import sys


def read(build, name):
    with open(os.path.join(build, "meson-info", f"intro-{name}.json"), encoding="utf-8") as file:
        return json.load(file)


def main():
    build, *suites = sys.argv[1:]
    build = os.path.realpath(build)
    tests = read(build, "tests")
    wanted = set()
    for suite in suites:
        # Meson writes PROJECT:SUITE.
        chosen = [test for test in tests if any(name.split(":")[-1] == suite for name in test["suite"])]
        if not chosen:
            print(f"{build} has no test of the suite {suite}", file=sys.stderr)
            return 1
        for test in chosen:
            wanted.update(test["depends"])
    for target in read(build, "targets"):
        if target["id"] in wanted:
            for path in target["filename"]:
                print(os.path.relpath(path, build))
    return 0


if __name__ == "__main__":
    sys.exit(main())
