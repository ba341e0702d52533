#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the unit tests of a cross build, and stress tests of rings, lanes and the loader, under its emulator, without what the
emulator can't do.

Usage: emulated.py BUILD [LABEL REPORT]

BUILD was set up with tools/aarch64.ini. Prints a line for each test case that is left out, with the reason, and at the end
"PASSED FAILED SKIPPED": programs that passed or failed, cases left out. Appends what failed to REPORT (by default it is
printed). Ends with 1 if anything failed.
"""

import json
import os
import shlex
import stat
import subprocess
import sys
import tempfile

EMULATOR = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
TIMEOUT_S = 300
TAIL_LINES = 60

# What qemu-user (7.2) does otherwise than a kernel. By the program of the test and the name of the case.
NO_MADVISE = "qemu-user takes madvise and does nothing (MADV_DONTFORK, MADV_DONTDUMP, MADV_WIPEONFORK, MADV_REMOVE)"
NO_EXEC = "an emulated program can only exec what the host itself can run"
NO_VFORK = "vfork is fork under qemu-user: posix_spawn can't learn of a failed exec"
LEFT_OUT = {
    "shm": {
        "a worker's own children have no mapping of data": NO_MADVISE,
        "a forked child has no mapping of control": NO_MADVISE,
        "a core dump of the trainer or of a worker does not contain the arena": NO_MADVISE,
        "a forked child takes over its parent's mapping of data, and its own children do not inherit it": NO_MADVISE,
        "a child forked by another thread during creation never has a writable mapping of control": NO_MADVISE,
        "restoring a slot frees memory touched beyond its reserved part and reserves that part again": NO_MADVISE,
    },
    "os": {
        "a stamp is valid in the process that took it and invalid in a forked child": NO_MADVISE,
        "a child can take stamps of its own, and its parent's stamps stay invalid in it": NO_MADVISE,
        "a grandchild distinguishes its parent's and its grandparent's stamps from its own": NO_MADVISE,
        "a child created by fork_process holds no lifeline and leads its own process group": NO_MADVISE,
        "a child created by fork_process is tied before it runs: it does not outlive a parent killed at once": NO_MADVISE,
        "a child forked by the host closes the lifelines it has inherited, but no other file with the same number": NO_MADVISE,
        "a forked child closes inherited lifelines even if its PID namespace gives it the same PID as its parent": NO_MADVISE,
        "a size beyond RLIMIT_AS is refused, and the error has the number of bytes still available": "qemu-user doesn't let a program limit its address space",
        "a started process does not inherit the blocked and ignored signals of its parent": "the C library's own signals have other numbers outside",
        "starting a program that can't be executed fails, the error names the program, and no process is left": NO_VFORK,
        "memory bound to nodes is bound in every mapping": "qemu-user has no mbind",
        "starting a child on processors that don't exist fails with E_OS and their number, and leaves no child": NO_VFORK,
        "a program name without a slash is looked up in PATH as by execvp: the first executable file is started": NO_VFORK,
        "this_program returns the absolute path of the executable, whatever argv[0] is, and its arguments": NO_EXEC,
        "where membarrier is refused, registration fails, and so does a barrier of an already registered process": "qemu-user has no seccomp",
        "descriptors beyond the expected number are closed, and their loss is flagged":
            "qemu-user receives into more room for descriptors than the program has",
    },
}


# `mutants` tests a tool of the machine that builds.
HOSTS_OWN = ["mutants"]
# Those that start nothing but threads and forks. On x86 the emulator reorders nothing that x86 doesn't: what this shows is that the
# code made for aarch64 does what it should, not that its orders are strong enough. For that there are the litmus tests.
STRESS = ["ring_stress", "lanes_stress", "rings_stress", "threads_stress", "stragglers_stress"]


def run(command, cwd):
    """(what went wrong or None, output)"""
    try:
        finished = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as late:
        return f"not done after {TIMEOUT_S} s", (late.output or b"").decode(errors="replace")
    return (f"status {finished.returncode}" if finished.returncode else None), finished.stdout


def is_foreign(path, machine=183):
    """Whether it is a program for aarch64."""
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:
        return False
    return head[:4] == b"\x7fELF" and int.from_bytes(head[18:20], "little") == machine


def wrapped(argument, build, scratch):
    """A script that starts the program, if the argument is one for aarch64: also for tests that are Python and start it."""
    path = os.path.join(build, argument)
    if not is_foreign(path):
        return argument
    script = os.path.join(scratch, os.path.basename(path))
    with open(script, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nexec {shlex.join([*EMULATOR, path])} "$@"\n')
    os.chmod(script, os.stat(script).st_mode | stat.S_IXUSR)
    return script


def chosen_tests(build):
    with open(os.path.join(build, "meson-info/intro-tests.json"), encoding="utf-8") as file:
        for test in json.load(file):
            if test["name"] in HOSTS_OWN:
                continue
            if test["name"] in STRESS or any(suite.split(":")[-1] == "unit" for suite in test["suite"]):
                yield test["name"], test["cmd"]


def run_test(name, command, build):
    """Failures of one test, each a title and output; and the cases that were left out."""
    left_out = LEFT_OUT.get(name, {})
    if left_out:
        _, listing = run([*command, "--list-test-cases"], build)
        for case in sorted(left_out.keys() - set(listing.splitlines())):
            yield f"{name}: '{case}' is to be left out, but there is no such case", ""
        # A comma separates patterns; ? is any character.
        command = [*command, "--test-case-exclude=" + ",".join(case.replace(",", "?") for case in left_out)]
    wrong, output = run(command, build)
    if wrong:
        yield f"{name} ({wrong})", "\n".join(output.rstrip().splitlines()[-TAIL_LINES:])


def main():
    build = os.path.abspath(sys.argv[1])
    label, report_path = sys.argv[2:] or ("emulated", "/dev/stdout")
    passed = failed = skipped = 0
    with tempfile.TemporaryDirectory(prefix="feedlane-emulated.") as scratch, \
            open(report_path, "a", encoding="utf-8") as report:
        for name, command in chosen_tests(build):
            problems = list(run_test(name, [wrapped(part, build, scratch) for part in command], build))
            for title, output in problems:
                print(f"\nFAILED {label}: {title}", *("    " + line for line in output.splitlines()), sep="\n", file=report)
            passed += not problems
            failed += bool(problems)
            for case, reason in LEFT_OUT.get(name, {}).items():
                skipped += 1
                print(f"left out: {name}, '{case}': {reason}")
    print(passed, failed, skipped)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
