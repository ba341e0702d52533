# SPDX-License-Identifier: Apache-2.0
"""What examples/python/environments.py promises. Skipped without gymnasium.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python:examples/python environments_test.py [unittest's arguments]"""
import importlib.util
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import warnings

for module in "numpy", "gymnasium":
    if importlib.util.find_spec(module) is None:
        print(f"skipped: no {module}")
        sys.exit(77)

import environments
import feedlane
import gymnasium
import numpy as np
from environments import SharedVectorEnv
from gymnasium import spaces
from gymnasium.utils import env_checker, env_match, passive_env_checker
from gymnasium.utils.performance import benchmark_vector_step
from gymnasium.vector import AutoresetMode, SyncVectorEnv

DEADLINE_S = 60
KILLS = 1000 if os.environ.get("FEEDLANE_STRESS") == "full" else 20
HUNG_S = 3 * float(os.environ.get("FEEDLANE_TEST_SLOWNESS", 1))  # a healthy process on a busy machine answers before


class Walk(gymnasium.Env):
    """Spaces in spaces, random episodes, and infos of several kinds."""

    observation_space = spaces.Dict({"at": spaces.Box(-9, 9, (2, 3), np.float32),
                                     "more": spaces.Tuple((spaces.Discrete(99, start=1), spaces.MultiBinary(3)))})
    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Dict({"by": spaces.Box(-1, 1, (2,), np.float64)})))

    def observe(self):
        return {"at": self.at, "more": (np.int64(1 + self.steps), (self.at[0] > 0).astype(np.int8))}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.steps = self.np_random.uniform(-1, 1, (2, 3)).astype(np.float32), 0
        return self.observe(), {"begun": options or "alone"}

    def step(self, action):
        turn, more = action
        assert isinstance(turn, np.int64) and more["by"].shape == (2,), action
        self.steps += 1
        self.at = (self.at + self.np_random.uniform(-0.5, 0.5, (2, 3)) + more["by"][:, None] * turn).clip(-9, 9).astype(np.float32)
        is_far, is_late = bool(abs(self.at).max() > 3), self.steps > 20
        info = {"steps": self.steps, "deep": {"mean": self.at.mean()}, **({"word": "far"} if is_far else {})}
        return self.observe(), float(self.at.sum()), is_far, is_late, info


class Trap(gymnasium.Wrapper):
    """CartPole, which calls `spring` in step `at`, but only in the first process that gets there."""

    def __init__(self, spring=None, at=0, marker=None):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.spring, self.left, self.marker = spring, at, marker

    def step(self, action):
        self.left -= 1
        if self.spring and self.left == 0 and not os.path.exists(self.marker):
            open(self.marker, "x").close()
            self.spring()
        return super().step(action)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def actions_of(envs, steps):
    envs.action_space.seed(5)
    return [envs.action_space.sample() for _ in range(steps)]


class Case(unittest.TestCase):
    def vector(self, env_fns, **options):
        envs = SharedVectorEnv(env_fns, **options)
        self.addCleanup(envs.close, terminate=True)
        return envs

    def assert_equal(self, found, expected):
        self.assertTrue(env_checker.data_equivalence(found, expected, exact=True), f"\n{found}\nis not\n{expected}")


