# SPDX-License-Identifier: Apache-2.0
"""capi/python/feedlane/_abi.py says what the record of feedlane.h says: structs by size and offset, constants, functions by
their arguments. Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python abi_test.py capi/abi/interface.json"""
import ctypes as c
import json
import sys
import unittest

try:
    from feedlane import _abi, errors
except ModuleNotFoundError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

with open(sys.argv.pop(1), encoding="utf-8") as file:
    RECORD = json.load(file)

NUMBERS = {"int32_t": c.c_int32, "int64_t": c.c_int64, "uint32_t": c.c_uint32, "uint64_t": c.c_uint64,
           "uint8_t": c.c_uint8, "uint16_t": c.c_uint16, "size_t": c.c_size_t, "double": c.c_double}


def is_of(kind, of):
    """Whether this is how ctypes has a C type: numbers exactly, anything else as some pointer."""
    if of in NUMBERS:
        return kind is NUMBERS[of]
    if of in RECORD["structs"]:
        return kind is _abi.STRUCTS[of]
    return kind in (c.c_void_p, c.c_char_p) or issubclass(kind, (c._Pointer, c._CFuncPtr))


class Abi(unittest.TestCase):
    def test_structs(self):
        for name, struct in _abi.STRUCTS.items():
            recorded = RECORD["structs"][name]
            with self.subTest(name):
                self.assertEqual(c.sizeof(struct), recorded["bytes"])
                self.assertEqual([field for field, _ in struct._fields_], [f["name"] for f in recorded["fields"]])
            for (field, kind), of in zip(struct._fields_, recorded["fields"]):
                with self.subTest(name, field=field):
                    member = getattr(struct, field)
                    self.assertEqual((member.offset, member.size), (of["offset"], of["bytes"]))
                    self.assertEqual(getattr(kind, "_length_", None), of.get("length"))
                    if "length" not in of:
                        self.assertTrue(is_of(kind, of["type"]), f"{kind} for {of['type']}")

    def test_constants(self):
        names = [n for n in vars(_abi) if n.isupper() and isinstance(getattr(_abi, n), int)]
        self.assertGreater(len(names), 30)
        for name in names:
            with self.subTest(name):
                self.assertEqual(getattr(_abi, name), RECORD["constants"]["FEEDLANE_" + name])

    def test_functions(self):
        self.assertGreater(len(_abi._FUNCTIONS), 30)
        for name, kinds in _abi._FUNCTIONS.items():
            recorded = RECORD["functions"][name]
            with self.subTest(name):
                self.assertEqual(len(kinds), len(recorded["arguments"]))
                self.assertTrue(is_of(getattr(_abi.library, name).restype, recorded["returns"]))
                for kind, argument in zip(kinds, recorded["arguments"]):
                    self.assertTrue(is_of(kind, argument["type"]), argument["name"])

    def test_every_error_has_its_exception(self):
        statuses = {n: v for n, v in RECORD["constants"].items() if n.startswith("FEEDLANE_E_")}
        for name, status in statuses.items():
            self.assertIn(status, errors.BY_STATUS, name)
            self.assertEqual(errors.make(status, "text").status, status)
        self.assertEqual(len(set(errors.BY_STATUS.values())), len(errors.BY_STATUS))


if __name__ == "__main__":
    unittest.main()
