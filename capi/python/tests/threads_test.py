# SPDX-License-Identifier: Apache-2.0
"""Workers that are threads make the batches that worker processes make, of the trainer's own data set.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python threads_test.py [unittest's arguments]"""
import subprocess
import sys
import threading
import unittest

from numpy_or_skip import np
import feedlane


class Numbers:
    def __init__(self, length=50):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return {"x": np.full(3, i, np.int32), "seed": feedlane.sample_seed() % 2**31}


class Unpicklable(Numbers):
    """Counts its calls under a lock; `at(i)` is called for each sample."""

    def __init__(self, length=50, at=lambda i: None):
        super().__init__(length)
        self.lock, self.at, self.made, self.workers = threading.Lock(), at, 0, set()

    def __getitem__(self, i):
        self.at(i)
        with self.lock:
            self.made += 1
            self.workers.add(feedlane.get_worker_info().id)
        return super().__getitem__(i)


class Shards:
    def __iter__(self):
        shard, shards = feedlane.get_shard()
        return iter(range(shard, 40, shards))


class Fails(Numbers):
    """Every third sample fails; `tries`: so often."""

    def __init__(self, tries):
        super().__init__()
        self.left = {i: tries for i in range(0, self.length, 3)}

    def __getitem__(self, i):
        if self.left.get(i, 0):
            self.left[i] -= 1
            raise OSError(f"sample {i}")
        return super().__getitem__(i)


class Rows(feedlane.BatchDataset):
    def __len__(self):
        return 40

    def fetch(self, indices, seeds, out):
        out["x"][:] = indices[:, None]


def batches(loader, epochs=2):
    def plain(batch):
        return {k: plain(v) for k, v in batch.items()} if isinstance(batch, dict) else batch.tolist()
    with loader:
        return [[plain(batch) for batch in loader] for _ in range(epochs)]


# promise: start-threads
class Threads(unittest.TestCase):
    def same(self, dataset, **arguments):
        expected = batches(feedlane.Loader(dataset(), num_workers=2, **arguments))
        for persistent in False, True:
            with self.subTest(persistent=persistent):
                self.assertEqual(batches(feedlane.Loader(dataset(), num_workers=2, start="thread", persistent_workers=persistent,
                                                         **arguments)), expected)

    def test_map_style(self):
        self.same(Numbers, batch_size=4, shuffle=True, seed=5)

    def test_iterable(self):
        self.same(Shards, batch_size=4, seed=5)

    def test_batch_dataset(self):
        self.same(Rows, batch_size=4, shuffle=True, seed=5, fields={"x": (np.int64, (2,))})

    def test_retries(self):
        self.same(lambda: Fails(2), batch_size=4, seed=5, retries=2, retry_backoff=1e-3)

    def test_the_data_set_is_the_trainers(self):
        dataset, epochs = Unpicklable(), []
        dataset.set_epoch = epochs.append
        batches(feedlane.Loader(dataset, batch_size=4, num_workers=2, start="thread"))
        self.assertEqual((dataset.made, epochs), (2 * len(dataset), [0, 1]))

    def test_threads_are_in_the_data_set_at_the_same_time(self):
        both = threading.Barrier(2, timeout=60)
        dataset = Unpicklable(2, lambda i: both.wait())
        self.assertEqual(len(batches(feedlane.Loader(dataset, num_workers=2, start="thread"), 1)[0]), 2)
        self.assertEqual(dataset.workers, {0, 1})

    def test_a_failing_sample(self):
        with feedlane.Loader(Fails(1), batch_size=1, num_workers=2, start="thread") as loader:
            with self.assertRaises(feedlane.SampleError) as caught:
                next(iter(loader))
        self.assertIn("OSError: sample 0", str(caught.exception))
        self.assertIn("in __getitem__", caught.exception.traceback)

    def test_an_exception_that_ends_processes_is_the_samples(self):
        def leave(i):
            if i == 7:
                raise SystemExit("sample 7")
        with feedlane.Loader(Unpicklable(at=leave), batch_size=2, num_workers=1, start="thread") as loader:
            batches = iter(loader)
            for _ in range(3):
                next(batches)
            with self.assertRaisesRegex(feedlane.SampleError, "SystemExit: sample 7"):
                next(batches)
            self.assertEqual(sum(1 for _ in batches), 21)

    def test_worker_init_fn_that_fails(self):
        def init(number):
            raise RuntimeError("no data")
        with feedlane.Loader(Numbers(), num_workers=2, start="thread", worker_init_fn=init) as loader:
            with self.assertRaisesRegex(feedlane.InitError, "RuntimeError: no data"):
                next(iter(loader))

    # promise: fault-hung-thread
    def test_a_hung_thread_is_reported(self):
        let_go = threading.Event()
        dataset = Unpicklable(6, lambda i: i == 0 and let_go.wait())
        loader = feedlane.Loader(dataset, num_workers=2, start="thread", task_timeout=0.2, in_order=False)
        got = []
        with self.assertRaises(feedlane.Hung):
            for batch in loader:
                got.append(int(batch["x"][0, 0]))
        self.assertEqual(sorted(got), [1, 2, 3, 4, 5])
        let_go.set()
        loader.close()

    def test_an_epoch_that_is_abandoned(self):
        dataset = Unpicklable(200)
        with feedlane.Loader(dataset, batch_size=2, num_workers=3, start="thread") as loader:
            for _ in range(5):
                next(iter(loader))
            self.assertEqual(sum(1 for _ in loader), 100)

    def test_close_while_threads_work(self):
        for persistent in False, True:
            loader = feedlane.Loader(Unpicklable(1000), num_workers=3, start="thread", persistent_workers=persistent)
            next(iter(loader))
            workers = [t for t in threading.enumerate() if t.name == "feedlane worker"]
            loader.close()
            for worker in workers:
                worker.join(60)
                self.assertFalse(worker.is_alive())

    def test_the_interpreters_end(self):
        program = ("import feedlane, numpy as np\n"
                   "class D:\n"
                   "    def __len__(self): return 10**6\n"
                   "    def __getitem__(self, i): return np.full(3, i)\n"
                   "for persistent in False, True:\n"
                   "    loader = feedlane.Loader(D(), num_workers=3, start='thread', persistent_workers=persistent)\n"
                   "    batch = next(iter(loader))\n"
                   "    globals()[f'kept{persistent}'] = loader, batch\n"
                   "print('end')\n")
        done = subprocess.run([sys.executable, "-B", "-c", program], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=120)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "end\n", ""))

    def test_what_threads_cannot_be_used_for(self):
        class Reads(feedlane.AsyncDataset):
            def __len__(self):
                return 1

            async def get(self, i):
                return i
        with self.assertRaisesRegex(ValueError, "num_workers=0: start='thread' needs 1 or more"):
            feedlane.Loader(Numbers(), start="thread")
        with self.assertRaisesRegex(ValueError, "start='thread' is not allowed with an AsyncDataset"):
            feedlane.Loader(Reads(), num_workers=1, start="thread")
        with self.assertRaisesRegex(ValueError, "start is not allowed with worker"):
            feedlane.Loader(worker=["true"], length=3, num_workers=1, start="thread")
        with self.assertRaisesRegex(ValueError, "start='fiber'"):
            feedlane.Loader(Numbers(), num_workers=1, start="fiber")


if __name__ == "__main__":
    unittest.main()
