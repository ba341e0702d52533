# SPDX-License-Identifier: Apache-2.0
"""What examples/cpp/mpi_digits promises, on one host: machines are groups of ranks, each with a loader of its own.
Usage: mpi_digits_test.py MPI_DIGITS|none [unittest's arguments]"""
import collections
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from programs import describe, run

TRAINER = sys.argv.pop(1)
if TRAINER == "none" or not shutil.which("mpirun"):
    print("skipped: no MPI (Debian: libopenmpi-dev)")
    sys.exit(77)

BATCH = 24
SAMPLES = 1437
BATCHES_OF_EPOCH = SAMPLES // BATCH  # the 21 samples that are left fill no batch
TRAINED = BATCHES_OF_EPOCH * BATCH
# Ranks sum in another order than one rank alone: a few units in the last place of a double, 1.1e-16 of a number.
TOLERANCE = 1e-12

# As root too. AddressSanitizer: MPI keeps memory until the process ends.
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")
VERSION = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, env=ENVIRONMENT, check=False).stdout
# More ranks than processors: they must yield.
OPEN_MPI = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"] if "Open MPI" in VERSION else []


class Job:
    """One mpirun. layout: ranks of the whole job, ranks of a machine; None: those that share memory are one."""

    def __init__(self, test, layout, *options, fails=False):
        ranks, per_machine = layout
        with tempfile.TemporaryDirectory() as folder:
            losses, samples = os.path.join(folder, "losses"), os.path.join(folder, "samples")
            os.mkdir(samples)
            machine = ["--ranks-per-machine", per_machine] if per_machine else []
            command = ["mpirun", *OPEN_MPI, "-n", ranks, TRAINER, *machine, "--losses", losses, "--samples", samples,
                       *options]
            finished = run(*command, deadline_s=240, env=ENVIRONMENT)
            self.story = describe(command, finished)
            test.assertEqual(finished.code != 0, fails, "whether the job fails" + self.story)
            self.losses = self.read_losses(losses)
            self.trained = self.read_samples(samples)
        self.err = finished.err
        self.lines = finished.out.splitlines()
        machines = -(-ranks // per_machine) if per_machine else 1
        test.assertIn(f"ranks: {ranks}, machines: {machines}", self.lines, self.story)

    def read_losses(self, path):
        with open(path, encoding="ascii") as file:
            rows = [line.split() for line in file]
        return {int(epoch): float.fromhex(loss) for epoch, loss in rows}

    def read_samples(self, folder):
        """(epoch, batch) -> rank -> its samples"""
        trained = collections.defaultdict(dict)
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), encoding="ascii") as file:
                for line in file:
                    epoch, batch, *samples = map(int, line.split())
                    trained[epoch, batch][int(name[len("rank"):])] = samples
        return trained

    def number(self, before, after=""):
        """The number between two texts of a line."""
        line = next(line for line in self.lines if line.startswith(before) and after in line)
        return float(line[len(before):].split()[0])

    def epoch_rows(self):
        """epoch -> batches, samples once, left out, repeated"""
        rows = [line.split() for line in self.lines]
        return {int(row[0]): [int(word) for word in row[4:]] for row in rows if len(row) == 8 and row[0].isdigit()}


def counts_of(trained, epoch):
    """How often each sample of an epoch was trained on."""
    return collections.Counter(sample for (e, _), ranks in trained.items() if e == epoch
                               for samples in ranks.values() for sample in samples)


class Jobs(unittest.TestCase):
    def assert_same_losses(self, job, expected, epochs):
        self.assertEqual(sorted(job.losses), list(epochs), "a line for each epoch that the job ended" + job.story)
        for epoch in epochs:
            self.assertAlmostEqual(job.losses[epoch] / expected.losses[epoch], 1, delta=TOLERANCE,
                                   msg=f"loss of epoch {epoch}" + job.story)

    def assert_same_batches(self, trained, expected, story):
        """Each batch of all ranks together has the samples of the one that a single rank trains on."""
        self.assertEqual(sorted(trained), sorted(expected), "the same batches" + story)
        for key, ranks in expected.items():
            together = sorted(sample for samples in trained[key].values() for sample in samples)
            self.assertEqual(together, sorted(ranks[0]), f"epoch and batch {key}" + story)

    def assert_each_once(self, trained, epochs, story):
        for epoch in epochs:
            counts = counts_of(trained, epoch)
            self.assertEqual(len(counts), TRAINED, f"samples of epoch {epoch}" + story)
            self.assertEqual(set(counts.values()), {1}, f"each once in epoch {epoch}" + story)

    def assert_refused(self, needle, ranks, *options):
        command = ["mpirun", *OPEN_MPI, "-n", ranks, TRAINER, *options]
        finished = run(*command, env=ENVIRONMENT)
        self.assertNotEqual(finished.code, 0, describe(command, finished))
        self.assertIn(needle, finished.err, describe(command, finished))

    def assert_reported_once(self, job, epochs):
        self.assertEqual(job.epoch_rows(), {epoch: [BATCHES_OF_EPOCH, TRAINED, SAMPLES - TRAINED, 0]
                                            for epoch in epochs}, "what the program counted itself" + job.story)


