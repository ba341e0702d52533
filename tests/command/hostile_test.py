# SPDX-License-Identifier: Apache-2.0
"""Every command that observes ends soon, and at a signal at once, beside a process whose memory says what no loader's would; and no
command writes what a terminal obeys, or follows a link that somebody has put where it writes.
Usage: hostile_test.py PATH_OF_FEEDLANE PATH_OF_PREPARED PATH_OF_HOSTILE"""
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import trainers

FEEDLANE, PREPARED, HOSTILE = sys.argv[1:4]
del sys.argv[1:4]

KINDS = ["evil_name", "ones", "endless_trace", "racing_trace", "many_slots", "many_workers", "no_memory", "many_loaders", "many_names"]
LIMIT_CPU_S = 10  # a command beside one such process takes milliseconds, up to a second where it prints thousands of workers
LIMIT_MEMORY = 1 << 30


def commands(pid, folder):
    """Each command, looking at all processes or at this one."""
    for one in ([], [str(pid)]):
        yield ["ls", "--seconds", "0.01", *one]
        yield ["ls", "--seconds", "0.01", "--json", *one]
        yield ["top", "--count", "1", "--no-wait", "--seconds", "0.05", *one]
        yield ["top", "--count", "1", "--no-wait", "--seconds", "0.05", "--workers", "--json", *one]
        yield ["metrics", *one]
        yield ["metrics", "--json", *one]
        yield ["metrics", *one, "-o", f"{folder}/feedlane.prom"]
        yield ["doctor", "--seconds", "0.1", *one]
        yield ["doctor", "--seconds", "0.1", "--json", *one]
    yield ["trace", str(pid), "-o", f"{folder}/trace.json"]
    yield ["trace", str(pid), "-o", f"{folder}/trace.pftrace", "--seconds", "0.05"]


def limit():
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_CPU_S, LIMIT_CPU_S))
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_MEMORY, LIMIT_MEMORY))


def obeyed(text):
    """What a terminal obeys of it, or what is not UTF-8."""
    characters = text.decode("utf-8", "surrogateescape")
    return [hex(ord(c)) for c in characters if (ord(c) < 32 and c != "\n") or 0x7f <= ord(c) < 0xa0 or "\u200b" <= c <= "\u200f"
            or "\u2028" <= c <= "\u202e" or "\ud800" <= c <= "\udfff"]


