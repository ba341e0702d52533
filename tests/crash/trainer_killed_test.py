# SPDX-License-Identifier: Apache-2.0
"""A trainer killed by SIGKILL takes its workers with it, whatever they are doing, and all memory with them."""
# promise: fault-trainer-killed, fault-workers-end-soon, trainer-killed-busy-workers
import os
import signal
import time

from program import DEADLINE_S, Program, wait_for_ends


def segments_of(pid):
    """Inodes of the segments that a process has mapped."""
    with open(f"/proc/{pid}/maps") as maps:
        return {line.split()[4] for line in maps if "feedlane-" in line}


for mode, stop in (("idle", False), ("busy", False), ("stuck", False), ("busy", True), ("idle", True)):
    program = Program(mode)
    workers = [int(program.value("worker")) for _ in range(2)]
    assert program.line() == "ready"
    pidfds = [os.pidfd_open(pid) for pid in workers]
    segments = segments_of(program.process.pid)
    assert len(segments) == 2, segments
    for pid in workers:
        deadline = time.monotonic() + DEADLINE_S
        while segments_of(pid) != segments:  # one that attaches late may have no part in the batches so far
            assert time.monotonic() < deadline, "trainer and worker share the same two segments"
            time.sleep(0.001)
        if stop:
            os.kill(pid, signal.SIGSTOP)
    program.process.kill()
    seconds = wait_for_ends(pidfds)
    program.end()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            held = segments_of(entry) & segments
        except OSError:
            continue
        assert not held, f"process {entry} still maps {held}"
    print(f"{mode}{' and stopped' if stop else ''}: workers gone after {seconds * 1000:.1f} ms")


def state_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


# Stopped before they have attached: nobody has tied them but their trainer.
program = Program("starting")
workers = [int(program.value("worker")) for _ in range(2)]
assert program.line() == "ready"
pidfds = [os.pidfd_open(pid) for pid in workers]
while any(state_of(pid) != "T" for pid in workers):
    time.sleep(0.001)  # nothing tells of it to who isn't their parent
program.process.kill()
seconds = wait_for_ends(pidfds)
program.end()
print(f"stopped before they have attached: workers gone after {seconds * 1000:.1f} ms")
