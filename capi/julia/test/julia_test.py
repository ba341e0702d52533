# SPDX-License-Identifier: Apache-2.0
"""The package for Julia as its users meet it: its own tests, its installation, and the README's first program.
Usage: julia_test.py JULIA PACKAGE_FOLDER [unittest's arguments]; JULIA empty: skipped."""
import os
import re
import sys
import tempfile
import unittest

from programs import describe, run

JULIA, PACKAGE = sys.argv[1:3]
del sys.argv[1:3]
SKIPPED = 77
DEADLINE_S = 800


class Package(unittest.TestCase):
    def julia(self, *arguments, project=PACKAGE, deadline_s=DEADLINE_S):
        command = [JULIA, "--startup-file=no", f"--project={project}", *arguments]
        finished = run(*command, deadline_s=deadline_s)
        self.assertEqual(finished.code, 0, describe(command, finished))
        return finished.out

    def test_its_own_tests_pass(self):
        out = self.julia(os.path.join(PACKAGE, "test", "runtests.jl"))
        self.assertIn("Feedlane", out)

    def test_develop_works_offline_and_the_first_program_runs(self):
        with open(os.path.join(PACKAGE, "README.md"), encoding="utf-8") as file:
            program = re.search(r"```julia\n(.*?)```", file.read(), flags=re.S)[1]
        with tempfile.TemporaryDirectory() as folder:
            # An empty registry folder: nothing is fetched, as on a machine without a network.
            os.makedirs(os.path.join(os.environ.get("JULIA_DEPOT_PATH", folder), "registries", "None"), exist_ok=True)
            self.julia("-e", f'using Pkg; Pkg.develop(path=raw"{PACKAGE}")', project=folder)
            script = os.path.join(folder, "first.jl")
            with open(script, "w", encoding="utf-8") as file:
                file.write(program)
            self.assertIn("sum", self.julia(script, project=folder))
            # Pasted into a session there is no script; workers get the data set serialized.
            self.assertIn("sum", self.julia("-e", program, project=folder))


if __name__ == "__main__":
    if not JULIA:
        print("skipped: there is no julia")
        sys.exit(SKIPPED)
    unittest.main()