class Beside(unittest.TestCase):
    def test_every_command_ends_within_bounds_and_writes_nothing_that_is_obeyed(self):
        for kind in KINDS:
            with trainers.Trainer(HOSTILE, kind) as hostile, tempfile.TemporaryDirectory() as folder:
                for arguments in commands(hostile.pid, folder):
                    with self.subTest(kind=kind, arguments=arguments):
                        done = subprocess.run([FEEDLANE, *arguments], capture_output=True, preexec_fn=limit)
                        self.assertIn(done.returncode, (0, 1, 2, 3), done.stderr[-1000:])
                        self.assertEqual(obeyed(done.stdout + done.stderr), [])
                        if "--json" in arguments:
                            for line in done.stdout.splitlines():
                                json.loads(line)

    def test_a_signal_ends_every_command_at_once(self):
        for kind in ("racing_trace", "many_workers"):
            with trainers.Trainer(HOSTILE, kind) as hostile, tempfile.TemporaryDirectory() as folder:
                pid = str(hostile.pid)
                for arguments in (["ls", "--seconds", "60"], ["top", "--seconds", "0.01"], ["doctor", "--seconds", "3600"],
                                  ["trace", "--follow", pid, "-o", f"{folder}/trace"]):
                    for number in (signal.SIGINT, signal.SIGTERM):
                        with self.subTest(kind=kind, arguments=arguments, signal=number):
                            process = subprocess.Popen([FEEDLANE, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                            self.addCleanup(process.kill)
                            self.wait_until_it_looks(process, hostile.pid)
                            process.send_signal(number)
                            process.wait(trainers.DEADLINE_S)

    def wait_until_it_looks(self, process, pid):
        """Until it has mapped that process's memory."""
        def has_mapped():
            with open(f"/proc/{process.pid}/maps", encoding="utf-8") as maps:
                return "/memfd:feedlane-control" in maps.read() or process.poll() is not None
        trainers.wait_until(has_mapped, f"{process.args} has not mapped anything of process {pid}")
        self.assertIsNone(process.poll(), process.args)

    def test_others_are_seen_beside_it(self):
        for kind in ("many_names", "many_loaders", "no_memory"):
            with trainers.Trainer(HOSTILE, kind) as hostile, trainers.Trainer(PREPARED, "idle") as trainer:
                done = subprocess.run([FEEDLANE, "metrics"], capture_output=True, text=True, check=True)
                self.assertIn(f'pid="{trainer.pid}"', done.stdout)
                self.assertNotIn(f'pid="{hostile.pid}"', done.stdout)
                self.assertRegex(done.stderr, rf"(?m)^feedlane: process {hostile.pid} \(.*\): E_(LIMIT|CORRUPT)")
                skipped, = [line for line in done.stdout.splitlines() if line.startswith("feedlane_skipped_processes ")]
                self.assertGreaterEqual(int(skipped.split()[1]), 1)
                listed = json.loads(trainers.run(FEEDLANE, "ls", "--seconds", "0.01", "--json"))
                self.assertIn(trainer.pid, [row["pid"] for row in listed["loaders"]])
                self.assertIn(hostile.pid, [row["pid"] for row in listed["unreadable"]])

    def test_json_keeps_the_name(self):
        with trainers.Trainer(HOSTILE, "evil_name") as hostile:
            text = trainers.run(FEEDLANE, "ls", "--seconds", "0.01", "--json", str(hostile.pid))
            self.assertTrue(text.isascii())
            name = json.loads(text)["loaders"][0]["name"]
            self.assertEqual(name, '\x1b]0;owned\x07\x1b[31m\x9b32m"\\\n# EOF\r\ufffd\u202e')


class Links(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.victim = os.path.join(self.folder, "victim")
        with open(self.victim, "w", encoding="utf-8") as file:
            file.write("precious")

    def check(self, arguments, output):
        environment = dict(os.environ, FEEDLANE_TRACE="16")
        with subprocess.Popen([PREPARED, "idle"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as trainer:
            trainer.stdout.readline()
            done = subprocess.run([FEEDLANE, *arguments, str(trainer.pid), "-o", output], capture_output=True, text=True)
            trainer.stdin.close()
        with open(self.victim, encoding="utf-8") as file:
            self.assertEqual(file.read(), "precious")
        return done

    def test_a_link_in_the_place_of_the_output_is_refused(self):
        for command in ["metrics"], ["trace"]:
            output = os.path.join(self.folder, "output")
            os.symlink(self.victim, output)
            done = self.check(command, output)
            self.assertEqual(done.returncode, 1)
            self.assertIn("symbolic link", done.stderr)
            os.remove(output)

    def test_links_beside_the_output_are_not_followed(self):
        """Under the names that a process might take for a temporary file: by its number."""
        first = os.getpid()
        for number in range(first, first + 4000):
            os.symlink(self.victim, os.path.join(self.folder, f"out.prom.{number}.tmp"))
        done = self.check(["metrics"], os.path.join(self.folder, "out.prom"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(os.path.islink(os.path.join(self.folder, "out.prom")))
        left = [name for name in os.listdir(self.folder) if name.startswith(".feedlane")]
        self.assertEqual(left, [])

    def test_a_device_is_refused(self):
        done = self.check(["metrics"], "/dev/null")
        self.assertEqual(done.returncode, 1)
        self.assertTrue(os.path.exists("/dev/null") and not os.path.isfile("/dev/null"))


class Words(unittest.TestCase):
    def refused(self, *arguments):
        done = subprocess.run([FEEDLANE, *arguments], capture_output=True, text=True)
        self.assertGreaterEqual(done.returncode, 100)
        self.assertLess(len(done.stderr), 200, "no range of 300 digits")
        return done.stderr

    def test_a_command_that_does_not_exist(self):
        self.assertEqual(self.refused("tpo"), "feedlane: unknown command tpo: did you mean top?\n")
        self.assertIn("did you mean metrics?", self.refused("metric", "--json"))
        self.assertIn("see feedlane --help", self.refused("something"))
        self.assertIn("unknown command rnig: did you mean ring?", self.refused("bench", "--quick", "rnig"))

    def test_an_option_that_does_not_exist(self):
        self.assertEqual(self.refused("top", "--secnds", "2"), "feedlane: unknown option --secnds of feedlane top: did you mean --seconds?\n")
        self.assertIn("unknown option --fllow of feedlane trace: did you mean --follow?", self.refused("trace", "12", "--fllow"))
        self.assertIn("did you mean --rounds?", self.refused("bench", "ring", "--round=3"))
        self.assertIn("see feedlane ls --help", self.refused("ls", "--something", "x" * 1000))
        self.assertIn("see feedlane ls --help", self.refused("ls", "1", "2"))
        self.assertNotIn("--root", self.refused("doctor", "--rot"), "an option for tests")

    def test_an_option_has_the_same_meaning_in_every_command(self):
        helps = {command: subprocess.run([FEEDLANE, command, "--help"], capture_output=True, text=True).stdout
                 for command in ("ls", "top", "doctor", "metrics", "trace")}
        for option, commands in {"--pid": set(helps), "--seconds": set(helps) - {"metrics"}, "--count": {"top"}, "--form": {"metrics", "trace"},
                                 "--json": set(helps) - {"trace"}, "--output": {"metrics", "trace"}}.items():
            self.assertEqual({command for command, text in helps.items() if option in text}, commands, option)
        for text in helps.values():
            for line in text.splitlines():
                if "--json" in line and "Print" in line:
                    self.assertRegex(line, "Print one JSON value (per line )?instead of text$")

    def test_a_process_id_that_is_none(self):
        for command in "ls", "top", "metrics", "doctor", "trace":
            for pid in "0", "-1", "x", "99999999":
                self.assertIn("process id" if pid != "-1" else "", self.refused(command, "--pid", pid))

    def test_a_process_is_named_with_and_without_the_option(self):
        with trainers.Trainer(PREPARED, "idle") as trainer, trainers.Trainer(PREPARED, "two_loaders"):
            for pid in [str(trainer.pid)], ["--pid", str(trainer.pid)]:
                listed = json.loads(trainers.run(FEEDLANE, "ls", "--seconds", "0.01", "--json", *pid))["loaders"]
                self.assertEqual([row["pid"] for row in listed], [trainer.pid])
                lines = trainers.run(FEEDLANE, "top", "--count", "1", "--no-wait", "--seconds", "0.05", "--json", *pid).splitlines()
                self.assertEqual([json.loads(line)["pid"] for line in lines], [trainer.pid])
            nobody = subprocess.run([FEEDLANE, "ls", "1"], capture_output=True, text=True)
            self.assertEqual(nobody.returncode, 1)

    def test_one_look_does_not_wait_for_a_loader(self):
        began = time.monotonic()
        done = subprocess.run([FEEDLANE, "top", "--count", "1", "--no-wait", "--seconds", "3600", "1"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertLess(time.monotonic() - began, 3600)


if __name__ == "__main__":
    unittest.main()
