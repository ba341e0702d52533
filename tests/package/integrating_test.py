#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What docs/integrating.md says is so: its names are there, its sizes are right, and its worker in Python does what the one
in C does.

Usage: integrating_test.py DOCUMENT ROOT LIBRARY [TRAINER WORKER]   (the example programs; $CC is the compiler)
"""

import glob
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def unknown_names(document, root):
    headers = ["feedlane.h", *glob.glob("feedlane/*.h", root_dir=os.path.join(root, "include"))]
    known = "".join(read(root, "include", name) for name in headers)
    known += read(root, "capi", "feedlane.map") + read(root, "CMakeLists.txt")
    for name in sorted(set(re.findall(r"\b(?:feedlane|FEEDLANE)_\w+", document))):
        # Ending in _, it stands for all that begin so.
        if not re.search(rf"\b{name}" + ("" if name.endswith("_") else r"\b"), known):
            yield f"{name} is not in feedlane.h"


def wrong_sizes(document, root, scratch):
    said = {name: int(size) for name, size in re.findall(r"`(feedlane_\w+)` \| (\d+) \|", document)}
    if len(said) < 5:
        yield f"only {len(said)} sizes found"
    source, program = os.path.join(scratch, "sizes.c"), os.path.join(scratch, "sizes")
    with open(source, "w", encoding="utf-8") as file:
        prints = "".join(f'  printf("{name} %zu\\n", sizeof({name}));\n' for name in said)
        file.write(f'#include "feedlane.h"\n#include <stdio.h>\nint main(void) {{\n{prints}}}\n')
    subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-I", os.path.join(root, "include"), source, "-o", program], check=True)
    for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines():
        name, size = line.split()
        if said[name] != int(size):
            yield f"{name} has {size} bytes, not {said[name]}"


def wrong_waits(document, root):
    """The functions that the document says wait are those of the record."""
    with open(os.path.join(root, "capi", "abi", "interface.json"), encoding="utf-8") as file:
        waiting = {name for name, f in json.load(file)["functions"].items() if f["waits"]}
    said = set(re.findall(r"`(feedlane_\w+)`", re.search(r"These wait .*?:\n(.*?)\.", document, flags=re.S)[1]))
    yield from (f"{name} waits, or doesn't" for name in sorted(waiting ^ said))


def wrong_worker(document, library, trainer, worker, scratch):
    script = os.path.join(scratch, "worker.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(re.search(r"```python\n(.*?)```", document, flags=re.S)[1])
    environment = os.environ | {"LD_LIBRARY_PATH": os.path.dirname(os.path.abspath(library))}
    said = []
    for command in ([trainer, worker], [trainer, sys.executable, script]):
        finished = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
        said.append(f"status {finished.returncode}, {finished.stdout}")
    if said[0] != said[1] or "checksum" not in said[0]:
        yield f"with the worker in C: {said[0]}with the one in Python: {said[1]}"


def main():
    path, root, library, *programs = sys.argv[1:]
    document = read(path)
    with tempfile.TemporaryDirectory(prefix="feedlane-integrating.") as scratch:
        problems = [*unknown_names(document, root), *wrong_sizes(document, root, scratch), *wrong_waits(document, root)]
        if programs:
            problems += wrong_worker(document, library, *programs, scratch)
    print("\n".join(problems) or "names, sizes and the worker are right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
