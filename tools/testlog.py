#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums up what `meson test` has left in meson-logs/testlog.json.

Usage: testlog.py TESTLOG LABEL REPORT

Prints "PASSED FAILED SKIPPED" and appends to REPORT the name and the end of the output of each test that failed. LABEL
says which of several runs this was. A log that is missing, empty or cut off counts as one failure: a run that says
nothing must not look like a good one.
"""

import json
import sys

TAIL_LINES = 40
# Meson's results; everything else (FAIL, TIMEOUT, ERROR, INTERRUPT, UNEXPECTEDPASS, ...) is a failure.
GOOD = {"OK", "EXPECTEDFAIL"}
SKIPPED = {"SKIP", "IGNORED"}


def read(path):
    """The tests of the log and what is wrong with the log itself, if anything."""
    tests, damage = [], None
    try:
        with open(path, encoding="utf-8", errors="replace") as log:
            for line in log:
                try:
                    test = json.loads(line)
                    test["name"], test["result"]  # pylint: disable=pointless-statement
                    tests.append(test)
                except (ValueError, KeyError, TypeError):
                    damage = "its log can't be read to the end"
    except OSError as error:
        damage = f"it left no log ({error.strerror})"
    return tests, damage or (None if tests else "it ran no test")


def tail(test):
    lines = []
    for stream in ("stdout", "stderr"):
        lines += (test.get(stream) or "").rstrip("\n").splitlines()[-TAIL_LINES:]
    return lines[-TAIL_LINES:] or ["(no output)"]


def describe(test):
    seconds = test.get("duration") or 0
    status = test.get("returncode")
    how = test["result"].lower() + (f", status {status}" if test["result"] == "FAIL" and status else "")
    return f"{test['name']} ({how}, {seconds:.1f} s)"


def main():
    path, label, report_path = sys.argv[1:]
    tests, damage = read(path)
    bad = [test for test in tests if test["result"] not in GOOD | SKIPPED]
    skipped = sum(test["result"] in SKIPPED for test in tests)
    with open(report_path, "a", encoding="utf-8") as report:
        for test in bad:
            print(f"\nFAILED {label}: {describe(test)}", *("    " + line for line in tail(test)), sep="\n", file=report)
        if damage:
            print(f"\nFAILED {label}: {damage}", file=report)
    print(len(tests) - len(bad) - skipped, len(bad) + bool(damage), skipped)


if __name__ == "__main__":
    main()
