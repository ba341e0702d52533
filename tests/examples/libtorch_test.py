# SPDX-License-Identifier: Apache-2.0
"""What examples/libtorch promises: built by CMake with an installed feedlane, as its README says.
Usage: libtorch_test.py MESON BUILD_FOLDER OUT [unittest's arguments]

OUT keeps what is built. $FEEDLANE_LIBTORCH is the folder of a libtorch; without it that of this interpreter's torch. Skipped
where neither has a CMake package. $CXX is the compiler."""
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from programs import describe, run

SKIPPED = 77
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
EXAMPLE = os.path.normpath(os.path.join(ROOT, "examples/libtorch"))
EPOCHS = 10  # of 45 batches
KILL_AT = 100  # a batch in the third epoch


def torch_package():
    """The folder of TorchConfig.cmake, or None."""
    spec = importlib.util.find_spec("torch")
    places = [os.environ.get("FEEDLANE_LIBTORCH"), os.path.dirname(spec.origin) if spec and spec.origin else None]
    for place in filter(None, places):
        folder = os.path.join(place, "share/cmake/Torch")
        if os.path.exists(os.path.join(folder, "TorchConfig.cmake")):
            return folder
    return None


def command(*parts):
    finished = subprocess.run([str(part) for part in parts], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
    if finished.returncode != 0:
        sys.exit(f"{' '.join(map(str, parts))}\nended with {finished.returncode}:\n{finished.stdout[-8000:]}")
    return finished.stdout


def build(meson, build_folder, out, torch):
    """Builds the example in OUT/build with the feedlane that is installed in OUT/installed. A second time it takes seconds."""
    os.environ.pop("LD_LIBRARY_PATH", None)  # Meson's, to the library in the build folder
    os.makedirs(out, exist_ok=True)
    installed, programs = os.path.join(out, "installed"), os.path.join(out, "build")
    command(meson, "install", "-C", build_folder, "--no-rebuild", "--only-changed", "--destdir", installed)
    packages = [folder for folder, _, names in os.walk(installed) if "feedlane-config.cmake" in names]
    if os.path.exists(os.path.join(programs, "CMakeCache.txt")):
        os.remove(os.path.join(programs, "CMakeCache.txt"))  # it keeps the paths of another libtorch
    command("cmake", "-G", "Ninja", "-S", EXAMPLE, "-B", programs, f"-Dfeedlane_DIR={packages[0]}", f"-DTorch_DIR={torch}")
    said = command("cmake", "--build", programs)
    if "warning:" in said:
        sys.exit(f"it builds with warnings:\n{said[-8000:]}")
    return programs


class Run:
    """A program's run to a good end."""

    def __init__(self, test, *words, deadline_s=300):
        finished = run(*words, deadline_s=deadline_s)
        self.story = describe(words, finished)
        test.assertEqual((finished.code, finished.err), (0, ""), self.story)
        self.lines = finished.out.splitlines()
        # worker, pid, start ms, RSS, PSS, private memory in MiB
        rows = [line.split() for line in self.lines]
        self.workers = [row for row in rows if len(row) == 6 and row[0].isdigit()]

    def after(self, label):
        return next(line for line in self.lines if line.startswith(label))[len(label):].strip()


def losses(test, *options):
    """A training: its losses, every bit of them, and the run."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "losses")
        done = Run(test, DIGITS, "--epochs", EPOCHS, "--losses", path, *options)
        with open(path, encoding="ascii") as file:
            return file.read().splitlines(), done


class Digits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.losses, cls.done = losses(cls(), "--zero-copy", "--costs")

    def test_learns_the_digits(self):
        self.assertRegex(self.done.lines[-1], r"^test accuracy: [01]\.\d{3}$", self.done.story)
        self.assertGreaterEqual(float(self.done.after("test accuracy:")), 0.95, self.done.story)
        self.assertEqual(self.done.after("restarts:"), "0", self.done.story)

    def test_tensors_lie_in_their_slots(self):
        tensors = 2 * 45 * EPOCHS
        self.assertEqual(self.done.after("zero copy:"),
                         f"{tensors} of {tensors} tensors lie in their slots, 0 slots held at the end", self.done.story)
        self.assertIn("memfd:feedlane-data", self.done.after("the first batch lies in"), self.done.story)

    def test_losses_are_the_same(self):
        for options in (["--workers", "1"], ["--worker", "self"], ["--workers", "3"]):
            with self.subTest(options=options):
                same, done = losses(self, *options)
                self.assertEqual(same, self.losses, done.story)
        other, done = losses(self, "--seed", "2")
        self.assertNotEqual(other, self.losses, done.story)

    def test_killed_worker_changes_nothing(self):
        for options in (["--worker", "lean"], ["--worker", "self"], ["--workers", "1"]):
            with self.subTest(options=options):
                same, done = losses(self, "--kill-worker-at-batch", KILL_AT, *options)
                self.assertEqual(same, self.losses, done.story)
                self.assertEqual(done.after("restarts:"), "1", done.story)

    def test_lean_worker_is_small(self):
        """Its private memory is less than a tenth of that of the whole program as a worker."""
        whole = Run(self, DIGITS, "--epochs", 1, "--worker", "self", "--costs")
        for done in self.done, whole:
            self.assertEqual(len(done.workers), 2, done.story)
        lean_mib, whole_mib = (max(float(row[5]) for row in done.workers) for done in (self.done, whole))
        self.assertGreater(lean_mib, 0, self.done.story)
        self.assertLess(lean_mib, whole_mib / 10, self.done.story + whole.story)

    def test_refusals_name_what_is_wrong(self):
        for code, needle, words in ((2, "--bogus", [DIGITS, "--bogus"]), (2, "--worker", [DIGITS, "--worker", "fat"]),
                                    (1, "/nowhere/optdigits", [DIGITS, "--data", "/nowhere"]),
                                    (1, "/nowhere/losses", [DIGITS, "--losses", "/nowhere/losses"]),
                                    (2, "fewer batches", [DIGITS, "--epochs", 1, "--kill-worker-at-batch", 45]),
                                    (2, "not by hand", [os.path.join(PROGRAMS, "digits_worker")])):
            with self.subTest(words=words):
                finished = run(*words)
                self.assertEqual(finished.code, code, describe(words, finished))
                self.assertIn(needle, finished.err.splitlines()[0], describe(words, finished))


class Tokens(unittest.TestCase):
    def test_learns_text(self):
        steps = 60
        with tempfile.TemporaryDirectory() as folder:
            shard = os.path.join(folder, "shard")
            texts = [os.path.join(ROOT, "docs", name) for name in ("semantics.md", "architecture.md")]
            Run(self, TOKENS, "--make-shard", shard, *texts)
            with open(shard, "rb") as file:
                tokens = file.read()
            content = b""
            for text in texts:
                with open(text, "rb") as file:
                    content += file.read()
            self.assertEqual((tokens[::2], set(tokens[1::2])), (content, {0}), "a token is a byte")
            done = Run(self, TOKENS, "--length", 64, "--batch", 16, "--steps", steps, "--costs", shard)
        shown = [float(line.split()[-1]) for line in done.lines if line.startswith("step ")]
        self.assertEqual(len(shown), steps // 10, done.story)
        self.assertLess(shown[-1], shown[0] - 0.5, done.story)
        self.assertEqual(done.after("batches in their slots:"), f"{steps} of {steps}", done.story)
        self.assertEqual(len(done.workers), 2, done.story)


if __name__ == "__main__":
    missing = [f"no {tool}" for tool in ("cmake", "ninja") if not shutil.which(tool)]
    package = torch_package()
    if missing or not package:
        print("skipped:", *(missing or ["no CMake package of libtorch; FEEDLANE_LIBTORCH can name its folder"]))
        sys.exit(SKIPPED)
    PROGRAMS = build(*(sys.argv.pop(1) for _ in range(3)), package)
    os.environ["OMP_NUM_THREADS"] = "1"  # on a busy machine the threads of one step wait for each other
    DIGITS, TOKENS = (os.path.join(PROGRAMS, name) for name in ("digits", "tokens"))
    unittest.main()
