# SPDX-License-Identifier: Apache-2.0
"""Processor time and memory of a process and its descendants, for the scripts of this folder."""

import os
import pathlib

TICKS = os.sysconf("SC_CLK_TCK")


def processes():
    """PIDs of this process and of its descendants."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(pid)] = int(pathlib.Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def processor_seconds():
    fields = (pathlib.Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split() for pid in processes())
    return sum(int(field[11]) + int(field[12]) for field in fields) / TICKS


def memory_mib():
    rollups = (pathlib.Path("/proc", str(pid), "smaps_rollup").read_text() for pid in processes())
    return sum(int(line.split()[1]) for text in rollups for line in text.splitlines() if line.startswith("Pss:")) / 1024
