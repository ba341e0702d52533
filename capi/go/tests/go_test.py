# SPDX-License-Identifier: Apache-2.0
"""What capi/go and the trainer in examples/go promise. Usage: go_test.py GO PACKAGE DIGITS TARGET_FOLDER LIBRARY C_DIGEST
[unittest's arguments]; PACKAGE and DIGITS are folders, C_DIGEST lies beside the other examples in C; GO empty: skipped."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import golang
from programs import describe, run

GO = sys.argv[1]
PACKAGE, EXAMPLE, TARGET, LIBRARY, C_DIGEST = map(os.path.abspath, sys.argv[2:7])
del sys.argv[1:7]
SKIPPED = 77
BUILD_DEADLINE_S = 400
EPOCHS = 6  # of 45 batches
KILL_AT = 100  # a batch in the third of them
DIGITS = os.path.join(TARGET, "digits")
CONTRACT = ("Record", "Checksum", "Digest", "ZeroCopy", "Error", "Misuse", "WorkerKilled", "TrainerKilled", "Interrupt", "Kept",
            "View", "Busy", "Close", "Finalizer", "Exits")


def version():
    """(1, 23) of Go 1.23.4; (0, 0) if it does not run."""
    found = subprocess.run([GO, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    numbers = re.match(r"go(\d+)\.(\d+)", found.stdout)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def in_folder(folder, *command):
    return ["env", "-C", folder, *command]


def sources():
    for root in PACKAGE, EXAMPLE:
        for folder, _, names in os.walk(root):
            for name in sorted(names):
                if name.endswith((".go", ".c", ".h")):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as file:
                        yield path, file.read()


def first_program():
    with open(os.path.join(PACKAGE, "README.md"), encoding="utf-8") as file:
        return re.search(r"```go\n(package main\n.*?)```", file.read(), flags=re.S)[1]


class Source(unittest.TestCase):
    def test_files_fit_in_the_head(self):
        for path, text in sources():
            self.assertLessEqual(text.count("\n"), 500, path)
            self.assertIn("SPDX-License-Identifier: Apache-2.0", text.splitlines()[0], path)

    def test_the_trainer_is_short(self):
        with open(os.path.join(EXAMPLE, "main.go"), encoding="utf-8") as file:
            self.assertLess(file.read().count("\n"), 100)

    def test_no_module_comes_from_outside(self):
        with open(os.path.join(PACKAGE, "go.mod"), encoding="utf-8") as file:
            self.assertNotIn("require", file.read())

    def test_formatted(self):
        gofmt = shutil.which("gofmt", path=os.path.dirname(os.path.realpath(GO))) or shutil.which("gofmt")
        if gofmt is None:
            self.skipTest("no gofmt")
        command = [gofmt, "-l", PACKAGE, EXAMPLE]
        finished = run(*command)
        self.assertEqual((finished.code, finished.out), (0, ""), describe(command, finished))


class Package(unittest.TestCase):
    def check(self, *command, code=0):
        command = in_folder(PACKAGE, *command)
        finished = run(*command, deadline_s=BUILD_DEADLINE_S)
        self.assertEqual(finished.code, code, describe(command, finished))
        return finished

    def test_vet(self):
        self.check(GO, "vet", "./...")

    def test_its_own_tests_pass(self):
        """The contract of docs/integrating.md, and more."""
        finished = self.check(GO, "test", "-count=1", "-v", "-timeout", "300s", "./...")
        for name in CONTRACT:
            self.assertIn(f"--- PASS: Test{name} ", finished.out, finished.out)

    def test_first_program(self):
        """The README's, pasted into a module of its own."""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "main.go"), "w", encoding="utf-8") as file:
                file.write(first_program())
            for step in (["mod", "init", "trainer"], ["mod", "edit", "-replace", f"feedlane={PACKAGE}"], ["get", "feedlane"],
                         ["run", "."]):
                command = in_folder(folder, GO, *step)
                finished = run(*command, deadline_s=BUILD_DEADLINE_S)
                self.assertEqual(finished.code, 0, describe(command, finished))
        lines = finished.out.splitlines()
        self.assertEqual(len(lines), 3, finished.out)
        self.assertEqual(len({line.split(":", 1)[1] for line in lines}), 1, "the same sum in each epoch")


class Digest(unittest.TestCase):
    def test_digest_is_that_of_c(self):
        """tests/examples/digest_test.py uses the program too."""
        program = os.path.join(TARGET, "digest")
        command = in_folder(os.path.join(EXAMPLE, os.pardir, "digest"), GO, "build", "-o", program, ".")
        finished = run(*command, deadline_s=BUILD_DEADLINE_S)
        self.assertEqual(finished.code, 0, describe(command, finished))
        wanted = run(C_DIGEST, os.path.join(EXAMPLE, os.pardir, os.pardir, "data")).out
        self.assertRegex(wanted, r"^digest: [0-9a-f]{16}\n$")
        for options in (["-workers", "0"], ["-workers", "1"], ["-workers", "3"], ["-goroutines"]):
            with self.subTest(options=options):
                self.assertEqual(run(program, *options).out, wanted)


@unittest.skipIf(GO and version() < (1, 23), "range over functions needs Go 1.23")
class Digits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        command = in_folder(EXAMPLE, GO, "build", "-o", DIGITS, ".")
        finished = run(*command, deadline_s=BUILD_DEADLINE_S)
        if finished.code != 0:
            raise AssertionError("it must build" + describe(command, finished))

    def run_digits(self, *options, code=0):
        command = [DIGITS, *options]
        finished = run(*command)
        self.assertEqual(finished.code, code, describe(command, finished))
        return finished

    def losses(self, *options):
        return self.run_digits("-epochs", str(EPOCHS), *options).out.split("restarts: ")

    def test_losses_do_not_depend_on_the_workers(self):
        inline, _ = self.losses("-workers", "0")
        for options in (["-workers", "1"], ["-workers", "3"], ["-goroutines"]):
            with self.subTest(options=options):
                losses, restarts = self.losses(*options)
                self.assertEqual(losses, inline)
                self.assertEqual(restarts[0], "0")

    def test_a_killed_worker_changes_nothing(self):
        undisturbed, _ = self.losses()
        losses, restarts = self.losses("-kill-worker-at-batch", str(KILL_AT))
        self.assertEqual(losses, undisturbed)
        self.assertEqual(restarts[0], "1", "a worker was replaced")

    def test_a_whole_run_learns_the_digits(self):
        out = self.run_digits().out
        self.assertRegex(out, r"\ntest accuracy: [01]\.\d{3}\n$")
        self.assertGreaterEqual(float(out.split()[-1]), 0.95)

    def test_missing_data_is_named(self):
        said = self.run_digits("-data", "/nowhere", code=1)
        self.assertIn("/nowhere/optdigits-images-idx3-ubyte", said.err)


if __name__ == "__main__":
    if not GO:
        print("skipped: there is no go (Debian: golang-go)")
        sys.exit(SKIPPED)
    os.environ.update(golang.environment(TARGET, LIBRARY), FEEDLANE_EXAMPLES=os.path.dirname(C_DIGEST))
    unittest.main()
