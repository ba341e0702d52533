# SPDX-License-Identifier: Apache-2.0
"""A vector of gymnasium's environments in worker processes, which write observations into an arena's shared memory.
Usage: PYTHONPATH=capi/python environments.py [ENV] [--envs N] [--batch N] [--processes N] [--steps N] [--bench [--rounds N]]

Results go through an arena. Orders (actions, resets, calls) go through a socket per process: what an arena's owner sends goes to
all members, and would collect in front of a process that is busy with a long step."""
import argparse
import collections
import itertools
import multiprocessing
import os
import pickle
import statistics
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.utils import batch_space

import feedlane
from environment_processes import ACTION, RESULT, Layout, Process, build, find, spin

SLICE_S = 0.05  # between two looks at whether processes live and answer
MAX_PROCESSES = 120  # half of an arena's members: a successor may join before the arena has noticed the end of a process
DEATHS = 3  # of a process in a row, without a result in between; one more ends all


class SharedVectorEnv(gymnasium.vector.VectorEnv):
    """Environments in worker processes, several in each.

      env_fns         make one environment each, with equal spaces of fixed size
      batch_size      rows of a batch: a step returns when this many environments are ready. None: all, which gives the results
                      of gymnasium's SyncVectorEnv. Otherwise env_ids has the numbers of the environments of the last batch
      processes       None: one per processor; if steps take only microseconds, one fewer is faster, because the trainer needs a
                      processor too. All environments of a process that ends are lost
      timeout         seconds after which a process that has not answered is killed
      autoreset_mode, context   see gymnasium's AsyncVectorEnv

    If a process ends or is killed, another one makes its environments. Their episodes end: `truncated` is True, the observation
    is the last one (with SAME_STEP `final_obs` is, and the observation begins an episode), and info "error" is the reason. An
    exception in an environment closes all and is raised. num_envs is batch_size, as spaces and wrappers expect. Use it from one
    thread."""

    def __init__(self, env_fns, *, batch_size=None, processes=None, timeout=60.0, autoreset_mode=AutoresetMode.NEXT_STEP,
                 context=None):
        self.closed = True  # until there is something to close
        self._env_fns, self._timeout, self.autoreset_mode = list(env_fns), timeout, AutoresetMode(autoreset_mode)
        self._total = total = len(self._env_fns)
        self.num_envs = total if batch_size is None else batch_size
        count = min(len(os.sched_getaffinity(0)), total) if processes is None else processes
        if not total:
            raise ValueError("env_fns is empty: pass at least one function")
        if not 1 <= self.num_envs <= total:
            raise ValueError(f"batch_size={batch_size}: must be 1 to {total}, the number of environments")
        if not 1 <= count <= min(total, MAX_PROCESSES):
            raise ValueError(f"processes={processes}: must be 1 to {min(total, MAX_PROCESSES)}, and at most one per environment")
        if timeout <= 0:
            raise ValueError(f"timeout={timeout}: must be more than 0 seconds")
        if self.num_envs < total and self.autoreset_mode is AutoresetMode.DISABLED:
            raise ValueError(f"batch_size={batch_size}: must be {total} with autoreset_mode DISABLED, which has you reset environments")
        self._describe(self._env_fns[0]())
        per_process = -(-total // count)
        size = count * per_process * (6 * self._results.dtype.itemsize + (64 << 10)) + (64 << 20)  # notes take the rest
        self._arena = feedlane.Arena(size, members=2 * count + 2, entries=1 << 16, leases=1 << 16, when_full="wait", serve=False)
        self._context, self.closed = multiprocessing.get_context(context), False
        self._processes = [Process(number, ids) for number, ids in enumerate(np.array_split(np.arange(total), count))]
        self._all = np.arange(total)
        self._process_of = np.repeat(np.arange(count), [len(process.ids) for process in self._processes])
        self._place = np.concatenate([np.arange(len(process.ids)) for process in self._processes])  # in its process
        self._order = np.empty(total, self._actions.dtype)
        self._order["env"] = self._place
        self._senders, self._ready, self._lost = {}, collections.deque(), {}
        self._latest = [None] * total  # (rows, row) with the last observation of each environment
        self.env_ids, self._next_look = None, time.monotonic()
        try:
            for process in self._processes:
                self._launch(process)
            while not all(process.is_started for process in self._processes):
                self._advance()
        except BaseException:
            self.close(terminate=True)
            raise

    def _describe(self, env):
        """Takes the spaces of an environment, which is closed."""
        self.metadata = {**env.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = env.render_mode
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        env.close()
        self._results, self._actions = Layout(self.single_observation_space, RESULT), Layout(self.single_action_space, ACTION)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def _launch(self, process):
        env_fns = [self._env_fns[number] for number in process.ids]
        process.launch(self._arena, self._context, env_fns, self.autoreset_mode, self.num_envs == self._total)
        self._senders[process.name] = process

    # ---- the interface of gymnasium ----

    def reset(self, *, seed=None, options=None):
        """As in SyncVectorEnv; with a batch_size, returns the first environments that are ready."""
        if seed is None or isinstance(seed, int):
            seeds = [None if seed is None else seed + number for number in range(self._total)]
        else:
            seeds = list(seed)
        if len(seeds) != self._total:
            raise ValueError(f"seed has {len(seeds)} seeds: must have {self._total}, one per environment")
        mask = np.ones(self._total, bool)
        if options is not None and "reset_mask" in options:
            options = dict(options)
            mask = options.pop("reset_mask")
            if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != (self._total,) or not mask.any():
                raise ValueError(f"options['reset_mask']={mask!r}: must be an array of {self._total} bool, with at least one True")
            if self.num_envs < self._total or any(latest is None for latest in self._latest):
                raise ValueError("options['reset_mask'] needs an earlier reset of all environments, and batch_size=None")
        if isinstance(seed, int):
            super().reset(seed=seed)
        self._assert_open()
        while any(process.sent for process in self._processes):
            self._advance()
        self._ready.clear()
        for process in self._processes:
            ids = process.ids[mask[process.ids]]
            for number in ids:
                self._lost.pop(number, None)
            if len(ids):
                process.ask(ids, "reset", {int(number - process.ids[0]): seeds[number] for number in ids}, options)
        self.env_ids = None
        values, _, _, _, infos = self._wait(int(mask.sum()) if not mask.all() else self.num_envs)
        if not mask.all():
            arrays = [np.stack([rows[name][row] for rows, row in self._latest]) for name, _ in self._results.columns]
            values = build(self.single_observation_space, iter(arrays))
        return values, infos

    def step(self, actions):
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions):
        """Sends actions to the environments of the last batch, in its order."""
        self._assert_open()
        ids = self.env_ids
        if ids is None:
            raise gymnasium.error.ResetNeeded("no environment waits for actions: call reset, or step_wait after step_async")
        is_all = ids is self._all
        order = self._order if is_all else np.empty(len(ids), self._actions.dtype)
        for name, path in self._actions.columns:
            column, given = order[name], np.asarray(find(actions, path))
            if given.shape != column.shape:
                raise ValueError(f"actions have shape {given.shape}: must be {column.shape}, one row per environment of the "
                                 "last batch")
            np.copyto(column, given, casting="same_kind")
        if not is_all:
            order["env"] = self._place[ids]
        self.env_ids = None
        for process in self._processes:
            mine = process.part if is_all else self._process_of[ids] == process.number
            self._send(process, process.ids if is_all else ids[mine], order[mine])

    def _send(self, process, ids, order):
        if self._lost:
            lost = np.array([number in self._lost for number in ids], bool)
            if lost.any():
                process.ask(ids[lost], "begin", order["env"][lost].tolist())
                ids, order = ids[~lost], order[~lost]
        if len(ids):
            process.send(ids, ("step",), len(ids), order.tobytes())

    def step_wait(self):
        """Returns the next batch: observations, rewards, terminated, truncated, infos."""
        self._assert_open()
        return self._wait(self.num_envs)

    def call(self, name, *args, **kwargs):
        if name in ("reset", "step", "close"):
            raise ValueError(f"call({name!r}): use the method {name} of this object")
        return self._call({process: ("call", name, args, kwargs) for process in self._processes})

    def get_attr(self, name):
        return self.call(name)

    def set_attr(self, name, values):
        values = values if isinstance(values, (list, tuple)) else [values] * self._total
        if len(values) != self._total:
            raise ValueError(f"values has {len(values)} values: must have {self._total}, one per environment")
        self._call({process: ("set", name, values[process.part]) for process in self._processes})

    def _call(self, requests):
        self._assert_open()
        for process, request in requests.items():
            process.called = None
            process.ask((), *request)
        while any(process.called is None for process in self._processes):
            self._advance()
        return tuple(itertools.chain(*(process.called for process in self._processes)))

    def render(self):
        return self.call("render")

    @property
    def np_random(self):
        return self.get_attr("np_random")

    @property
    def np_random_seed(self):
        return self.get_attr("np_random_seed")

    def pids(self):
        """The number of each environment's process."""
        return [self._processes[number].process.pid for number in self._process_of]

    def close_extras(self, timeout=None, terminate=False):
        """Lets the processes close their environments, and kills those that take longer than `timeout`."""
        end = time.monotonic() + (0 if terminate else self._timeout if timeout is None else timeout)
        started = [process for process in self._processes if process.process]
        for process in started:
            process.orders.close()
        self._arena.close()
        for process in started:
            process.process.join(max(0, end - time.monotonic()))
            process.end()

    def __del__(self):
        if not self.closed:
            self.close(terminate=True)

    def _assert_open(self):
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError("the environments were closed")

    # ---- results ----

    def _wait(self, count):
        """The next batch, of `count` rows."""
        if (away := time.monotonic() - self._next_look) > SLICE_S:
            self._next_look += away + SLICE_S  # results that came while the trainer was elsewhere count
            for process in self._processes:
                if not process.is_started:
                    process.since += away  # it needs the trainer to start
        parts, taken = [], 0
        while taken < count:
            if not self._ready:
                self._advance()
                continue
            ids, rows, infos = self._ready.popleft()
            if (fit := count - taken) < len(ids):
                self._ready.appendleft((ids[fit:], rows[fit:], {row - fit: info for row, info in infos.items() if row >= fit}))
                ids, rows, infos = ids[:fit], rows[:fit], {row: info for row, info in infos.items() if row < fit}
            parts.append((ids, rows, infos))
            taken += len(ids)
        is_all = self.num_envs == self._total
        if is_all:
            parts.sort(key=lambda part: part[0][0])
        arrays = [np.concatenate([rows[name] for _, rows, _ in parts]) for name in self._results.dtype.names]
        if not is_all:
            self.env_ids = np.concatenate([ids for ids, _, _ in parts])
        else:
            self.env_ids = self._all
            if len(parts) > len(self._processes):  # some processes have lost environments: their rows come in two parts
                order = np.argsort(np.concatenate([ids for ids, _, _ in parts]))
                arrays = [array[order] for array in arrays]
        found, start = [], 0
        for part, _, infos in parts:
            found += [(int(part[row]) if is_all else start + row, info) for row, info in infos.items()]
            start += len(part)
        infos = {}
        for number, info in sorted(found, key=lambda pair: pair[0]):
            infos = self._add_info(infos, info, number)
        return build(self.single_observation_space, iter(arrays)), *arrays[-len(RESULT):], infos

    def _advance(self):
        """Takes what comes next, but waits only a while, and looks after the processes."""
        if not spin(lambda: self._take(0)):
            self._take(SLICE_S)
        if time.monotonic() >= self._next_look:
            self._look()

    def _look(self):
        """Replaces processes that have ended or hang."""
        failed = [process for process in self._processes if process.failure(self._timeout)]
        while self._take(0):  # also what they had sent before
            pass
        for process in failed:
            if reason := process.failure(self._timeout):
                self._replace(process, reason)
        self._next_look = time.monotonic() + SLICE_S

    def _take(self, timeout):
        """Takes a result or a note. False: nothing came in time."""
        try:
            batch = self._arena.receive(timeout=timeout)
        except feedlane.Timeout:
            return False
        tensor, = batch.tensors
        name, memory = tensor.name, tensor.numpy()
        process = self._senders.get(name)
        if process is not None:
            self._take_result(process, memory)
        elif (process := self._senders.get(name[:-1])) is not None:  # else it is of a process that was replaced
            self._take_note(process, *pickle.loads(memory))
        return True

    def _take_result(self, process, memory):
        (ids, request), infos = process.sent.popleft(), process.infos
        process.infos, process.deaths, process.since = {}, 0, time.monotonic()
        rows = memory.view(self._results.dtype)[:len(ids)]  # keeps the memory in the arena
        if request[0] == "begin":
            rows = rows.copy()
            for row, number in enumerate(ids):
                infos[row] = self._end_lost(number, rows[row:row + 1], infos.get(row, {}))
        for row, number in enumerate(ids.tolist()):
            self._latest[number] = rows, row
        self._ready.append((ids, rows, infos))

    def _end_lost(self, number, row, info):
        """Makes the first result of an environment's successor the end of the lost episode. Its info."""
        last_rows, last = self._latest[number]
        error = {"error": self._lost.pop(number)}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            values = self._results.values(last_rows[last:last + 1].copy())
            return {"final_obs": values[0], "final_info": error, **info, **error}
        for name, _ in self._results.columns:
            row[name] = last_rows[name][last]
        return error

    def _take_note(self, process, kind, *note):
        process.since = time.monotonic()
        if kind == "infos":
            process.infos, = note
        elif kind == "called":
            process.called, = note
            process.sent.popleft()
        elif kind == "started":
            process.is_started = True
            for number, spaces in zip(process.ids, note[0]):
                if spaces != (self.single_observation_space, self.single_action_space):
                    self._fail(ValueError(f"environment {number} has the spaces {spaces}: must be those of environment 0, "
                                          f"{(self.single_observation_space, self.single_action_space)}"))
        else:
            error, trace = note
            error.add_note(f"Raised in one of the environments {process.ids.tolist()}:\n{trace}")
            self._fail(error)

    def _fail(self, error):
        self.close(terminate=True)
        raise error

    def _replace(self, process, reason):
        process.end()
        del self._senders[process.name]
        sent, process.sent, process.infos = process.sent, collections.deque(), {}
        process.deaths += 1
        if process.deaths > DEATHS:
            self._fail(RuntimeError(f"environments {process.ids.tolist()}: {process.deaths} processes failed without a result: "
                                    f"{reason}"))
        self._lost.update({int(number): reason for number in process.ids if self._latest[number] is not None})
        self._launch(process)
        for ids, request in sent:
            if request[0] == "reset":
                for number in ids:
                    self._lost.pop(int(number), None)
                process.ask(ids, *request)
            elif request[0] in ("step", "begin"):
                process.ask(ids, "begin", self._place[ids].tolist())
            else:
                raise RuntimeError(f"environments {process.ids.tolist()}: {reason}, in {request[0]} {request[1]!r}; it was replaced")


# ---- the program ----

class Frames(gymnasium.Env):
    """84 x 84 x 4 grey levels, as Atari's games have, at the cost of writing them."""

    observation_space, action_space = Box(0, 255, (84, 84, 4), np.uint8), Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.full((84, 84, 4), self.np_random.integers(256), np.uint8), {}

    def step(self, action):
        self.steps += 1
        return np.full((84, 84, 4), (self.steps + action) % 256, np.uint8), 1.0, False, self.steps == 500, {}


def rate(envs, steps):
    """Steps of single environments per second, with actions drawn before."""
    actions = [envs.action_space.sample() for _ in range(steps)]
    envs.reset(seed=1)
    began = time.perf_counter()
    for action in actions:
        envs.step(action)
    return steps * envs.num_envs / (time.perf_counter() - began)


def bench(make, options):
    """Compares vectors in alternating rounds."""
    env_fns = [make] * options.envs
    vectors = {"gymnasium": AsyncVectorEnv(env_fns, shared_memory=True)}
    for processes, batch in (1, None), (options.processes, None), (options.processes, options.batch or -(-options.envs // 2)):
        envs = SharedVectorEnv(env_fns, processes=processes, batch_size=batch)
        vectors[f"arena, processes {len(set(envs.pids()))}, batch {envs.num_envs}"] = envs
    rates = {name: [] for name in vectors}
    for number in range(options.rounds + 1):
        for name, envs in vectors.items():
            found = rate(envs, options.steps)
            if number:  # the first round doesn't count
                rates[name].append(found)
    for name, envs in vectors.items():
        envs.close()
        found, ratio = rates[name], statistics.median(mine / theirs for mine, theirs in zip(rates[name], rates["gymnasium"]))
        print(f"  {name:28} {statistics.median(found):9.0f} steps/s ({min(found):.0f} to {max(found):.0f}), {ratio:5.2f} of gymnasium's")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env", nargs="?", default="CartPole-v1")
    parser.add_argument("--envs", type=int, default=8, help="set the number of environments (default: 8)")
    parser.add_argument("--batch", type=int, help="set the rows of a batch (default: all environments)")
    parser.add_argument("--processes", type=int, help="set the number of worker processes (default: one per processor)")
    parser.add_argument("--steps", type=int, default=1000, help="set the steps per round (default: 1000)")
    parser.add_argument("--bench", action="store_true", help="compare with AsyncVectorEnv, also with frames of 84 x 84 x 4")
    parser.add_argument("--rounds", type=int, default=5, help="set the rounds of --bench (default: 5)")
    options = parser.parse_args()
    for name in "envs", "steps", "rounds":
        if (number := getattr(options, name)) < 1:
            parser.error(f"--{name} {number}: must be at least 1")
    kinds = {options.env: lambda: gymnasium.make(options.env), "frames": Frames}
    if options.bench:
        print(f"{options.envs} environments, {len(os.sched_getaffinity(0))} processors, load {os.getloadavg()[0]:.1f}; medians of "
              f"{options.rounds} rounds")
        for name, make in kinds.items():
            print(name)
            bench(make, options)
        return
    envs = SharedVectorEnv([kinds[options.env]] * options.envs, batch_size=options.batch, processes=options.processes)
    print(f"{rate(envs, options.steps):.0f} steps/s")
    envs.close()


if __name__ == "__main__":
    main()
