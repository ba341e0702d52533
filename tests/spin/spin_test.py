#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every model holds, fails with each of its rules left out, and is of the code as it is.

A NAME.pml says in its first comment
  holds: [MACRO=VALUE]...      it holds so, under weak fairness
  fails: MACRO=VALUE           and not so
  code: FILE FUNCTION DIGEST   what it is a model of, see support/code_digests.py

Usage: spin_test.py SOURCE_ROOT
77: there is no spin, or no C compiler.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

from code_digests import stale

HERE = os.path.dirname(os.path.abspath(__file__))


def explore(model, settings):
    """(whether it holds, states)."""
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(["spin", *[f"-D{s}" for s in settings], "-a", model], cwd=folder, capture_output=True, text=True, check=False)
        if made.returncode != 0 or not os.path.exists(os.path.join(folder, "pan.c")):
            raise RuntimeError(f"spin on {model}: {made.stdout}{made.stderr}")
        subprocess.run(["cc", "-O2", "-w", "-DNFAIR=4", "-o", "pan", "pan.c"], cwd=folder, check=True)
        out = subprocess.run(["./pan", "-a", "-f", "-m1000000"], cwd=folder, capture_output=True, text=True, check=True).stdout
    errors = re.search(r"errors: (\d+)", out)
    states = re.search(r"(\d+) states, stored", out)
    if not errors or "search depth too small" in out:
        raise RuntimeError(f"pan of {model}: {out}")
    return errors[1] == "0", int(states[1])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if not shutil.which("spin") or not shutil.which("cc"):
        print("there is no spin, or no C compiler")
        sys.exit(77)
    wrong = []
    for model in sorted(glob.glob(os.path.join(HERE, "*.pml"))):
        name = os.path.basename(model)
        with open(model, encoding="utf-8") as f:
            comment = f.read().split("*/")[0]
        for said, settings in re.findall(r"^ \* (holds|fails):((?: [A-Z]+=\d)*)", comment, re.M):
            holds, states = explore(model, settings.split())
            print(f"{name}{settings}: {'holds' if holds else 'fails'}, {states} states")
            if holds != (said == "holds"):
                wrong.append(f"{name}{settings}: {said} is what it says")
        wrong += stale(name, comment, sys.argv[1])
    for line in wrong:
        print(f"FAILED {line}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
