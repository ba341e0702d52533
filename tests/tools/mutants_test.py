# SPDX-License-Identifier: Apache-2.0
"""Each change of a small source does what it says, and none is there unless it is chosen.

Usage: mutants_test.py FOLDER_OF_MUTATE COMPILER..."""

import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, sys.argv[1])
COMPILER = sys.argv[2:]
del sys.argv[1:]

import mutate  # noqa: E402

HEADER = os.path.join(os.path.dirname(mutate.__file__), "mutants.hpp")
SOURCE = r"""
#include <atomic>
#include <cstdio>
#include <cstring>
struct Row { std::atomic<int> a{0}, b{0}, c{0}; };
int clamp(int value, int most) {
  if (value > most) return most;  // if (no) mutant
  return value;
}
int last(const char* text) {
  if (const auto n = std::strlen(text); n != 0) return text[n - 1];
  if (int declared = 7) return declared + (*text == '+' ? 1 : 0);
  return 0;
}
bool is_within(unsigned long at, int end) { return at >= 2 && at + 1 <= static_cast<unsigned long>(end); }
void write(Row* row, int* seen) {
  row->a.store(1, std::memory_order_release);
  row->b.store(row->a.load() + 1, std::memory_order_release);
  *seen = row->b.load();
  if (*seen == 9)
    row->c.store(9);
  else row->c.store(3);  // alone
}
int main() {
  Row row;
  int seen = 0;
  write(&row, &seen);
  std::printf("%d %d %d %c %d%d%d %d %d %d %d\n", clamp(3, 3), clamp(4, 3), last(""), last("ab"), is_within(1, 3), is_within(2, 3),
              is_within(3, 3), row.a.load(), row.b.load(), row.c.load(), seen);
}
"""
PLAIN = "3 3 7 b 010 1 2 3 2"


class Mutants(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        text, cls.mutants = mutate.mutate(SOURCE, "small.cpp", 10)
        cls.folder = tempfile.TemporaryDirectory()
        source, cls.program = os.path.join(cls.folder.name, "small.cpp"), os.path.join(cls.folder.name, "small")
        with open(source, "w", encoding="utf-8") as f:
            f.write(text)
        subprocess.run([*COMPILER, "-std=c++20", "-include", HEADER, source, "-o", cls.program], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_with(self, **environment):
        return subprocess.run([self.program], env=environment, capture_output=True, text=True, check=True).stdout.strip()

    def test_none(self):
        self.assertEqual(self.run_with(), PLAIN)
        self.assertEqual(self.run_with(FEEDLANE_MUTANT="9"), PLAIN)

    def test_each(self):
        for kind, text, printed in (
            ("check", "value > most", "3 4 7 b 010 1 2 3 2"),
            ("bound", "value > most", PLAIN),  # equivalent
            ("check", "n != 0", "3 3 7 \x07 010 1 2 3 2"),
            ("store", "row->c.store(3)", "3 3 7 b 010 1 2 0 2"),
            ("store", "row->c.store(9)", PLAIN),
        ):
            with self.subTest(kind=kind, text=text):
                found = [m for m in self.mutants if m.kind == kind and text in m.text]
                self.assertTrue(found)
                self.assertEqual(self.run_with(FEEDLANE_MUTANT=str(found[0].number)), printed)

    def test_bounds(self):
        bounds = [m for m in self.mutants if m.kind == "bound" and m.function == "is_within"]
        self.assertEqual([self.run_with(FEEDLANE_MUTANT=str(m.number)).split()[4] for m in bounds], ["000", "000"])
        one = [m for m in self.mutants if m.kind == "one" and m.function == "is_within"]
        self.assertEqual([self.run_with(FEEDLANE_MUTANT=str(m.number)).split()[4] for m in one], ["011"])

    def test_swap(self):
        swaps = [m for m in self.mutants if m.kind == "swap"]
        self.assertEqual([m.text.count(";") for m in swaps], [2])
        self.assertEqual(self.run_with(FEEDLANE_MUTANT=str(swaps[0].number)).split()[5:7], ["1", "1"])

    def test_names(self):
        self.assertEqual({m.function for m in self.mutants}, {"clamp", "last", "is_within", "write"})
        self.assertFalse([m for m in self.mutants if "declared" in m.text])
        self.assertEqual(len({m.number for m in self.mutants}), len(self.mutants))
        self.assertEqual([m.line for m in self.mutants if "value > most" in m.text], [7, 7])
        self.assertEqual(len({m.name() for m in self.mutants}), len(self.mutants))

    def test_seen(self):
        path = os.path.join(self.folder.name, "seen")
        with open(path, "wb") as f:
            f.truncate(1 << 16)
        self.run_with(FEEDLANE_MUTANTS_SEEN=path)
        with open(path, "rb") as f:
            seen = {i for i, byte in enumerate(f.read()) if byte}
        unseen = {m.number for m in self.mutants if "row->c.store(9)" in m.text}
        self.assertEqual(seen, {m.number for m in self.mutants} - unseen)


if __name__ == "__main__":
    unittest.main()
