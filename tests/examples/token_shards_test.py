# SPDX-License-Identifier: Apache-2.0
"""What examples/cpp/token_shards promises. Usage: token_shards_test.py TOKEN_SHARDS [unittest's arguments]"""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from programs import DEADLINE_S, describe, run

PROGRAM = sys.argv.pop(1)
EPOCHS = 3
LENGTH = 64
BATCH = 16


class TokenShards(unittest.TestCase):
    def setUp(self):
        parent = tempfile.TemporaryDirectory()
        self.addCleanup(parent.cleanup)
        self.folder = parent.name
        self.state = os.path.join(self.folder, "state")

    def generate(self, *options):
        folder = os.path.join(self.folder, "shards")
        made = run(PROGRAM, "--generate", folder, "--shards", "3", "--tokens", "20000", *options)
        self.assertEqual(made.code, 0, describe([PROGRAM], made))
        return sorted(os.path.join(folder, name) for name in os.listdir(folder))

    def command(self, files, *options):
        return [PROGRAM, "--length", LENGTH, "--batch", BATCH, "--epochs", EPOCHS, *options, *files]

    def feed(self, files, *options, code=0):
        """A run: what it printed, by label."""
        command = self.command(files, *options)
        finished = run(*command)
        self.story = describe(command, finished)
        self.assertEqual(finished.code, code, self.story)
        self.err = finished.err
        return dict(line.split(": ") for line in finished.out.splitlines() if ": " in line)

    def test_windows_do_not_depend_on_who_reads_them(self):
        files = self.generate()
        inline = self.feed(files, "--workers", "0")
        windows = sum((os.path.getsize(file) // 2 - 1) // LENGTH for file in files)
        self.assertEqual(inline["batches"], str(EPOCHS * (windows // BATCH)), self.story)
        for start in "spawn", "fork", "thread":
            with self.subTest(start=start):
                self.assertEqual(self.feed(files, "--start", start)["checksum"], inline["checksum"], self.story)
        other = self.feed(files, "--workers", "0", "--seed", "2")
        self.assertNotEqual(other["checksum"], inline["checksum"], self.story)

    def test_tokens_of_four_bytes(self):
        narrow = self.feed(self.generate(), "--workers", "0")
        wide = self.feed(self.generate("--token-bytes", "4"), "--workers", "0", "--token-bytes", "4")
        self.assertEqual(wide["checksum"], narrow["checksum"], "the same tokens" + self.story)

    def test_killed_runs_go_on_exactly_where_they_were(self):
        files = self.generate()
        whole = self.feed(files, "--workers", "0")
        batches = int(whole["batches"])
        saving = "--state", self.state, "--save-every", "7"
        # In the first epoch, at the end of it, in the last one; each time with other workers.
        for die_at, workers in (batches // 6, "2"), (batches // EPOCHS, "0"), (batches - 3, "3"):
            resume = ["--resume"] if os.path.exists(self.state) else []
            self.feed(files, *saving, *resume, "--workers", workers, "--die-at-batch", die_at, code=-signal.SIGKILL)
        rest = self.feed(files, *saving, "--resume", "--workers", "1")
        self.assertEqual((rest["batches"], rest["checksum"]), (whole["batches"], whole["checksum"]), self.story)
        again = self.feed(files, *saving, "--resume")
        self.assertEqual(again["checksum"], whole["checksum"], "nothing was left to do" + self.story)

    def test_interrupted_run_saves_and_goes_on(self):
        files = self.generate()
        more = "--epochs", "300"
        whole = self.feed(files, *more)
        command = [str(c) for c in self.command(files, *more, "--state", self.state, "--save-every", "1")]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            deadline = time.monotonic() + DEADLINE_S
            while not os.path.exists(self.state):
                self.assertLess(time.monotonic(), deadline, "it saves nothing")
                time.sleep(0.001)
            process.send_signal(signal.SIGINT)
            words = process.communicate(timeout=DEADLINE_S)[1]
        finally:
            process.kill()
            process.wait()
        self.assertEqual(process.returncode, 130, words)
        self.assertIn(b"--resume goes on", words)
        rest = self.feed(files, *more, "--state", self.state, "--resume")
        self.assertEqual(rest["checksum"], whole["checksum"], self.story)

    def test_states_of_other_runs_are_refused(self):
        files = self.generate()
        saving = "--state", self.state, "--workers", "0"
        self.feed(files, *saving)
        for options, chosen in ((["--length", "32"], files), (["--batch", "8"], files),
                                (["--seed", "9", "--epochs", "4"], files), ([], files[:2])):
            with self.subTest(options=options, files=len(chosen)):
                self.feed(chosen, *saving, "--resume", *options, code=1)
        with open(self.state, "wb") as file:
            file.write(b"something else altogether, but of the right length")
        self.feed(files, *saving, "--resume", code=1)
        self.assertIn(self.state, self.err)

    def test_refusals_name_what_is_wrong(self):
        odd = os.path.join(self.folder, "odd")
        empty = os.path.join(self.folder, "empty")
        short = os.path.join(self.folder, "short")
        for path, size in (odd, 4097), (empty, 0), (short, 2 * LENGTH):
            with open(path, "wb") as file:
                file.write(bytes(size))
        for needle, file in ((f"{odd}: has 4097 bytes, which is no multiple of 2", odd), (f"{empty}: is empty", empty),
                             ("no file holds a window", short), ("/nowhere", "/nowhere"),
                             ("no regular file", self.folder)):
            with self.subTest(file=file):
                self.feed([file], code=1)
                self.assertIn(needle, self.err.splitlines()[0], self.story)
        for needle, options in (("no file was named", []), ("--resume", ["--resume", "x"]), ("--bogus", ["--bogus"]),
                                ("--token-bytes", ["--token-bytes", "3", "x"]), ("--length", ["--length", "0", "x"])):
            with self.subTest(options=options):
                finished = run(PROGRAM, *options, deadline_s=20)
                self.assertEqual(finished.code, 2, describe(options, finished))
                self.assertIn(needle, finished.err.splitlines()[0], describe(options, finished))


if __name__ == "__main__":
    unittest.main()
