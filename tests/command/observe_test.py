# SPDX-License-Identifier: Apache-2.0
"""`feedlane ls` and `feedlane top` beside trainers whose state is known, and faults that `top` must name. Other loaders of this
user may run meanwhile. How long it may take, Meson says.  Usage: observe_test.py PATH_OF_FEEDLANE PATH_OF_PREPARED"""
import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest

import trainers

PREPARED = sys.argv.pop(2)
FEEDLANE = sys.argv.pop(1)

LOADER_KEYS = """pid loader name program version start workers workers_ready prefetch_factor batch_size iterable age_ns in_epoch
    epoch batch batches batches_per_s samples_per_s bytes_per_s total_batches total_samples total_bytes total_restarts slots
    slots_free slots_held control_bytes data_bytes reserved_bytes""".split()
RING_KEYS = "pid ring program message_bytes capacity lanes received messages_per_s control_bytes".split()
TOP_KEYS = """time_unix_ns pid loader name in_epoch epoch batch batches interval_ns batches_per_s samples_per_s bytes_per_s
    exposed_ns start_ns busy_ns ready asked workers workers_ready slots slots_free slots_held total_batches total_samples
    total_bytes total_restarts bound bound_worker text advice""".split()
WORKER_KEYS = """id pid state state_ns generation task_ns epoch batch row busy_ns batches_per_s work_p50_ns work_p99_ns
    total_tasks total_samples total_bytes total_errors""".split()


def prepared(fault, *arguments):
    return trainers.Trainer(PREPARED, fault, *arguments)


def listed(kind, pid):
    got = json.loads(trainers.run(FEEDLANE, "ls", "--json", "--seconds", "0.05"))
    assert list(got) == ["loaders", "rings", "arenas", "unreadable"], list(got)
    return [row for row in got[kind] if row["pid"] == pid]


