# SPDX-License-Identifier: Apache-2.0
"""The trainers of all languages print the digest that is computed here from the files, also with workers or a feeder of another
language: see examples/README.md.
Usage: digest_test.py FOLDER_OF_THE_DIGITS PYTHON_EXAMPLE C_DIGEST DIGITS_TRAINER JULIA JULIA_EXAMPLE RUST_DIGITS GO_DIGEST
[unittest's arguments]; JULIA: the interpreter, or "none". JULIA_PROJECT says where the package is. Programs of Rust and Go that
were not built are skipped."""
import concurrent.futures
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

from programs import DEADLINE_S, describe, run
from reference import FNV_START, fnv1a, torch_randperm

FOLDER, PYTHON_EXAMPLE, C_DIGEST, CPP_TRAINER, JULIA, JULIA_EXAMPLE, RUST_DIGITS, GO_DIGEST = sys.argv[1:9]
del sys.argv[1:9]
JULIA_DEADLINE_S = 240  # it compiles the package first
DIGITS, BATCH, EPOCHS, SEED = 1797, 64, 10, 1
# A program of each language; all take the same options.
PROGRAMS = {"C++": [CPP_TRAINER, "--digest"], "Rust": [RUST_DIGITS, "--digest"], "Go": [GO_DIGEST],
            "Julia": [JULIA, "--startup-file=no", JULIA_EXAMPLE, "--digest"],
            "Python": [sys.executable, "-B", PYTHON_EXAMPLE, "--digest"]}


def missing(language):
    """Why the program of this language cannot run here; "": it can."""
    if language == "Julia":
        return "no julia" if JULIA == "none" else ""
    if language == "Python":
        return "" if PYTHON_EXAMPLE != "none" and importlib.util.find_spec("numpy") else "no numpy"
    return "" if os.path.exists(PROGRAMS[language][0]) else f"{PROGRAMS[language][0]} was not built"


def expected():
    with open(os.path.join(FOLDER, "optdigits-images-idx3-ubyte"), "rb") as file:
        images = file.read()[16:]
    with open(os.path.join(FOLDER, "optdigits-labels-idx1-ubyte"), "rb") as file:
        labels = file.read()[8:]
    value = FNV_START
    for epoch in range(EPOCHS):
        order = torch_randperm(DIGITS, SEED + epoch)
        for first in range(0, DIGITS, BATCH):
            batch = order[first:first + BATCH]
            data = b"".join(images[64 * i:64 * i + 64] for i in batch)
            data += b"".join(labels[i].to_bytes(8, "little") for i in batch)
            value = fnv1a(value, data)
    return f"digest: {value:016x}\n"


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = expected()

    def check(self, *command, deadline_s=DEADLINE_S):
        finished = run(*command, deadline_s=deadline_s)
        self.assertEqual((finished.code, finished.out), (0, self.expected), describe(command, finished))

    def need(self, *languages):
        for language in languages:
            if missing(language):
                self.skipTest(missing(language))


class Digest(Case):
    def test_c(self):
        self.check(C_DIGEST, FOLDER)

    def check_language(self, language, *workers):
        self.need(language)
        for count in workers:
            self.check(*PROGRAMS[language], "--workers", count, deadline_s=JULIA_DEADLINE_S)

    def test_cpp(self):
        self.check_language("C++", 0, 1, 3)

    def test_rust(self):
        self.check_language("Rust", 2)

    def test_go(self):
        self.check_language("Go", 2)

    def test_julia(self):
        self.check_language("Julia", 0, 2)

    def test_python(self):
        self.check_language("Python", 0, 2)

    def test_python_with_a_worker_killed(self):
        """It trains as without: the same losses, and digits that it has not seen recognised."""
        self.need("Python")
        said = []
        for options in ("--workers", 0), ("--kill-worker-at-batch", 100):
            finished = run(sys.executable, "-B", PYTHON_EXAMPLE, *options)
            self.assertEqual(finished.code, 0, finished.err)
            said.append(finished.out.replace("restarts: 1", "restarts: 0") if "--workers" not in options else finished.out)
        self.assertIn("restarts: 1", finished.out)
        self.assertEqual(*said)
        self.assertGreaterEqual(float(finished.out.split()[-1]), 0.95)


class Pairs(Case):
    # promise: start-any-language
    def test_trainer_and_workers(self):
        for trainer, command in PROGRAMS.items():
            for worker, program in PROGRAMS.items():
                if worker != trainer:
                    with self.subTest(trainer=trainer, worker=worker):
                        self.need(trainer, worker)
                        if trainer == "Julia":  # the one of tools/get-julia passes on the path of its old libstdc++
                            program = ["env", "-u", "LD_LIBRARY_PATH", *program]
                        self.check(*command, "--workers", 1, "--worker", " ".join(program), deadline_s=JULIA_DEADLINE_S)

    # promise: share-any-language
    def test_feeder_and_consumers(self):
        """One consumer of each language, at the same time."""
        consumers = [program for language, program in PROGRAMS.items() if not missing(language)]
        for feeder, command in PROGRAMS.items():
            with self.subTest(feeder=feeder), tempfile.TemporaryDirectory() as folder:
                self.need(feeder)
                path = os.path.join(folder, "feeder")
                options = ["--workers", "1", "--feed", path, "--consumers", str(len(consumers))]
                with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process, \
                        concurrent.futures.ThreadPoolExecutor(len(consumers)) as threads:
                    try:
                        self.assertEqual(process.stdout.readline(), "listening\n")
                        joined = [threads.submit(run, *program, "--join", path, deadline_s=JULIA_DEADLINE_S) for program in consumers]
                        for program, finished in zip(consumers, joined):
                            self.assertEqual((finished.result().code, finished.result().out), (0, self.expected),
                                             describe(program, finished.result()))
                        self.assertEqual(process.wait(DEADLINE_S), 0)
                    finally:
                        process.kill()


if __name__ == "__main__":
    unittest.main()
