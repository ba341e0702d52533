# SPDX-License-Identifier: Apache-2.0
"""Starts crash_program and waits for its events; every wait has a deadline."""
import atexit
import os
import select
import subprocess
import sys
import time

DEADLINE_S = 60


class Program:
    def __init__(self, *arguments):
        self.process = subprocess.Popen([sys.argv[1], *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.unread = b""
        atexit.register(self.process.kill)  # also when the test fails

    def line(self):
        deadline = time.monotonic() + DEADLINE_S
        while b"\n" not in self.unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                self.process.kill()
                raise AssertionError(f"nothing within {DEADLINE_S} s")
            more = os.read(self.process.stdout.fileno(), 65536)
            assert more, f"the program ended, after '{self.unread.decode()}'"
            self.unread += more
        line, self.unread = self.unread.split(b"\n", 1)
        return line.decode()

    def value(self, name):
        """The rest of the next line, which must begin with `name`."""
        line = self.line()
        assert line.split(" ")[0] == name, f"waited for '{name}', got '{line}'"
        return line[len(name) + 1 :]

    def end(self):
        self.process.stdin.close()
        return self.process.wait(DEADLINE_S)


def wait_for_ends(pidfds, deadline_s=DEADLINE_S):
    """Seconds until all of these processes have ended."""
    began = time.monotonic()
    left = list(pidfds)
    while left:
        ready, _, _ = select.select(left, [], [], max(0, began + deadline_s - time.monotonic()))
        assert ready, f"{len(left)} of {len(pidfds)} processes still there after {deadline_s} s"
        left = [fd for fd in left if fd not in ready]
    for fd in pidfds:
        os.close(fd)
    return time.monotonic() - began
