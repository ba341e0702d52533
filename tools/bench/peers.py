#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Feedlane compared with what a Python trainer would use instead, on the same work: torch's DataLoader, SPDL, grain, tf.data,
webdataset, Ray Data, dataloader-rs and no loader at all (peer_loaders.py), with photographs, tokens of varying length, a table, and the small
tensors of object detection (peer_work.py). tools/get-peers installs them.

Each measurement is a process. It imports its modules, then takes the time until the first batch; iterates until the rate is that of
the middle of an epoch; and then takes, for some seconds, samples/s, processor time of the thread that trains and of all processes,
and the memory (PSS, in which shared pages count once) of all processes. The trainer reads all of every batch (a sum by numpy, one
thread). Nothing is pinned.

First each contender's settings are searched, one after the other, and the fastest is kept; then rounds alternate, and ratios are
taken within each round. Last, a worker of each is killed in mid-epoch: of its processes without children the one that uses most
processor time. What isn't installed is left out, and said. Skips (77) without torch, torchvision or feedlane-image-folder.

Usage: peers.py [--quick] [--json] [--rounds N] [--feedlane PATH] [--work NAME]... [--free-threaded PYTHON]"""
import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOOLS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(1, str(TOOLS))

import goals
import processes
from feedlane_command import Group, find_feedlane
from rounds import alternate, cell, ratios, spread

try:
    import peer_loaders
    import peer_work
except ImportError as missing_module:
    print(f"skipped: {missing_module}")
    sys.exit(77)

SECONDS = {"search": 1.5, "round": 4, "quick": 1.5}
LONGEST = 120  # for one measurement, its imports included
ONE = str(pathlib.Path(__file__).with_name("peer_one.py"))
QUICK = {"photographs": ("torch, PIL", "torch, v2", "feedlane.ImageFolder"), **dict.fromkeys(
    ("tokens", "table", "detection"), ("torch", "feedlane.DataLoader", "feedlane.Loader"))}


class Runner:
    def __init__(self, folder, environment, free_threaded):
        self.folder, self.environment, self.free_threaded = folder, environment, free_threaded

    def run(self, contender, work, settings, *more):
        """What a process for this contender says; None, with the reason on standard error: it can't run here, or has not ended."""
        python = self.free_threaded if contender.name == "dataloader-rs" and self.free_threaded else sys.executable
        command = [python, "-B", ONE, contender.name, work, self.folder, json.dumps(settings), *map(str, more)]
        # Files: what a worker holds open must not keep this process from reading to their ends.
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(command, stdout=said, stderr=errors, env=self.environment, start_new_session=True)
            try:
                status = process.wait(LONGEST)
            except subprocess.TimeoutExpired:
                status = f"nothing for {LONGEST} s"
            finally:
                end_descendants()
            for file in said, errors:
                file.seek(0)
            lines = said.read().splitlines()
            if status == 0 and lines:
                return json.loads(lines[-1])
            why = (errors.read().strip() or "no output").splitlines()[-1]
            print(f"{contender.name}, {work}, {settings}: {status}: {why}", file=sys.stderr)
            return None

    def rate(self, contender, work, settings):
        got = self.run(contender, work, settings, SECONDS["search"])
        return got["rate"] if got else 0

    def search(self, contender, work):
        """The fastest settings, found one after the other, and what was tried. None: it can't run here."""
        settings = {name: values[0] for name, values in contender.searched.items()}
        best = self.rate(contender, work, settings)
        tried = [{**settings, "rate": best}]
        # The best form of a batch with workers need not be the best one without.
        for name in [*contender.searched, *(["form"] if "form" in contender.searched else [])]:
            if name == "prefetch" and settings.get("workers") == 0:
                continue
            for value in contender.searched[name]:
                if any(all(one[key] == at for key, at in {**settings, name: value}.items()) for one in tried):
                    continue
                rate = self.rate(contender, work, {**settings, name: value})
                tried.append({**settings, name: value, "rate": rate})
                if rate > best:
                    best, settings = rate, {**settings, name: value}
        return (settings, tried) if best else None

    def killed(self, contender, work, settings):
        if settings.get("workers") == 0:
            settings = {**settings, "workers": 2}
        return self.run(contender, work, settings, "kill") or f"nothing for {LONGEST} s, or it failed"


def adopt_orphans():
    """What a measurement leaves behind becomes a child of this process: what it has used counts as this process's use."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def end_descendants():
    """Ends what a measurement has left behind."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        for pid in processes.processes()[1:]:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # it has ended
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # that was the last one
        time.sleep(0.01)


