# SPDX-License-Identifier: Apache-2.0
"""Processor time and memory of a process and its descendants, for the scripts of this folder."""

import os
import pathlib

TICKS = os.sysconf("SC_CLK_TCK")


def tree():
    """{pid: its parent} of all processes."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(pid)] = int(pathlib.Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
    return parents


def processes():
    """PIDs of this process and of its descendants."""
    parents, found = tree(), [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def texts(name):
    """Of each of these processes: the text of its file in /proc."""
    for pid in processes():
        try:
            yield pathlib.Path("/proc", str(pid), name).read_text()
        except OSError:
            pass  # it has ended


def processor_seconds():
    """With that of descendants that have ended and were waited for."""
    fields = (text.rpartition(")")[2].split() for text in texts("stat"))
    return sum(sum(map(int, field[11:15])) for field in fields) / TICKS


def memory_mib():
    return sum(int(line.split()[1]) for text in texts("smaps_rollup") for line in text.splitlines() if line.startswith("Pss:")) / 1024
