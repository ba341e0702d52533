# SPDX-License-Identifier: Apache-2.0
"""`feedlane doctor` names the cause: of prepared faults of a loader. How long it may take, Meson says.  Usage: doctor_test.py PATH_OF_FEEDLANE PATH_OF_PREPARED"""
import contextlib
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import doctors
import trainers

PREPARED = sys.argv.pop(2)
FEEDLANE = sys.argv.pop(1)

def run(*arguments, **options):
    return doctors.run(FEEDLANE, *arguments, **options)


def doctor(*arguments, **options):
    return doctors.doctor(FEEDLANE, *arguments, **options)


class Prepared:
    """A trainer with this fault, and the pids of its workers."""

    def __init__(self, fault, *arguments, command=(PREPARED,), **options):
        self.process = subprocess.Popen([*command, fault, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        **options)
        self.pid = self.process.pid
        words = self.process.stdout.readline().split()
        assert words and words[0] == "running", f"{fault}: {words}"
        self.workers = [int(word) for word in words[1:]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def doctor(self, interval_s=1):
        return doctor("--pid", self.pid, "--seconds", interval_s)

    def loader(self, interval_s=1):
        (loader,) = self.doctor(interval_s)["loaders"]
        return loader


def finding(loader, kind):
    """The one of this kind."""
    (found,) = [f for f in loader["findings"] if f["kind"] == kind] or [None]
    assert found, f"no {kind} among {loader['findings']}, bound {loader['bound']}: {loader['text']}"
    return found


def kinds(loader):
    """Of the findings; without the library's warning of more workers than processors, which depends on the machine."""
    return {f["kind"] for f in loader["findings"]} - {"warnings"}


def errors_of(loader):
    return [error for error in loader["errors"] if error["kind"] != "warning"]


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2][0]


@contextlib.contextmanager
def stopped(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        trainers.wait_until(lambda: state_of(pid) == "T", f"process {pid} is stopped")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Faults(unittest.TestCase):
    def test_slow_data(self):
        with Prepared("slow_data") as trainer:
            loader = trainer.loader()
        self.assertEqual(loader["bound"], "data")
        found = finding(loader, "data")
        self.assertEqual(found["state"], "warning")
        self.assertRegex(found["text"], "^the data set is the bottleneck: next waited for [0-9]+ % of the time$")
        self.assertNotEqual(found["advice"], "")
        self.assertEqual(kinds(loader), {"data"})

    def test_slow_trainer(self):
        with Prepared("slow_trainer") as trainer:
            loader = trainer.loader()
        self.assertEqual(loader["bound"], "trainer")
        self.assertEqual(kinds(loader), set())
        self.assertIn("trainer", loader["text"])

    def test_one_worker_ten_times_slower(self):
        with Prepared("slow_worker") as trainer:
            for _ in range(5):  # a machine that is busy with others slows all workers down, so that they differ by less
                loader = trainer.loader(2)
                if loader["bound"] == "worker":
                    break
            slow = trainer.workers[1]
        self.assertEqual((loader["bound"], loader["bound_worker"]), ("worker", 1), loader)
        found = finding(loader, "worker_slow")
        self.assertEqual(found["worker"], 1)
        self.assertRegex(found["text"], rf"^worker 1 \(pid {slow}\) takes .* per batch, the others .* times as long$")
        self.assertEqual([f["worker"] for f in loader["findings"] if f["kind"].startswith("worker")], [1])
        means = [worker["mean_work_ns"] for worker in loader["workers"]]
        self.assertGreater(means[1], 3 * max(means[0], means[2], means[3]))

    def test_stopped_worker(self):
        with Prepared("stopped_worker") as trainer:
            loader = trainer.loader()
            text = run("--pid", trainer.pid, "--seconds", 0.1)
            pid = trainer.workers[1]
        found = finding(loader, "worker_stopped")
        self.assertEqual((found["worker"], found["state"]), (1, "problem"))
        self.assertIn(f"worker 1 (pid {pid}) is stopped (state T)", found["text"])
        self.assertIn(f"kill -CONT {pid}", found["advice"])
        self.assertRegex(found["command"], f"^(sudo )?gdb -p {pid} -batch -ex 'thread apply all bt'$")
        self.assertEqual([worker["kernel_state"] == "T" for worker in loader["workers"]], [False, True, False, False])
        self.assertEqual((loader["bound"], loader["bound_worker"]), ("worker", 1))
        self.assertEqual(text.returncode, 2)
        self.assertIn(f"worker 1 (pid {pid}) is stopped (state T)", text.stdout)
        self.assertIn(f"$ {found['command']}", text.stdout)
        self.assertIn("status: problem", text.stdout)
        self.assertNotIn("\x1b", text.stdout)  # no terminal

    def test_a_data_set_that_opens_for_long(self):
        with Prepared("slow_open") as trainer:
            soon = trainer.loader(0.1)
            late = trainer.loader(6)  # longer than what counts as long
        self.assertEqual((soon["bound"], late["bound"]), ("starting", "starting"))
        self.assertEqual([worker["state"] for worker in late["workers"]], ["opening"] * 4)
        texts = [f["text"] for f in late["findings"] if f["kind"] == "worker_starting"]
        self.assertEqual(len(texts), 4)
        for worker, (pid, text) in enumerate(zip(trainer.workers, texts)):
            self.assertRegex(text, rf"^worker {worker} \(pid {pid}\) has been opening its data set for [0-9.]+ s$")

    def test_a_worker_that_is_stuck(self):
        with Prepared("stuck_worker") as trainer:
            loader = trainer.loader(3)
            pid = trainer.workers[1]
        found = finding(loader, "worker_hung")
        self.assertEqual(found["worker"], 1)
        self.assertRegex(found["text"], rf"^worker 1 \(pid {pid}\) is stuck: it has had batch [0-9]+ of epoch 0 in hand for")
        self.assertIn("state S, sleeping", found["text"])
        self.assertIn(f"gdb -p {pid}", found["command"])

    def test_a_worker_in_uninterruptible_sleep(self):
        with Prepared("uninterruptible_worker") as trainer:
            trainers.wait_until(lambda: state_of(trainer.workers[1]) == "D", "worker 1 is in uninterruptible sleep")
            loader = trainer.loader(0.1)  # soon after: its batch is not late yet
            pid = trainer.workers[1]
        found = finding(loader, "worker_uninterruptible")
        self.assertEqual((found["worker"], found["state"]), (1, "problem"))
        self.assertIn(f"worker 1 (pid {pid}) is in uninterruptible sleep (state D)", found["text"])
        self.assertRegex(found["command"], f"^(sudo )?cat /proc/{pid}/stack$")

    def test_the_command_for_a_python_program(self):
        libraries = subprocess.run(["ldd", PREPARED], check=True, capture_output=True, text=True).stdout.splitlines()
        (library,) = [line.split()[2] for line in libraries if "libfeedlane" in line]
        with tempfile.TemporaryDirectory() as folder:
            python = os.path.join(folder, "python3.12")
            shutil.copy(PREPARED, python)
            environment = {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(library)}
            with Prepared("stopped_worker", command=[python], env=environment) as trainer:
                command = finding(trainer.loader(), "worker_stopped")["command"]
        self.assertRegex(command, f"^(sudo )?py-spy dump --pid {trainer.workers[1]}$")

    def test_a_loader_in_another_pid_namespace(self):
        unshare = trainers.unshare_command()
        if unshare is None:
            self.skipTest("no PID namespaces")
        with Prepared("stopped_worker", command=[*unshare, PREPARED]) as trainer:
            children = pathlib.Path(f"/proc/{trainer.pid}/task/{trainer.pid}/children").read_text(encoding="ascii")
            (loader,) = doctor("--pid", children.split()[0], "--seconds", 1)["loaders"]
            self.assertEqual([state_of(worker["pid"]) == "T" for worker in loader["workers"]], [False, True, False, False])
        self.assertNotIn(loader["workers"][1]["pid"], trainer.workers)
        self.assertIn(f"kill -CONT {loader['workers'][1]['pid']}", finding(loader, "worker_stopped")["advice"])

    def test_a_stopped_trainer(self):
        with Prepared("idle") as trainer:
            with stopped(trainer.pid):
                found = finding(trainer.loader(0.1), "trainer_stopped")
            after = trainer.loader(0.1)
        self.assertIn(f"the trainer (pid {trainer.pid}) is stopped (state T)", found["text"])
        self.assertEqual(kinds(after), set())

    def test_failing_samples(self):
        with Prepared("failing_samples") as trainer:
            first, second = trainer.loader(0.1), trainer.loader(0.5)
        for loader in (first, second):
            (error,) = errors_of(loader)
            self.assertEqual(error["kind"], "sample_skipped")
            self.assertRegex(error["text"], "sample [0-9]+ cannot be decoded")
            self.assertGreaterEqual(error["first_ago_ns"], error["last_ago_ns"])
            self.assertEqual(error["sample"] % 7, 0)
            self.assertEqual(finding(loader, "errors")["text"], f"{error['count']} errors of 1 kind: see below")
        self.assertGreater(errors_of(second)[0]["count"], errors_of(first)[0]["count"])

    def test_dying_workers(self):
        with Prepared("dying_workers") as trainer:
            loader = trainer.loader()
        self.assertGreater(loader["restarts"]["signal"], 0)
        self.assertIn("killed by a signal", finding(loader, "restarts")["text"])
        self.assertIn("worker_died", [error["kind"] for error in loader["errors"]])

    def test_held_slots(self):
        with Prepared("held_slots") as trainer:
            loader = trainer.loader(2)
        self.assertEqual(loader["bound"], "slots")
        self.assertIn("slots", kinds(loader))
        self.assertGreater(len(loader["held"]), 1)

    def test_all_loaders_of_a_process_and_those_of_no_process(self):
        with Prepared("two_loaders") as trainer:
            loaders = trainer.doctor(0.1)["loaders"]
            self.assertEqual([(loader["loader"], loader["name"]) for loader in loaders], [(0, "two_loaders"), (1, 'second\n"of" \\two')])
            everywhere = doctor("--seconds", 0.1)["loaders"]
            self.assertEqual([loader["loader"] for loader in everywhere if loader["pid"] == trainer.pid], [0, 1])
        none = run("--pid", os.getpid())
        self.assertEqual((none.returncode, none.stdout), (3, ""))
        self.assertIn(f"process {os.getpid()} has no loader", none.stderr)

    def test_keys(self):
        with Prepared("failing_samples", "fork") as trainer:
            found, workers = trainer.doctor(0.1), trainer.workers
        with Prepared("held_slots") as trainer:
            held = trainer.loader(0.1)["held"]
        self.assertEqual(list(found), ["machine", "loaders", "arenas", "status"])
        self.assertEqual([check["check"] for check in found["machine"]], doctors.CHECKS)
        for check in found["machine"]:
            self.assertEqual(list(check), ["check", "state", "found", "needed", "unit", "note", "advice"])
        (loader,) = found["loaders"]
        self.assertEqual(list(loader), [
            "pid", "loader", "name", "program", "start", "state", "bound", "bound_worker", "text", "advice", "interval_ns",
            "batches", "samples", "exposed_ns", "trainer_kernel_state", "restarts", "workers", "held", "errors", "findings"])
        self.assertEqual(loader["start"], "fork")
        self.assertEqual(list(loader["restarts"]), ["signal", "exit", "hung", "invalid", "unattached"])
        self.assertEqual(len(loader["workers"]), 4)
        self.assertEqual(list(loader["workers"][0]), [
            "worker", "pid", "state", "kernel_state", "waits_in", "generation", "tasks", "mean_work_ns", "task_ns", "queued", "epoch",
            "batch", "row"])
        self.assertEqual([worker["pid"] for worker in loader["workers"]], workers)
        self.assertEqual(list(loader["errors"][0]), [
            "kind", "code", "count", "first_ago_ns", "last_ago_ns", "worker", "batch", "sample", "text"])
        self.assertEqual(list(loader["findings"][0]), ["kind", "state", "worker", "text", "advice", "command"])
        self.assertEqual(list(held[0]), ["slot", "epoch", "batch", "held_ns"])


class Options(unittest.TestCase):
    def test_what_is_refused(self):
        for wrong in (["--pid", "0"], ["--pid", "x"], ["--seconds", "0"], ["--seconds", "nan"], ["--nothing"], ["word"]):
            done = run(*wrong)
            self.assertGreater(done.returncode, 3, wrong)
            self.assertTrue(done.stderr)

    def test_colours_on_a_terminal_alone(self):
        for environment, has_colours in (({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)):
            ours, theirs = pty.openpty()
            with os.fdopen(ours, "rb", buffering=0) as terminal:
                environment = {**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, **environment}
                command = subprocess.Popen([FEEDLANE, "doctor", "--root", "/"], stdout=theirs, env=environment)
                os.close(theirs)
                text = b""
                with contextlib.suppress(OSError):  # EIO: the command has ended
                    while more := terminal.read(65536):
                        text += more
                command.wait()
            self.assertIn(b"processors", text)
            self.assertEqual(b"\x1b[32mok" in text, has_colours)

    def test_the_interval_lasts(self):
        with Prepared("idle") as trainer:
            began = time.monotonic()
            loader = trainer.loader(0.5)
            self.assertGreaterEqual(time.monotonic() - began, 0.5)
        self.assertGreaterEqual(loader["interval_ns"], 5e8)


if __name__ == "__main__":
    unittest.main()
