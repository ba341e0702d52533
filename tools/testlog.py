#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums up what `meson test` has left in meson-logs/testlog.json.

Usage: testlog.py TESTLOG LABEL REPORT

Prints "PASSED FAILED SKIPPED" and appends to REPORT the name and the end of the output of each test that failed, and one
line for each test or test case that was skipped: a program that passes may have left out some of its cases, by
tests/support/skip.hpp or by unittest. LABEL says which of several runs this was. A log that is missing, empty or cut off counts as one failure: a run that says
nothing must not look like a good one.
"""

import json
import re
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


def skips_of(test):
    """What was left out, a line each: the whole test, or cases of one that passed."""
    text = "\n".join(test.get(stream) or "" for stream in ("stdout", "stderr"))
    if test["result"] in SKIPPED:
        # unittest names the reasons; others end with theirs.
        return [test["name"] + ": " + (text.strip().splitlines() or ["(no reason given)"])[-1]]
    cases = re.findall(r"^skipped case: (.*)$", text, re.MULTILINE)
    for count in re.findall(r"^(?:OK|FAILED) \(.*skipped=(\d+)", text, re.MULTILINE):
        reasons = re.findall(r"\.\.\. skipped (.*)$", text, re.MULTILINE)
        cases += (reasons + ["(run with -v for the reason)"] * int(count))[: int(count)]
    return [f"{test['name']}: {case}" for case in cases]


def describe(test):
    seconds = test.get("duration") or 0
    status = test.get("returncode")
    how = test["result"].lower() + (f", status {status}" if test["result"] == "FAIL" and status else "")
    return f"{test['name']} ({how}, {seconds:.1f} s)"


def main():
    path, label, report_path = sys.argv[1:]
    tests, damage = read(path)
    bad = [test for test in tests if test["result"] not in GOOD | SKIPPED]
    good = sum(test["result"] in GOOD for test in tests)
    skipped = [line for test in tests for line in skips_of(test)]
    with open(report_path, "a", encoding="utf-8") as report:
        for test in bad:
            print(f"\nFAILED {label}: {describe(test)}", *("    " + line for line in tail(test)), sep="\n", file=report)
        for line in skipped:
            print(f"\nskipped {label}: {line}", file=report)
        if damage:
            print(f"\nFAILED {label}: {damage}", file=report)
    print(good, len(bad) + bool(damage), len(skipped))


if __name__ == "__main__":
    main()
