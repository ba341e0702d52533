#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes single changes of the library, one after the other, and says which of them no test notices.

Usage: tools/mutants/run.py [--rooms ring,shm,arena,supervisor,loader] [--sample N] [--seed S] [--only REGEX] [--jobs N]
                            [--budget SECONDS] [--report FILE.json] [--again FILE.json] [--listed] [--sanitize] [--list]

Builds the library with all changes in it (mutate.py) and the tests into build-mutants/, finds which test case comes to which
change, and runs for each change the cases that do, the likely ones first, until one fails. A case that fails with a change must
pass without it right after, or it doesn't count. What no case can notice is in equivalent.txt, with the reason; what a test could
notice, but none does, is in gaps.txt, and counts as not noticed. Neither is run. An entry of these files that is no change any
more is told.

  --rooms R      any folders of lib/, such as sharing,channel,worker,dataset,sampler,checkpoint,monitor. equivalent.txt and gaps.txt
                 list changes of the default rooms only, so the others show a lower share
  --sample N     N changes drawn at random with seed S, in place of all
  --only REGEX   only changes in whose name this is found
  --budget S     the most seconds of test cases for a change; beyond it the change counts as not noticed (300)
  --again F      what this report says was noticed counts as noticed; the others are run
  --listed       what is in equivalent.txt and gaps.txt is run as well: to find reasons that are wrong, and gaps that are closed
  --sanitize     with AddressSanitizer and UBSan, in a build of its own: for changes of what only they see
  --list         says what would be changed, and ends

Ctrl-C or SIGTERM ends it with a summary of the changes that were made by then.

The exit status is 0 if at least 95 % of what is not in equivalent.txt was noticed. Orders of atomic accesses are not
changed here: on x86 most of them make no difference that a test could see. The litmus tests weaken them (docs/proofs.md)."""

import argparse
import collections
import concurrent.futures
import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import mutate

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
FOLDER = os.path.join(ROOT, "build-mutants")
SOURCE = os.path.join(FOLDER, "source")
SANITIZERS = {"ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1", "UBSAN_OPTIONS": "halt_on_error=1"}
ROOMS = ["ring", "shm", "arena", "supervisor", "loader"]
SUITES = ["unit", "capi", "semantics", "crash", "fuzz"]
MOST = 1 << 16  # as in mutants.hpp
GOAL = 0.95


class Case:
    """A test case of doctest: the `index`-th of a test's program. None: the program has only one."""

    def __init__(self, test, index):
        self.test, self.index, self.seconds = test, index, 0.0
        self.reached = set()

    def program(self):
        return self.test["cmd"][0]

    def name(self):
        return f"{os.path.basename(self.program())} {self.index or ''}".strip()

    def run(self, limit, **environment):
        """Whether it passes within `limit` seconds. Nothing that it has started is left."""
        chosen = [f"--first={self.index}", f"--last={self.index}"] if self.index else []
        command = [*ISOLATION, *self.test["cmd"], *chosen]
        child = subprocess.Popen(command, env={**os.environ, **SANITIZERS, **self.test["env"], **environment},
                                 cwd=self.test["build"], start_new_session=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return child.wait(limit) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()


def isolation():
    """A PID namespace for each case, where that is allowed: its processes end with it, whatever was changed. Since all of them have
    the same pid then, each has a /tmp of its own, in which this tree is where it was."""
    own = "mount -t tmpfs none /tmp"
    if ROOT.startswith("/tmp/"):
        own = f"mount --bind '{ROOT}' /mnt && {own} && mkdir -p '{ROOT}' && mount --bind /mnt '{ROOT}'"
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", f"{own} && exec \"$@\"", "-"]
    works = shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    return command if works else []


ISOLATION = isolation()


def copy_and_mutate(rooms):
    """The tree of this commit and what was changed since, in SOURCE, with the changes of these rooms."""
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True).stdout
    mutants = []
    for name in names.splitlines():
        origin, copy = os.path.join(ROOT, name), os.path.join(SOURCE, name)
        if not os.path.isfile(origin):
            continue
        with open(origin, "rb") as f:
            content = f.read()
        if os.path.dirname(name) in [f"lib/{room}" for room in rooms] and name.endswith((".cpp", ".hpp")):
            text, its = mutate.mutate(content.decode(), name, len(mutants))
            mutants += its
            content = text.encode()
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        if os.path.exists(copy):  # what is as it was is not built again
            with open(copy, "rb") as f:
                if f.read() == content:
                    continue
        with open(copy, "wb") as f:
            f.write(content)
        shutil.copymode(origin, copy)
    assert len(mutants) < MOST
    return mutants


