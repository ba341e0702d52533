# SPDX-License-Identifier: Apache-2.0
"""The digits trainer with ranks of torchrun's: on one and two machines the losses are the same; a rank is killed in
mid-epoch, and with the ranks that are left every sample is trained on exactly once. Skipped without torch 2 or later, and where
namespaces can't be made.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python ranks_torchrun_test.py"""
import importlib.util
import os
import signal
import sys
import unittest

import ranks_cases
from ranks_cases import RANKS, Cases, kept, machines, read_runs

for module in "numpy", "torch":
    if importlib.util.find_spec(module) is None:
        print(f"skipped: no {module}")
        sys.exit(77)

import torch

if int(torch.__version__.split(".", 1)[0]) < 2:
    print(f"skipped: torch {torch.__version__}")
    sys.exit(77)

NO_MACHINES = machines.enter() if __name__ == "__main__" else None
ONE, TWO = [0], [0, 1]


class Torchrun(Cases):
    env = {"OMP_NUM_THREADS": "1"}

    def command(self, number, ranks, arguments, machines, fewest=None, restarts=0):
        launcher = [sys.executable, "-B", "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
        if machines == 1:
            launcher += ["--standalone"]
        else:
            address = ranks_cases.machines.address
            launcher += [f"--nnodes={fewest or machines}:{machines}", "--rdzv-backend=c10d", f"--rdzv-endpoint={address(TWO[0])}:29417",
                         f"--rdzv-conf=is_host={int(number == 0)},last_call_timeout=2,keep_alive_interval=1",
                         f"--local-addr={address(number)}"]
        return [*launcher, os.path.join(RANKS, "torchrun_digits.py"), *arguments]

    def test_losses(self):
        """1,440 samples are 22 batches of 64, and 32, which are two batches of four ranks: two have none."""
        chosen = "--epochs", "2", "--batch", "64"
        alone = self.run_to_end(ONE, 1, *chosen)
        self.check_once(alone.steps, 2)
        for where, ranks in (ONE, 4), (TWO, 2):
            with self.subTest(machines=len(where), ranks=ranks):
                run = self.run_to_end(where, ranks, *chosen)
                self.check_once(run.steps, 2)
                self.check_losses(run.steps, alone.steps)
                self.assertEqual(sorted(map(len, run.steps[22].indices)), [0, 0, 16, 16])

    def continued(self, where, ranks, **how):
        """A run in which a rank has halted in the second epoch. Folder, machines, the rank's process, and the losses of a run
        without a death."""
        chosen = "--epochs", "2", "--batch", "48"
        undisturbed = self.run_to_end(ONE, 1, *chosen)
        folder = self.folder()
        fifo = os.path.join(folder, "halted")
        os.mkfifo(fifo)
        started = self.start(folder, where, ranks, *chosen, "--halt-at-step", "43", "--halted", fifo, **how)
        return folder, started, self.wait_for_halt(folder, fifo, started), undisturbed.steps

    def test_rank_killed(self):
        """The job ends, and is started again with three ranks instead of four."""
        folder, started, rank, undisturbed = self.continued(ONE, 4)
        started[0].signal(rank, signal.SIGKILL)
        self.finish(folder, started, code=None)
        self.assertEqual(max(read_runs(folder)[0].steps), 42)
        self.finish(folder, self.start(folder, ONE, 3, "--epochs", "2", "--batch", "48"))
        self.check_continued(folder, [4, 3], undisturbed, 2)


if __name__ == "__main__":
    if NO_MACHINES:
        print("skipped:", NO_MACHINES)
        sys.exit(77)
    unittest.main()
