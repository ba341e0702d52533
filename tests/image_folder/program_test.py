# SPDX-License-Identifier: Apache-2.0
"""The command line of feedlane-image-folder, and its workers in a trainer in C++.
Usage: program_test.py FEEDLANE_IMAGE_FOLDER IMAGE_TRAINER [unittest's arguments]"""
import os
import random
import struct
import sys
import tempfile
import unittest
import zlib

from programs import describe, run

PROGRAM, TRAINER = sys.argv.pop(1), sys.argv.pop(1)


def png(width, height, seed):
    """A PNG of random colours."""
    draw = random.Random(seed)
    rows = b"".join(b"\0" + draw.randbytes(3 * width) for _ in range(height))
    body = b"\x89PNG\r\n\x1a\n"
    for name, data in ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        body += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return body


def torchvision_list(root):
    """The samples of torchvision.datasets.ImageFolder(root)."""
    extensions = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
    for label, name in enumerate(sorted(entry.name for entry in os.scandir(root) if entry.is_dir())):
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            for file in sorted(files):
                if file.lower().endswith(extensions):
                    yield label, os.path.relpath(os.path.join(folder, file), root)


class Folder(unittest.TestCase):
    def setUp(self):
        parent = tempfile.TemporaryDirectory()
        self.addCleanup(parent.cleanup)
        self.parent, self.folder = parent.name, os.path.join(parent.name, "photos")

    def write(self, path, content=b""):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def refuses(self, code, words, *arguments):
        finished = run(PROGRAM, *arguments, deadline_s=20)
        self.assertEqual(finished.code, code, describe(arguments, finished))
        self.assertRegex(finished.err, words, describe(arguments, finished))
        self.assertEqual(finished.err.count("\n"), 1, describe(arguments, finished))

    def list(self):
        finished = run(PROGRAM, "--list", self.folder)
        self.assertEqual(finished.code, 0, describe([PROGRAM], finished))
        return finished.out


class Listing(Folder):
    def test_order_and_labels_are_those_of_torchvision(self):
        for path in ("b/2.jpg", "b/10.JPG", "a/x.png", "a/sub/1.jpeg", "a/sub-2/0.jpg", "a/sub/deep/z.PnG", "a-b/q.webp", "Z/ä.bmp",
                     "ä/1.tif", "a/notes.txt", "a/.jpg.gz", "a/.hidden.jpg", "b/white space.jpg", "stray.jpg"):
            self.write(path)
        os.symlink(os.path.join(self.folder, "a", "sub"), os.path.join(self.folder, "b", "link"))
        os.symlink("/nowhere", os.path.join(self.folder, "b", "broken.png"))
        found = [line.split("\t") for line in self.list().splitlines()]
        self.assertEqual([(int(label), path) for label, path in found], list(torchvision_list(self.folder)))
        self.assertEqual(len(found), 14)

    def test_refusals(self):
        os.mkdir(self.folder)
        self.refuses(1, "photos: it has no folder; each class needs", "--list", self.folder)
        self.write("full/1.jpg")
        os.mkdir(os.path.join(self.folder, "void"))
        self.refuses(1, "photos/void: the class has no file", "--list", self.folder)
        self.refuses(1, "/nowhere: No such file", "--list", "/nowhere")
        self.write("void/line\nbreak.jpg")
        self.refuses(1, r"line\\nbreak.jpg: the name has a line break", "--list", self.folder)
        os.unlink(os.path.join(self.folder, "void", "line\nbreak.jpg"))
        os.symlink(self.folder, os.path.join(self.folder, "full", "loop"))
        self.refuses(1, "loop: a link to a folder that contains it", "--list", self.folder)


class CommandLine(Folder):
    def test_refusals_name_the_option_and_what_is_allowed(self):
        for words, *arguments in (
                ("is started by a loader", ), ("--bogus: no such option", "--bogus"), ("x: unexpected argument", "x"),
                ("--flip: needs a value", "--flip"), ("--train=1: .*takes no value", "--train=1"),
                ("--scale 0,1: must be two numbers with 0 < MIN <= MAX", "--scale", "0,1"), ("--scale 1,0.5: ", "--scale=1,0.5"),
                ("--scale 1: ", "--scale", "1"), ("--scale 1,nan: ", "--scale", "1,nan"), ("--ratio 1,2x: ", "--ratio", "1,2x"),
                ("--flip 1.5: must be a number from 0 to 1", "--flip", "1.5"), ("--resize 0: ", "--resize", "0"),
                ("--resize 1e3: ", "--resize", "1e3"), ("--mean 1,2: must be three numbers", "--mean", "1,2"),
                ("--std 1,1,0: must be three numbers above 0", "--std", "1,1,0"), ("--max-pixels -1: ", "--max-pixels", "-1")):
            with self.subTest(arguments=arguments):
                self.refuses(2, words, *arguments)

    def test_help_names_each_option_of_the_manual(self):
        with open(os.path.join(os.path.dirname(__file__), "../../tools/image_folder/feedlane-image-folder.1"), encoding="utf-8") as file:
            manual = file.read().replace("\\-", "-")
        finished = run(PROGRAM, "--help")
        self.assertEqual((finished.code, finished.err), (0, ""))
        options = {line.split()[0] for line in finished.out.splitlines() if line.startswith("  --")}
        self.assertEqual(len(options), 12)
        for option in options - {"--help", "--version"}:
            self.assertRegex(manual, rf"(?m)^\.BI? {option}\b", "the manual explains it")


class Trainer(Folder):
    def train(self, *options, code=0):
        list_file = self.write("../photos.list", self.list().encode())
        command = [TRAINER, "--program", PROGRAM, "--root", self.folder, "--batch", "5", "--side", "48", *options, list_file]
        finished = run(*command)
        self.assertEqual(finished.code, code, describe(command, finished))
        return finished

    def values(self, *options):
        return dict(part.split(": ") for part in self.train(*options).out.strip().split(", "))

    def test_batches_do_not_depend_on_the_number_of_workers(self):
        for number in range(18):
            self.write(f"{number % 3}/{number}.png", png(60 + number, 50, number))
        one = self.values("--workers", "1")
        self.assertEqual(one["images"], "36")
        self.assertEqual(self.values("--workers", "3")["checksum"], one["checksum"])
        self.assertNotEqual(self.values("--workers", "1", "--seed", "2")["checksum"], one["checksum"], "--seed must matter")

    def test_a_picture_that_cannot_be_decoded(self):
        for number in range(8):
            self.write(f"c/{number}.png", png(50, 50, number))
        broken = self.write("c/5.png", b"no picture")
        self.assertIn(f"{broken}: the file is neither a JPEG nor a PNG", self.train(code=1).err)
        self.assertEqual(self.values("--skip")["images"], "14")


if __name__ == "__main__":
    unittest.main()