class Equality(Case):
    """The results are those of SyncVectorEnv, bit for bit."""

    def check(self, env_fns, steps, mode, **options):
        sync, ours = SyncVectorEnv(env_fns, autoreset_mode=mode), self.vector(env_fns, autoreset_mode=mode, **options)
        self.assertEqual((ours.observation_space, ours.action_space, ours.metadata, ours.num_envs),
                         (sync.observation_space, sync.action_space, sync.metadata, sync.num_envs))
        self.assert_equal(ours.reset(seed=7), sync.reset(seed=7))
        ends = 0
        for action in actions_of(sync, steps):
            expected = sync.step(action)
            self.assert_equal(ours.step(action), expected)
            ends += (over := expected[2] | expected[3]).sum()
            if mode is AutoresetMode.DISABLED and over.any():
                self.assert_equal(ours.reset(options={"reset_mask": over}), sync.reset(options={"reset_mask": over}))
        self.assertGreater(ends, 5, "episodes must end for this to show something")
        self.assert_equal(ours.reset(seed=list(range(len(env_fns))), options={"a": 1}),
                          sync.reset(seed=list(range(len(env_fns))), options={"a": 1}))

    def test_cart_pole(self):
        for mode in AutoresetMode:
            for processes in 1, 3:
                with self.subTest(mode=mode, processes=processes):
                    self.check([lambda: gymnasium.make("CartPole-v1")] * 8, 200, mode, processes=processes)

    def test_nested_spaces_and_infos(self):
        for mode in AutoresetMode:
            with self.subTest(mode=mode):
                self.check([Walk] * 5, 100, mode, processes=2)

    def test_frames_and_spawned_processes(self):
        self.check([environments.Frames] * 3, 1010, AutoresetMode.SAME_STEP, processes=2, context="spawn")

    def test_under_a_wrapper_of_gymnasium(self):
        make = [lambda: gymnasium.make("CartPole-v1")] * 4
        both = [gymnasium.wrappers.vector.RecordEpisodeStatistics(envs) for envs in (SyncVectorEnv(make), self.vector(make))]
        for envs in both:
            envs.reset(seed=1)
        for action in actions_of(both[0], 100):
            expected, found = [envs.step(action)[4].get("episode", {}) for envs in both]
            for key in "r", "l", "_r":
                self.assert_equal(found.get(key), expected.get(key))

    def test_attributes_and_calls(self):
        envs = self.vector([Walk] * 5, processes=2)
        sync = SyncVectorEnv([Walk] * 5)
        for each in envs, sync:
            each.reset(seed=3)
            each.set_attr("steps", [1, 2, 3, 4, 5])
            self.assertEqual(each.get_attr("steps"), (1, 2, 3, 4, 5))
        self.assert_equal(envs.call("observe"), sync.call("observe"))
        self.assertEqual(envs.np_random_seed, sync.np_random_seed)


class GymnasiumsChecks(Case):
    """The checks of gymnasium.utils that apply to vectors."""

    def test_checks(self):
        envs = self.vector([lambda: gymnasium.make("CartPole-v1")] * 4)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for check in ("reset_seed_determinism", "reset_options", "reset_return_type", "reset_return_info_deprecation",
                          "seed_deprecation"):
                with self.subTest(check=check):
                    getattr(env_checker, "check_" + check)(envs)
            passive_env_checker.check_action_space(envs.action_space)
            passive_env_checker.check_observation_space(envs.observation_space)
            passive_env_checker.env_reset_passive_checker(envs, seed=1)

    def test_environments_match(self):
        make = [lambda: gymnasium.make("CartPole-v1")]  # one: these checks use `terminated` as a number
        env_match.check_environments_match(SyncVectorEnv(make), self.vector(make), 100)
        env_checker.check_returned_data_not_reused(self.vector(make))

    def test_benchmark_vector_step(self):
        self.assertGreater(benchmark_vector_step(self.vector([Walk] * 3), target_duration=0.01, seed=1), 0)


