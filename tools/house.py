#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The house checks: what a reader would otherwise have to notice by hand.

Usage: house.py ROOT REPORT

Prints "PASSED FAILED", appends what it found to REPORT, ends with 1 if anything failed. Each function below is one
check: it yields a line for each thing that is wrong.
"""

import os
import re
import sys

MAX_LINES = 500
ROOMS = ("lib", "include", "capi", "tools", "examples", "tests")
SOURCES = (".hpp", ".h", ".cpp", ".c", ".py", ".rs", ".sh")
COMMANDS = (
    "tools/quickstart", "tools/check", "tools/try-bare", "tools/deb", "tools/reference", "tools/abi-dump", "tools/fuzz",
    ".ci/run",
)

ATOMIC_ACCESS = re.compile(
    r"(?:\.|->)(load|store|exchange|compare_exchange_(?:weak|strong)|fetch_(?:add|sub|or|and|xor)|test_and_set)\("
)


def sources(root, *rooms):
    """(path, text) of every source file of these rooms, scripts without a suffix included."""
    for room in rooms:
        for folder, folders, names in os.walk(os.path.join(root, room)):
            folders[:] = sorted(name for name in folders if not name.startswith((".", "__")) and name != "target")
            for name in sorted(names):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8", errors="replace") as file:
                    if name.endswith(SOURCES) or ("." not in name and file.read(2) == "#!"):
                        file.seek(0)
                        yield os.path.relpath(path, root), file.read()


def files_fit_in_the_head(root):
    for path, text in sources(root, "lib", "include", "capi", "tools"):
        lines = text.count("\n")
        if lines > MAX_LINES:
            yield f"{path}: {lines} lines, more than {MAX_LINES}"


def sources_name_their_licence(root):
    for path, text in sources(root, *ROOMS):
        if "SPDX-License-Identifier: Apache-2.0" not in text[:300]:
            yield f"{path}: no 'SPDX-License-Identifier: Apache-2.0' in its first lines"


def arguments_at(text, opening):
    """The text between the parenthesis at `opening` and the one that closes it."""
    depth = 0
    for end in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            return text[opening + 1 : end]
    return text[opening + 1 :]


def atomics_name_their_order(root):
    for path, text in sources(root, "lib", "include", "capi"):
        if path.endswith(".py"):
            continue  # no atomics, and methods of these names
        for access in ATOMIC_ACCESS.finditer(text):
            arguments = arguments_at(text, access.end() - 1)
            if access[1] == "load" and arguments:
                continue  # an atomic's has no other argument: this one loads a sampler's state, or names the order
            if "order" not in arguments.lower():  # in Rust it is an Ordering
                line = text.count("\n", 0, access.start()) + 1
                yield f"{path}:{line}: {access[1]} without a memory order"


def nothing_is_left_over(root):
    # Put together from halves, so that this file doesn't find itself.
    words = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")) + r")\b")
    for path, text in sources(root, *ROOMS):
        for number, line in enumerate(text.splitlines(), 1):
            if words.search(line):
                yield f"{path}:{number}: {line.strip()}"


def commands_can_be_run(root):
    for path in COMMANDS:
        if not os.access(os.path.join(root, path), os.X_OK):
            yield f"{path}: missing, or not executable"


CHECKS = (
    files_fit_in_the_head,
    sources_name_their_licence,
    atomics_name_their_order,
    nothing_is_left_over,
    commands_can_be_run,
)


def main():
    root, report_path = sys.argv[1:]
    failed = 0
    with open(report_path, "a", encoding="utf-8") as report:
        for check in CHECKS:
            found = list(check(root))
            if found:
                failed += 1
                title = check.__name__.replace("_", " ")
                print(f"\nFAILED house: {title}", *("    " + line for line in found), sep="\n", file=report)
    print(len(CHECKS) - failed, failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
