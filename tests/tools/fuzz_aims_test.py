# SPDX-License-Identifier: Apache-2.0
"""What the fuzz targets of tools/fuzz aim at exists: files, folders, and functions of files. Each target is built, and has inputs.

Usage: fuzz_aims_test.py ROOT"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])


def main():
    script = (ROOT / "tools/fuzz").read_text(encoding="utf-8")
    wrong = []
    block = re.search(r"^declare -A aims=\((.*?)^\)", script, re.M | re.S)[1]
    aims = {target: names.split() for target, names in re.findall(r"\[(\w+)\]='([^']*)'", block)}
    built = set(re.findall(r"'(\w+)'", re.search(r"^fuzz_targets = .*$", (ROOT / "tests/fuzz/meson.build").read_text(), re.M)[0]))
    if built != set(aims):
        wrong.append(f"targets that are built: {sorted(built)}, that have an aim: {sorted(aims)}")
    for target, names in aims.items():
        if not (ROOT / f"tests/fuzz/corpus/{target}.hex").is_file():
            wrong.append(f"{target} has no inputs in tests/fuzz/corpus")
        for name in names:
            path, _, functions = name.partition(":")
            if not (ROOT / path).exists():
                wrong.append(f"{target} aims at {path}, which isn't there")
                continue
            for function in filter(None, functions.split(",")):
                if not re.search(rf"\b{function}\(", (ROOT / path).read_text(encoding="utf-8")):
                    wrong.append(f"{target} aims at {function} in {path}, which isn't there")
    for _, names in re.findall(r"\[(\w+)\]='([^']*=\d+[^']*)'", script):
        for path in (name.split("=")[0] for name in names.split()):
            if not (ROOT / path).exists():
                wrong.append(f"an exception for {path}, which isn't there")
    print("\n".join(wrong) or f"{len(aims)} targets")
    return len(wrong)


sys.exit(main())
