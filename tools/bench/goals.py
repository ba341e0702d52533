#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds every ratio of docs/performance.md against a record of it (tools/bench/baseline.json). Times alone never fail: a ratio
is of two things measured in the same round, and the median of the rounds is what counts. It must reach 75 % of the recorded
median; where the recorded runs themselves were further apart than that, 75 % of the worst of them. A
ratio whose recorded runs are more than 1.5 times apart, or that tools/bench/goals.json excepts, is shown and not held. What misses that is measured again with twice the rounds, and
counts by the median of all.

A group is skipped, with its reason and exit status 77, where it says nothing: too few processors, other programs that take
more than a tenth of them, a host that moves its guest's processors meanwhile, no torch, or no record of this processor.

Usage: goals.py [--group NAME]... [--rounds N] [--record RUNS] PATH_OF_FEEDLANE"""
import argparse
import fnmatch
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GOALS, BASELINE = HERE / "goals.json", HERE / "baseline.json"
PEERS = ("photographs", "tokens", "table", "detection")  # kinds of work of peers.py
GROUPS = ("ring", "latency", "lanes", "handoff", "arena", "loader", "small", "work", "sharing", "cpp", "startup", "torch",
          *PEERS, "python", "rows")
INSTALLED = ("handoff", "arena", "startup")  # measured by the feedlane command
TOLERANCE = 0.25
TOO_WIDE = 1.5        # the best recorded run over the worst, of a ratio that is shown only
OTHERS_SHARE = 0.1   # of the processors, that other programs may take
ONE_CORE_NS = 100    # a line there and back in less doesn't leave the core: the two processors are its threads
LONGEST_S = 100      # for one group
QUIET_TRIES = 6      # looks of half a second at what others take, before a group


class Skipped(Exception):
    """A group whose figures would say nothing."""


def measuring(group, feedlane, python=sys.executable):
    """The command that measures the group, without options."""
    if group == "torch":
        return [python, str(HERE / "peer_torch.py"), "--feedlane", feedlane]
    if group in PEERS:
        return [python, str(HERE / "peers.py"), "--feedlane", feedlane, "--work", group]
    if group == "python":
        return [python, str(ROOT / "examples/python/compare_torch.py")]
    if group == "rows":
        return [python, str(HERE / "rows.py")]
    if group in INSTALLED:
        return [feedlane, "bench", group]
    return [str(pathlib.Path(feedlane).resolve().parents[1] / "bench/compare-peers"), group]


def command(group, feedlane, rounds):
    return [*measuring(group, feedlane), "--rounds", str(rounds), "--quick", "--json"]


def environment(feedlane):
    """For Python's side: the package, and the library of the same build."""
    library = pathlib.Path(feedlane).resolve().parents[2] / "capi/libfeedlane.so.1"
    package = os.pathsep.join(filter(None, [str(ROOT / "capi/python"), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": package, **({"FEEDLANE_LIBRARY": str(library)} if library.exists() else {})}


class Processors:
    """What share of them others take from here on: other programs, and the host."""

    def __init__(self):
        self._began, self._busy, self._own = time.monotonic(), *self._now()

    @staticmethod
    def _now():
        ticks = os.sysconf("SC_CLK_TCK")
        ours, busy = {f"cpu{number}" for number in os.sched_getaffinity(0)}, 0
        with open("/proc/stat", encoding="ascii") as file:
            for name, *times in map(str.split, file):
                if name in ours:
                    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, times[:8])
                    busy += user + nice + system + irq + softirq + steal
        own = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return busy / ticks, own

    def others(self):
        busy, own = self._now()
        spent = (busy - self._busy) - (own - self._own)
        return spent / max(time.monotonic() - self._began, 1e-3) / len(os.sched_getaffinity(0))


def wait_until_quiet():
    others = 1
    for _ in range(QUIET_TRIES):
        processors = Processors()
        time.sleep(0.5)
        others = processors.others()
        if others <= OTHERS_SHARE:
            return
    raise Skipped(f"other programs take {others:.0%} of the processors")


def kind_of_processor():
    """Family, model and stepping: a host may call processors of several kinds by one name."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        said = dict((part.strip() for part in line.split(":", 1)) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
    kinds = [said[key] for key in ("cpu family", "model", "stepping") if key in said]
    return f" ({'.'.join(kinds)})" if kinds else ""


def measure(group, feedlane, rounds):
    """{"processor", "processors", "placement", "ratios": {name: its rounds}}."""
    wait_until_quiet()
    processors = Processors()
    try:
        done = subprocess.run(command(group, feedlane, rounds), stdout=subprocess.PIPE, text=True, timeout=LONGEST_S,
                              env=environment(feedlane))
    except subprocess.TimeoutExpired:
        raise Skipped(f"it took more than {LONGEST_S} s") from None
    if done.returncode == 77:
        raise Skipped(done.stdout.strip().removeprefix("skipped: ") or "it was skipped")
    if done.returncode != 0:
        sys.exit(f"goals.py: {group}: status {done.returncode}")
    others = processors.others()
    if others > OTHERS_SHARE:
        raise Skipped(f"other programs took {others:.0%} of the processors")
    said = json.loads(done.stdout)
    got, machine = said["groups"][group], said["machine"]
    one_core = [ns < ONE_CORE_NS for ns in got.get("line_ns", ())]
    if len(set(one_core)) > 1:
        raise Skipped(f"the host moved the processors: a line there and back took {got['line_ns'][0]} ns, then {got['line_ns'][1]}")
    return {"processor": machine["processor"] + kind_of_processor(), "processors": machine["processors"],
            "placement": ("one core" if one_core[0] else "cores") if one_core else f"torch {machine.get('torch')}",
            "ratios": {name: ratio["rounds"] for name, ratio in got["ratios"].items()}}


def goal_of(goals, name):
    """Its entry, with the parts of its name in the words."""
    for pattern, goal in goals.items():
        if fnmatch.fnmatchcase(name, pattern) and pattern.count(".") == name.count("."):
            parts = re.fullmatch(re.escape(pattern).replace(r"\*", "(.*)"), name).groups()
            return {**goal, "what": goal["what"].format(*parts)}
    sys.exit(f"goals.py: {name} isn't in {GOALS.name}")


def why_not_held(goal, recorded):
    """Of a ratio that says nothing of a single run, or None."""
    if "not_held" in goal:
        return goal["not_held"]
    return f"its recorded runs are more than {TOO_WIDE:g} times apart" if recorded["max"] > TOO_WIDE * recorded["min"] else None


def same_place(entry, group, got):
    return entry["group"] == group and all(entry[key] == got[key] for key in ("processor", "processors", "placement"))


def bound_of(recorded, better):
    """What the median must reach, and whether that is further off than the usual tolerance: the recorded runs were."""
    if better == "higher":
        usual = recorded["median"] * (1 - TOLERANCE)
        is_wide = recorded["min"] < recorded["max"] * (1 - TOLERANCE)
        return (recorded["min"] * (1 - TOLERANCE), True) if is_wide else (usual, False)
    usual = recorded["median"] / (1 - TOLERANCE)
    is_wide = recorded["min"] < recorded["max"] * (1 - TOLERANCE)
    return (recorded["max"] / (1 - TOLERANCE), True) if is_wide else (usual, False)


def hold(group, feedlane, rounds, goals, baseline):
    """How many ratios are missed."""
    got = measure(group, feedlane, rounds)
    entry = next((entry for entry in baseline if same_place(entry, group, got)), None)
    if entry is None:
        raise Skipped(f"no record of {got['processors']} x {got['processor']} ({got['placement']}): make one with --record 5")
    for name in sorted(set(got["ratios"]) - set(entry["ratios"])):
        print(f"{name:44} {statistics.median(got['ratios'].pop(name)):9.3f}: not held: no record of it: make one with --record 5",
              flush=True)

    def misses():
        for name, values in got["ratios"].items():
            goal, recorded = goal_of(goals, name), entry["ratios"][name]
            if why_not_held(goal, recorded):
                continue
            better = goal["better"]
            bound, _ = bound_of(recorded, better)
            median = statistics.median(values)
            if median < bound if better == "higher" else median > bound:
                yield name
    missed = list(misses())
    if missed:
        print(f"{group}: {', '.join(missed)}: measured again", flush=True)
        for name, values in measure(group, feedlane, 2 * rounds)["ratios"].items():
            if name in got["ratios"]:
                got["ratios"][name] += values
        missed = list(misses())
    for name, values in got["ratios"].items():
        goal, recorded = goal_of(goals, name), entry["ratios"][name]
        why_not = why_not_held(goal, recorded)
        if why_not:
            print(f"{name:44} {statistics.median(values):9.3f}, recorded {recorded['median']:g} [{recorded['min']:g} .. "
                  f"{recorded['max']:g}]: not held: {why_not}", flush=True)
            continue
        bound, wider = bound_of(recorded, goal["better"])
        sign = ">=" if goal["better"] == "higher" else "<="
        print(f"{name:44} {statistics.median(values):9.3f} {sign} {bound:9.3f}, recorded {recorded['median']:g} "
              f"[{recorded['min']:g} .. {recorded['max']:g}]{', whose spread is wider than 25 %' if wider else ''}: "
              f"{'MISSED' if name in missed else 'held'}", flush=True)
    return len(missed)


def record(group, feedlane, rounds, runs, goals, baseline):
    """Another entry for this machine: of each ratio the median of the runs' medians, the least and the most of them."""
    seen = []
    while len(seen) < runs:
        seen.append(measure(group, feedlane, rounds))
        if any(seen[-1][key] != seen[0][key] for key in ("processor", "processors", "placement")):
            raise Skipped("the host moved the processors from one run to the next")
    medians = {name: [statistics.median(run["ratios"][name]) for run in seen] for name in seen[0]["ratios"]}
    for name in medians:
        goal_of(goals, name)
    baseline[:] = [entry for entry in baseline if not same_place(entry, group, seen[0])]
    baseline.append({"group": group, **{key: seen[0][key] for key in ("processor", "processors", "placement")},
                     "runs": runs, "rounds": rounds,
                     "ratios": {name: {"median": float(f"{statistics.median(values):.4g}"), "min": min(values), "max": max(values)}
                                for name, values in medians.items()}})
    print(f"{group}: recorded {len(medians)} ratios", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--group", action="append", help="one of the groups (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is taken (default 3)")
    parser.add_argument("--record", type=int, metavar="RUNS", help="replace this machine's entries in the record")
    parser.add_argument("feedlane")
    chosen = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        print("skipped: one processor")
        return 77
    goals = json.loads(GOALS.read_text(encoding="ascii"))
    baseline = json.loads(BASELINE.read_text(encoding="ascii")) if BASELINE.exists() else []
    missed, skipped = 0, []
    groups = chosen.group or list(GROUPS)
    for group in groups:
        try:
            if chosen.record:
                record(group, chosen.feedlane, chosen.rounds, chosen.record, goals, baseline)
                BASELINE.write_text(json.dumps(baseline, indent=1) + "\n", encoding="ascii")
            else:
                missed += hold(group, chosen.feedlane, chosen.rounds, goals, baseline)
        except Skipped as reason:
            skipped.append(group)
            print(f"skipped: {group}: {reason}", flush=True)
    print(f"{len(groups) - len(skipped)} groups held, {missed} ratios missed, {len(skipped)} groups skipped")
    return 1 if missed else 77 if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