def build(sanitize):
    """The tests of SUITES that are programs of doctest."""
    folder = os.path.join(FOLDER, "build-asan" if sanitize else "build")
    if not os.path.exists(os.path.join(folder, "build.ninja")):
        subprocess.run(["meson", "setup", folder, SOURCE, "-Dwerror=false", "-Dwarning_level=0", "-Ddebug=false", "-Doptimization=1",
                        "-Db_lto=false", "-Dexamples=disabled",
                        *(["-Db_sanitize=address,undefined", "-Db_lundef=false"] if sanitize else []),
                        f"-Dcpp_args=['-include', '{HERE}/mutants.hpp', '-D_GLIBCXX_ASSERTIONS', '-fno-sanitize=vptr']"],
                       check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", folder, "build.ninja"], check=True, stdout=sys.stderr)  # with tests that are new
    targets = subprocess.run([sys.executable, os.path.join(ROOT, "tools/test_targets.py"), folder, *SUITES], capture_output=True,
                             text=True, check=True).stdout.split()
    subprocess.run(["ninja", "-C", folder, *targets], check=True, stdout=sys.stderr)
    with open(os.path.join(folder, "meson-info/intro-tests.json"), encoding="utf-8") as f:
        tests = json.load(f)
    fitting = [t for t in tests if {s.split(":")[-1] for s in t["suite"]} & set(SUITES) and t["cmd"][0].startswith(folder)]
    return [{**t, "build": folder} for t in fitting]


def counting(test):
    """What doctest says of its cases; something else if it is none of doctest's. Those may do all they do: they aren't called."""
    program = test["cmd"][0]
    with open(program, "rb") as f:
        if b"[doctest]" not in f.read():
            return ""
    return subprocess.run([program, "--count"], capture_output=True, text=True, check=True, env={**os.environ, **test["env"]}).stdout


def find_cases(tests, jobs):
    """The cases that pass without a change, how long each takes, and what it comes to."""
    cases = []
    for test in tests:
        counted = re.search(r"current filters: (\d+)", counting(test))
        cases += [Case(test, i + 1) for i in range(int(counted[1]))] if counted else [Case(test, None)]

    def look(case):
        with tempfile.NamedTemporaryFile(dir=FOLDER) as seen:  # a case has a /tmp of its own
            seen.truncate(MOST)
            start = time.monotonic()
            passes = case.run(120, FEEDLANE_MUTANTS_SEEN=seen.name)
            case.seconds = time.monotonic() - start
            case.reached = {i for i, byte in enumerate(seen.read()) if byte}
        return case if passes else None

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        passing = [case for case in pool.map(look, cases) if case]
    if not passing:
        sys.exit("no test case passes without a change")
    return passing


class Hunt:
    """Looks for a case that notices a change."""

    def __init__(self, cases, budget):
        self.budget = budget
        self.of = collections.defaultdict(list)
        for case in cases:
            for number in case.reached:
                self.of[number].append(case)
        self.caught_by = collections.Counter()  # (function, case)

    def run(self, mutant):
        """The case that notices it, or None; and how many were run: those first that noticed others here, then those of the room's
        own unit test, then the quick ones. The cases of one program are alike, so they alternate with those of others."""
        own = "unit-" + mutant.file.split("/")[1]
        of_program, cost = collections.Counter(), {}
        for case in sorted(self.of[mutant.number], key=lambda c: c.seconds):
            of_program[case.program()] += 1
            cost[case] = of_program[case.program()] * case.seconds * (0.01 if case.program().endswith(own) else 1)

        def order(case):
            return -self.caught_by[mutant.function, case], -self.caught_by[mutant.file, case], cost[case]

        spent = ran = 0
        for case in sorted(cost, key=order):
            if spent > self.budget:
                break
            limit = 10 * case.seconds + 5
            start = time.monotonic()
            ran += 1
            if not case.run(limit, FEEDLANE_MUTANT=str(mutant.number)) and case.run(limit):
                self.caught_by[mutant.function, case] += 1
                self.caught_by[mutant.file, case] += 1
                return case.name(), ran
            spent += time.monotonic() - start
        return None, ran


def read_equivalent():
    """{name of a mutant: reason}."""
    with open(os.path.join(HERE, "equivalent.txt"), encoding="utf-8") as f:
        blocks = [b.splitlines() for b in f.read().split("\n\n")]
    return {b[0]: " ".join(line.strip() for line in b[1:]) for b in blocks if b and not b[0].startswith("#")}


def read_gaps():
    """The names of mutants in gaps.txt."""
    with open(os.path.join(HERE, "gaps.txt"), encoding="utf-8") as f:
        return {line for line in f.read().splitlines() if line and not line.startswith("#")}


def summarise(results, seconds):
    """Prints it. The exit status."""
    for key in lambda r: r["file"].split("/")[1], lambda r: r["kind"]:
        groups = collections.defaultdict(list)
        for r in results:
            groups[key(r)].append(r["caught_by"] is not None)
        print("; ".join(f"{name} {sum(found)} of {len(found)}" for name, found in sorted(groups.items())))
    caught = sum(r["caught_by"] is not None for r in results)
    explained = sum(r["reason"] is not None for r in results)
    share = caught / max(1, len(results) - explained)
    print(f"{caught} of {len(results)} noticed, {explained} equivalent, {len(results) - caught - explained} left: {share:.1%} of those that "
          f"change anything; {seconds:.0f} s")
    return 0 if share >= GOAL else 1


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1])
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--budget", type=float, default=300)
    parser.add_argument("--report")
    parser.add_argument("--again")
    parser.add_argument("--listed", action="store_true")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    everything = copy_and_mutate(options.rooms.split(","))
    mutants = [m for m in everything if re.search(options.only, m.name())]
    if options.sample is not None and options.sample < len(mutants):
        mutants = random.Random(options.seed).sample(mutants, options.sample)
    if options.list:
        for m in mutants:
            print(f"{m.file}:{m.line} {m.function}: {m.kind}: {m.text}")
        print(len(mutants), "changes:", ", ".join(f"{count} {kind}" for kind, count in collections.Counter(m.kind for m in mutants).most_common()))
        return
    start = time.monotonic()
    cases = find_cases(build(options.sanitize), options.jobs)
    print(f"{len(cases)} cases come to {len(set().union(*[c.reached for c in cases]))} of {len(everything)} changes "
          f"({time.monotonic() - start:.0f} s with the build)", flush=True)
    equivalent, gaps = read_equivalent(), read_gaps()
    if not options.only and set(options.rooms.split(",")) == set(ROOMS):
        for name in sorted((set(equivalent) | gaps) - {m.name() for m in everything}):
            print(f"listed, but no change any more: {name}")
    hunt, results = Hunt(cases, options.budget), []
    if options.again:
        with open(options.again, encoding="utf-8") as f:
            noticed = {r["name"]: r for r in json.load(f) if r["caught_by"]}
        results = [noticed[m.name()] for m in mutants if m.name() in noticed]
        mutants = [m for m in mutants if m.name() not in noticed]
    if not options.listed:
        listed = [m for m in mutants if m.name() in equivalent or m.name() in gaps]
        results += [{"name": m.name(), **m.__dict__, "caught_by": None, "cases": 0, "of": 0, "reason": equivalent.get(m.name())}
                    for m in listed]
        mutants = [m for m in mutants if m not in listed]

    def one(mutant):
        case, ran = hunt.run(mutant)
        reason = equivalent.get(mutant.name())
        of = len(hunt.of[mutant.number])
        results.append({"name": mutant.name(), **mutant.__dict__, "caught_by": case, "cases": ran, "of": of,
                        "reason": None if case else reason})
        if not case:
            said = f"equivalent: {reason}" if reason else f"not noticed by {ran} of {of} cases" if ran else "no case comes there"
            print(f"{mutant.name()}\n    line {mutant.line}; {said}", flush=True)

    def stop(*_):
        raise KeyboardInterrupt

    for number in signal.SIGINT, signal.SIGTERM:  # SIGINT is ignored from the start in a background job
        signal.signal(number, stop)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        try:
            list(pool.map(one, mutants))
        except KeyboardInterrupt:  # what was found by now counts
            pool.shutdown(wait=True, cancel_futures=True)
            print(f"ended after {len(results)} changes", flush=True)
    if options.report:
        with open(options.report, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)
    sys.exit(summarise(results, time.monotonic() - start))


if __name__ == "__main__":
    main()
