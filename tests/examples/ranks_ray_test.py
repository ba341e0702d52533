# SPDX-License-Identifier: Apache-2.0
"""The digits trainer with ranks that are actors of Ray's: a machine is killed in mid-epoch, and with
the ranks that are left every sample is trained on exactly once, with the losses of one rank. Skipped without Ray, without torch 2 or
later, and where namespaces can't be made.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python ranks_ray_test.py"""
import importlib.util
import os
import sys
import tempfile
import unittest

import ranks_cases
from ranks_cases import RANKS, Cases, machines

for module in "numpy", "torch", "ray":
    if importlib.util.find_spec(module) is None:
        print(f"skipped: no {module}")
        sys.exit(77)

import torch

if int(torch.__version__.split(".", 1)[0]) < 2:
    print(f"skipped: torch {torch.__version__}")
    sys.exit(77)

NO_MACHINES = machines.enter() if __name__ == "__main__" else None
PORT = 6399
# A machine of Ray's: its first process, and the trainer's driver beside it.
HEAD = """set -e
ray() { "$PYTHON" -c 'import sys; from ray.scripts.scripts import main; sys.exit(main())' "$@"; }
ray start --head --node-ip-address=$ADDRESS --port=$PORT --temp-dir="$SESSION" --num-cpus=4 --object-store-memory=80000000 \
  --include-dashboard=false
exec "$PYTHON" -B "$@" --address $ADDRESS:$PORT
"""
OTHER = """ray() { "$PYTHON" -c 'import sys; from ray.scripts.scripts import main; sys.exit(main())' "$@"; }
until ray start --address=$HEAD:$PORT --node-ip-address=$ADDRESS --num-cpus=4 --object-store-memory=80000000 --block; do :; done
"""


class Ray(Cases):
    def setUp(self):
        session = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        self.addCleanup(session.cleanup)
        self.env = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled",
                    "RAY_health_check_period_ms": "1000",
                    "RAY_health_check_initial_delay_ms": "1000", "PYTHON": sys.executable, "SESSION": session.name,
                    "PORT": str(PORT), "HEAD": machines.address(0)}

    def command(self, number, ranks, arguments, machines):
        self.env["ADDRESS"] = ranks_cases.machines.address(number)
        program = [os.path.join(RANKS, "ray_digits.py"), "--ranks", str(ranks), "--machines", str(machines), *arguments]
        return ["sh", "-c", OTHER if number else HEAD, "sh", *program]

    def finish(self, folder, started, code=0):
        """The driver does; the other machine is there until it is killed."""
        super().finish(folder, started[:1], code)
        for machine in started:
            machine.kill()

    def reference(self, batch):
        """The losses of one rank."""
        run = self.run_to_end([0], 1, "--epochs", "2", "--batch", batch)
        self.check_once(run.steps, 2)
        return run.steps

    def halted(self, where, ranks):
        """A run in which a rank has halted in the second epoch: folder, machines, the rank's process."""
        folder = self.folder()
        fifo = os.path.join(folder, "halted")
        os.mkfifo(fifo)
        started = self.start(folder, where, ranks, "--epochs", "2", "--batch", "48", "--halt-at-step", "43", "--halted", fifo)
        return folder, started, self.wait_for_halt(folder, fifo, started)

    def test_machine_killed(self):
        folder, started, _ = self.halted([0, 1], 2)
        started[1].kill()
        self.finish(folder, started)
        self.check_continued(folder, [4, 2], self.reference("48"), 2)


if __name__ == "__main__":
    if NO_MACHINES:
        print("skipped:", NO_MACHINES)
        sys.exit(77)
    unittest.main()
