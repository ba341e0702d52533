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
            self.registry_without_packages()
            self.julia("-e", f'using Pkg; Pkg.develop(path=raw"{PACKAGE}")', project=folder)
            script = os.path.join(folder, "first.jl")
            with open(script, "w", encoding="utf-8") as file:
                file.write(program)
            as_script = self.julia(script, project=folder)
            self.assertIn("epoch 3: sum", as_script)
            # In a session there is no script.
            self.assertIn("epoch 3: sum", self.julia("-e", program, project=folder))

    def registry_without_packages(self):
        """Pkg fetches the general registry where there is none."""
        folder = os.path.join(os.environ["JULIA_DEPOT_PATH"], "registries", "Empty")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "Registry.toml"), "w", encoding="utf-8") as file:
            file.write('name = "Empty"\nuuid = "8ad0a1d8-7a0e-4d7e-9a52-3f8e5d8b1f60"\nrepo = ""\n[packages]\n')


if __name__ == "__main__":
    if not JULIA:
        print("skipped: there is no julia")
        sys.exit(SKIPPED)
    unittest.main()
