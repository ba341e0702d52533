#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C++ headers under other settings than the project's: C++17 is told of in one error, every header stands by itself
and is free of warnings, without exceptions and RTTI too. Usage: standard_test.py INCLUDE; $CXX is the compiler."""
import os
import subprocess
import sys

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]


def compile_text(text, folders, *options):
    finished = subprocess.run(
        [*os.environ["CXX"].split(), "-x", "c++", "-fsyntax-only", *options, *(f"-I{f}" for f in folders), "-"],
        input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )
    return finished.returncode, finished.stdout


def main():
    folders = sys.argv[1:]
    headers = sorted(name for name in os.listdir(os.path.join(folders[0], "feedlane")) if name.endswith(".hpp"))
    problems = []
    for header in headers:
        text = f"#include <feedlane/{header}>\n"
        status, said = compile_text(text, folders, "-std=c++17")
        errors = [line for line in said.splitlines() if " error: " in line or "fatal error" in line]
        if status == 0 or len(errors) != 1 or "needs C++20" not in errors[0]:
            problems.append(f"{header} by C++17: {len(errors)} errors:\n{said[:2000]}")
        if header == "feedlane.hpp":
            continue
        status, said = compile_text(text, folders, "-std=c++20", *WARNINGS)
        if status != 0:
            problems.append(f"{header} by itself:\n{said[:2000]}")
    status, said = compile_text("#include <feedlane/feedlane.hpp>\n", folders, "-std=c++20", "-fno-exceptions", "-fno-rtti", *WARNINGS)
    if status != 0:
        problems.append(f"without exceptions:\n{said[:2000]}")
    print("\n".join(problems) or f"{len(headers)} headers: as they should be")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
