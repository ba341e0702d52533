# SPDX-License-Identifier: Apache-2.0
"""feedlane.ray: workers that are Ray's actors. Skipped without Ray.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python ray_test.py [unittest's arguments]"""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy_or_skip  # noqa: F401
import numpy as np

try:
    import ray
except ImportError:
    print("ray is not installed")
    sys.exit(77)
import feedlane
import feedlane.ray

LENGTH = 60


class Numbers:
    """Each sample has its index, its seed and the process that made it."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return {"x": np.full(3, index), "seed": np.uint64(feedlane.sample_seed()), "pid": os.getpid()}


class Broken(Numbers):
    """Sample 7 always fails, samples 11 and 13 the first time."""

    def __init__(self):
        self.tries = {}

    def __getitem__(self, index):
        self.tries[index] = self.tries.get(index, 0) + 1
        if index == 7 or (index in (11, 13) and self.tries[index] == 1):
            raise OSError(f"sample {index} can't be read")
        return super().__getitem__(index)


class Hangs(Numbers):
    """Sample 9 hangs the first time."""

    def __init__(self, path):
        self.path = path

    def __getitem__(self, index):
        if index == 9 and not os.path.exists(self.path):
            with open(self.path, "w"):
                pass
            time.sleep(1000)
        return super().__getitem__(index)


class Later(feedlane.AsyncDataset):
    """Samples that are read with several reads in flight."""

    def __len__(self):
        return LENGTH

    async def fetch(self, index):
        return {"x": np.full(3, index), "seed": 0}


class Stream:
    """Iterable: each shard has its own numbers."""

    def __iter__(self):
        shard, shards = feedlane.get_shard()
        return iter([np.full(2, number) for number in range(shard, LENGTH, shards)])


class Slow:
    """Iterable: a tenth of a second each."""

    def __iter__(self):
        for number in range(24):
            time.sleep(0.1)
            yield np.full(2, number)


class Table(feedlane.BatchDataset):
    def __len__(self):
        return LENGTH

    def fetch(self, indices, seeds, out):
        out["x"][:] = indices[:, None]
        out["seed"][:] = seeds


class Pid:
    def pid(self):
        return os.getpid()


def relays():
    """The processes of this cluster that are relays."""
    cluster, found = ray.get_runtime_context().gcs_address, []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            if "_Relay.run" in (process / "cmdline").read_text() and cluster in pathlib.Path("/proc", parent, "cmdline").read_text():
                found.append(int(process.name))
    return found


def waited_for(find):
    deadline = time.monotonic() + 60
    while not (found := find()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def contents(batches):
    return [(batch["x"].tolist(), batch["seed"].tolist()) for batch in batches]


class Ray(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ray.init(num_cpus=4, include_dashboard=False, logging_level="error")
        cls.addClassCleanup(ray.shutdown)

    def loader(self, dataset=None, workers=2, *, local=0, **options):
        options = {"seed": 3, **options}
        return self.enterContext(feedlane.Loader(dataset or Numbers(), 4, num_workers=workers,
                                                 start=feedlane.ray.remote_workers(local), **options))

    def test_the_same_batches_as_inline(self):
        with feedlane.Loader(Numbers(), 4, shuffle=True, seed=3) as inline:
            expected = [contents(inline) for _ in range(2)]
        loader = self.loader(shuffle=True)
        self.assertEqual([contents(loader) for _ in range(2)], expected)
        self.assertNotEqual(expected[0], expected[1])

    def test_workers_are_other_processes_of_ray(self):
        pids = {pid for batch in self.loader(prefetch_factor=4) for pid in batch["pid"].tolist()}
        self.assertNotIn(os.getpid(), pids)

    def test_an_epoch_that_ends_early(self):
        loader = self.loader(prefetch_factor=4, persistent_workers=True)
        for _ in range(3):
            loader.set_epoch(0)
            for batch in loader:
                if batch["x"][0, 0] == 8:
                    break
        loader.set_epoch(0)
        self.assertEqual([number for batch in loader for number in batch["x"][:, 0].tolist()], list(range(LENGTH)))
        self.assertEqual(loader.stats()["restarts"], 0)

    def test_some_workers_here_some_there(self):
        with feedlane.Loader(Numbers(), 4, seed=3) as inline:
            expected = contents(inline)
        self.assertEqual(contents(self.loader(local=1)), expected)

    def test_an_iterable(self):
        with feedlane.Loader(Stream(), 4, num_workers=2, seed=3) as loader:
            expected = sorted(batch[:, 0].tolist() for batch in loader)
        self.assertEqual(sorted(batch[:, 0].tolist() for batch in self.loader(Stream())), expected)

    def test_a_shard_is_passed_over_within_its_deadline(self):
        loader = self.loader(Slow(), workers=1, deterministic=True)
        for number, batch in enumerate(loader):
            if number == 3:
                state = loader.state_dict()
                break
        loader = self.loader(Slow(), workers=1, deterministic=True, task_timeout=1)
        loader.load_state_dict(state)
        self.assertEqual([batch[:, 0].tolist() for batch in loader][0], [16, 17, 18, 19])
        self.assertEqual(loader.stats()["hung"], 0)

    def test_wrong_options(self):
        loader = feedlane.Loader(Numbers(), 4, num_workers=1, start=feedlane.ray.remote_workers(num_cpus=-1))
        with loader, self.assertRaises(ValueError):
            iter(loader)

    def test_a_data_set_of_batches(self):
        fields = {"x": ("int64", (3,)), "seed": ("uint64", ())}
        with feedlane.Loader(Table(), 4, fields=fields, seed=3, shuffle=True) as inline:
            expected = contents(inline)
        self.assertEqual(contents(self.loader(Table(), fields=fields, shuffle=True)), expected)

    def test_reads_in_flight(self):
        with feedlane.Loader(Later(), 4, seed=3) as inline:
            expected = contents(inline)
        self.assertEqual(contents(self.loader(Later())), expected)

    def test_a_hung_host_is_replaced(self):
        path = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "tried")
        loader = self.loader(Hangs(path), task_timeout=1)
        self.assertEqual([number for batch in loader for number in batch["x"][:, 0].tolist()], list(range(LENGTH)))
        self.assertEqual(loader.stats()["hung"], 1)

    def test_policies_are_the_trainers(self):
        loader = self.loader(Broken(), retries=1, skip_budget=1, retry_backoff=0)
        self.assertEqual([number for batch in loader for number in batch["x"][:, 0].tolist()],
                         [number for number in range(LENGTH) if number != 7])
        self.assertEqual((loader.stats()["retried"], loader.stats()["skipped"]), (3, 1))
        def breaks(index, seed, tries):
            raise KeyError(f"no substitute for {index}")
        loader = self.loader(Broken(), substitute=breaks)
        with self.assertRaises(feedlane.SampleError) as caught:
            list(loader)
        self.assertIn("no substitute for 7", str(caught.exception))
        self.assertEqual(loader.stats()["restarts"], 0)
        loader = self.loader(Broken(), retries=1, substitute=lambda index, seed, tries: index + 1)
        self.assertEqual(next(iter(loader))["x"][:, 0].tolist(), [0, 1, 2, 3])
        self.assertEqual([batch["x"][3, 0] for batch in loader][1], 8)

    def test_an_exception_names_the_host(self):
        loader = self.loader(Broken())
        batches = iter(loader)
        next(batches)
        with self.assertRaises(feedlane.SampleError) as caught:
            next(batches)
        self.assertEqual(caught.exception.sample, 7)
        self.assertIn(os.uname().nodename, str(caught.exception))
        self.assertIn("can't be read", caught.exception.traceback)

    def test_a_data_set_that_fails_to_open(self):
        def fails(_):
            raise KeyError("no such thing")
        with self.assertRaises(feedlane.FeedlaneError) as caught:
            next(iter(self.loader(worker_init_fn=fails)))
        self.assertIn("no such thing", str(caught.exception))

    def test_killed_hosts_and_relays(self):
        loader = self.loader(prefetch_factor=2)
        seen, killed = [], 0
        for batch in loader:
            seen += batch["x"][:, 0].tolist()
            if len(seen) % 12 == 0 and killed < 4:
                killed += 1
                pid = int(batch["pid"][0]) if killed % 2 else next(w["pid"] for w in loader.workers() if w["pid"] > 0)
                os.kill(pid, signal.SIGKILL)
        self.assertEqual(seen, list(range(LENGTH)))

    def test_waiting_for_room_delays_nothing(self):
        loader = feedlane.Loader(Numbers(), 4, num_workers=3, seed=3, start=feedlane.ray.remote_workers(num_cpus=2))
        with loader:  # two have room
            self.assertEqual(len(contents(loader)), LENGTH // 4)
        deadline = time.monotonic() + 60
        while ray.available_resources().get("CPU") != 4 and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual(ray.available_resources().get("CPU"), 4)

    def test_a_relay_that_ends_while_its_host_waits_for_room(self):
        others = ray.remote(num_cpus=4)(Pid).remote()
        ray.get(others.pid.remote())
        loader, numbers = self.loader(workers=1), []
        thread = threading.Thread(target=lambda: numbers.extend(batch["x"][0, 0] for batch in loader))
        thread.start()
        first = waited_for(relays)
        os.kill(first[0], signal.SIGKILL)
        self.assertTrue(waited_for(lambda: [pid for pid in relays() if pid not in first]))
        ray.kill(others)
        thread.join(60)
        self.assertEqual((numbers, loader.stats()["restarts"]), (list(range(0, LENGTH, 4)), 0))

    def test_all_ends_with_the_trainer(self):
        code = """
import os, ray, sys
import ray_test, feedlane.ray
ray.init(address=sys.argv[1], logging_level="error", runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}})
loader = feedlane.Loader(ray_test.Numbers(), 1, num_workers=2, start=feedlane.ray.remote_workers(num_cpus=0.5))
pids = {int(batch["pid"][0]) for batch in loader}
print(*pids, *(worker["pid"] for worker in loader.workers()), flush=True)
os.kill(os.getpid(), 9)
"""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(os.path.abspath(__file__)),
                                                                    os.environ.get("PYTHONPATH", "")])}
        said = subprocess.run([sys.executable, "-c", code, ray.get_runtime_context().gcs_address], env=environment,
                              stdout=subprocess.PIPE, text=True).stdout
        deadline = time.monotonic() + 30
        left = [int(pid) for pid in said.split()[-4:] if int(pid) > 0]
        self.assertTrue(left)
        while left and time.monotonic() < deadline:
            left = [pid for pid in left if os.path.exists(f"/proc/{pid}")]
            time.sleep(0.1)
        self.assertEqual(left, [])


if __name__ == "__main__":
    unittest.main()
