# SPDX-License-Identifier: Apache-2.0
"""What capi/rust and the trainer in examples/rust promise. Usage: rust_test.py CARGO CRATES DIGITS TARGET_FOLDER LIBRARY
DIGITS_TRAINER C_DIGEST [unittest's arguments]; CRATES and DIGITS are folders; CARGO empty: skipped."""
import os
import platform
import re
import shutil
import sys
import tempfile
import unittest

from programs import describe, run

CARGO, CRATES, EXAMPLE, TARGET, LIBRARY, CPP_TRAINER, C_DIGEST = sys.argv[1:8]
del sys.argv[1:8]
SKIPPED = 77
BUILD_DEADLINE_S = 500
EPOCHS = 6  # of 45 batches
KILL_AT = 100  # a batch in the third of them
DIGITS = os.path.join(TARGET, "debug", "digits")
# What every package shows: the last table of docs/integrating.md.
CONTRACT = ("record", "checksum", "digest", "zero_copy", "error", "misuse", "worker_killed", "trainer_killed", "interrupt",
            "kept", "view", "busy", "close", "finalizer", "exits", "fork")


def cargo(*arguments):
    """Offline, with the lock file as it is, into the build directory; no warning is let pass."""
    # Cargo resolves the workspace from here; the tests find their files by themselves.
    return [CARGO, *arguments, "--offline", "--locked", "--manifest-path", os.path.join(CRATES, "Cargo.toml")]


def rust_sources():
    for root in CRATES, EXAMPLE:
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if name != "target")
            for name in sorted(names):
                if name.endswith(".rs"):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as file:
                        yield os.path.relpath(path, root), file.read()


def readme():
    with open(os.path.join(CRATES, "README.md"), encoding="utf-8") as file:
        return file.read()


class Source(unittest.TestCase):
    def test_trainers_are_short(self):
        for name in "main.rs", "bin/digits_one_file.rs":
            with open(os.path.join(EXAMPLE, "src", name), encoding="utf-8") as file:
                self.assertLess(file.read().count("\n"), 100, name)

    def test_no_crate_comes_from_outside(self):
        with open(os.path.join(CRATES, "Cargo.lock"), encoding="utf-8") as file:
            lock = file.read()
        self.assertEqual(re.findall(r'name = "(.*)"', lock), ["digits", "feedlane", "feedlane-sys"])
        self.assertNotIn("source =", lock)

    def test_every_unsafe_block_says_why_it_is_safe(self):
        for path, text in rust_sources():
            lines = text.splitlines()
            for number, line in enumerate(lines):
                code = line.split("//")[0]
                if not re.search(r"\bunsafe (\{|impl)", code):
                    continue
                # In the comment above, which may belong to the statement that the block is part of.
                before = "\n".join(lines[max(0, number - 5):number + 1])
                self.assertIn("SAFETY:", before, f"{path}:{number + 1}: {line}")

    def test_raw_layer_is_what_the_record_gives(self):
        committed = os.path.join(CRATES, "feedlane-sys", "src", "headers")
        with tempfile.TemporaryDirectory() as folder:
            generated = os.path.join(folder, "headers")
            command = [sys.executable, "-B", os.path.join(CRATES, "gen", "generate.py"), generated]
            finished = run(*command)
            self.assertEqual(finished.code, 0, describe(command, finished))
            self.assertEqual(sorted(os.listdir(committed)), sorted(os.listdir(generated)), "run capi/rust/gen/generate.py")
            for name in os.listdir(generated):
                with open(os.path.join(generated, name), encoding="utf-8") as now, \
                        open(os.path.join(committed, name), encoding="utf-8") as then:
                    self.assertEqual(then.read(), now.read(), f"{name}: run capi/rust/gen/generate.py")

    def test_files_fit_in_the_head(self):
        for path, text in rust_sources():
            self.assertLessEqual(text.count("\n"), 500, path)


