#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/fuzz_corpus.py and the fuzz driver read the same corpora. Usage: fuzz_corpus_test.py tools/fuzz_corpus.py FUZZ_PROGRAM"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CORPUS_TOOL, PROGRAM = sys.argv[1:3]
INPUTS = [b"\x00\xff\n", b"# no comment", bytes(range(256))]


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


class Corpus(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.corpus = self.folder / "rank.hex"
        for number, content in enumerate(INPUTS):
            (self.folder / f"input{number}").write_bytes(content)

    def tool(self, *arguments):
        done = run(sys.executable, "-B", CORPUS_TOOL, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_inputs_come_back_byte_for_byte_and_once(self):
        names = sorted(self.folder.glob("input*"))
        self.assertEqual(self.tool("add", self.corpus, *names, names[0]), "3 of 4 added, 3 inputs\n")
        before = self.corpus.read_bytes()
        self.assertEqual(self.tool("add", self.corpus, *names), "0 of 3 added, 3 inputs\n")
        self.assertEqual(self.corpus.read_bytes(), before)
        (self.folder / "out").mkdir()
        (self.folder / "out/stale").write_text("of a former corpus")
        self.tool("unpack", self.corpus, self.folder / "out")
        self.assertEqual([path.read_bytes() for path in sorted((self.folder / "out").iterdir())], INPUTS)

    def test_driver_runs_each_line_and_plain_files(self):
        self.tool("add", self.corpus, *sorted(self.folder.glob("input*")))
        done = run(PROGRAM, self.corpus, self.folder / "input0")
        self.assertEqual((done.returncode, done.stdout), (0, "4 inputs\n"), done.stderr)
        self.assertEqual(done.stderr.splitlines(), [f"{self.corpus}:{line}" for line in (2, 3, 4)] + [str(self.folder / "input0")])

    def test_driver_refuses_other_lines_and_no_inputs(self):
        for text, code in (("00\n0g\n", 2), ("00\n000\n", 2), ("# nothing\n", 1)):
            self.corpus.write_text(text)
            self.assertEqual(run(PROGRAM, self.corpus).returncode, code, text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