class Ls(unittest.TestCase):
    def check(self, row, **wanted):
        self.assertEqual({key: row[key] for key in wanted}, wanted)

    def test_a_loader(self):
        with prepared("idle") as trainer:
            rows = listed("loaders", trainer.pid)
            self.assertEqual([list(row) for row in rows], [LOADER_KEYS])
            program = f"{PREPARED} idle"
            self.check(rows[0], loader=0, name="idle", program=program if len(program) <= 60 else program[:57] + "...",
                       start="spawn", workers=4, workers_ready=4, prefetch_factor=2, batch_size=4, iterable=False,
                       in_epoch=True, epoch=0, batch=10, batches=1000, batches_per_s=0, samples_per_s=0, bytes_per_s=0,
                       total_batches=10, total_samples=40, total_bytes=40 * 1024, total_restarts=0, slots_held=0)
            self.assertGreater(rows[0]["age_ns"], 0)
            self.assertGreater(rows[0]["slots"], rows[0]["slots_free"])
            for size in "control_bytes", "data_bytes", "reserved_bytes":
                self.assertGreater(rows[0][size], 4096)
            line = next(line for line in trainers.run(FEEDLANE, "ls").splitlines() if line.split()[0] == str(trainer.pid))
            self.assertRegex(line, r"^ *\d+ +0 +idle +spawn +4/4 +0 +10/1000 +0\.0 +0 +0\.0 .* KiB ")
        self.assertEqual(listed("loaders", trainer.pid), [])

    def test_rates(self):
        with prepared("slow_data") as trainer:
            def look():
                rows = json.loads(trainers.run(FEEDLANE, "ls", "--json", "--seconds", "1"))["loaders"]
                return next(row for row in rows if row["pid"] == trainer.pid)
            first = row = look()
            deadline = time.monotonic() + trainers.DEADLINE_S
            while row["batches_per_s"] == 0 or row["total_batches"] == first["total_batches"]:
                self.assertLess(time.monotonic(), deadline, row)
                row = look()
            # Four workers that sleep for at least 20 ms for a batch, and what was in the slots before.
            self.assertLessEqual(row["batches_per_s"], 200 + row["slots"])
            # The counters are read one after another while the trainer takes batches: at each end of the interval one may be half
            # counted.
            self.assertAlmostEqual(row["samples_per_s"], row["batches_per_s"] * 4, delta=9)
            self.assertAlmostEqual(row["bytes_per_s"], row["samples_per_s"] * 1024, delta=9 * 1024)
            self.assertAlmostEqual(row["total_samples"], row["total_batches"] * 4, delta=4)
            self.assertAlmostEqual(row["total_bytes"], row["total_samples"] * 1024, delta=4 * 1024)

    def test_two_loaders_of_a_process(self):
        with prepared("two_loaders") as trainer:
            rows = listed("loaders", trainer.pid)
            self.assertEqual([(row["loader"], row["name"]) for row in rows], [(0, "two_loaders"), (1, 'second\n"of" \\two')])
            self.assertIn('second?"of" \\two ', trainers.run(FEEDLANE, "ls"))

    def test_a_loader_is_listed_or_told_to_be_unreadable_with_any_number_of_descriptors(self):
        with prepared("two_loaders") as trainer, prepared("ring") as receiver:
            seen = set()
            for most in range(4, 64):
                limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
                got = json.loads(trainers.run(FEEDLANE, "ls", "--json", "--seconds", "0.05", preexec_fn=limit))
                loaders = [row for row in got["loaders"] if row["pid"] == trainer.pid]
                rings = [row for row in got["rings"] if row["pid"] == receiver.pid]
                told = [row["pid"] for row in got["unreadable"] if row["code"] == "E_OS"]
                self.assertTrue(len(loaders) == 2 or trainer.pid in told, f"{most}: {got}")
                self.assertTrue(len(rings) == 1 or receiver.pid in told, f"{most}: {got}")
                seen.add((len(loaders), len(rings)))
                if (len(loaders), len(rings)) == (2, 1):
                    break
                self.assertEqual(len(told), len(set(told)), "each process once")
            self.assertIn((0, 0), seen)
            self.assertIn((2, 1), seen)

    def test_a_shortage_is_no_statement_that_there_is_no_loader(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
        with prepared("idle") as trainer, tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "metrics.prom")
            for arguments, status in ((["top", "--no-wait"], 1), (["metrics", "-o", file], 1), (["doctor", "--json"], None)):
                done = subprocess.run([FEEDLANE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      preexec_fn=limit)
                self.assertRegex(done.stderr, rf"process {trainer.pid}\b.*Too many open files", arguments)
                self.assertNotIn("no process", done.stderr)
                if status is not None:
                    self.assertEqual(done.returncode, status, arguments)
            self.assertFalse(os.path.exists(file), "nothing in place of what was there")
            proc = next(check for check in json.loads(done.stdout)["machine"] if check["check"] == "proc")
            self.assertEqual(proc["state"], "ok")

    def test_forked_workers_are_no_loaders(self):
        with prepared("idle", "fork") as trainer:
            got = json.loads(trainers.run(FEEDLANE, "ls", "--json", "--seconds", "0.05"))["loaders"]
            ours = [row["pid"] for row in got if row["pid"] in (trainer.pid, *trainer.workers)]
            self.assertEqual(ours, [trainer.pid])

    def test_inline(self):
        with prepared("inline") as trainer:
            self.check(listed("loaders", trainer.pid)[0], start="inline", workers=0, workers_ready=0)

    def test_a_ring(self):
        with prepared("ring") as trainer:
            rows = listed("rings", trainer.pid)
            self.assertEqual([list(row) for row in rows], [RING_KEYS])
            self.check(rows[0], ring=0, message_bytes=64, capacity=16, lanes=2, received=7, messages_per_s=0)
            self.assertEqual(listed("loaders", trainer.pid), [])
            self.assertRegex(trainers.run(FEEDLANE, "ls"), rf"\n *{trainer.pid} +0 +64 +16 +2 +7 +0\.0 ")

    def test_a_ring_that_a_child_has_inherited(self):
        with prepared("ring", "fork") as trainer:
            (child,) = trainer.workers
            got = json.loads(trainers.run(FEEDLANE, "ls", "--json", "--seconds", "0.05"))["rings"]
            ours = [(row["pid"], row["ring"]) for row in got if row["pid"] in (trainer.pid, child)]
        # The child has a ring of its own too, with the same numbers.
        self.assertEqual(ours, [(trainer.pid, 0), (child, 1)])

    def test_an_arena(self):
        with prepared("arena") as trainer:
            (member,) = trainer.workers
            (row,) = listed("arenas", trainer.pid)
            self.check(row, arena=0, bytes=1 << 20, entries=3, leased=1, waiting=1, published=3, evicted=0, hits=1, misses=1,
                       gets_per_s=0, hit_share=None, published_per_s=0, evicted_per_s=0)
            self.assertGreater(row["used_bytes"], 3 * 512)
            self.assertEqual([(m["member"], m["pid"], m["held"], m["waiting"], m["cut_off"]) for m in row["members"]],
                             [(0, trainer.pid, 0, 0, False), (1, member, 1, 1, False)])
            self.assertEqual(listed("arenas", member), [], "it has inherited the owner's descriptors")
            text = trainers.run(FEEDLANE, "ls")
            self.assertRegex(text, rf"\n *{trainer.pid} +0 +[\d.]+ KiB +1\.0 MiB +3 +1 +1 +0\.0 +- ")
            self.assertRegex(text, rf"\n *1 +{member} +1 +1 +[\d.]+ \w+ +50\.0 +member\n")
            line = trainers.run(FEEDLANE, "top", "--count", "1", "--seconds", "0.05", "--pid", str(trainer.pid))
            self.assertRegex(line, rf"arena 0 of {trainer.pid}: .* 3 entries, 0\.0 get/s, .*, 1 waiting, 1 held: 1 by {member}\n")
            top = json.loads(trainers.run(FEEDLANE, "top", "--count", "1", "--seconds", "0.05", "--pid", str(trainer.pid), "--json"))
            self.assertEqual((top["arena"], top["entries"]), (0, 3))
            metrics = trainers.run(FEEDLANE, "metrics", "--pid", str(trainer.pid))
            for name, more, value in (("entries", "", 3), ("held_entries", "", 1), ("published_entries_total", "", 3),
                                      ("gets_total", ',found="yes"', 1), ("gets_total", ',found="no"', 1),
                                      ("member_waiting", f',member="1",member_pid="{member}"', 1)):
                self.assertIn(f'\nfeedlane_arena_{name}{{pid="{trainer.pid}",arena="0"{more}}} {value}\n', metrics)
            done = subprocess.run([FEEDLANE, "doctor", "--json", "--seconds", "0.1", "--pid", str(trainer.pid)],
                                  stdout=subprocess.PIPE, text=True)
            (found,) = json.loads(done.stdout)["arenas"]
            self.assertEqual([finding["kind"] for finding in found["findings"]], ["waiting"])
            self.assertIn(f"process {member} holds 1 entries", found["findings"][0]["text"])

    def test_a_ring_in_another_pid_namespace(self):
        unshare = trainers.unshare_command()
        if unshare is None:
            self.skipTest("no PID namespaces")
        with trainers.Trainer(*unshare, PREPARED, "ring") as trainer:
            with open(f"/proc/{trainer.pid}/task/{trainer.pid}/children", encoding="ascii") as children:
                pid = int(children.read())
            self.assertEqual(len(listed("rings", pid)), 1)


class Top(unittest.TestCase):
    def test_values(self):
        with prepared("idle") as trainer:
            row = trainers.settled(FEEDLANE, trainer.pid)[0]
            self.assertEqual(list(row), TOP_KEYS + ["each_worker"])
            self.assertEqual([list(worker) for worker in row["each_worker"]], [WORKER_KEYS] * 4)
            same = listed("loaders", trainer.pid)[0]
            shared = [key for key in TOP_KEYS if key in LOADER_KEYS]
            self.assertGreater(len(shared), 15)
            self.assertEqual({key: row[key] for key in shared}, {key: same[key] for key in shared})
            self.assertEqual([worker["pid"] for worker in row["each_worker"]], trainer.workers)
            self.assertEqual([worker["state"] for worker in row["each_worker"]], ["ready"] * 4)
            # Ten batches were taken, and four workers have made two more each.
            self.assertEqual(sum(worker["total_tasks"] for worker in row["each_worker"]), 18)
            self.assertEqual(sum(worker["total_bytes"] for worker in row["each_worker"]), 18 * 4 * 1024)

    def test_rates_and_shares(self):
        with prepared("slow_data") as trainer:
            def shares(row):
                return [part / row["interval_ns"] for part in (row["exposed_ns"], row["busy_ns"] / 4,
                                                               *(worker["busy_ns"] for worker in row["each_worker"]))]
            with trainers.json_lines(FEEDLANE, "top", "--pid", str(trainer.pid), "--workers", "--count", "60") as rows:
                for row in rows:
                    self.assertLess(max(shares(row)), 1.01)
                    self.assertGreaterEqual(row["interval_ns"], 0.5e9)
                    # What workers have made is what was yielded, and what is in slots.
                    made = sum(worker["total_tasks"] for worker in row["each_worker"])
                    self.assertAlmostEqual(made, row["total_batches"], delta=row["slots"])
                    if row["batches_per_s"] > 0 and min(shares(row)) > 0.5:
                        break
                else:
                    self.fail(f"no interval with workers that are busy: {row}")
            for worker in row["each_worker"]:
                self.assertGreaterEqual(worker["work_p50_ns"], 20_000_000)
                self.assertGreaterEqual(worker["work_p99_ns"], worker["work_p50_ns"])

    def check_bound(self, fault, bound, worker, *words):
        """Says the same in two intervals in succession; the first ones may contain the start."""
        with prepared(fault) as trainer:
            before = None
            with trainers.json_lines(FEEDLANE, "top", "--pid", str(trainer.pid), "--seconds", "0.5", "--count", "60") as rows:
                for row in rows:
                    got = row["bound"], row["bound_worker"]
                    if got == before == (bound, worker):
                        break
                    before = got
                else:
                    self.fail(f"{fault}: {row}")
            for word in words:
                self.assertIn(word, row["text"])
            said = f"  {bound} " if worker is None else f"  {bound} {worker} "
            for _ in range(60):  # one interval alone may be another one's: the host pauses any process
                text = trainers.run(FEEDLANE, "top", "--pid", str(trainer.pid), "--seconds", "0.5", "--count", "1")
                if said in text:
                    break
            else:
                self.fail(f"{fault}: {text}")
            for word in words:
                self.assertIn(word, text)

    def test_slow_data_set(self):
        self.check_bound("slow_data", "data", None, "the data set")

    def test_slow_trainer(self):
        self.check_bound("slow_trainer", "trainer", None, "the trainer")

    def test_slow_worker(self):
        self.check_bound("slow_worker", "worker", 1, "worker 1")

    def test_stopped_worker(self):
        self.check_bound("stopped_worker", "worker", 1, "worker 1", "stopped")

    def test_stuck_worker(self):
        self.check_bound("stuck_worker", "worker", 1, "worker 1")

    def test_data_set_that_opens_for_20_s(self):
        self.check_bound("slow_open", "starting", None, "open")

    def test_held_slots(self):
        self.check_bound("held_slots", "slots", None, "slot")

    def test_ends_with_the_loader(self):
        with prepared("idle") as trainer:
            top = subprocess.Popen([FEEDLANE, "top", "--pid", str(trainer.pid), "--seconds", "0.05"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
            self.assertIn("batch/s", top.stdout.readline())
        _, errors = top.communicate()
        self.assertEqual(top.returncode, 0)
        self.assertEqual(errors, f"feedlane: loader 0 (idle) of process {trainer.pid} has ended\n")

    def test_a_process_that_cannot_be_read_for_a_while(self):
        with prepared("idle") as trainer:
            top = subprocess.Popen([FEEDLANE, "top", "--pid", str(trainer.pid), "--seconds", "0.05"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
            top.stdout.readline()
            limits = resource.prlimit(top.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(top.pid, resource.RLIMIT_NOFILE, (3, limits[1]))  # no further descriptor
            said = top.stderr.readline()
            top.stdout.readline()
            resource.prlimit(top.pid, resource.RLIMIT_NOFILE, limits)
            for _ in range(50):  # it goes on
                self.assertTrue(top.stdout.readline())
        _, errors = top.communicate()
        self.assertRegex(said, rf"^feedlane: loader 0 \(idle\) of process {trainer.pid} cannot be read and may have ended; .*E_")
        self.assertEqual(errors, f"feedlane: loader 0 (idle) of process {trainer.pid} has ended\n")
        self.assertEqual(top.returncode, 0)

    def test_waits_for_a_loader(self):
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
            refused = subprocess.run([FEEDLANE, "top", "--no-wait", "--pid", str(other.pid)], stderr=subprocess.PIPE, text=True)
            self.assertEqual((refused.returncode, refused.stderr), (1, f"feedlane: process {other.pid} has no loader or arena\n"))
            top = subprocess.Popen([FEEDLANE, "top", "--pid", str(other.pid), "--seconds", "0.05"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
            self.assertIn("waiting", top.stderr.readline())
            other.stdin.close()
        _, errors = top.communicate()
        self.assertEqual(top.returncode, 1)
        self.assertIn("E_PEER_DEAD", errors)
        gone = subprocess.run([FEEDLANE, "top", "--pid", str(other.pid)], stderr=subprocess.PIPE, text=True)
        self.assertEqual(gone.returncode, 1)
        self.assertIn("E_PEER_DEAD", gone.stderr)

    def test_count_and_header(self):
        with prepared("idle") as trainer:
            lines = trainers.run(FEEDLANE, "top", "--pid", str(trainer.pid), "--seconds", "0.01", "--count", "45").splitlines()
        self.assertEqual(len(lines), 45 + 3)
        self.assertEqual([i for i, line in enumerate(lines) if line.startswith("time")], [0, 21, 42])
        self.assertNotIn("\033", "".join(lines))
        for line in lines[1:21]:
            self.assertRegex(line, r"^\d\d:\d\d:\d\d +trainer +0 +10/1000 +0\.0 +0 +0\.0 ")


class Terminal:
    """A pseudo-terminal with the command on it."""

    def __init__(self, *arguments, columns=200, **environment):
        self.master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (50, columns))
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(["setsid", "-c", FEEDLANE, *arguments], stdin=self.slave, stdout=self.slave,
                                        stderr=self.slave, env={**os.environ, **environment})
        self.text = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def read_until(self, pattern):
        """Returns what it read, and keeps the rest."""
        while not (found := re.search(pattern, self.text)):
            self.text += os.read(self.master, 65536).decode()
        got, self.text = self.text[:found.end()], self.text[found.end():]
        return got

    def key(self, key):
        os.write(self.master, key.encode())

    def ends(self):
        """What it has left of the terminal's mode. Reads meanwhile, so that it can write."""
        while self.process.poll() is None:
            if select.select([self.master], [], [], 0.05)[0]:
                os.read(self.master, 65536)
        return termios.tcgetattr(self.slave)


@unittest.skipUnless(hasattr(termios, "tcsetwinsize"), "Python before 3.11")
class OnATerminal(unittest.TestCase):
    def test_keys(self):
        with prepared("slow_data") as trainer, Terminal("top", "--pid", str(trainer.pid), "--seconds", "0.1") as terminal:
            terminal.read_until(r"\033\[1mtime  +bound by .* why")
            terminal.read_until(r"\d\d:\d\d:\d\d ")
            self.assertFalse(termios.tcgetattr(terminal.slave)[3] & termios.ICANON)
            self.assertNotIn("work p50", terminal.text)
            terminal.key("w")
            terminal.read_until(r"worker .*work p50")
            terminal.read_until(rf" 3 +{trainer.workers[3]} +ready ")
            terminal.key("w")
            terminal.read_until(r"\033\[1mtime [^\n]*\n\d\d:\d\d[^\n]*\n\d\d:\d\d")  # lines of the loader alone
            terminal.key("q")
            self.assertEqual(terminal.ends(), terminal.before)
            self.assertEqual(terminal.process.returncode, 0)

    def test_interrupt_restores_the_terminal(self):
        for number in signal.SIGINT, signal.SIGTERM:
            with prepared("idle") as trainer, Terminal("top", "--pid", str(trainer.pid), "--seconds", "30") as terminal:
                while termios.tcgetattr(terminal.slave)[3] & termios.ICANON:
                    self.assertIsNone(terminal.process.poll())
                if number == signal.SIGINT:
                    terminal.key("\x03")
                else:
                    terminal.process.send_signal(number)
                self.assertEqual(terminal.ends(), terminal.before)
                self.assertEqual(terminal.process.returncode, 0)

    def test_colours(self):
        with prepared("slow_data") as trainer:
            arguments = "top", "--pid", str(trainer.pid), "--seconds", "0.5"
            with Terminal(*arguments) as terminal:
                terminal.read_until(r"\033\[33mdata +\033\[0m.*the data set")
            with Terminal(*arguments, NO_COLOR="1") as terminal:
                self.assertNotIn("\033", terminal.read_until(r"the data set[^\n]*\n"))

    def test_a_line_fits(self):
        with prepared("slow_data") as trainer:
            with Terminal("top", "--pid", str(trainer.pid), "--seconds", "0.1", "--workers", columns=60) as terminal:
                lines = []
                while len(lines) < 20:
                    lines += re.findall(r"[^\n]*\n", terminal.read_until(r"\n"))
        plain = [re.sub(r"\033\[\d+m", "", line).rstrip() for line in lines]
        self.assertEqual(max(map(len, plain)), 60)


if __name__ == "__main__":
    unittest.main()
