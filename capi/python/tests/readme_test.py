# SPDX-License-Identifier: Apache-2.0
"""The complete programs in the package's README run.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python readme_test.py README"""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy_or_skip  # noqa: F401

README = Path(sys.argv.pop()).read_text(encoding="utf-8")
PROGRAMS = [block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "import feedlane" in block and "__main__" in block]


class Programs(unittest.TestCase):
    def test_each_runs(self):
        self.assertGreater(len(PROGRAMS), 2)
        for program in PROGRAMS:
            with self.subTest(program), tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "program.py")
                file.write_text(program, encoding="utf-8")
                ran = subprocess.run([sys.executable, "-B", file], capture_output=True, text=True, timeout=300)
                self.assertEqual((ran.returncode, ran.stderr), (0, ""))
                self.assertNotEqual(ran.stdout, "")


if __name__ == "__main__":
    unittest.main()