class SameTraining(Jobs):
    """The training is the same for any number of ranks and machines, but for the order of sums."""

    EPOCHS = 4

    def test_layouts(self):
        alone = Job(self, (1, 1), "--epochs", self.EPOCHS)
        self.assertEqual(len(set(alone.losses.values())), self.EPOCHS, "the losses move" + alone.story)
        for layout in (2, None), (2, 1), (4, None), (4, 2), (3, 2):
            with self.subTest(layout=layout):
                job = Job(self, layout, "--epochs", self.EPOCHS)
                self.assert_same_losses(job, alone, range(self.EPOCHS))
                self.assert_each_once(job.trained, range(self.EPOCHS), job.story)
                self.assert_reported_once(job, range(self.EPOCHS))
                self.assert_same_batches(job.trained, alone.trained, job.story)
                for ranks in job.trained.values():
                    self.assertEqual(sorted(ranks), list(range(layout[0])), "every rank has a part" + job.story)

    def test_accuracy(self):
        job = Job(self, (2, 1))
        self.assertGreaterEqual(job.number("test accuracy:"), 0.95, job.story)


class Elastic(Jobs):
    """A run that is broken off in the middle of an epoch and goes on with other ranks is the run that was not."""

    EPOCHS = 3
    STOP = BATCHES_OF_EPOCH + 21  # in the middle of epoch 1

    @classmethod
    def setUpClass(cls):
        cls.whole = Job(cls(), (1, 1), "--epochs", cls.EPOCHS)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.checkpoint = os.path.join(folder.name, "checkpoint")

    def check_rest(self, first, layout):
        rest = Job(self, layout, "--epochs", self.EPOCHS, "--resume", self.checkpoint)
        done = int(rest.number("goes on after ", "batches"))
        self.assertGreater(done, BATCHES_OF_EPOCH, "in the middle of epoch 1" + rest.story)
        # What the broken job did after its checkpoint is no part of the network that the rest goes on with.
        trained = {key: ranks for key, ranks in first.trained.items() if key[1] < done}
        self.assertFalse(set(trained) & set(rest.trained), "no batch twice" + rest.story)
        trained.update(rest.trained)
        self.assert_each_once(trained, range(self.EPOCHS), rest.story)
        self.assert_same_batches(trained, self.whole.trained, rest.story)
        self.assert_reported_once(rest, range(1, self.EPOCHS))
        self.assert_same_losses(rest, self.whole, range(1, self.EPOCHS))
        return done

    def check_stopped(self, stop, before, after):
        first = Job(self, before, "--epochs", self.EPOCHS, "--save", self.checkpoint, "--stop-at-batch", stop)
        self.assertIn(f"stopped after {stop} batches", first.lines, first.story)
        self.assertEqual(self.check_rest(first, after), stop)

    def test_goes_on_with_other_ranks_and_machines(self):
        for before, after in (((4, 2), (3, 2)), ((2, None), (4, 1)), ((3, 1), (2, None)), ((1, 1), (4, 2))):
            with self.subTest(before=before, after=after):
                self.check_stopped(self.STOP, before, after)

    def test_goes_on_after_the_last_batch_of_an_epoch(self):
        # The feeder is in the next epoch already.
        self.check_stopped(2 * BATCHES_OF_EPOCH, (2, 1), (3, None))

    def check_killed(self, before, after, *victim):
        first = Job(self, before, "--epochs", self.EPOCHS, "--save", self.checkpoint, "--save-every", "7",
                    "--kill-at-batch", self.STOP, *victim, fails=True)
        if OPEN_MPI:
            self.assertIn("signal 9", first.err, "mpirun names the cause" + first.story)
        self.assertEqual(self.check_rest(first, after), self.STOP // 7 * 7)

    def test_goes_on_after_a_killed_rank_with_fewer(self):
        self.check_killed((4, 2), (3, 2), "--kill-rank", "3")

    def test_goes_on_after_a_killed_feeder(self):
        self.check_killed((4, 2), (2, 1), "--kill-rank", "0")

    def test_goes_on_after_a_killed_machine_with_the_other(self):
        self.check_killed((4, 2), (2, 2), "--kill-machine", "1")

    def test_damaged_and_foreign_checkpoints_are_refused(self):
        Job(self, (1, 1), "--epochs", "1", "--save", self.checkpoint, "--stop-at-batch", "1")
        for options in ["--seed", "2"], ["--batch", "12"]:
            self.assert_refused("another --batch or --seed", 2, "--resume", self.checkpoint, *options)
        with open(self.checkpoint, "r+b") as file:
            file.seek(5000)
            byte = file.read(1)[0]
            file.seek(5000)
            file.write(bytes([byte ^ 1]))
        self.assert_refused("is damaged", 2, "--resume", self.checkpoint)
        self.assert_refused("can't be read", 2, "--resume", self.checkpoint + ".none")


class Refusals(Jobs):
    def test_bad_options_are_refused(self):
        for options in (["--bogus"], ["--batch", "0"], ["--save-every", "2"], ["--kill-at-batch", "1"], ["--kill-rank", "1"]):
            with self.subTest(options=options):
                self.assert_refused(options[0], 1, *options)

    def test_batch_that_the_ranks_cannot_divide(self):
        self.assert_refused("--batch must be a multiple", 2, "--batch", "25")

    def test_missing_data_is_named(self):
        self.assert_refused("/nowhere/optdigits-images-idx3-ubyte", 2, "--data", "/nowhere")


if __name__ == "__main__":
    unittest.main()
