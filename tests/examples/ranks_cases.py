# SPDX-License-Identifier: Apache-2.0
"""What the tests of the trainers with ranks share: runs on one or two machines, and what their logs must say."""
import collections
import glob
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import typing
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../support"))
import machines

RANKS = os.path.join(HERE, "../../examples/python/ranks")
SAMPLES = 1440
# Losses of the same batches, whatever the ranks: they differ by the order of sums of 64-bit numbers, step after step.
TOLERANCE = 1e-9
DEADLINE_S = 300


class Step(typing.NamedTuple):
    epoch: int
    indices: list  # of each rank
    loss: float


class Run(typing.NamedTuple):
    """From the logs of one run's ranks: the step it began with, its ranks, and its steps by number."""

    first: int
    world: int
    steps: dict


def read_runs(folder):
    """All runs with this folder, in order."""
    files = collections.defaultdict(list)
    for path in glob.glob(os.path.join(folder, "*.jsonl")):
        files[int(os.path.basename(path).split("-")[0])].append(path)
    runs = []
    for name in sorted(files):
        ranks = []
        for path in files[name]:
            with open(path, encoding="ascii") as file:
                ranks.append([json.loads(line) for line in file])
        head, steps = ranks[0][0], collections.defaultdict(list)
        assert len(ranks) == head["world"], (name, len(ranks), head)
        for line in (line for lines in ranks for line in lines[1:]):
            steps[line["step"]].append(line)
        runs.append(Run(head["first"], head["world"], {step: _same(lines) for step, lines in steps.items()}))
    return runs


def _same(lines):
    """Of one step, which all ranks have seen alike."""
    assert len({(line["epoch"], line["loss"]) for line in lines}) == 1, lines
    return Step(lines[0]["epoch"], [line["indices"] for line in lines], lines[0]["loss"])


def kept(runs):
    """The steps that the network has in the end: those of a run from which the next one didn't continue are undone."""
    steps = {}
    for run, following in zip(runs, [*runs[1:], None]):
        steps |= {number: step for number, step in run.steps.items() if following is None or number < following.first}
    return steps


def counts(steps):
    """How often each sample was trained on, by epoch."""
    found = collections.defaultdict(collections.Counter)
    for step in steps:
        for indices in step.indices:
            found[step.epoch].update(indices)
    return found


class Cases(unittest.TestCase):
    """A class that inherits has `command(number, ranks, arguments)`, which says how a machine takes part, and `env`."""

    env: dict = {}

    def folder(self):
        folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self.addCleanup(folder.cleanup)
        return folder.name

    def start(self, folder, where, ranks, *arguments, **how):
        """A run on the machines `where`, `ranks` on each. Returns them."""
        found = []
        for number in where:
            with open(os.path.join(folder, f"out-{len(glob.glob(folder + '/out-*'))}"), "wb") as out:
                command = self.command(number, ranks, [*arguments, "--folder", folder], machines=len(where), **how)
                machine = machines.Machine(number, command, self.env, out)
            self.addCleanup(machine.kill)
            found.append(machine)
        return found

    def output(self, folder):
        found = ""
        for path in sorted(glob.glob(os.path.join(folder, "out-*"))):
            with open(path, encoding="utf-8", errors="replace") as file:
                found += f"\n---- {os.path.basename(path)}\n{file.read()}"
        return found

    def finish(self, folder, started, code=0):
        """All of these end with `code`; None: not with 0."""
        deadline = time.monotonic() + DEADLINE_S
        for machine in started:
            try:
                ended = machine.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.fail(f"still running after {DEADLINE_S} s{self.output(folder)}")
            self.assertTrue(ended == code or (code is None and ended != 0), f"ended with {ended}{self.output(folder)}")

    def run_to_end(self, where, ranks, *arguments, **how):
        folder = self.folder()
        self.finish(folder, self.start(folder, where, ranks, *arguments, **how))
        (run,) = read_runs(folder)
        self.assertEqual((run.first, run.world), (0, ranks * len(where)))
        self.check_printed(folder)
        return run

    def wait_for_halt(self, folder, fifo, started):
        """The process id of the rank that has halted."""
        descriptor = os.open(fifo, os.O_RDWR)  # never at its end
        self.addCleanup(os.close, descriptor)
        if not select.select([descriptor], [], [], DEADLINE_S)[0]:
            self.fail(f"no rank has halted: {[m.process.poll() for m in started]}{self.output(folder)}")
        return int(os.read(descriptor, 100))

    def check_once(self, steps, epochs):
        """Every sample exactly once in every epoch."""
        found = counts(steps.values())
        self.assertEqual(sorted(found), list(range(epochs)))
        for epoch, counted in found.items():
            self.assertEqual(counted, collections.Counter(range(SAMPLES)), f"epoch {epoch}")

    def check_printed(self, folder):
        """What the trainer itself has counted."""
        lines = [line for line in self.output(folder).splitlines() if "epoch " in line and "samples:" in line]
        self.assertTrue(lines, self.output(folder))
        for line in lines:
            self.assertIn(f"samples: {SAMPLES} once, 0 never, 0 more often", line)

    def check_losses(self, steps, expected):
        self.assertEqual(sorted(steps), sorted(expected))
        furthest = max(abs(steps[number].loss - expected[number].loss) for number in expected)
        print(f"{self.id().split('.')[-1]}: {len(steps)} losses, at most {furthest:.1e} apart", file=sys.stderr)
        self.assertLess(furthest, TOLERANCE)

    def check_continued(self, folder, worlds, expected, epochs):
        """Two runs, of `worlds` ranks; the first one's last steps were lost, and nothing else."""
        runs = read_runs(folder)
        self.assertEqual([run.world for run in runs], worlds, self.output(folder))
        lost = [number for number in runs[0].steps if number >= runs[1].first]
        self.assertTrue(lost)
        self.assertGreater(runs[1].first, 0)
        self.assertNotEqual(counts([*runs[0].steps.values(), *runs[1].steps.values()])[1],
                            collections.Counter(range(SAMPLES)), "the lost steps count twice where they aren't undone")
        self.check_once(kept(runs), epochs)
        self.check_printed(folder)
        self.check_losses(kept(runs), expected)