class Crates(unittest.TestCase):
    def test_their_own_tests_pass(self):
        """The tests of every package, and more: custom samplers, threads, rings, pools."""
        command = cargo("test")
        finished = run(*command, deadline_s=BUILD_DEADLINE_S)
        self.assertEqual(finished.code, 0, describe(command, finished))
        for name in (*CONTRACT, "every_function_is_wrapped_or_says_why_not", "a_wrong_dtype_is_an_error",
                     "pinned_and_staged_epochs_are_the_plain_one",
                     "a_pool_ends_after_everything_in_it", "a_stager_ends_with_its_loader_wherever_it_is"):
            self.assertIn(f"test {name} ... ok", finished.out, describe(command, finished))

    def test_contract_has_the_names_of_the_manual(self):
        with open(os.path.join(CRATES, "..", "..", "docs", "integrating.md"), encoding="utf-8") as file:
            table = file.read().split("| Test | What it shows |\n|---|---|\n")[1]
        self.assertEqual(tuple(re.findall(r"^\| `(\w+)` \|", table, flags=re.M)), CONTRACT)

    def check(self, *arguments, **environment):
        command = cargo(*arguments)
        finished = run(*command, deadline_s=BUILD_DEADLINE_S, env={**os.environ, **environment})
        self.assertEqual(finished.code, 0, describe(command, finished))

    def test_documentation_is_made_without_a_warning(self):
        self.check("doc", "--no-deps")

    def test_clippy_finds_nothing(self):
        if run(CARGO, "clippy", "--version").code != 0:
            self.skipTest("no clippy (Debian: rust-clippy)")
        self.check("clippy", "--all-targets")

    def run_program(self, program):
        """Runs the program in a new crate, made as the README says, and returns what it prints."""
        with tempfile.TemporaryDirectory() as folder:
            crate = os.path.join(folder, "squares")
            os.mkdir(crate)
            manifest = os.path.join(crate, "Cargo.toml")
            for command in ([CARGO, "init", "--quiet", "--vcs", "none", crate],
                            [CARGO, "add", "--offline", "--manifest-path", manifest, "--path",
                             os.path.join(CRATES, "feedlane")]):
                finished = run(*command)
                self.assertEqual(finished.code, 0, describe(command, finished))
            with open(os.path.join(crate, "src", "main.rs"), "w", encoding="utf-8") as file:
                file.write(program)
            command = [CARGO, "run", "--quiet", "--offline", "--manifest-path", manifest]
            finished = run(*command, deadline_s=BUILD_DEADLINE_S)
        self.assertEqual(finished.code, 0, describe(command, finished))
        return finished.out

    def test_first_program_of_the_readme_works_when_pasted(self):
        program, printed = (re.search(rf"```{kind}\n(.*?)```", readme(), flags=re.S)[1] for kind in ("rust", "text"))
        self.assertEqual(self.run_program(program), printed)

    def test_all_blocks_of_the_readme_run(self):
        """Each is a function of the first program; the second block is what they share. The last line tells that all ran."""
        first, shared, *blocks = re.findall(r"^```rust\n(.*?)^```", readme(), flags=re.S | re.M)
        self.assertGreater(len(blocks), 10)
        functions = "".join(f"fn block_{i}() -> Result<(), Failure> {{\n    use feedlane::*;\n{block}    Ok(())\n}}\n"
                            for i, block in enumerate(blocks))
        calls = "".join(f"    block_{i}()?;\n" for i in range(len(blocks)))
        # The README leaves this to an event loop; extern blocks differ in the editions of Rust.
        waits = f"""fn wait_until_readable(fd: std::os::unix::io::BorrowedFd<'_>) -> std::io::Result<()> {{
    std::process::Command::new("{sys.executable}").args(["-c", "import select; select.select([0], [], [])"])
        .stdin(fd.try_clone_to_owned()?).status().map(drop)
}}
"""
        before_main = first[:first.index("fn main()")]
        out = self.run_program(f"""#![allow(dead_code, unused_imports, unused_variables)]
{before_main}use feedlane::LoaderBuilder;
{shared}{waits}{functions}fn main() -> Result<ExitCode, Failure> {{
    if let Some(code) = feedlane::worker_main::<Squares>() {{
        return Ok(code);
    }}
{calls}    println!("ran {{}} blocks", {len(blocks)});
    Ok(ExitCode::SUCCESS)
}}
""")
        self.assertIn(f"ran {len(blocks)} blocks\n", out)

    def test_crates_are_packaged(self):
        """Each is built from its package. Cargo before 1.90 can't package two crates of which one needs the other."""
        version = tuple(map(int, re.search(r"(\d+)\.(\d+)", run(CARGO, "--version").out).groups()))
        both = ["-p", "feedlane"] if version >= (1, 90) else []
        # Cargo keeps the unpacked feedlane-sys in its home by the name of the target folder and the version: another run's
        # would be built against.
        with tempfile.TemporaryDirectory() as home:
            self.check("package", "--allow-dirty", "-p", "feedlane-sys", *both, CARGO_HOME=home)


