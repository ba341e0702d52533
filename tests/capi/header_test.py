#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""feedlane.h, and each header that it includes by itself, compile in every language they are for, without a warning. The
statuses are the same in the table and in the #defines, and feedlane.h leaves no header out.

Usage: header_test.py INCLUDE_FOLDER
"""

import glob
import os
import re
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


def programs(standard, subjects):
    include = '#include "feedlane.h"\n'
    yield "alone", include
    for subject in subjects:
        yield f"{subject} alone", f'#include "{subject}"\n#include "{subject}"\n'
    yield "subjects from the last", "".join(f'#include "{subject}"\n' for subject in reversed(subjects))
    yield "twice", include + include
    yield "statuses", include + STATUSES
    yield "use", include + USE
    if standard in CPP:
        yield "within C++", "#include <cstdint>\n" + include + include + "using handle = ::feedlane_loader*;\n"


def main():
    folder = os.path.abspath(sys.argv[1])
    subjects = sorted(glob.glob("feedlane/*.h", root_dir=folder))
    with open(os.path.join(folder, "feedlane.h"), encoding="utf-8") as file:
        included = re.findall(r'^#include "(.*)"$', file.read(), flags=re.M)
    if sorted(included) != subjects or not subjects:
        print(f"feedlane.h includes {included}, there are {subjects}")
        return 1
    failed = tried = 0
    compilers = [(c, C) for c in ("gcc", "clang") if shutil.which(c)]
    compilers += [(c, CPP) for c in ("g++", "clang++") if shutil.which(c)]
    if not any(standards is C for _, standards in compilers) or not any(standards is CPP for _, standards in compilers):
        print("no compiler for C or none for C++")
        return 77
    with tempfile.TemporaryDirectory() as scratch:
        for compiler, standards in compilers:
            for standard in standards:
                for title, text in programs(standard, subjects):
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