class Failures(Case):
    MAKE, STEPS, AT = [Trap] * 6, 60, 25

    def run_with(self, spring, mode, **options):
        """Runs six environments in three processes, in which number 2 calls `spring`. Everything that was returned."""
        with tempfile.TemporaryDirectory() as folder:
            make = list(self.MAKE)
            make[2] = lambda: Trap(spring, self.AT, os.path.join(folder, "sprung"))
            envs = self.vector(make, processes=3, autoreset_mode=mode, **options)
            found = [envs.reset(seed=1)]
            for action in actions_of(envs, self.STEPS):
                found.append(envs.step(action))
            self.assertEqual(os.listdir(folder), ["sprung"] if spring else [])
            return found

    def check(self, spring, reason, mode, **options):
        undisturbed, found = self.run_with(None, mode), self.run_with(spring, mode, **options)
        (at,) = [number for number, one in enumerate(found) if "error" in one[-1]]
        self.assertGreaterEqual(at, self.AT)
        others = [0, 1, 4, 5]
        for number, (mine, theirs) in enumerate(zip(found, undisturbed)):
            for mine, theirs in zip(mine[:-1], theirs[:-1]):
                self.assert_equal(mine[others], theirs[others])
            if number < at:
                self.assert_equal(found[number], undisturbed[number])
        # Environment 3 shares a process with 2.
        observation, rewards, terminated, truncated, infos = found[at]
        self.assertEqual(truncated[2:4].tolist(), [True, True])
        self.assertFalse(terminated[2:4].any() or rewards[2:4].any())
        self.assertEqual(infos["_error"].tolist(), [False, False, True, True, False, False])
        self.assertRegex(infos["error"][2], reason)
        last = found[at - 1][0]
        if mode is AutoresetMode.SAME_STEP:
            self.assert_equal(infos["final_obs"][2], last[2])
            self.assertRegex(infos["final_info"]["error"][3], reason)
        else:
            self.assert_equal(observation[2:4], last[2:4])
            after, rewards, terminated, truncated, _ = found[at + 1]
            self.assertFalse((terminated | truncated)[2:4].any() or rewards[2:4].any(), "it was reset")
            observation = after
        self.assertLessEqual(abs(observation[2:4]).max(), 0.05, "an episode of CartPole begins there")
        self.assertFalse((found[at][0][2:4] == found[-1][0][2:4]).all(), "the new episode continues")

    def test_killed(self):
        for mode in AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP:
            with self.subTest(mode=mode):
                self.check(die, "was killed by signal 9", mode)

    def test_hung(self):
        self.check(signal.pause, f"did not answer for {HUNG_S} s", AutoresetMode.NEXT_STEP, timeout=HUNG_S)

    def test_killed_between_steps_and_in_a_reset(self):
        envs = self.vector(self.MAKE, processes=3, autoreset_mode=AutoresetMode.DISABLED)
        first = envs.reset(seed=1)[0]
        pids = envs.pids()
        os.kill(pids[0], signal.SIGKILL)
        envs.reset(seed=1)
        self.assert_equal(envs.reset(seed=1)[0], first)
        os.kill(envs.pids()[5], signal.SIGKILL)
        observation, _, _, truncated, infos = envs.step(np.zeros(6, np.int64))
        self.assertEqual(truncated.tolist(), [False] * 4 + [True] * 2)
        self.assertEqual(sum(old != new for old, new in zip(pids, envs.pids())), 4)
        envs.reset(options={"reset_mask": truncated})
        self.assertFalse(envs.step(np.zeros(6, np.int64))[3].any())

    def test_reset_of_one_environment_of_a_killed_process(self):
        envs = self.vector(self.MAKE, processes=2, autoreset_mode=AutoresetMode.DISABLED)
        first = envs.reset(seed=1)[0]
        os.kill(envs.pids()[4], signal.SIGKILL)
        begun = envs.reset(seed=1, options={"reset_mask": np.arange(6) == 4})[0]
        self.assert_equal(begun, first)
        observation, rewards, _, truncated, _ = envs.step(np.zeros(6, np.int64))
        self.assertEqual(truncated.tolist(), [False, False, False, True, False, True])
        self.assertEqual(rewards.tolist(), [1, 1, 1, 0, 1, 0])
        self.assert_equal(observation[[3, 5]], first[[3, 5]])

    def test_many_killed_at_any_instant(self):
        make, others = [Trap] * 8, slice(4)  # which are not killed
        sync, envs, chance = SyncVectorEnv(make), self.vector(make, processes=4), random.Random(1)
        self.assert_equal(envs.reset(seed=1), sync.reset(seed=1))
        open_files, killed, steps, lost, episodes = len(os.listdir("/proc/self/fd")), set(), 0, 0, 0
        while len(killed) < KILLS:
            action, victim = sync.action_space.sample(), chance.choice(envs.pids()[4:])
            envs.step_async(action)
            if victim not in killed and chance.random() < 0.5:
                for _ in range(chance.randrange(300)):
                    os.sched_yield()
                os.kill(victim, signal.SIGKILL)
                killed.add(victim)
            found, expected = envs.step_wait(), sync.step(action)
            for mine, theirs in zip(found[:-1], expected[:-1]):
                self.assert_equal(mine[others], theirs[others])
            is_lost = found[-1].get("_error", np.zeros(8, bool))
            self.assertFalse((is_lost & ~found[3]).any(), "a lost episode is truncated")
            steps, lost, episodes = steps + 1, lost + is_lost.sum(), episodes + (expected[2] | expected[3])[others].sum()
        lost += envs.step(action)[-1].get("_error", np.zeros(8, bool)).sum()  # of processes that were killed after their last result
        envs.step(action)  # the arena releases memory of ended processes when it serves
        self.assertFalse(killed & set(envs.pids()))
        self.assertLessEqual(lost, 2 * len(killed), "and a process that is killed before its first result loses none")
        self.assertGreater(lost, len(killed))
        self.assertEqual(len(os.listdir("/proc/self/fd")), open_files)
        state = feedlane.Arena.observe(os.getpid())
        self.assertEqual(state["members"], 5)
        print(f"{len(killed)} processes killed in {steps} steps: {lost} episodes lost; {episodes} episodes of other environments "
              f"equal those of SyncVectorEnv; {state['used_bytes'] >> 10} KiB in {state['entries']} entries")

    def test_environment_that_always_dies(self):
        envs = self.vector([lambda: Deadly(die)] * 2, processes=1)
        with self.assertRaisesRegex(RuntimeError, r"environments \[0, 1\]: 4 processes failed without a result: .* signal 9"):
            envs.reset()
        self.assertTrue(envs.closed)

    def test_exception(self):
        envs = self.vector([Walk, lambda: Deadly(lambda: 1 / 0)], processes=1)
        with self.assertRaises(ValueError):
            envs.reset(seed=[1])
        with self.assertRaises(ZeroDivisionError) as caught:
            envs.reset()
        self.assertIn("lambda: 1 / 0", caught.exception.__notes__[0])
        with self.assertRaises(gymnasium.error.ClosedEnvironmentError):
            envs.reset()

    def test_processes_end_with_their_trainer(self):
        code = ("import environments, signal\nenvs = environments.SharedVectorEnv([environments.Frames] * 6, processes=3)\n"
                "envs.reset()\nprint(*envs.pids(), flush=True)\nsignal.pause()")
        with subprocess.Popen([sys.executable, "-B", "-c", code], stdout=subprocess.PIPE, text=True) as trainer:
            ends = [os.pidfd_open(int(pid)) for pid in set(trainer.stdout.readline().split())]
            trainer.kill()
        self.assertEqual(len(ends), 3)
        deadline = time.monotonic() + DEADLINE_S
        for end in ends:
            self.assertTrue(select.select([end], [], [], max(0, deadline - time.monotonic()))[0], "a process lives on")
            os.close(end)


