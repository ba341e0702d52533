#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A package's README as a shell script: tools/try-bare runs it in a new system.

Usage: readme.py README [--output | --program]

Prints the script, to be run by bash in the root of the source: each ```sh block as it stands, and each block that a paragraph
ending in a colon names a file for, such as "Save this as `first.py`:", written to that file. The script ends with the first ```sh
block after the first of those files, which runs the program; the line MARK precedes its output. With --output: prints the ```text
block that follows, which is what the program prints; nothing if there is none. With --program: prints the first of those files.
Status 1: the README has no such blocks.
"""

import re
import sys
from typing import NamedTuple

MARK = "-- first program"
FENCE = re.compile(r"(?:^|\n)(?P<before>(?:(?!```).*\n)*?)```(?P<kind>\w*)\n(?P<text>(?:.*\n)*?)```(?=\n|$)")
FILE_NAME = re.compile(r"`([\w./-]+\.\w+)`")


class Block(NamedTuple):
    kind: str  # the word after the fence
    text: str  # with a newline at the end
    file_name: str | None  # where the README says to save it


def blocks_of(readme):
    """The fenced blocks of a README, in order."""
    for found in FENCE.finditer(readme):
        paragraph = found["before"].rstrip().rsplit("\n\n", 1)[-1]
        names = FILE_NAME.findall(paragraph) if paragraph.endswith(":") else []
        yield Block(found["kind"], found["text"], names[-1] if names else None)


class Incomplete(Exception):
    """The README does not lead to a program that is run."""


def follow(readme):
    """The blocks up to the one that runs the first program, and what that prints (None: the README does not say)."""
    followed, has_program = [], False
    blocks = list(blocks_of(readme))
    for number, block in enumerate(blocks):
        if block.kind == "sh":
            followed.append(block)
            if has_program:
                after = blocks[number + 1] if number + 1 < len(blocks) else None
                return followed, after.text if after is not None and after.kind == "text" else None
        elif block.file_name is not None:
            followed.append(block)
            has_program = True
    raise Incomplete("no ```sh block that runs the program" if has_program else "no block that is to be saved to a file")


def script(followed):
    lines = ["set -e\n"]
    for block in followed:
        if block is followed[-1]:
            lines.append(f"echo '{MARK}'\n")
        if block.kind == "sh":
            lines.append(block.text)
        else:
            lines.append(f"cat >'{block.file_name}' <<'END OF THE FILE'\n{block.text}END OF THE FILE\n")
    return "".join(lines)


def main(path, what=None):
    with open(path, encoding="utf-8") as file:
        readme = file.read()
    try:
        followed, output = follow(readme)
    except Incomplete as reason:
        print(f"{path}: {reason}", file=sys.stderr)
        return 1
    if what == "--output":
        print(output or "", end="")
    elif what == "--program":
        print(next(block.text for block in followed if block.file_name), end="")
    else:
        print(script(followed), end="")
    return 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--output"], ["--program"]):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))
