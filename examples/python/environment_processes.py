# SPDX-License-Identifier: Apache-2.0
"""The worker processes of environments.py, which step several environments each and write results into an arena. First what both
sides agree on, then the worker's side, then the trainer's."""
import collections
import os
import pickle
import select
import signal
import socket
import struct
import time
import traceback
import weakref

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import CloudpickleWrapper

import feedlane

HEADER = struct.Struct("<qq")  # of an order: rows and bytes. Without rows it is a pickled request
RESULT = [("reward", "f8"), ("terminated", "?"), ("truncated", "?")]  # after the observation
ACTION = [("env", "i4")]  # after the action: the environment's place in its process
POLLS = 100  # before a sleep, 0.1 to 0.2 ms
START_S = 60  # that a process may take to make its environments, in addition to the timeout
TRAINER_ENDED = feedlane.PeerDead, ConnectionError


def spin(is_ready):
    """Polls before a sleep, and lets other processes run. False: not ready yet."""
    for _ in range(POLLS):
        if is_ready():
            return True
        os.sched_yield()
    return False


# ---- spaces as rows of arrays ----

def leaves(space, path=()):
    """(path, type, shape) of each array in a value of the space."""
    if isinstance(space, (Box, Discrete, MultiBinary, MultiDiscrete)):
        yield path, space.dtype, space.shape
    elif isinstance(space, (Dict, Tuple)):
        for key, part in space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces):
            yield from leaves(part, (*path, key))
    else:
        raise TypeError(f"{space}: has no fixed size; use Box, Discrete, MultiBinary, MultiDiscrete, and Dict or Tuple of them")


def find(value, path):
    for key in path:
        value = value[key]
    return value


def build(space, arrays):
    """A value of the space, from an iterator over the arrays of its leaves."""
    if isinstance(space, Dict):
        return {key: build(part, arrays) for key, part in space.spaces.items()}
    return tuple(build(part, arrays) for part in space.spaces) if isinstance(space, Tuple) else next(arrays)


class Layout:
    """Rows that hold a value of the space each, and more columns."""

    def __init__(self, space, more):
        self.space, self.columns = space, [(str(n), path) for n, (path, _, _) in enumerate(leaves(space))]
        self.dtype = np.dtype([(str(n), dtype, shape) for n, (_, dtype, shape) in enumerate(leaves(space))] + more, align=True)

    def values(self, rows):
        """Each row's value."""
        arrays = [rows[name] for name, _ in self.columns]
        return arrays[0] if self.columns == [("0", ())] else [build(self.space, iter(row)) for row in zip(*arrays)]


# ---- the worker's side ----

def send_note(arena, name, *note):
    arena.put(None, {name + "!": np.frombuffer(pickle.dumps(note), np.uint8)})


def transferable(error):
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(repr(error))


class Worker:
    """The environments of one process."""

    def __init__(self, name, arena, envs, mode, is_ahead):
        self.name, self.arena, self.envs, self.mode = name, arena, envs, mode
        self.is_over = [False] * len(envs)  # the next step resets it, or is an error
        self.results, self.actions = Layout(envs[0].observation_space, RESULT), Layout(envs[0].action_space, ACTION)
        # Memory that is reserved while the trainer is at work costs no time later.
        self.is_ahead, self.next = is_ahead, self.reserve(len(envs)) if is_ahead else None

    def reserve(self, count):
        return self.arena.reserve(None, {self.name: ("uint8", (count * self.results.dtype.itemsize,))})

    def serve(self, orders):
        poller = select.poll()
        poller.register(orders, select.POLLIN)

        def read_header():
            spin(lambda: poller.poll(0))
            return orders.read(HEADER.size)

        while header := read_header():
            count, size = HEADER.unpack(header)
            order = bytearray(orders.read(size))
            if count:
                order = np.frombuffer(order, self.actions.dtype)
                self.answer(map(self.step, order["env"].tolist(), self.actions.values(order)), count)
            else:
                kind, *arguments = pickle.loads(order)
                getattr(self, "do_" + kind)(*arguments)

    def answer(self, outcomes, count):
        with self.next or self.reserve(count) as memory:
            infos = self.write(outcomes, memory[self.name].view(self.results.dtype))
            if infos:
                send_note(self.arena, self.name, "infos", infos)
        self.next = self.reserve(len(self.envs)) if self.is_ahead else None

    def write(self, outcomes, rows):
        columns = [(rows[name], path) for name, path in self.results.columns]
        rewards, terminated, truncated, infos = rows["reward"], rows["terminated"], rows["truncated"], {}
        for row, (value, rewards[row], terminated[row], truncated[row], info) in enumerate(outcomes):
            for column, path in columns:
                column[row] = find(value, path) if path else value
            if info:
                infos[row] = info
        return infos

    def step(self, number, action):
        env = self.envs[number]
        if self.is_over[number]:
            if self.mode is AutoresetMode.DISABLED:
                raise gymnasium.error.ResetNeeded("the episode has ended: reset this environment first, with "
                                                  "options={'reset_mask': ...}")
            return self.reset(number)
        value, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            if self.mode is AutoresetMode.SAME_STEP:
                final = {"final_obs": value, "final_info": info}
                value, info = env.reset()
                info = {**final, **info}
            else:
                self.is_over[number] = True
        return value, reward, terminated, truncated, info

    def reset(self, number, seed=None, options=None):
        self.is_over[number] = False
        value, info = self.envs[number].reset(seed=seed, options=options)
        return value, 0.0, False, False, info

    def begin(self, number):
        """Begins an episode in the place of one that was lost with another process."""
        value, reward, terminated, _, info = self.reset(number)
        self.is_over[number] = self.mode is not AutoresetMode.SAME_STEP
        return value, reward, terminated, True, info

    def do_reset(self, seeds, options):
        self.answer((self.reset(number, seed, options) for number, seed in seeds.items()), len(seeds))

    def do_begin(self, numbers):
        self.answer(map(self.begin, numbers), len(numbers))

    def do_call(self, name, arguments, named):
        found = [env.get_wrapper_attr(name) for env in self.envs]
        send_note(self.arena, self.name, "called", [one(*arguments, **named) if callable(one) else one for one in found])

    def do_set(self, name, values):
        for env, value in zip(self.envs, values):
            env.set_wrapper_attr(name, value)
        send_note(self.arena, self.name, "called", [None] * len(self.envs))


