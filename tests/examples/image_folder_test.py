# SPDX-License-Identifier: Apache-2.0
"""What examples/cpp/image_folder promises. Usage: image_folder_test.py IMAGE_FOLDER [unittest's arguments]"""
import os
import sys
import tempfile
import unittest

from programs import describe, run

PROGRAM = sys.argv.pop(1)
COUNT = 64


class Feed:
    """One run over a folder: what it printed, by label."""

    def __init__(self, test, folder, *options, code=0):
        command = [PROGRAM, "--checksum", "--epochs", "2", "--batch", "10", "--side", "96", *options, folder]
        finished = run(*command)
        self.story = describe(command, finished)
        test.assertEqual(finished.code, code, self.story)
        self.err = finished.err
        self.values = dict(part.split(": ") for line in finished.out.splitlines() if ": " in line
                           for part in line.split(", "))


class ImageFolder(unittest.TestCase):
    def setUp(self):
        self.parent = tempfile.TemporaryDirectory()
        self.addCleanup(self.parent.cleanup)
        self.folder = os.path.join(self.parent.name, "photos")
        made = run(PROGRAM, "--generate", self.folder, "--count", COUNT)
        self.assertEqual(made.code, 0, describe([PROGRAM], made))

    def pictures(self):
        return sorted(os.path.join(where, name) for where, _, names in os.walk(self.folder)
                      for name in names if name.endswith(".jpg"))

    def test_generated_folder_is_complete_and_attributed(self):
        self.assertEqual(len(self.pictures()), COUNT)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(["ATTRIBUTION", *"0123456789"]))

    def test_samples_do_not_depend_on_who_makes_them(self):
        inline = Feed(self, self.folder, "--workers", "0")
        self.assertEqual(inline.values["images"], str(2 * COUNT), inline.story)
        for start in "spawn", "fork", "thread":
            with self.subTest(start=start):
                feed = Feed(self, self.folder, "--workers", "2", "--start", start)
                self.assertEqual(feed.values["checksum"], inline.values["checksum"], feed.story + inline.story)
        other = Feed(self, self.folder, "--workers", "0", "--seed", "2")
        self.assertNotEqual(other.values["checksum"], inline.values["checksum"], "--seed must matter")

    def test_large_pictures_are_decoded_small_and_bytes_work(self):
        for options in ["--side", "20"], ["--side", "700"], ["--uint8"]:
            with self.subTest(options=options):
                feed = Feed(self, self.folder, "--workers", "0", "--epochs", "1", *options)
                self.assertEqual(feed.values["images"], str(COUNT), feed.story)

    def test_broken_pictures(self):
        first, second = self.pictures()[7], self.pictures()[30]
        with open(first, "rb+") as file:  # half of it
            file.truncate(os.path.getsize(first) // 2)
        with open(second, "wb") as file:
            file.write(b"this is no picture")
        for workers in "0", "2":
            with self.subTest(workers=workers):
                raised = Feed(self, self.folder, "--workers", workers, code=1)
                self.assertTrue(first in raised.err or second in raised.err, "it names the file" + raised.story)
                skipped = Feed(self, self.folder, "--workers", workers, "--on-error", "skip")
                # A crop above the point where the file ends is decoded all the same.
                left_out = int(skipped.values["left out"])
                self.assertGreaterEqual(left_out, 2, "the one that is no picture, twice" + skipped.story)
                self.assertEqual(int(skipped.values["images"]) + left_out, 2 * COUNT, skipped.story)
                self.assertIn(second, skipped.err, skipped.story)
                other = Feed(self, self.folder, "--workers", workers, "--on-error", "substitute")
                self.assertEqual(other.values["images"], str(2 * COUNT), other.story)
                self.assertGreaterEqual(int(other.values["substituted"]), 2, other.story)

    def test_refusals_name_what_is_wrong(self):
        empty = os.path.join(self.parent.name, "empty")
        os.mkdir(empty)
        for code, needle, options in ((1, "/nowhere", ["/nowhere"]), (1, "no folder in it", [empty]),
                                      (2, "--side", ["--side", "0", "x"]),
                                      (2, "--on-error", ["--on-error", "shrug", "x"]), (2, "no folder was named", []),
                                      (2, "--bogus", ["--bogus"]), (2, "--generate", ["--generate", "a", "b"]),
                                      (2, "--start", ["--workers", "0", "--start", "fork", "x"])):
            with self.subTest(options=options):
                finished = run(PROGRAM, *options, deadline_s=20)
                self.assertEqual(finished.code, code, describe(options, finished))
                self.assertIn(needle, finished.err.splitlines()[0], describe(options, finished))


if __name__ == "__main__":
    unittest.main()
