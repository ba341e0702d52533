# SPDX-License-Identifier: Apache-2.0
"""A loader in a foreign event loop: 100,000 batches by epoll alone, with no periodic timeout, so that a lost wake-up hangs
the run; idle it costs under 0.1 % of a processor, trainer and workers each."""
import os
import signal
import subprocess
import sys
import time

BATCHES = 100_000
IDLE_S = 10 if os.environ.get("FEEDLANE_STRESS") == "full" else 3
LIMIT = 0.001
signal.alarm(120)  # nothing here may wait for ever


def cpu_of(pid):
    """User and system seconds of a process up to now. (/proc/PID/schedstat lacks the newest ones of a running thread.)"""
    return time.clock_gettime(~int(pid) << 3 | 2)  # as clock_getcpuclockid of the C library makes the clock's number


def children_of(parent):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if int(stat.read().rpartition(")")[2].split()[1]) == parent:
                    found.append(pid)
        except OSError:
            pass
    return found


with subprocess.Popen([sys.argv[1], str(BATCHES), str(IDLE_S)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
    line = trainer.stdout.readline()
    assert line == f"batches {BATCHES}\n", line
    children = children_of(trainer.pid)
    assert len(children) == 2, children
    before = {pid: cpu_of(pid) for pid in children}
    idle = trainer.stdout.readline()
    used = {pid: cpu_of(pid) - before[pid] for pid in children}
    assert idle.startswith(f"idle {IDLE_S} s, cpu "), idle
    trainer.stdin.close()
    assert trainer.wait(60) == 0
trainer_cpu = float(idle.split()[4])
assert trainer_cpu < LIMIT * IDLE_S, f"the idle trainer used {trainer_cpu} s of {IDLE_S}"
for pid, seconds in used.items():
    assert seconds < LIMIT * IDLE_S + 0.002, f"the idle worker used {seconds} s of {IDLE_S}"  # 2 ms: its first steps to the end
print(f"{BATCHES} batches; idle {IDLE_S} s: trainer {trainer_cpu * 1000:.2f} ms, workers", [f"{s * 1000:.2f} ms" for s in used.values()])
