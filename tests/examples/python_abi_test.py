# SPDX-License-Identifier: Apache-2.0
"""The structs of examples/python/feedlane/_abi.py have the sizes and offsets of feedlane.h, its constants the numbers.
Usage: CC=... FEEDLANE_LIBRARY=... PYTHONPATH=examples/python python_abi_test.py FOLDER_OF_FEEDLANE_H"""
import ctypes as c
import os
import shlex
import subprocess
import sys
import tempfile
import unittest

try:
    from feedlane import _abi, errors
except ModuleNotFoundError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

HEADER = sys.argv.pop(1)


def c_says(expressions):
    """The numbers that the compiler has for these expressions."""
    lines = "".join(f'  printf("%lld\\n", (long long)({e}));\n' for e in expressions)
    source = f"#include <stddef.h>\n#include <stdio.h>\n#include <feedlane.h>\nint main(void) {{\n{lines}  return 0;\n}}\n"
    with tempfile.TemporaryDirectory() as folder:
        path, program = os.path.join(folder, "numbers.c"), os.path.join(folder, "numbers")
        with open(path, "w", encoding="ascii") as file:
            file.write(source)
        compiler = shlex.split(os.environ.get("CC", "cc"))
        subprocess.run([*compiler, "-std=c99", "-I", HEADER, path, "-o", program], check=True)
        return [int(n) for n in subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()]


class Abi(unittest.TestCase):
    def compare(self, expected):
        for (expression, ours), theirs in zip(expected.items(), c_says(expected), strict=True):
            with self.subTest(expression):
                self.assertEqual(ours, theirs)

    def test_sizes(self):
        self.compare({f"sizeof({name})": c.sizeof(struct) for name, struct in _abi.STRUCTS.items()})

    def test_offsets_and_sizes_of_members(self):
        expected = {}
        for name, struct in _abi.STRUCTS.items():
            for field, _ in struct._fields_:
                member = getattr(struct, field)
                expected[f"offsetof({name}, {field})"] = member.offset
                expected[f"sizeof((({name} *)0)->{field})"] = member.size
        self.compare(expected)

    def test_every_member_is_there(self):
        # Members lie one behind the other: with the sizes right, a missing one would leave a hole.
        for name, struct in _abi.STRUCTS.items():
            end = 0
            for field, kind in struct._fields_:
                member = getattr(struct, field)
                self.assertLess(member.offset - end, c.alignment(kind), f"{name}: something is missing before {field}")
                end = member.offset + member.size
            self.assertLess(c.sizeof(struct) - end, c.alignment(struct), f"{name}: something is missing at its end")

    def test_constants(self):
        names = [n for n in vars(_abi) if n.isupper() and isinstance(getattr(_abi, n), int)]
        self.assertGreater(len(names), 30)
        self.compare({f"FEEDLANE_{name}": getattr(_abi, name) for name in names})

    def test_every_error_has_its_exception(self):
        for status in range(-18, 0):
            self.assertIn(status, errors.BY_STATUS)
            self.assertEqual(errors.make(status, "text").status, status)
        self.assertEqual(len(set(errors.BY_STATUS.values())), len(errors.BY_STATUS))


if __name__ == "__main__":
    unittest.main()
