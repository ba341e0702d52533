#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The share of lines that were reached, of some files, folders and functions together.

Usage: fuzz_coverage.py ROOT EXPORT LEAST NAME...

EXPORT is what `llvm-cov export` says. A NAME is a file, a folder, or FILE:FUNCTION,FUNCTION... Prints
"PERCENT % of N lines (NAME PERCENT, ...)", those below LEAST per cent named; ends with 1 if all together are, and with 2 for
a name of which there are no lines.
"""

import json
import os
import sys


def lines_of(function):
    """Line -> how often it was reached. A line counts as its innermost region does, which comes after those around it."""
    lines = {}
    for first, _, last, _, count, file, _, kind in function["regions"]:
        if kind != 0 or file != 0:  # code, and not another file's
            continue
        for line in range(first, last + 1):
            # Where several begin, or one begins behind another, the line was reached if any was.
            lines[line] = max(count, lines.get(line, 0)) if line == first else count
    return lines


def in_functions(data, root, path, names):
    reached = {}
    for function in data["functions"]:
        if os.path.relpath(function["filenames"][0], root) != path:
            continue
        if any(f"{len(name)}{name}E" in function["name"] for name in names):
            for line, count in lines_of(function).items():
                reached[line] = max(count, reached.get(line, 0))
    return sum(count != 0 for count in reached.values()), len(reached)


def in_files(data, root, name):
    covered = total = 0
    for entry in data["files"]:
        path = os.path.relpath(entry["filename"], root)
        if path == name or path.startswith(name + "/"):
            covered += entry["summary"]["lines"]["covered"]
            total += entry["summary"]["lines"]["count"]
    return covered, total


def main():
    root, export, least, *names = sys.argv[1:]
    with open(export, encoding="utf-8") as file:
        data = json.load(file)["data"][0]
    reached = total = 0
    behind = []
    for name in names:
        path, _, functions = name.partition(":")
        found = in_functions(data, root, path, functions.split(",")) if functions else in_files(data, root, path)
        if found[1] == 0:
            print("no lines of", name, file=sys.stderr)
            return 2
        reached += found[0]
        total += found[1]
        if found[0] * 100 < float(least) * found[1]:
            behind.append(f"{path} {100 * found[0] / found[1]:.1f} %")
    print(f"{100 * reached / total:.1f} % of {total} lines" + (f" ({', '.join(behind)})" if behind else ""))
    return 1 if reached * 100 < float(least) * total else 0


if __name__ == "__main__":
    sys.exit(main())
