# SPDX-License-Identifier: Apache-2.0
"""Runs the trainers of prepared.cpp, and the command that looks at them."""
import contextlib
import json
import os
import shutil
import subprocess
import time

DEADLINE_S = 60  # beyond what any wait takes on a machine that is busy with others


class Trainer:
    """Runs until the end of the `with` block; `workers` are process ids."""

    def __init__(self, program, fault, *arguments):
        self.process = subprocess.Popen([program, fault, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        first, *workers = self.process.stdout.readline().split() or ["nothing"]
        if first != "running":
            self.end()
            raise AssertionError(f"{fault} said {first}")
        self.workers = [int(pid) for pid in workers]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def unshare_command():
    """Runs what follows in a PID namespace of its own. None: that is not possible."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    is_possible = shutil.which("unshare") and subprocess.run([*command, "true"], stderr=subprocess.DEVNULL).returncode == 0
    return command if is_possible else None


def run(feedlane, *arguments, **settings):
    """Standard output; raises if the status is not 0."""
    return subprocess.run([feedlane, *arguments], check=True, stdout=subprocess.PIPE, text=True, **settings).stdout


@contextlib.contextmanager
def json_lines(feedlane, *arguments):
    """The values that a command writes one a line, as they come. The command is killed at the end."""
    process = subprocess.Popen([feedlane, *arguments, "--json"], stdout=subprocess.PIPE, text=True)
    try:
        yield (json.loads(line) for line in process.stdout)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_until(condition, what):
    """Asks again and again; fails after DEADLINE_S with `what`, a text."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"


def settled(feedlane, pid):
    """Of each loader of an idle trainer the values of `top`, when its workers have made all that was asked of them."""
    before = None
    deadline = time.monotonic() + DEADLINE_S
    while True:
        assert time.monotonic() < deadline, f"workers of process {pid} have not settled within {DEADLINE_S} s: {before}"
        lines = run(feedlane, "top", "--pid", str(pid), "--json", "--workers", "--count", "1", "--seconds", "0.05")
        now = {value["loader"]: value for value in map(json.loads, lines.splitlines())}
        done = {(n, w["id"]): w["total_tasks"] for n, value in now.items() for w in value["each_worker"]}
        idle = all(w["task_ns"] is None for value in now.values() for w in value["each_worker"])
        if idle and done == before:
            return now
        before = done
