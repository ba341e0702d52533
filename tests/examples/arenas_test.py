# SPDX-License-Identifier: Apache-2.0
"""An arena between two languages: programs in Go and Julia send frames, programs in Python and C++ receive them.
Usage: arenas_test.py CPP_RECEIVER LIBRARY GO TARGET_FOLDER JULIA [unittest's arguments]; GO, JULIA: "none": not tested."""
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

import golang
from programs import DEADLINE_S, describe, run

CPP_RECEIVER, LIBRARY, GO, TARGET, JULIA = map(str, sys.argv[1:6])
del sys.argv[1:6]
EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples")
BUILD_DEADLINE_S = 240  # of Go or Julia, which compile the package first
FRAMES = 3
EXPECTED = "".join(f"2 x 3, row 1 begins with {100 * n + 10}\n" for n in range(FRAMES))


def receivers():
    yield [CPP_RECEIVER]
    if importlib.util.find_spec("numpy"):
        yield [sys.executable, "-B", os.path.join(EXAMPLES, "python/arena_receiver.py")]


class Arenas(unittest.TestCase):
    def check(self, *sender):
        for receiver in receivers():
            with self.subTest(sender=sender, receiver=receiver), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "arena")
                with subprocess.Popen([*receiver, path, str(FRAMES)], stdout=subprocess.PIPE, text=True) as owner:
                    try:
                        self.assertEqual(owner.stdout.readline(), "listening\n")
                        finished = run(*sender, path, deadline_s=BUILD_DEADLINE_S)
                        self.assertEqual(finished.code, 0, describe([*sender, path], finished))
                        out, _ = owner.communicate(timeout=DEADLINE_S)
                    finally:
                        owner.kill()
                self.assertEqual((owner.returncode, out), (0, EXPECTED))
                finished = run(*sender, path, deadline_s=BUILD_DEADLINE_S)
                self.assertEqual(finished.code, 1, "without an owner" + describe([*sender, path], finished))
                self.assertIn("E_PEER_DEAD", finished.err)

    @unittest.skipIf(GO == "none", "no go")
    def test_go_sends(self):
        os.environ.update(golang.environment(TARGET, LIBRARY))
        sender = os.path.join(TARGET, "arena_sender")
        command = ["env", "-C", os.path.join(EXAMPLES, "go/arena_sender"), GO, "build", "-o", sender, "."]
        finished = run(*command, deadline_s=BUILD_DEADLINE_S)
        self.assertEqual(finished.code, 0, describe(command, finished))
        self.check(sender)

    @unittest.skipIf(JULIA == "none", "no julia")
    def test_julia_sends(self):
        self.check(JULIA, "--startup-file=no", os.path.join(EXAMPLES, "julia/arena_sender.jl"))


if __name__ == "__main__":
    unittest.main()
