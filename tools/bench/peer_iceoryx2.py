#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Messages of 56 bytes between two Python processes: iceoryx2's publish-subscribe by its package from PyPI, and Feedlane's ring by
ctypes, since the package feedlane has no rings. Both are polled without a pause, one message a call, in the same rounds.

Each figure contains what Python and its binding take for a call, which is most of it: a call by ctypes that does nothing stands
beside them. So this says what a Python program gets, and of the two transports below no more than that.

Usage: peer_iceoryx2.py [--rounds N] [--messages N] [--json] LIBFEEDLANE    (an interpreter that has iceoryx2)"""
import argparse
import contextlib
import ctypes
import itertools
import json
import os
import sys
import time

from rounds import alternate, cell

try:
    import iceoryx2
except ImportError:
    print("skipped: no iceoryx2 (pip install iceoryx2)")
    sys.exit(77)

PLACES = 1024


class Message(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * 7)]


class Iceoryx:
    name = "iceoryx2, publish-subscribe"

    def __init__(self, path):
        self.service = iceoryx2.ServiceName.new(path)

    def _open(self):
        self.node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
        builder = self.node.service_builder(self.service).publish_subscribe(Message)
        return builder.subscriber_max_buffer_size(PLACES).enable_safe_overflow(False).open_or_create()

    def open_receiver(self):
        self.end = self._open().subscriber_builder().buffer_size(PLACES).create()

    def open_sender(self):
        retry = iceoryx2.BackpressureStrategy.RetryUntilDelivered
        self.end = self._open().publisher_builder().backpressure_strategy(retry).create()

    def send(self, message):
        self.end.send_copy(message)

    def receive(self):
        while True:
            sample = self.end.receive()
            if sample is not None:
                return sample.payload().contents

    def close(self):
        self.end.delete()


class Feedlane:
    name = "feedlane, send and receive by ctypes"
    library = None

    def __init__(self, path):
        self.path, self.got = f"/tmp/feedlane-bench-{path}".encode(), ctypes.c_uint32()
        self.message, self.handle = Message(), ctypes.c_void_p()

    def open_receiver(self):
        class Config(ctypes.Structure):
            _fields_ = [("size", ctypes.c_size_t), ("message_bytes", ctypes.c_uint32), ("capacity", ctypes.c_uint32),
                        ("lanes", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("path", ctypes.c_char_p)]
        config = Config(ctypes.sizeof(Config), ctypes.sizeof(Message), PLACES, 1, 0, self.path)
        self._check(self.library.feedlane_rx_create(ctypes.byref(config), ctypes.byref(self.handle), None))
        self._receive, self._arguments = self.library.feedlane_rx_receive, (ctypes.byref(self.message), 1, 0,
                                                                            ctypes.byref(self.got), None, None)
        self._end = self.library.feedlane_rx_destroy

    def open_sender(self):
        for _ in range(10_000):  # until the other end listens
            status = self.library.feedlane_tx_attach(-1, self.path, 10**10, ctypes.byref(self.handle), None)
            if status == 0:
                break
            time.sleep(0.001)
        self._check(status)
        self._send, self._end = self.library.feedlane_tx_send, self.library.feedlane_tx_destroy

    @staticmethod
    def _check(status):
        if status != 0:
            sys.exit(f"peer_iceoryx2.py: feedlane: status {status}")

    def send(self, message):
        while self._send(self.handle, ctypes.byref(message), 1, 0, None, None) != 0:
            pass

    def receive(self):
        while self._receive(self.handle, *self._arguments) != 0:
            pass
        return self.message

    def close(self):
        self._end(ctypes.byref(self.handle))


def load(path):
    library = ctypes.CDLL(path)
    pointer, number, wait = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int64
    for name, types in {"rx_create": (pointer,) * 3, "rx_destroy": (pointer,), "tx_destroy": (pointer,),
                        "rx_receive": (pointer, pointer, number, wait, pointer, pointer, pointer),
                        "tx_attach": (ctypes.c_int32, ctypes.c_char_p, wait, pointer, pointer),
                        "tx_send": (pointer, pointer, number, wait, pointer, pointer)}.items():
        getattr(library, f"feedlane_{name}").argtypes = types
    return library


@contextlib.contextmanager
def child(body):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.sched_setaffinity(0, {sorted(CPUS)[1]})
            body()
            status = 0
        finally:
            os._exit(status)
    yield
    if os.waitpid(pid, 0)[1] != 0:
        sys.exit("peer_iceoryx2.py: a process failed")


def round_trip(kind, path, count):
    """ns there and back."""
    there, back = kind(path + "-there"), kind(path + "-back")
    ready, go = os.pipe(), os.pipe()

    def echo():
        there.open_receiver()
        os.write(ready[1], b"x")  # it may attach, for which the first receive lets it in
        if kind is Feedlane:
            there.receive()
        os.read(go[0], 1)
        back.open_sender()
        for _ in range(count + count // 8):
            back.send(there.receive())
        back.close()
        there.close()

    with child(echo):
        os.read(ready[0], 1)
        there.open_sender()
        if kind is Feedlane:
            there.send(Message())
        back.open_receiver()
        os.write(go[1], b"x")
        message = Message()
        for i in range(count + count // 8):
            if i == count // 8:
                began = time.perf_counter_ns()
            message.words[0] = i
            there.send(message)
            if back.receive().words[0] != i:
                sys.exit("peer_iceoryx2.py: a message came back wrong")
        took = time.perf_counter_ns() - began
    there.close()
    back.close()
    for fd in (*ready, *go):
        os.close(fd)
    return took / count


def call_ns(count):
    """A call by ctypes that is refused at once."""
    nothing, refused = Feedlane.library.feedlane_rx_destroy, None
    began = time.perf_counter_ns()
    for _ in range(count):
        nothing(refused)
    return (time.perf_counter_ns() - began) / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("library")
    chosen = parser.parse_args()
    if len(CPUS) < 2:
        print("skipped: one processor")
        return 77
    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    Feedlane.library = load(chosen.library)
    os.sched_setaffinity(0, {sorted(CPUS)[0]})
    number = itertools.count()
    figures = alternate({kind.name: lambda kind=kind: round_trip(kind, f"{os.getpid()}-{next(number)}", chosen.messages)
                         for kind in (Iceoryx, Feedlane)} | {"call": lambda: call_ns(chosen.messages)}, chosen.rounds)
    calls = figures.pop("call")
    rows = [{"name": name, "rtt_ns": values} for name, values in figures.items()]
    if chosen.json:
        print(json.dumps({"call_ns": calls, "rows": rows}, indent=1))
        return 0
    print(f"a call by ctypes that does nothing, ns: {cell(calls, '.0f')}")
    for row in rows:
        print(f"{row['name']:40} there and back, ns: {cell(row['rtt_ns'], '.0f')}")
    return 0


CPUS = os.sched_getaffinity(0)

if __name__ == "__main__":
    sys.exit(main())
