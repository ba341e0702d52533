#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program with more privileges than the user who starts it takes nothing from that user's environment.

Usage: setuid_test.py PROGRAM
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv[1]
USER = 12345
ENVIRONMENT = {"FEEDLANE_WORKER_FD": "1", "FEEDLANE_RANK": "1", "FEEDLANE_WORLD_SIZE": "2"}

if os.geteuid() != 0 or os.statvfs(tempfile.gettempdir()).f_flag & os.ST_NOSUID:
    print("a setuid program takes root, and a folder for temporary files that is not mounted nosuid")
    sys.exit(77)


class Setuid(unittest.TestCase):
    def output_with(self, mode):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            program = shutil.copy(PROGRAM, folder)
            os.chmod(program, mode)
            return subprocess.run([program], env=ENVIRONMENT, user=USER, group=USER, extra_groups=[], check=True,
                                  stdout=subprocess.PIPE, text=True).stdout.split()

    def test_an_ordinary_program_is_the_worker_that_the_variable_says_and_has_the_launchers_rank(self):
        self.assertEqual(self.output_with(0o755), ["1", "0", "feedlane"])

    def test_a_setuid_program_is_no_worker_passes_the_variable_on_to_nobody_and_has_no_launcher(self):
        self.assertEqual(self.output_with(0o4755), ["-1", "0", "none"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
