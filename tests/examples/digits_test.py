# SPDX-License-Identifier: Apache-2.0
"""What examples/cpp/digits_trainer promises. Usage: digits_test.py DIGITS_TRAINER [unittest's arguments]"""
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from programs import DEADLINE_S, describe, run

TRAINER = sys.argv.pop(1)
EPOCHS = 6  # of 45 batches; enough to shuffle anew several times
KILL_AT = 100  # a batch in the third of them


class Training:
    """One run to a good end: its losses, worker rows and the rest of its words."""

    def __init__(self, test, *options):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "losses")
            command = [TRAINER, "--losses", path, *options]
            finished = run(*command)
            self.story = describe(command, finished)
            test.assertEqual(finished.code, 0, "the run must succeed" + self.story)
            test.assertEqual(finished.err, "", "no progress, no complaint where stderr is no terminal" + self.story)
            with open(path, encoding="ascii") as file:
                self.losses = file.read().splitlines()
        self.pid = finished.pid
        self.lines = finished.out.splitlines()
        # worker, pid, tasks, samples, work ms, wait ms, restarts
        rows = [line.split() for line in self.lines]
        self.workers = [row for row in rows if len(row) == 7 and row[0].isdigit()]

    def number(self, label):
        return float(next(line for line in self.lines if line.startswith(label)).split()[len(label.split())])


# promise: torch-start-modes
class SameLosses(unittest.TestCase):
    """The batches, and so the losses, don't depend on who makes them."""

    @classmethod
    def setUpClass(cls):
        cls.sync = Training(cls(), "--sync", "--epochs", str(EPOCHS))

    def check(self, workers, *options):
        training = Training(self, "--epochs", str(EPOCHS), "--workers", str(workers), *options)
        self.assertEqual(len(training.losses), EPOCHS, "a line an epoch" + training.story)
        self.assertEqual(training.losses, self.sync.losses, "must equal those of --sync bit for bit" + training.story)
        self.assertEqual(len(training.workers), workers, "one row a worker" + training.story)
        return training

    def check_processes(self, workers, start):
        training = self.check(workers, "--start", start)
        pids = {int(row[1]) for row in training.workers}
        self.assertEqual(len(pids), workers, "as many processes as workers" + training.story)
        self.assertNotIn(training.pid, pids, "the trainer is no worker" + training.story)
        self.assertNotIn(0, pids, "every worker is known" + training.story)
        self.check_work(training)

    def check_work(self, training):
        self.assertEqual(training.number("restarts:"), 0, "nobody died" + training.story)
        samples = sum(int(row[3]) for row in training.workers)
        self.assertEqual(samples, EPOCHS * 1437, "the workers made every sample, once" + training.story)

    def test_sync_run_has_no_workers_and_losses_that_move(self):
        self.assertEqual(len(set(self.sync.losses)), EPOCHS, self.sync.story)
        self.assertEqual(self.sync.workers, [], self.sync.story)

    def test_another_seed_gives_other_losses(self):
        other = Training(self, "--sync", "--epochs", str(EPOCHS), "--seed", "2")
        self.assertNotEqual(other.losses, self.sync.losses, "--seed must matter" + other.story)

    def test_inline(self):
        self.check(0)

    def test_spawned_workers(self):
        for workers in 1, 2, 4:
            with self.subTest(workers=workers):
                self.check_processes(workers, "spawn")

    def test_external_workers(self):
        for workers in 1, 2, 4:
            with self.subTest(workers=workers):
                self.check_processes(workers, "external")

    def test_forked_workers(self):
        for workers in 1, 2, 4:
            with self.subTest(workers=workers):
                self.check_processes(workers, "fork")

    def test_threads(self):
        for workers in 1, 2, 4:
            with self.subTest(workers=workers):
                training = self.check(workers, "--start", "thread")
                pids = [int(row[1]) for row in training.workers]
                self.assertEqual(pids, [training.pid] * workers, "they are the trainer's" + training.story)
                self.check_work(training)

    def test_killed_worker_changes_nothing(self):
        for start in "spawn", "external", "fork":
            for workers in 1, 2:
                with self.subTest(start=start, workers=workers):
                    training = self.check(workers, "--start", start, "--kill-worker-at-batch", str(KILL_AT))
                    self.assertGreaterEqual(training.number("restarts:"), 1, "a worker was replaced" + training.story)


