# SPDX-License-Identifier: Apache-2.0
"""tools/gpu, as far as it goes without a GPU: over the stand-in for CUDA's driver it tests, measures and writes a page if that
is allowed; without a device it is skipped. What the figures are says nothing.

Usage: gpu_test.py PATH_OF_TOOLS_GPU BUILD_DIRECTORY FOLDER_OF_THE_STAND_IN"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOL, BUILD, STAND_IN = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
if len(os.sched_getaffinity(0)) < 2:
    print("skipped: one processor")
    sys.exit(77)

PATHS = ":".join(filter(None, (STAND_IN, os.environ.get("LD_LIBRARY_PATH"))))


def run(*arguments, **environment):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True,
                          env={**os.environ, "LD_LIBRARY_PATH": PATHS, **environment})


class Gpu(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.page = self.folder / "new" / "page.md"

    def program(self, name, *lines):
        """A program that is found before the one of that name."""
        path = self.folder / name
        path.write_text("\n".join(("#!/bin/bash", *lines, "")), encoding="ascii")
        path.chmod(0o755)

    def measure(self):
        return run("--build", BUILD, "--output", str(self.page), "--tiny", "--rounds", "1", "--allow-stand-in",
                   PATH=f"{self.folder}:{os.environ['PATH']}")

    def test_without_a_device_it_is_skipped(self):
        done = run("--output", str(self.page), FEEDLANE_STAND_IN_DEVICES="0")
        self.assertEqual((done.returncode, done.stdout), (77, ""))
        self.assertRegex(done.stderr, r"\Agpu: skipped: no CUDA device here.*\n\Z")
        self.assertFalse(self.page.exists())

    def test_the_stand_in_gets_no_page_unless_that_is_allowed(self):
        done = run("--build", BUILD, "--output", str(self.page))
        self.assertEqual(done.returncode, 1)
        self.assertIn("stand-in, no GPU", done.stderr)
        self.assertFalse(self.page.exists())

    def test_a_page(self):
        self.program("compute-sanitizer", 'exec "${@: -1}"')
        done = self.measure()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        text = self.page.read_text(encoding="utf-8")
        self.assertTrue(text.startswith("# stand-in, no GPU, 20"), text)
        for words in ("- driver: serves CUDA 12.0", "- host: ", "- suite gpu: passed", "- compute-sanitizer: passed",
                      "These figures say nothing", "| 256 KiB |", "| 4 MiB |", "| 64 MiB |", "| loop, registered slots |",
                      "| loop, pin then copy |",
                      "- a release on another stream during a global capture: succeeds, and the capture is valid",
                      "- a registration during a global capture: "):
            self.assertIn(words, text)
        raw = json.loads(self.page.with_suffix(".json").read_text(encoding="utf-8"))
        self.assertEqual(list(raw["groups"]), ["device"])

    def test_what_fails_is_told_and_stands_on_the_page(self):
        self.program("meson", "echo no tests; exit 1")
        self.program("compute-sanitizer", "exit 9")
        done = self.measure()
        self.assertEqual(done.returncode, 1)
        self.assertIn("something failed", done.stderr)
        text = self.page.read_text(encoding="utf-8")
        self.assertIn("- suite gpu: **failed**", text)
        self.assertIn("- compute-sanitizer: **failed**", text)

    def test_a_suite_that_is_skipped_is_no_success(self):
        # As where the driver has no device for the tests.
        self.program("meson", f"export FEEDLANE_STAND_IN_DEVICES=0; exec '{shutil.which('meson')}' \"$@\"")
        self.program("compute-sanitizer", "exit 0")
        done = self.measure()
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stderr, r"gpu-pinned +SKIP")
        self.assertIn("- suite gpu: **failed**", self.page.read_text(encoding="utf-8"))

    def test_help_and_what_is_refused(self):
        self.assertEqual(run("--help").returncode, 0)
        for wrong in (["--nothing"], ["--output"], ["--rounds"]):
            self.assertEqual(run(*wrong).returncode, 2, wrong)


if __name__ == "__main__":
    unittest.main()
