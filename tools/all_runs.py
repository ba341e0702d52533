#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print or record the last run of each part of `tools/check --all`: tests/all-runs.tsv has a line per part.

Usage: all_runs.py [FILE]                                      print the table
       all_runs.py FILE record PART PASSED FAILED SKIPPED      replace the part's line by this result, of today and this commit
"""

import datetime
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE = ROOT / "tests/all-runs.tsv"
COLUMNS = "part", "date", "commit", "passed", "failed", "skipped"


def rows_of(file):
    """The lines below the head, by part."""
    lines = file.read_text(encoding="utf-8").splitlines()[1:] if file.exists() else []
    return {line.split("\t")[0]: line.split("\t") for line in lines}


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def commit():
    """The newest one, with a + if files other than the record differ from it."""
    changed = any(not line.endswith(FILE.name) for line in git("status", "--porcelain", "--untracked-files=no").splitlines())
    return (git("rev-parse", "--short=12", "HEAD").strip() or "unknown") + "+" * changed


def record(file, part, *counts):
    rows = rows_of(file) | {part: [part, datetime.date.today().isoformat(), commit(), *counts]}
    file.write_text("".join("\t".join(row) + "\n" for row in [COLUMNS, *(rows[name] for name in sorted(rows))]), encoding="utf-8")


def main():
    file = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    if sys.argv[2:3] == ["record"] and len(sys.argv) == 7:
        record(file, *sys.argv[3:])
        return
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    rows = [COLUMNS, *rows_of(file).values()]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip())


if __name__ == "__main__":
    main()
