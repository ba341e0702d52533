#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The headers' functions, the version script's names and the library's dynamic symbols are one and the same set.

Usage: symbols_test.py ROOT LIBRARY
"""

import glob
import os
import re
import subprocess
import sys


def headers(folder):
    """The texts of feedlane.h and feedlane/*.h."""
    names = glob.glob(os.path.join("feedlane", "*.h"), root_dir=folder)
    for name in ["feedlane.h", *sorted(names)]:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            yield file.read()


def code_of(header):
    """A header without comments, line continuations joined."""
    text = re.sub(r"/\*.*?\*/", " ", header, flags=re.S)
    return text.replace("\\\n", " ")


def declared(code):
    return set(re.findall(r"^FEEDLANE_API\b[^;]*?\b(feedlane_\w+)\s*\(", code, flags=re.M | re.S))


def in_script(script):
    text = re.sub(r"/\*.*?\*/|#[^\n]*", " ", script, flags=re.S)
    public, hidden = re.search(r"global:(.*?)local:(.*?)\}", text, flags=re.S).groups()
    names = [name.strip() for name in public.split(";") if name.strip()]
    problems = [f"feedlane.map names {name} twice" for name in set(names) if names.count(name) > 1]
    problems += [f"feedlane.map has a pattern: {name}" for name in names if not re.fullmatch(r"\w+", name)]
    if hidden.split(";")[0].strip() != "*":
        problems.append("feedlane.map does not hide the rest")
    return set(names), problems


def exported(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    symbols = [line.split()[-2:] for line in lines.splitlines() if line.strip()]
    # Kind A is the name of the version itself.
    return {name.split("@")[0] for kind, name in symbols if kind != "A"}


# promise: library-without-mpi
def intruders(library):
    """What in the library could be another's: libraries that define malloc, calls of its own that the host's names take."""
    lines = subprocess.run(["readelf", "-dW", library], check=True, capture_output=True, text=True, env={"LC_ALL": "C"}).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", lines)
    yield from (f"the library needs {name}, which defines malloc" for name in needed if "malloc" in name)
    yield from (f"the library needs {name}: rank and world come from the environment" for name in needed if "mpi" in name)
    if "NODELETE" not in lines:
        yield "the library may be unloaded, with its code still to be run by threads that end"
    relocations = subprocess.run(["readelf", "-rW", library], check=True, capture_output=True, text=True).stdout
    names = sorted(set(re.findall(r"\b(feedlane_\w+)", relocations)))
    yield from (f"the library's own call of {name} may go to another definition of it" for name in names)


def differences(title, found, needed):
    yield from (f"{title}: {name} is missing" for name in sorted(needed - found))
    yield from (f"{title}: {name} is too much" for name in sorted(found - needed))


def status_problems(code):
    """The table of statuses and the #defines say the same, in both directions."""
    table_text = re.search(r"#define FEEDLANE_STATUS_TABLE\(X\)(.*)", code)[1]
    rows = re.findall(r'X\(\s*(\w+)\s*,\s*(-?\d+)\s*,\s*"([^"]+)"\s*\)', table_text)
    table = {name: int(number) for name, number, _ in rows}
    defines = {
        name: int(number)
        for name, number in re.findall(r"^#define FEEDLANE_(\w+)[ \t]+\(?(-?\d+)\)?[ \t]*$", code, flags=re.M)
        if name.startswith("E_") or name in table
    }
    if len(rows) < 25 or len(rows) != table_text.count("X("):
        yield f"only {len(rows)} rows of the table could be read"
    for name in sorted(table.keys() | defines.keys()):
        if table.get(name) != defines.get(name):
            yield f"status {name}: {table.get(name)} in the table, {defines.get(name)} defined"
    numbers = list(table.values())
    yield from (f"status {number} stands twice in the table" for number in set(numbers) if numbers.count(number) > 1)
    for name, number in table.items():
        if name.startswith("E_") != (number < 0):
            yield f"status {name} has number {number}"


def main():
    root, library = sys.argv[1:]
    code = code_of("\n".join(headers(os.path.join(root, "include"))))
    with open(os.path.join(root, "capi", "feedlane.map"), encoding="utf-8") as file:
        script, problems = in_script(file.read())
    header = declared(code)
    if len(header) < 30:
        problems.append(f"only {len(header)} declarations found in the headers")
    inline = set(re.findall(r"^static inline [^;{]*?\b(feedlane_\w+)\s*\(", code, flags=re.M))
    others = set(re.findall(r"\b(feedlane_\w+)\s*\(", code)) - header - inline
    problems += [f"feedlane.h: {name} is declared without FEEDLANE_API" for name in sorted(others)]
    problems += differences("feedlane.map", script, header)
    problems += differences("the library's dynamic symbols", exported(library), header)
    problems += intruders(library)
    problems += status_problems(code)
    print("\n".join(problems) or f"{len(header)} functions, the same in header, script and library")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
