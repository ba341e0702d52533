#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program of the README builds as it stands, runs, and prints what it should. Skipped (77) if it needs torch and there is none.

Usage: readme_program_test.py README FILE ROOT LIBRARY   ($CC and $CXX are the compilers; Python programs run by this interpreter)
"""

import importlib.util
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

SUM = str(sum(i % 17 for i in range(1000)))  # of the samples' first element, for the programs in C and C++


def main():
    readme, name, root, library = sys.argv[1:]
    sys.path.insert(0, os.path.join(root, "tools"))
    from readme import blocks_of  # pylint: disable=import-error
    text, = (block.text for block in blocks_of(pathlib.Path(readme).read_text(encoding="utf-8")) if block.file_name == name)
    folder = os.path.dirname(os.path.abspath(library))
    environment = os.environ | {"LD_LIBRARY_PATH": folder, "FEEDLANE_LIBRARY": library, "PYTHONPATH": os.path.join(root, "capi", "python")}
    with tempfile.TemporaryDirectory(prefix="feedlane-readme.") as scratch:
        source, program = os.path.join(scratch, name), os.path.join(scratch, "program")
        pathlib.Path(source).write_text(text, encoding="utf-8")
        if name.endswith(".py"):
            if "torch" in text and importlib.util.find_spec("torch") is None:
                print("skipped: there is no torch for", sys.executable)
                return 77
            command, wanted = [sys.executable, "-B", source], ""
        else:
            variable, flags = ("CC", ["-std=c11"]) if name.endswith(".c") else ("CXX", ["-std=c++20"])
            subprocess.run([*shlex.split(os.environ[variable]), *flags, "-Wall", "-Wextra", "-Werror", "-I", os.path.join(root, "include"),
                            source, "-o", program, "-L", folder, "-lfeedlane"], check=True)
            command, wanted = [program], SUM + "\n"
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    return 0 if (done.returncode, done.stdout, done.stderr) == (0, wanted, "") else 1


if __name__ == "__main__":
    sys.exit(main())