class Accuracy(unittest.TestCase):
    def test_default_run_learns_the_digits(self):
        training = Training(self)
        self.assertRegex(training.lines[-1], r"^test accuracy: [01]\.\d{3}$", "the last line" + training.story)
        self.assertGreaterEqual(training.number("test accuracy:"), 0.95, training.story)

    def test_quiet_run_prints_the_accuracy_only(self):
        training = Training(self, "--quiet", "--epochs", "1")
        self.assertEqual(len(training.lines), 1, training.story)
        self.assertRegex(training.lines[0], r"^test accuracy: [01]\.\d{3}$", training.story)


class Refusals(unittest.TestCase):
    def check(self, code, needle, *options):
        command = [TRAINER, *options]
        finished = run(*command, deadline_s=20)
        self.assertEqual(finished.code, code, "exit code" + describe(command, finished))
        self.assertIn(needle, finished.err.splitlines()[0], "the first line names it" + describe(command, finished))
        self.assertEqual(finished.out, "", describe(command, finished))

    def test_bad_options_are_refused(self):
        for options in (["--bogus"], ["--workers"], ["--workers", "-1"], ["--workers", "two"], ["--workers", "257"],
                        ["--workers="], ["--start", "forked"], ["--epochs", "0"], ["--epochs", "1.5"], ["--seed", "7x"],
                        ["--seed", "18446744073709551616"], ["--sync=1"], ["--sync", "--workers", "2"], ["--digest", "--sync"],
                        ["--worker", "x"], ["--feed", "x"], ["--join", "x"], ["--join", "x", "--digest", "--workers", "2"],
                        ["--consumers", "0"],
                        ["--start", "external", "--workers", "0"], ["--start", "fork", "--workers", "0"],
                        ["--start", "thread", "--workers", "0"], ["--kill-worker-at-batch", "1", "--start", "thread"],
                        ["--kill-worker-at-batch", "-3"],
                        ["--kill-worker-at-batch", "1", "--sync"], ["--kill-worker-at-batch", "45", "--epochs", "1"]):
            with self.subTest(options=options):
                self.check(2, options[0].split("=")[0], *options)
        with self.subTest("a word that is no option"):
            self.check(2, "stray", "stray")

    def test_missing_data_is_named(self):
        self.check(1, "/nowhere/optdigits-images-idx3-ubyte", "--data", "/nowhere")

    def test_unwritable_losses_are_named(self):
        self.check(1, "/nowhere/losses", "--losses", "/nowhere/losses")


class Interrupt(unittest.TestCase):
    """Ctrl-C, sent when the progress line, which a terminal gets, shows that the training is under way."""

    def check(self, *options):
        command = [TRAINER, "--epochs", "1000000", *options]
        terminal, inner = pty.openpty()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=inner)
        os.close(inner)
        words = b""
        deadline = time.monotonic() + DEADLINE_S  # one for all: who keeps on printing can't outrun it
        try:
            while b"epoch 1/1000000" not in words:
                more = self.read(terminal, deadline, f"no progress on a terminal: {command}")
                self.assertTrue(more, f"ended too soon: {command} said {words!r}")
                words += more
            process.send_signal(signal.SIGINT)
            # Until the last process with this terminal, workers included, has ended.
            while more := self.read(terminal, deadline, f"somebody lives on after the interrupt: {command}"):
                words += more
            self.assertEqual(process.wait(DEADLINE_S), 130, f"{command} said {words[-300:]!r}")
            self.assertIn(b"interrupted after ", words)
        finally:
            process.kill()
            process.wait()
            os.close(terminal)

    def read(self, terminal, deadline, complaint):
        """What was written next; nothing when the other side is closed."""
        left_s = max(0, deadline - time.monotonic())
        ready, _, _ = select.select([terminal], [], [], left_s)
        self.assertTrue(ready and left_s > 0, complaint)
        try:
            return os.read(terminal, 4096)
        except OSError:  # EIO: nobody holds it open any more
            return b""

    def test_ends_the_training_cleanly(self):
        for options in (["--sync"], ["--workers", "0"], ["--workers", "2"], ["--workers", "2", "--start", "external"],
                        ["--workers", "2", "--start", "fork"], ["--workers", "2", "--start", "thread"]):
            with self.subTest(options=options):
                self.check(*options)


if __name__ == "__main__":
    unittest.main()
