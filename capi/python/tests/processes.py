# SPDX-License-Identifier: Apache-2.0
"""Programs that a test starts, and the ends of processes, which are waited for and not asked after."""
import os
import select
import subprocess
import sys
import threading
import time

DEADLINE_S = 60


def watched(test, pids):
    """A descriptor for each process, which tells of its end."""
    found = [os.pidfd_open(pid) for pid in pids]
    for fd in found:
        test.addCleanup(os.close, fd)
    return found


def ended(watched_ones, within_s):
    """Whether all have ended, or end within so many seconds. A zombie has."""
    deadline = time.monotonic() + within_s
    for fd in watched_ones:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if not poll.poll(max(0, deadline - time.monotonic()) * 1000):
            return False
    return True


class Trainer(subprocess.Popen):
    """A program in Python that prints lines; killed at the end of a `with`."""

    def __init__(self, *command, pass_fds=()):
        super().__init__([sys.executable, "-B", *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True, pass_fds=pass_fds)

    def go(self):
        self.stdin.write("\n")
        self.stdin.flush()

    def line(self):
        late = threading.Timer(DEADLINE_S, self.kill)  # a program that hangs fails the test
        late.start()
        try:
            return self.stdout.readline().rstrip("\n")
        finally:
            late.cancel()

    def numbers(self):
        return list(map(int, self.line().split()))

    def wait_until_asleep(self):
        """In a system call that waits."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
                if file.read().rpartition(")")[2].split()[0] == "S":
                    return
            if time.monotonic() > deadline:
                raise TimeoutError("the program waits for nothing")

    def __exit__(self, *_):
        self.kill()
        super().__exit__(*_)
