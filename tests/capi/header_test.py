#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""feedlane.h alone compiles in every language it is for, without a warning, and says the same about statuses twice.

Usage: header_test.py HEADER
"""

import os
import shutil
import subprocess
import sys
import tempfile

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
C = ("c99", "c11")
CPP = ("c++17", "c++20")

# What the table of statuses says and what the #defines say.
STATUSES = """
#define SAME(name, number, text) typedef char same_##name[FEEDLANE_##name == (number) ? 1 : -1];
FEEDLANE_STATUS_TABLE(SAME)
#undef SAME
"""
USE = """
int main(void) {
  feedlane_error e;
  feedlane_loader *l = 0;
  feedlane_init(&e, sizeof e);
  return feedlane_loader_begin(l, 0, &e) != FEEDLANE_E_ARGUMENT || feedlane_abi_version() != FEEDLANE_ABI;
}
"""


def programs(standard):
    include = '#include "feedlane.h"\n'
    yield "alone", include
    yield "twice", include + include
    yield "statuses", include + STATUSES
    yield "use", include + USE
    if standard in CPP:
        yield "within C++", "#include <cstdint>\n" + include + include + "using handle = ::feedlane_loader*;\n"


def main():
    folder = os.path.dirname(os.path.abspath(sys.argv[1]))
    failed = tried = 0
    compilers = [(c, C) for c in ("gcc", "clang") if shutil.which(c)]
    compilers += [(c, CPP) for c in ("g++", "clang++") if shutil.which(c)]
    if not any(standards is C for _, standards in compilers) or not any(standards is CPP for _, standards in compilers):
        print("no compiler for C or none for C++")
        return 77
    with tempfile.TemporaryDirectory() as scratch:
        for compiler, standards in compilers:
            for standard in standards:
                for title, text in programs(standard):
                    source = os.path.join(scratch, "header." + ("c" if standards is C else "cpp"))
                    with open(source, "w", encoding="utf-8") as file:
                        file.write(text)
                    command = [compiler, "-std=" + standard, *WARNINGS, "-I", folder, "-fsyntax-only", source]
                    result = subprocess.run(command, capture_output=True, text=True, check=False)
                    tried += 1
                    if result.returncode != 0 or result.stderr:
                        failed += 1
                        print(f"{compiler} {standard}, {title}:\n{result.stderr}")
    print(f"{tried} programs compiled, {failed} of them not or with warnings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