def compare(runner, group, work, chosen, say):
    quick = QUICK[work] if chosen.quick else None
    contenders = [one for one in peer_loaders.CONTENDERS if work in one.works and (quick is None or one.name in quick)]
    if chosen.only:
        contenders = [one for one in contenders if one.name.startswith(("torch", "feedlane")) or one.name in chosen.only]
    found = {}
    for contender in contenders:
        got = ({name: values[0] for name, values in contender.searched.items()}, []) if chosen.quick else runner.search(contender, work)
        if got:
            found[contender.name] = got
    seconds = SECONDS["quick" if chosen.quick else "round"]
    values = alternate({name: lambda name=name: runner.run(peer_loaders.named(name, work), work, found[name][0], seconds) for name in found},
                       chosen.rounds)
    for name in [name for name, rounds in values.items() if not all(rounds)]:
        print(f"{name}, {work}: left out, because a round failed", file=sys.stderr)
        del values[name], found[name]
    rates = {name: [one["rate"] for one in rounds] for name, rounds in values.items()}
    torch = max((name for name in rates if name.startswith("torch")), key=lambda name: spread(rates[name])["median"])
    ours = max((name for name in rates if name.startswith("feedlane")), key=lambda name: spread(rates[name])["median"])
    say(f"\n{work}, {peer_work.UNIT[work]}/s")
    for name, (settings, tried) in found.items():
        row = {"work": work, "name": name, "settings": settings, "searched": tried, "over_torch": spread(ratios(rates[name], rates[torch]))}
        for figure in values[name][0]:
            row[figure] = spread([one[figure] for one in values[name]])
        if not chosen.quick:
            row["killed"] = runner.killed(peer_loaders.named(name, work), work, settings)
        group.rows.append(row)
        if not name.startswith("feedlane"):
            group.ratios[f"{work}.{re.sub('[^a-z0-9]+', '_', name.lower())}"] = spread(ratios(rates[ours], rates[name]))
        say(f"{name:26} {cell(row['rate']['rounds']):>30} {cell(row['over_torch']['rounds'], '.3g'):>24}"
            f" trainer {row['trainer_us']['median']:7.0f} us, all {row['cpu_us']['median']:7.0f} us a batch, "
            f"{row['memory_mib']['median']:6.0f} MiB, first {row['first_ms']['median']:6.0f} ms  {settings}  {row.get('killed', '')}")


def environment_of(feedlane):
    """The variables for ours, all of one build, and for other loaders."""
    folder = pathlib.Path(feedlane.path).resolve().parents[1] / "image_folder"
    environment = goals.environment(feedlane.path)
    return {**environment, "PATH": os.pathsep.join([str(folder), environment.get("PATH", "")]), "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": os.pathsep.join([environment["PYTHONPATH"], str(TOOLS / "bench"), str(TOOLS)]),  # for Ray's workers
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def missing(environment, work):
    """Why this kind of work can't be measured here, or None."""
    if work == "photographs" and shutil.which("feedlane-image-folder", path=environment["PATH"]) is None:
        return "feedlane-image-folder isn't built (libjpeg-turbo, libpng)"
    wanted = ["torch", "numpy", *(["torchvision"] if work == "photographs" else [])]
    lacks = [name for name in wanted if importlib.util.find_spec(name) is None]
    return f"{', '.join(lacks)}: not installed" if lacks else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less time, without a search; only torch's and feedlane's loaders")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5, help="of which the medians are taken")
    parser.add_argument("--feedlane", help="path of the feedlane command")
    parser.add_argument("--work", action="append", choices=list(peer_work.BATCH), help="default: all")
    parser.add_argument("--only", action="append", help="these contenders besides torch's and feedlane's (default: all)")
    parser.add_argument("--free-threaded", metavar="PYTHON", help="an interpreter that has numpy and dataloader-rs")
    parser.add_argument("--data", help="keep the data in this folder")
    chosen = parser.parse_args()
    feedlane = find_feedlane(chosen.feedlane)
    environment = environment_of(feedlane)
    adopt_orphans()
    # Without an import of torch: this process would share its pages, and a measurement's memory would count half of them.
    result = {"machine": {**feedlane.bench("floor", "--quick")["machine"], "python": sys.version.split()[0]}, "groups": {}}
    if importlib.util.find_spec("torch"):
        result["machine"]["torch"] = importlib.metadata.version("torch")
    say = (lambda *_: None) if chosen.json else lambda *words: print(*words, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = chosen.data or folder
        runner = Runner(folder, environment, chosen.free_threaded)
        for work in chosen.work or peer_work.BATCH:
            reason = missing(environment, work)
            try:
                if not reason:
                    peer_work.make(folder, work)
            except (OSError, ImportError, subprocess.CalledProcessError) as error:
                reason = f"no data can be made: {error}"
            if reason:
                print(f"skipped: {work}: {reason}")
                return 77
            compare(runner, result["groups"].setdefault(work, Group()), work, chosen, say)
    if chosen.json:
        print(json.dumps(result, default=vars, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
