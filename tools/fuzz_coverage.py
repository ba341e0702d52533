#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The share of lines that were reached, of each of some files, folders and functions.

Usage: fuzz_coverage.py ROOT EXPORT LEAST NAME... [FILE=PERCENT...]

EXPORT is what `llvm-cov export` says. A NAME is a file, a folder, which stands for each of its files, or
FILE:FUNCTION,FUNCTION... Of each file LEAST per cent must be reached, or PERCENT of one that is named with it. Prints
"PERCENT % of N lines (FILE PERCENT, ...)", those below LEAST named; ends with 1 if a file has fewer than it must, and with 2
for a name of which there are no lines.
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
    """(file, reached, lines) of a file, or of each file of a folder."""
    for entry in data["files"]:
        path = os.path.relpath(entry["filename"], root)
        lines = entry["summary"]["lines"]
        if (path == name or path.startswith(name + "/")) and lines["count"] != 0:
            yield path, lines["covered"], lines["count"]


def main():
    root, export, least, *rest = sys.argv[1:]
    names = [name for name in rest if "=" not in name]
    exceptions = dict(name.split("=") for name in rest if "=" in name)
    with open(export, encoding="utf-8") as file:
        data = json.load(file)["data"][0]
    found = []
    for name in names:
        path, _, functions = name.partition(":")
        files = [(path, *in_functions(data, root, path, functions.split(",")))] if functions else [*in_files(data, root, path)]
        if sum(lines for _, _, lines in files) == 0:
            print("no lines of", name, file=sys.stderr)
            return 2
        found += files
    percent = {path: 100 * reached / lines for path, reached, lines in found}
    behind = [f"{path} {share:.1f} %" for path, share in percent.items() if share < float(least)]
    together = 100 * sum(reached for _, reached, _ in found) / sum(lines for _, _, lines in found)
    print(f"{together:.1f} % of {sum(lines for _, _, lines in found)} lines" + (f" ({', '.join(behind)})" if behind else ""))
    too_few = [path for path, share in percent.items() if share < float(exceptions.get(path, least))]
    for path in too_few:
        print(f"    {path}: {percent[path]:.1f} %, should be {exceptions.get(path, least)} %", file=sys.stderr)
    return 1 if too_few else 0


if __name__ == "__main__":
    sys.exit(main())
