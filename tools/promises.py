#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print the promises of docs/semantics.md and docs/failure-semantics.md with the tests that show them.

Usage: promises.py [TAG...]   print all promises, or those with these tags
       promises.py --check    report each promise without a test, each unknown tag, each semantics test without a promise

A promise is a row of a table whose last column, "Tag", begins with its tag. The row says "no test yet: why" if no test shows it.
A test shows the promises of the comments "promise: TAG, TAG" directly above its definition. A comment that no definition follows
belongs to the file.
"""

import collections
import pathlib
import re
import sys

PAGES = "docs/semantics.md", "docs/failure-semantics.md"
TESTS = "tests/**/*.cpp", "tests/**/*.c", "tests/**/*.py", "capi/python/tests/*.py"
COMMENT = re.compile(r"\s*(?://|#) promise: (.*)$")
STRING = r'"(?:[^"\\]|\\.)*"'
CASE = re.compile(rf"TEST_CASE\(\s*((?:{STRING}\s*)+)\)")
DEFINITION = re.compile(r"\s*(?:def|class) (\w+)")

Promise = collections.namedtuple("Promise", "page line text has_no_test")
Test = collections.namedtuple("Test", "file line name tags")


def promises_of(root):
    """(tag, promise) for each row, in the order of the pages."""
    for page in PAGES:
        heading = ()
        for number, line in enumerate((root / page).read_text(encoding="utf-8").splitlines(), 1):
            if not line.startswith("|"):
                heading = ()
                continue
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not heading:
                heading = cells
            elif heading[-1] == "Tag" and not line.startswith("|--"):
                found = re.match(r"`([a-z0-9-]+)`", cells[-1])
                complete = len(cells) == len(heading) and all(cells)
                text = cells[0] if heading[0] == "Promise" else ": ".join(cells[:2])
                yield (found[1] if found and complete else None,
                       Promise(page, number, text, bool(re.search(r"no test yet: \w", cells[-1]))))


def name_of(lines, number):
    """The name of the test that the line defines, or None."""
    if found := CASE.match("\n".join(lines[number:number + 10])):
        return "".join(part[1:-1] for part in re.findall(STRING, found[1])).replace(r"\"", '"')
    found = DEFINITION.match(lines[number]) if number < len(lines) else None
    return found[1] if found else None


def tests_of(root):
    """Every test case in C++, and every other test that has a tag."""
    for path in sorted(path for pattern in TESTS for path in root.glob(pattern)):
        lines = path.read_text(encoding="utf-8").splitlines()
        tags = []
        for number, line in enumerate(lines):
            if found := COMMENT.match(line):
                tags += found[1].split(", ")
                if number + 1 < len(lines) and COMMENT.match(lines[number + 1]):
                    continue
                name = name_of(lines, number + 1)
                yield Test(str(path.relative_to(root)), number + 2 if name else 1, name or "", tags)
                tags = []
            elif line.startswith("TEST_CASE") and not (number and COMMENT.match(lines[number - 1])):
                yield Test(str(path.relative_to(root)), number + 1, name_of(lines, number) or "", [])


def problems(root):
    """What is wrong, a line each."""
    promises = list(promises_of(root))
    tests = list(tests_of(root))
    tags = [tag for tag, _ in promises]
    shown = {tag for test in tests for tag in test.tags}
    for tag, promise in promises:
        where = f"{promise.page}:{promise.line}"
        if tag is None:
            yield f"{where}: a row needs all its columns, and a tag in the last one"
        elif tags.count(tag) > 1:
            yield f"{where}: another promise has the tag {tag}"
        elif containing := [other for other in tags if other and tag in other and tag != other]:
            yield f"{where}: git grep {tag} would also find {containing[0]}"
        elif tag not in shown and not promise.has_no_test:
            yield f"{where}: {tag} has no test, and does not say 'no test yet: why'"
        elif tag in shown and promise.has_no_test:
            yield f"{where}: {tag} says 'no test yet', but has one"
    for test in tests:
        where = f"{test.file}:{test.line}"
        yield from (f"{where}: no page has a promise {tag}" for tag in test.tags if tag not in tags)
        if test.file.startswith("tests/semantics/") and not test.tags:
            yield f"{where}: no promise above \"{test.name}\""


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    if sys.argv[1:] == ["--check"]:
        found = list(problems(root))
        print(*found, sep="\n", end="\n" if found else "")
        return len(found) > 0
    tests = list(tests_of(root))
    promises = list(promises_of(root))
    if unknown := set(sys.argv[1:]) - {tag for tag, _ in promises}:
        sys.exit(f"no promise has the tag {', '.join(sorted(unknown))}")
    for tag, promise in promises:
        if tag in sys.argv[1:] or not sys.argv[1:]:
            print(f"{tag}: {promise.text} ({promise.page}:{promise.line})")
            for test in tests:
                if tag in test.tags:
                    print(f"  {test.file}:{test.line}: {test.name}".removesuffix(": "))
    return 0


if __name__ == "__main__":
    sys.exit(main())