def work(name, results, orders, env_fns, mode, is_ahead):
    """The main function of a worker process, which ends with its trainer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles it
    envs = []
    try:
        with feedlane.Arena.join(results, timeout=None) as arena:
            try:
                envs += [make() for make in env_fns.fn]
                spaces = [(env.observation_space, env.action_space) for env in envs]
                worker = Worker(name, arena, envs, mode, is_ahead)
                send_note(arena, name, "started", spaces)
                worker.serve(orders.makefile("rb"))
            except TRAINER_ENDED:
                raise
            except Exception as error:
                send_note(arena, name, "failed", transferable(error), traceback.format_exc())
    except TRAINER_ENDED:
        pass
    finally:
        for env in envs:
            env.close()


# ---- the trainer's side ----

# A forked process that kept the trainer's end of a socket would hide the trainer's end from the process at the other one.
_ends = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: [end.close() for end in list(_ends)])


class Process:
    """A worker process, as the trainer sees it."""

    def __init__(self, number, ids):
        self.number, self.ids, self.part = number, ids, slice(ids[0], ids[-1] + 1)  # ids: of its environments
        self.process = self.called = None
        self.starts = self.deaths = 0  # deaths: in a row, without a result
        self.infos = {}  # of the next result
        self.sent = collections.deque()  # (ids, request) of each order without an answer; request: what to ask a successor

    def launch(self, arena, context, env_fns, *settings):
        """Starts the process, or its successor."""
        self.starts, self.is_started = self.starts + 1, False
        self.name = f"{self.number}.{self.starts}"
        self.since = time.monotonic() + START_S  # of the last answer; later, because it makes its environments first
        self.orders, theirs = socket.socketpair()
        self.orders.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", START_S, 0))
        _ends.add(self.orders)
        with arena.offer() as results, theirs:
            arguments = self.name, results, theirs, CloudpickleWrapper(env_fns), *settings
            self.process = context.Process(target=work, args=arguments, daemon=True, name=f"environments {self.name}")
            self.process.start()

    def send(self, ids, request, count, body):
        if not self.sent and self.is_started:
            self.since = time.monotonic()
        self.sent.append((ids, request))
        try:
            self.orders.sendall(HEADER.pack(count, len(body)) + body)
        except OSError:  # it has ended, or reads nothing
            self.process.kill()  # which the next look finds

    def ask(self, ids, *request):
        self.send(ids, request, 0, pickle.dumps(request))

    def failure(self, timeout):
        """Why it cannot answer; None: it can, or has nothing to do."""
        if not self.process.is_alive():
            code = self.process.exitcode
            return f"process {self.process.pid} " + (f"was killed by signal {-code}" if code < 0 else f"ended with status {code}")
        if (self.sent or not self.is_started) and time.monotonic() - self.since > timeout:
            return f"process {self.process.pid} did not answer for {timeout} s"
        return None

    def end(self):
        self.process.kill()
        self.process.join()
        self.orders.close()