class Deadly(Walk):
    def __init__(self, spring):
        self.spring = spring

    def reset(self, *, seed=None, options=None):
        self.spring()


class FirstReady(Case):
    """A step returns when as many environments are ready as a batch has rows."""

    def test_slow_environment_delays_no_other(self):
        release, hold = os.pipe()
        make = [Trap] * 5
        with tempfile.TemporaryDirectory() as folder:
            make[1] = lambda: Trap(lambda: os.read(release, 1), 4, os.path.join(folder, "slow"))
            envs = self.vector(make, processes=5, batch_size=3)
            self.assertEqual((envs.num_envs, envs.observation_space.shape), (3, (3, 4)))
            expected = self.trajectories(5, 400)
            counts = [0] * 5
            observations, _ = envs.reset(seed=1)
            self.check(envs, observations, expected, counts)
            while max(counts) < 300:
                self.step(envs, expected, counts)
            self.assertEqual(counts[1], 4, "it waits in its fourth step")
            os.write(hold, b"x")
            while counts[1] < 20 and max(counts) < 390:
                self.step(envs, expected, counts)
            self.assertEqual(counts[1], 20, "it takes part again")
        os.close(hold)
        os.close(release)

    def step(self, envs, expected, counts):
        actions = np.array([action(number, counts[number] - 1) for number in envs.env_ids])
        self.check(envs, envs.step(actions)[0], expected, counts)

    def check(self, envs, observations, expected, counts):
        self.assertEqual(len(set(envs.env_ids.tolist())), 3)
        for number, observation in zip(envs.env_ids, observations):
            self.assert_equal(observation, expected[counts[number]][number])
            counts[number] += 1

    def trajectories(self, count, steps):
        sync = SyncVectorEnv([Trap] * count)
        found = [sync.reset(seed=1)[0]]
        for step in range(steps):
            found.append(sync.step(np.array([action(number, step) for number in range(count)]))[0])
        return found


