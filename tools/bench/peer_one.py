# SPDX-License-Identifier: Apache-2.0
"""One measurement of peers.py, in its own process: the rate of a loader, or what happens in an epoch when a worker is
killed. Prints a line of JSON.

Usage: peer_one.py CONTENDER WORK FOLDER SETTINGS_AS_JSON SECONDS|kill"""
import json
import os
import pathlib
import signal
import sys
import time

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent.parent))

import peer_loaders
import peer_work
import processes

WARM = 1        # seconds that are not measured
KILLED_AT = 8   # batches


def measure(contender, work, folder, settings, seconds):
    peer_loaders.prepare(contender, work, folder, True)
    began = time.perf_counter()
    epochs = contender.make(work, folder, True, **contender.fixed, **settings)
    batches = peer_loaders.endless(epochs)
    peer_work.read(next(batches))
    figures = {"first_ms": 1e3 * (time.perf_counter() - began)}
    until = time.perf_counter() + WARM
    while time.perf_counter() < until:
        peer_work.read(next(batches))
    busy, own, began = processes.processor_seconds(), time.thread_time(), time.perf_counter()
    count = samples = 0
    while (now := time.perf_counter()) < began + seconds:
        samples += peer_work.read(next(batches))
        count += 1
    own, busy = time.thread_time() - own, processes.processor_seconds() - busy
    return {**figures, "rate": samples / (now - began), "trainer_us": 1e6 * own / count, "cpu_us": 1e6 * busy / count,
            "memory_mib": processes.memory_mib()}


def busiest(worker):
    """The process without children that has used most processor time; None: there is none. worker: what its command line begins with."""
    tree = processes.tree()
    used = {pid: nanoseconds(pid) for pid in processes.processes()
            if pid != os.getpid() and pid not in tree.values() and command_of(pid).startswith(worker)}
    return max((pid for pid in used if used[pid] is not None), key=used.get, default=None)


def command_of(pid):
    try:
        return pathlib.Path("/proc", str(pid), "cmdline").read_text()
    except OSError:
        return ""  # it has ended


def nanoseconds(pid):
    """Of processor time, up to the last tick. None: it has ended."""
    folder = pathlib.Path("/proc", str(pid))
    try:
        if folder.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return None
        return sum(int(task.joinpath("schedstat").read_text().split()[0]) for task in folder.joinpath("task").iterdir())
    except OSError:
        return None


def kill(contender, work, folder, settings):
    """What happens in an epoch when a worker is killed, in words."""
    peer_loaders.prepare(contender, work, folder, False)
    epochs = contender.make(work, folder, False, **contender.fixed, **settings)
    samples = marks = longest = 0
    at, last = None, time.perf_counter()
    try:
        for number, batch in enumerate(epochs()):
            longest = max(longest, time.perf_counter() - last if at else 0)
            values = batch[0] if work == "photographs" else batch
            samples, marks = samples + len(values), marks + peer_work.marks(work, batch)
            if number == KILLED_AT:
                victim = busiest(contender.worker)
                if victim is None:
                    return "no worker process"
                os.kill(victim, signal.SIGKILL)
                at = time.perf_counter()
            last = time.perf_counter()
    except Exception as error:  # whatever a loader raises is the finding
        return f"{type(error).__name__} after {time.perf_counter() - at:.2g} s" if at else f"fails before: {error!r}"
    wanted = peer_work.expected(work, folder)
    if (samples, marks) == wanted:
        return f"each sample once, longest wait {1e3 * longest:,.0f} ms"
    return f"ends without an error, with {samples:,} of {wanted[0]:,} samples" + ("" if samples != wanted[0] else ", others than asked for")


def main():
    name, work, folder, settings, what = sys.argv[1:]
    contender, settings = peer_loaders.named(name, work), json.loads(settings)
    said = kill(contender, work, folder, settings) if what == "kill" else measure(contender, work, folder, settings, float(what))
    print(json.dumps(said), flush=True)
    os._exit(0)  # a loader's own end may take long, or never come; peers.py ends what is left


if __name__ == "__main__":
    main()
