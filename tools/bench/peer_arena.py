#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Feedlane's arena compared with other ways to share arrays between Python processes, in alternating rounds.

Hand-over: a process copies an array of each size and passes it on; another reads a byte of every page and lets it go. The others at
the best of their settings, found by a search:
  shared memory   multiprocessing.SharedMemory as a ring of places, with a lock, and semaphores for free and full places
  torch queue     torch.multiprocessing's Queue or SimpleQueue, tensors copied into shared memory, either sharing strategy
  zmq             PUSH and PULL of pyzmq over ipc, without a copy in Python, several high-water marks
  ray             ray.put in an actor, ray.get here, several calls in flight
Get: a process gets an array that is there, reads its first byte and lets it go: Feedlane's arena, ray.get, and SharedMemory with a
table of offsets under a lock (whose memory nobody keeps from being used again while it is read).

No process is pinned. Ray is started for its rounds alone, because it takes processor time while it is idle. Skips (77) without
any of the packages.

Usage: peer_arena.py [--quick] [--json] [--rounds N] [--only NAME,...]    (an interpreter that has feedlane, torch, zmq, ray)"""
import argparse
import collections
import contextlib
import json
import multiprocessing
import os
import platform
import struct
import sys
import tempfile
import time
from multiprocessing import shared_memory

from rounds import alternate, cell, ratios, spread

try:
    import feedlane
    import numpy as np
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

KIB, MIB = 1 << 10, 1 << 20
SIZES = {4 * KIB: 20_000, 256 * KIB: 5_000, MIB: 2_000, 16 * MIB: 120}  # bytes of an array: arrays of a round
PAGE = 4096
IN_FLIGHT = 512 * MIB  # at most
SPAWN = multiprocessing.get_context("spawn")
# Seconds that anything may take. A process that has ended is an error, not a wait.
DEADLINE_S = 120


def touch(array):
    return int(array[::PAGE].sum())


# ---- ways to hand arrays over: one object for both ends; the sender's is a copy in another process ----

class Way:
    """`here` belongs to one end."""
    here = None

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "here"}


class Arena(Way):
    settings = (8, 32, 128)  # arrays in flight
    name = "feedlane"

    def __init__(self, size, places, folder):
        self.size, self.places, self.path = size, places, os.path.join(folder, "arena")

    def open_receiver(self):
        size = max((self.places + 3) * (self.size + 8 * KIB), MIB)
        self.here = feedlane.Arena(size, when_full="wait", path=self.path, serve=False)

    def open_sender(self):
        self.here = feedlane.Arena.join(self.path)

    def send(self, source):
        self.here.put(None, source)

    def receive(self):
        with self.here.receive(timeout=DEADLINE_S) as batch:
            touch(batch.data)

    def close(self):
        self.here.close()


class SharedMemory(Way):
    settings = (4, 32)
    name = "shared memory"

    def __init__(self, size, places, _):
        self.size, self.places = size, places
        self.lock, self.free, self.full = SPAWN.Lock(), SPAWN.Semaphore(places), SPAWN.Semaphore(0)
        self.next = SPAWN.RawArray("q", 2)  # the place of the sender, of the receiver

    def open_receiver(self):
        self.here = shared_memory.SharedMemory(create=True, size=self.size * self.places)
        self.title = self.here.name

    def open_sender(self):
        self.here = shared_memory.SharedMemory(self.title)

    def _take(self, side):
        with self.lock:
            place = self.next[side]
            self.next[side] = (place + 1) % self.places
        return np.ndarray(self.size, np.uint8, self.here.buf, place * self.size)

    def send(self, source):
        if not self.free.acquire(timeout=DEADLINE_S):
            raise TimeoutError
        self._take(0)[:] = source
        self.full.release()

    def receive(self):
        if not self.full.acquire(timeout=DEADLINE_S):
            raise TimeoutError
        touch(self._take(1))
        self.free.release()

    def close(self):
        self.here.close()
        if multiprocessing.parent_process() is None:
            self.here.unlink()


class TorchQueue(Way):
    settings = tuple((kind, strategy, places) for kind in ("Queue", "SimpleQueue")
                     for strategy in ("file_descriptor", "file_system") for places in (8, 64))
    name = "torch queue"

    def __init__(self, size, setting, _):
        import torch.multiprocessing
        self.size, (kind, self.strategy, places) = size, setting
        self.queue = getattr(torch.multiprocessing.get_context("spawn"), kind)()
        self.free = SPAWN.Semaphore(places)

    def _open(self):
        import torch.multiprocessing
        torch.multiprocessing.set_sharing_strategy(self.strategy)

    open_receiver = _open

    def open_sender(self):
        self._open()

    def send(self, source):
        import torch
        if not self.free.acquire(timeout=DEADLINE_S):
            raise TimeoutError
        out = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(self.size))
        self.queue.put(out.copy_(torch.from_numpy(source)))

    def receive(self):
        touch(self.queue.get().numpy())
        self.free.release()

    def close(self):
        pass


class Zmq(Way):
    settings = (2, 16, 1000)  # high-water mark
    name = "zmq"

    def __init__(self, size, mark, folder):
        self.mark, self.address = mark, "ipc://" + os.path.join(folder, "zmq")

    def _open(self, kind):
        import zmq
        self.here = zmq.Context().socket(getattr(zmq, kind))
        self.here.set_hwm(self.mark)
        self.here.setsockopt(zmq.RCVTIMEO, DEADLINE_S * 1000)
        self.here.setsockopt(zmq.SNDTIMEO, DEADLINE_S * 1000)

    def open_receiver(self):
        self._open("PULL")
        self.here.bind(self.address)

    def open_sender(self):
        self._open("PUSH")
        self.here.connect(self.address)

    def send(self, source):
        self.here.send(source, copy=False)

    def receive(self):
        touch(np.frombuffer(self.here.recv(copy=False).buffer, np.uint8))

    def close(self):
        self.here.context.destroy()


def _send(way, size, orders):
    way.open_sender()
    source = np.ones(size, np.uint8)
    while (count := orders.recv()) is not None:
        for _ in range(count):
            way.send(source)
    way.close()


class Pair:
    """A receiver here, and a sender in another process."""

    def __init__(self, kind, size, setting):
        self.folder = tempfile.TemporaryDirectory()
        self.way = kind(size, setting, self.folder.name)
        self.way.open_receiver()
        self.orders, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_send, args=(self.way, size, theirs), daemon=True)
        self.process.start()
        self.rate(200)

    def rate(self, count):
        """Arrays a second, from the first one on."""
        self.orders.send(count)
        self.way.receive()
        began = time.perf_counter()
        for _ in range(count - 1):
            self.way.receive()
        return (count - 1) / (time.perf_counter() - began)

    def close(self):
        self.orders.send(None)
        self.process.join()
        self.way.close()
        self.folder.cleanup()


# ---- ray ----

class Ray:
    settings = (2, 8, 32)  # calls in flight
    name = "ray"

    def __init__(self, size, in_flight):
        self.size, self.in_flight = size, in_flight

    @contextlib.contextmanager
    def _started(self):
        import ray
        ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False, object_store_memory=2 << 30)
        try:
            yield ray
        finally:
            ray.shutdown()

    def rate(self, count):
        size = self.size
        with self._started() as ray:
            @ray.remote
            class Maker:
                def __init__(self):
                    self.source = np.ones(size, np.uint8)

                def make(self):
                    return self.source  # what a call returns is put into the store, or, if it is small, into the answer

            maker = Maker.remote()
            for _ in range(100):
                touch(ray.get(maker.make.remote()))
            calls = collections.deque(maker.make.remote() for _ in range(self.in_flight))
            began = None
            for number in range(count):
                touch(ray.get(calls.popleft()))
                began = began or time.perf_counter()
                if number + self.in_flight < count:
                    calls.append(maker.make.remote())
            return (count - 1) / (time.perf_counter() - began)

    def get_times(self, count):
        with self._started() as ray:
            kept = ray.put(np.ones(self.size, np.uint8))
            return timed(lambda: ray.get(kept)[0], count)

    def close(self):
        pass


# ---- gets ----

def timed(function, count):
    """Microseconds: median and p99."""
    clock, times = time.perf_counter_ns, []
    for _ in range(count):
        began = clock()
        function()
        times.append(clock() - began)
    times.sort()
    return times[count // 2] / 1e3, times[count * 99 // 100] / 1e3


def _arena_gets(path, count, results):
    with feedlane.Arena.join(path) as arena:
        def get():
            with arena.get("key") as batch:
                return batch.data[0]
        timed(get, 1000)
        results.send(timed(get, count))


def arena_gets(size, count):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "arena")
        with feedlane.Arena(4 * size + MIB, path=path) as arena:
            arena.put("key", np.ones(size, np.uint8))
            return _in_process(_arena_gets, path, count)


ENTRY = struct.Struct("64sQQ")


def _table_gets(name, lock, count, results):
    memory = shared_memory.SharedMemory(name)

    def get():
        with lock:
            for place in range(16):  # a table with one entry in the middle
                key, offset, size = ENTRY.unpack_from(memory.buf, place * ENTRY.size)
                if key.rstrip(b"\0") == b"key":
                    break
        return np.ndarray(size, np.uint8, memory.buf, offset)[0]
    timed(get, 1000)
    results.send(timed(get, count))
    memory.close()


def table_gets(size, count):
    lock = SPAWN.Lock()
    memory = shared_memory.SharedMemory(create=True, size=PAGE + size)
    try:
        ENTRY.pack_into(memory.buf, 0, b"key", PAGE, size)
        return _in_process(_table_gets, memory.name, lock, count)
    finally:
        memory.close()
        memory.unlink()


def _in_process(function, *arguments):
    results, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=function, args=(*arguments, theirs))
    process.start()
    theirs.close()
    found = results.recv()
    process.join()
    return found


# ---- the comparison ----

WAYS = {way.name: way for way in (Arena, SharedMemory, TorchQueue, Zmq)}


def in_flight(setting):
    return setting[-1] if isinstance(setting, tuple) else setting


def best_setting(kind, open_one, size, count):
    """The fastest of the settings, and the rates of all."""
    found = {}
    for setting in kind.settings:
        if in_flight(setting) * size > IN_FLIGHT and setting != kind.settings[0]:
            continue
        pair = open_one(setting)
        found[setting] = pair.rate(count)
        pair.close()
    return max(found, key=found.get), [{"setting": setting, "arrays_s": rate} for setting, rate in found.items()]


def measure_hand_over(names, sizes, rounds, say):
    rows, found = [], {}
    say(f"{'array':>9} {'way':>14} {'setting':>36} {'arrays/s':>28} {'GB/s':>7} {'feedlane over it':>26}")
    for size, count in sizes.items():
        contenders, chosen, tried, open_pairs = {}, {}, {}, []
        for name in names:
            kind = WAYS.get(name, Ray)
            if kind is Ray:
                def opened(setting, size=size):
                    return Ray(size, setting)
            else:
                def opened(setting, kind=kind, size=size):
                    return Pair(kind, size, setting)
            chosen[name], tried[name] = best_setting(kind, opened, size, max(count // 4, 20))
            pair = opened(chosen[name])
            open_pairs.append(pair)
            contenders[name] = lambda pair=pair, count=count: pair.rate(count)
        got = alternate(contenders, rounds)
        for pair in open_pairs:
            pair.close()
        for name in names:
            over = ratios(got["feedlane"], got[name]) if "feedlane" in got else []
            say(f"{size // KIB:>5} KiB {name:>14} {str(chosen[name]):>36} {cell(got[name]):>28} "
                f"{spread(got[name])['median'] * size / 1e9:>7.2f} {cell(over) if over and name != 'feedlane' else '-':>26}")
            rows.append({"bytes": size, "way": name, "setting": chosen[name], "arrays_s": spread(got[name]), "searched": tried[name]})
            if over and name != "feedlane":
                found[f"arena_peers.{size}.over_{name.replace(' ', '_')}"] = spread(over)
    return rows, found


def measure_gets(names, sizes, rounds, say):
    rows, found = [], {}
    say(f"\n{'array':>9} {'way':>14} {'get, us':>26} {'p99, us':>26}")
    for size in sizes:
        p99 = collections.defaultdict(list)

        def measured(name, function, size=size, p99=p99):
            def run():
                median, high = function(size, 20_000)
                p99[name].append(high)
                return median
            return run
        functions = {"feedlane": arena_gets, "shared memory": table_gets,
                     "ray": lambda size, count: Ray(size, 1).get_times(count)}
        got = alternate({name: measured(name, functions[name]) for name in names if name in functions}, rounds)
        for name, times in got.items():
            high = p99[name][1:]  # the first round doesn't count
            say(f"{size // KIB:>5} KiB {name:>14} {cell(times):>26} {cell(high):>26}")
            rows.append({"bytes": size, "way": name, "get_p50_us": spread(times), "get_p99_us": spread(high)})
            if name != "feedlane" and "feedlane" in got:
                found[f"arena_peers.get.{size}.over_{name.replace(' ', '_')}"] = spread(ratios(got["feedlane"], times))
    return rows, found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of the arrays")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="names, separated by commas")
    chosen = parser.parse_args()
    names = [name for name in (*WAYS, Ray.name) if not chosen.only or name in chosen.only.split(",")]
    needs = {"torch queue": "torch", "zmq": "zmq", "ray": "ray"}
    for name, module in needs.items():
        try:
            if name in names:
                __import__(module)
        except ImportError as missing:
            print("skipped:", missing)
            return 77
    say = (lambda *_: None) if chosen.json else print
    sizes = {size: max(count // 10, 20) if chosen.quick else count for size, count in SIZES.items()}
    rows, found = measure_hand_over(names, sizes, chosen.rounds, say)
    more, others = measure_gets(names, (4 * KIB, MIB, 16 * MIB), chosen.rounds, say)
    if chosen.json:
        machine = {"processors": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version()}
        print(json.dumps({"machine": machine, "groups": {"arena_peers": {"rows": rows + more, "ratios": {**found, **others}}}}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