def action(number, step):
    return (number + step // 2) % 2


class Refusals(Case):
    def test_bad_settings(self):
        class Text(Walk):
            observation_space = spaces.Text(5)

        for options, needle in (({"batch_size": 3}, "batch_size=3: must be 1 to 2"), ({"processes": 3}, "processes=3"),
                                ({"processes": 0}, "processes=0"), ({"timeout": 0}, "timeout=0"),
                                ({"autoreset_mode": "Never"}, "Never"),
                                ({"batch_size": 1, "autoreset_mode": "Disabled"}, "batch_size=1: must be 2 with")):
            with self.subTest(options=options), self.assertRaisesRegex(ValueError, needle):
                self.vector([Walk] * 2, **options)
        with self.assertRaisesRegex(ValueError, "env_fns is empty"):
            self.vector([])
        with self.assertRaisesRegex(TypeError, "has no fixed size"):
            self.vector([Text])
        with self.assertRaisesRegex(ValueError, "environment 1 has the spaces"):
            self.vector([Walk, environments.Frames])

    def test_bad_calls(self):
        envs = self.vector([lambda: gymnasium.make("CartPole-v1")] * 3)
        with self.assertRaisesRegex(gymnasium.error.ResetNeeded, "call reset"):
            envs.step(np.zeros(3, np.int64))
        envs.reset()
        for actions, kind, needle in ((np.zeros(2, np.int64), ValueError, r"shape \(2,\): must be \(3,\)"),
                                      (np.zeros(3), TypeError, "same_kind"), (0, ValueError, r"shape \(\)")):
            with self.subTest(actions=actions), self.assertRaisesRegex(kind, needle):
                envs.step(actions)
        envs.step(np.zeros(3, np.int64))
        envs.step_async(np.zeros(3, np.int64))
        with self.assertRaisesRegex(gymnasium.error.ResetNeeded, "step_wait after step_async"):
            envs.step_async(np.zeros(3, np.int64))
        envs.step_wait()
        with self.assertRaisesRegex(ValueError, "reset_mask"):
            envs.reset(options={"reset_mask": np.zeros(3, bool)})
        with self.assertRaisesRegex(ValueError, "use the method step"):
            envs.call("step")
        with self.assertRaisesRegex(AttributeError, "wheels"):
            envs.get_attr("wheels")


if __name__ == "__main__":
    unittest.main()
