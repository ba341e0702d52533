# SPDX-License-Identifier: Apache-2.0
"""The sources that tools/site writes for Sphinx, and its check of links, with made-up documents.
Usage: site_test.py PREPARE CHECK_LINKS ROOT"""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = sys.argv.pop()
CHECK = sys.argv.pop()
PREPARE = sys.argv.pop()

TABLE = "| For | Read |\n|---|---|\n| users | [a](docs/a.md) |\n| integrators | - |\n| sceptics | - |\n| developers | [c](CONTRIBUTING.md) |\n"


class Site(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, files):
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def prepare(self, root):
        return subprocess.run([sys.executable, "-B", PREPARE, root, self.folder / "out"], capture_output=True, text=True)

    def test_links_lead_to_the_copies(self):
        self.write({"README.md": TABLE, "CONTRIBUTING.md": "", "include/feedlane/x.h": "int x;\n", "capi/go/README.md": "",
                    "docs/a.md": "[r](../README.md#limits) [x](../include/feedlane/x.h) [w](https://example.org)\n```c\n[i](../README.md)\n```\n"})
        self.assertEqual(self.prepare(self.folder).returncode, 0)
        self.assertEqual((self.folder / "out/docs/a.md").read_text(), "[r](../index.md#limits) [x](../include/feedlane/x.h) "
                         "[w](https://example.org)\n```c\n[i](../README.md)\n```\n")
        self.assertTrue((self.folder / "out/include/feedlane/x.h").exists())
        index = (self.folder / "out/index.md").read_text()
        self.assertIn(":caption: Users\n\ndocs/a\ncapi/go/README\n", index)
        self.assertIn(":caption: Developers\n\nCONTRIBUTING\n", index)
        self.assertIn("doxygenfile:: x.h", (self.folder / "out/reference/x.h.rst").read_text())

    def test_each_document_of_the_tree_is_in_the_navigation(self):
        self.assertEqual(self.prepare(ROOT).returncode, 0)
        index = (self.folder / "out/index.md").read_text().splitlines()
        for path in (self.folder / "out").rglob("*.md"):
            name = os.path.relpath(path, self.folder / "out")[:-3]
            self.assertEqual(index.count(name), 0 if name == "index" else 1, name)

    def test_broken_links_are_named(self):
        self.write({"index.html": '<a href="b.html#here">b</a> <a href="#there">t</a> <a id="there" href="https://example.org/">w</a>',
                    "b.html": '<p id="here">'})
        check = [sys.executable, "-B", CHECK, self.folder]
        done = subprocess.run(check, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "2 links, 0 broken\n"))
        for link in "c.html", "b.html#nowhere", "#nowhere", "../index.html":
            self.write({"b.html": f'<p id="here"><a href="{link}">'})
            done = subprocess.run(check, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (1, f"b.html: {link}\n3 links, 1 broken\n"))


if __name__ == "__main__":
    unittest.main()
