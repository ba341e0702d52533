#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The binary interface on record, in capi/abi/, and whether the present one still is that.

Usage: abi.py dump                 writes the record (by tools/abi-dump, which installs what is needed)
       abi.py check [LIBRARY]      compares; ends with 77 without libabigail's tools

libfeedlane.abi   libabigail's dump of a library with the functions of feedlane.h and nothing inside: C, so that neither the
                  compiler nor what lies behind the functions shows in it. Built with -g -O0: optimised, functions that do
                  the same are merged, and libabigail 2.2 then compares only one of them.
interface.txt     feedlane.h without comments: the numbers that it defines, which are in no debug information, and what a
                  reader of a failed check wants to compare

The check compares the record with such a library of the present header, with the present constants and, if it has debug
information, with LIBRARY, the real one.
"""

import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CAPI = os.path.join(ROOT, "capi")
HEADER = os.path.join(CAPI, "feedlane.h")
RECORD = os.path.join(CAPI, "abi", "libfeedlane.abi")
TEXT = os.path.join(CAPI, "abi", "interface.txt")
SKIPPED = 77

WHAT_NOW = """
Programs that were compiled against the recorded interface must go on working. What they don't notice: a new function, a new
constant, a new member at the end of a struct that begins with `size` and whose zero means what was done before. Anything
else is another ABI: FEEDLANE_ABI, the soname (`abi` in meson.build) and the node in feedlane.map change with it.
If the change is meant and is of the first kind: run tools/abi-dump and commit capi/abi/ together with it."""


def run(*command):
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if finished.returncode != 0:
        sys.exit(f"{shlex.join(command)}\nended with status {finished.returncode}:\n{finished.stdout}")
    return finished.stdout


def compiler():
    return shlex.split(os.environ.get("CC", "cc"))


# ---- the interface as it is now --------------------------------------------------------------------------------------


def interface():
    """The header without comments and without what is for the preprocessor alone: a declaration, or a member, a line."""
    with open(HEADER, encoding="utf-8") as file:
        code = re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.S).replace("\\\n", " ")
    lines, unfinished, struct = [], "", ""
    for line in (" ".join(line.split()) for line in code.splitlines()):
        if line.startswith("#"):
            if re.match(r"#define FEEDLANE_\w+ (?!__attribute)", line):
                lines.append(line)
            continue
        unfinished = f"{unfinished} {line}".strip()
        if not unfinished.endswith((";", "{", "}")):
            continue
        if opening := re.fullmatch(r"typedef struct (\w+) {", unfinished):
            struct = opening[1]
        elif unfinished.startswith("}"):
            struct = ""
        elif not unfinished.startswith("extern"):
            lines.append(f"{struct}: {unfinished}" if struct else unfinished)
        unfinished = ""
    return lines


def functions():
    found = [line for line in interface() if line.startswith("FEEDLANE_API ")]
    if len(found) < 30:
        sys.exit(f"only {len(found)} functions of feedlane.h could be read")
    return [line.removeprefix("FEEDLANE_API ").removesuffix(";") for line in found]


def numbers(lines):
    return dict(re.match(r"#define (\w+) (.*)", line).groups() for line in lines if line.startswith("#define"))


def build_hollow_library(folder):
    """The header's functions with nothing inside, under the soname and the symbol versions of the real library."""
    source, library = os.path.join(folder, "hollow.c"), os.path.join(folder, "libfeedlane.so")
    with open(source, "w", encoding="utf-8") as file:
        file.write('#include "feedlane.h"\n')
        for declaration in functions():
            file.write(declaration + (" {}\n" if re.match(r"void \w", declaration) else " { return 0; }\n"))
    with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as file:
        abi = re.search(r"^abi = '(\d+)'", file.read(), flags=re.M)[1]
    run(*compiler(), "-std=c99", "-g", "-O0", "-w", "-fPIC", "-shared", "-I", CAPI, source, "-o", library,
        "-nostdlib", f"-Wl,-soname,libfeedlane.so.{abi}", f"-Wl,--version-script={CAPI}/feedlane.map")
    return library


# ---- recording and comparing -----------------------------------------------------------------------------------------


def dump():
    with tempfile.TemporaryDirectory(prefix="feedlane-abi.") as folder:
        library = build_hollow_library(folder)
        # Nothing of the machine that it was made on, and no line numbers, which change with every comment. The names of
        # files stay: without them libabigail takes the types for private ones.
        run("abidw", "--no-corpus-path", "--no-comp-dir-path", "--short-locs", "--no-architecture", "--no-elf-needed",
            "--no-write-default-sizes", "--out-file", RECORD, library)
    with open(RECORD, encoding="utf-8") as file:
        text = re.sub(r" line='\d+' column='\d+'", " line='1' column='1'", file.read())
    with open(RECORD, "w", encoding="utf-8") as file:
        file.write(text)
    lines = interface()
    with open(TEXT, "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))
    print(f"on record: {len(functions())} functions, {len(numbers(lines))} constants")
    return 0


def compare(library, *options):
    """What abidiff says of the record and the library; nothing if they are the same."""
    # Not with --headers-dir: it would also make the system's own types private, and int32_t for int64_t no change. A handle
    # whose struct is known to the library and not to the record is no change anyway.
    command = ["abidiff", "--no-architecture", "--no-show-locs"]
    finished = subprocess.run([*command, *options, RECORD, library], capture_output=True, text=True, check=False)
    return f"{finished.stdout}{finished.stderr}" if finished.returncode else ""


def has_debug_information(library):
    return ".debug_info" in run("readelf", "--wide", "--section-headers", library)


def compare_all(library):
    """What is to be said of each kind of difference."""
    with tempfile.TemporaryDirectory(prefix="feedlane-abi.") as folder:
        report = compare(build_hollow_library(folder), "--leaf-changes-only")
    if not report and library and has_debug_information(library):
        report = compare(library, "--leaf-changes-only")
    with open(TEXT, encoding="utf-8") as file:
        recorded = file.read().splitlines()
    present = interface()
    if report or numbers(recorded) != numbers(present):
        yield from (line for line in difflib.unified_diff(recorded, present, "on record", "now", n=0, lineterm=""))
    if report:
        yield "\nabidiff:\n" + report


def check(library):
    for tool in ("abidiff", "readelf"):
        if not shutil.which(tool):
            print(f"skipped: no {tool} here (Debian: abigail-tools, binutils)")
            return SKIPPED
    problems = list(compare_all(library))
    if problems:
        print("The binary interface is not the one on record, in capi/abi/:\n", *problems, WHAT_NOW, sep="\n")
        return 1
    print("the binary interface is the one on record")
    return 0


def main():
    if sys.argv[1:] == ["dump"]:
        return dump()
    if sys.argv[1:2] == ["check"] and len(sys.argv) <= 3:
        return check("".join(sys.argv[2:]))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