class Digits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        command = cargo("build")
        finished = run(*command, deadline_s=BUILD_DEADLINE_S)
        if finished.code != 0:
            raise AssertionError("it must build" + describe(command, finished))

    def run_digits(self, *options, program=DIGITS, code=0):
        command = [program, *options]
        finished = run(*command)
        self.assertEqual(finished.code, code, describe(command, finished))
        return finished

    def losses(self, *options, program=DIGITS):
        """(the losses, what the run printed)"""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "losses")
            finished = self.run_digits("--epochs", str(EPOCHS), "--losses", path, *options, program=program)
            with open(path, encoding="ascii") as file:
                losses = file.read().splitlines()
        self.assertEqual(len(losses), EPOCHS, "a line an epoch")
        return losses, finished.out

    def restarts(self, out):
        return int(re.search(r"^restarts: (\d+)$", out, flags=re.M)[1])

    def test_digest_is_that_of_c(self):
        data = os.path.join(EXAMPLE, "..", "..", "data")
        self.assertEqual(self.run_digits("--digest").out, self.run_digits(data, program=C_DIGEST).out)

    def test_losses_do_not_depend_on_the_workers(self):
        inline, _ = self.losses("--workers", "0")
        self.assertEqual(len(set(inline)), EPOCHS, "they move")
        for workers in "1", "2", "4":
            with self.subTest(workers=workers):
                losses, out = self.losses("--workers", workers)
                self.assertEqual(losses, inline)
                self.assertEqual(self.restarts(out), 0)
        other, _ = self.losses("--workers", "0", "--seed", "2")
        self.assertNotEqual(other, inline, "--seed must matter")

    def test_a_killed_worker_changes_nothing(self):
        undisturbed, _ = self.losses("--workers", "2")
        for workers in "1", "2":
            with self.subTest(workers=workers):
                losses, out = self.losses("--workers", workers, "--kill-worker-at-batch", str(KILL_AT))
                self.assertEqual(losses, undisturbed, "to the last bit")
                self.assertGreaterEqual(self.restarts(out), 1, "a worker was replaced")

    @unittest.skipIf(platform.machine() != "x86_64", "compilers may fuse multiplications and additions elsewhere")
    def test_losses_are_those_of_the_cpp_trainer(self):
        cpp, _ = self.losses("--sync", program=CPP_TRAINER)
        rust, _ = self.losses()
        self.assertEqual(rust, cpp, "to the last bit")

    def test_digest_does_not_depend_on_the_workers(self):
        digests = {self.run_digits("--digest", "--workers", str(workers)).out for workers in (0, 1, 3)}
        self.assertEqual(len(digests), 1, digests)
        self.assertRegex(*digests, r"^digest: [0-9a-f]{16}\n$")
        other = self.run_digits("--digest", "--workers", "0", "--seed", "2").out
        self.assertNotIn(other, digests)

    def test_a_whole_run_learns_the_digits(self):
        out = self.run_digits("--quiet").out
        self.assertRegex(out, r"^test accuracy: [01]\.\d{3}\n$")
        self.assertGreaterEqual(float(out.split()[-1]), 0.95)

    def test_one_file_does_it_all(self):
        one_file = DIGITS + "_one_file"
        undisturbed = self.run_digits(program=one_file).out
        accuracy, restarts = re.fullmatch(r"test accuracy: ([01]\.\d{3}), restarts: (\d+)\n", undisturbed).groups()
        self.assertGreaterEqual(float(accuracy), 0.95)
        self.assertEqual(restarts, "0")
        killed = self.run_digits("--kill", program=one_file).out
        self.assertRegex(killed, rf"^test accuracy: {accuracy}, restarts: [1-9]\d*$", "the same, with a worker replaced")
        for options in [], ["--kill"]:
            self.assertEqual(self.run_digits("--digest", *options, program=one_file).out, self.run_digits("--digest").out)

    def test_bad_options_are_refused(self):
        for options in (["--bogus"], ["--workers"], ["--workers", "-1"], ["--workers", "257"], ["--epochs", "0"],
                        ["--seed", "x"], ["--kill-worker-at-batch", "1", "--workers", "0"],
                        ["--kill-worker-at-batch", "1", "--digest"], ["--data", ""], ["stray"]):
            with self.subTest(options=options):
                said = self.run_digits(*options, code=2)
                self.assertIn(options[0], said.err.splitlines()[0])

    def test_missing_data_is_named_by_trainer_and_worker(self):
        for options in [], ["--digest"], ["--digest", "--workers", "0"]:
            with self.subTest(options=options):
                said = self.run_digits("--data", "/nowhere", *options, code=1)
                self.assertIn("/nowhere/optdigits-images-idx3-ubyte", said.err)


if __name__ == "__main__":
    if not CARGO:
        print("skipped: there is no cargo (Debian: cargo, rustc)")
        sys.exit(SKIPPED)
    if not shutil.which("cc") and "CC" not in os.environ:
        os.environ["CC"] = "gcc"
    library = os.path.dirname(os.path.realpath(LIBRARY))
    os.environ.update(
        FEEDLANE_LIB_DIR=library, FEEDLANE_EXAMPLES_C=os.path.dirname(os.path.realpath(C_DIGEST)),
        CARGO_TARGET_DIR=TARGET, RUST_BACKTRACE="0",
        RUSTDOCFLAGS="-D warnings",
        # What is built here finds this library in any process.
        RUSTFLAGS=f"-D warnings -C link-arg=-Wl,-rpath,{library}",
        LD_LIBRARY_PATH=":".join(filter(None, [library, os.environ.get("LD_LIBRARY_PATH")])))
    unittest.main()
