# SPDX-License-Identifier: Apache-2.0
"""torch's DataLoader and Feedlane's Loader over the same data set yield equal tensors. Skipped without torch.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python torch_test.py [unittest's arguments]"""
import importlib.util
import os
import random
import subprocess
import sys
import unittest

for module in "numpy", "torch":
    if importlib.util.find_spec(module) is None:
        print(f"skipped: no {module}")
        sys.exit(77)

import torch as installed

if int(installed.__version__.split(".", 1)[0]) < 2:
    print(f"skipped: torch {installed.__version__} takes no bool by DLPack")
    sys.exit(77)

import feedlane
from feedlane import lifetime, order
from datasets import SAMPLES, Map, Numbers, Whoami, as_list, plain, worker_init

WORKERS = range(1, 5)


def same(test, theirs, ours):
    """Equal in structure, types and values; ours are torch's tensors."""
    import torch
    if isinstance(theirs, torch.Tensor):
        test.assertIsInstance(ours, torch.Tensor)
        test.assertEqual((theirs.dtype, theirs.shape), (ours.dtype, ours.shape))
        test.assertTrue(torch.equal(theirs, ours))
    elif isinstance(theirs, dict):
        test.assertEqual(list(theirs), list(ours))
        for key in theirs:
            same(test, theirs[key], ours[key])
    elif isinstance(theirs, (list, tuple)):
        test.assertIs(type(theirs), type(ours))
        test.assertEqual(len(theirs), len(ours))
        for their, our in zip(theirs, ours):
            same(test, their, our)
    else:
        test.assertEqual(plain(theirs), plain(ours))


class Equal(unittest.TestCase):
    def compare(self, dataset, *, workers=WORKERS, epochs=1, seed=7, length=True, ours=(), **arguments):
        """Both loaders, each after the same manual_seed."""
        import torch

        def outcome(loader):
            torch.manual_seed(seed)
            for _ in range(epochs):
                yield from loader
            yield int(torch.randint(1 << 30, (1,)))  # what is drawn afterwards is the same too

        def made():  # what a loader uses up is made for each
            return {key: value() if key in ("sampler", "batch_sampler", "generator") else value
                    for key, value in arguments.items()}
        for count in workers:
            with self.subTest(workers=count):
                loader = torch.utils.data.DataLoader(dataset, num_workers=count, **made())
                theirs, batches = list(outcome(loader)), len(loader) if length else None
                with feedlane.Loader(dataset, num_workers=count, tensors="torch", **made(), **dict(ours)) as loader:
                    if length:
                        self.assertEqual(batches, len(loader))
                    for their, our in zip(theirs, outcome(loader), strict=True):
                        same(self, their, our)
                self.assertGreater(len(theirs), epochs)

    def test_shuffle_with_a_seed(self):
        self.compare(Map(), batch_size=32, shuffle=True, epochs=2)

    def test_shuffle_without_workers(self):
        self.compare(Map(), batch_size=32, shuffle=True, epochs=2, workers=[0])

    def test_shuffle_by_the_librarys_sampler(self):
        import torch
        torch.manual_seed(11)
        theirs = list(torch.utils.data.DataLoader(Numbers(), 10, shuffle=True))
        with feedlane.Loader(Numbers(), 10, shuffle=True, seed=11, num_workers=2, tensors="torch") as loader:
            for their, our in zip(theirs, loader, strict=True):
                same(self, their, our)

    # promise: seed-python-torch
    def test_base_seed(self):
        import torch
        for seed in 0, 7, 2**32 + 7, 2**64 - 1:
            torch.manual_seed(seed)
            self.assertEqual(order.torch_base_seed(seed), iter(torch.utils.data.DataLoader([0]))._base_seed)

    def test_generator(self):
        import torch
        self.compare(Numbers(), batch_size=10, shuffle=True, epochs=2, workers=[0, 2],
                     generator=lambda: torch.Generator().manual_seed(5))

    def test_batch_sampler(self):
        import torch
        data = torch.utils.data
        self.compare(Map(), batch_sampler=lambda: data.BatchSampler(data.RandomSampler(range(SAMPLES)), 30, False))

    def test_samplers(self):
        import torch
        data = torch.utils.data
        for make in (lambda: data.SubsetRandomSampler(range(100, 200)), lambda: data.WeightedRandomSampler([1, 2, 3], 50),
                     lambda: data.RandomSampler(range(SAMPLES), replacement=True)):
            self.compare(Numbers(), sampler=make, batch_size=8, workers=[2])

    def test_drop_last(self):
        self.compare(Map(), batch_size=48, drop_last=True)

    def test_iterable_shards(self):
        self.compare(iterable(), batch_size=16, length=False, workers=[0])
        self.compare(iterable(), batch_size=16, length=False, epochs=2, persistent_workers=True)
        self.compare(iterable(), batch_size=16, length=False, drop_last=True, workers=[2])

    def test_worker_init(self):
        self.compare(Whoami(), batch_size=10, worker_init_fn=worker_init, ours={"dispatch": "round_robin"})

    def test_a_workers_seeds_are_other_ones_in_each_epoch(self):
        import torch
        from torch_datasets import Drawn, look_at_seed
        torch.manual_seed(0)
        with feedlane.Loader(Drawn(), 4, num_workers=1, tensors="torch", worker_init_fn=look_at_seed) as loader:
            rows = [batch.tolist()[0] for _ in range(3) for batch in loader]
        self.assertEqual(len({row[0] for row in rows}), 3)
        for _, ours, theirs, initial in rows:
            self.assertEqual((ours, ours), (theirs, initial))

    def test_an_arena_at_a_time(self):
        others_closed, create, made = [], lifetime.create, []

        def creates(*arguments, **rest):
            others_closed.append(all(one.is_closed for one in made))
            made.append(create(*arguments, **rest))
            return made[-1]
        self.addCleanup(setattr, lifetime, "create", create)
        lifetime.create = creates
        with feedlane.Loader(Numbers(), 10, tensors="torch") as loader:
            for _ in range(2):
                next(iter(loader))
            self.assertEqual(others_closed, [True, True])

    def test_kept_workers(self):
        self.compare(Map(), batch_size=100, shuffle=True, persistent_workers=True, epochs=3)

    def test_without_batches_and_with_a_collate_fn(self):
        self.compare(Map(), batch_size=None, workers=[2])
        self.compare(Numbers(), batch_size=7, collate_fn=as_list, workers=[2])

    def test_torch_tensors(self):
        self.compare(Tensors(), batch_size=9, workers=[0, 1])

    def test_an_order_that_is_drawn_at_once(self):
        from torch_datasets import Eager
        for batches in True, False:
            arguments = {"batch_sampler": Eager(True)} if batches else {"batch_size": None, "sampler": Eager(False)}
            self.compare(Numbers(8), workers=[0, 2], epochs=3, **{k: (lambda v=v: v) if "sampler" in k else v
                                                                for k, v in arguments.items()})

    def test_what_a_collate_fn_makes_comes_as_it_is(self):
        import torch_datasets as made
        import torch
        for dataset, collate in ((range(8), made.tagged), (range(8), made.doubled), (range(8), made.grouped),
                                 (made.Columns(), made.unchanged)):
            for workers in 0, 1:
                with self.subTest(collate=collate.__name__, workers=workers):
                    arguments = {"batch_size": 4, "collate_fn": collate, "num_workers": workers}
                    theirs = list(torch.utils.data.DataLoader(dataset, **arguments))
                    with feedlane.Loader(dataset, tensors="torch", held=2, allow_pickle=collate is made.tagged, **arguments) as loader:
                        for their, our in zip(theirs, loader, strict=True):
                            self.assertIs(type(our), type(their))
                            same(self, their, our)
                            self.assertEqual(getattr(our, "__dict__", None), getattr(their, "__dict__", None))

    def test_types_that_come_together(self):
        import numpy as np
        import torch
        from torch_datasets import Tagged
        f32, f64, i16 = np.zeros(2, np.float32), np.ones(2), np.full(2, 3, np.int16)
        for samples in ([1, 2.5], [True, 2.5], [2.5, 1], [True, 2], [np.float32(1), 2.0], [np.int16(1), 2], [f32, f64],
                        [i16, f32], [torch.tensor(f32), torch.tensor(f64)], [torch.tensor(i16), torch.tensor(f32)],
                        [torch.tensor([True]), torch.tensor([3], dtype=torch.uint8)],
                        [torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2)], [Tagged(7, a=1), Tagged(8, a=2)]):
            with self.subTest(samples):
                their = next(iter(torch.utils.data.DataLoader(samples, 2)))
                with feedlane.Loader(samples, 2, tensors="torch", allow_pickle=True) as loader:  # for Tagged
                    our = next(iter(loader))
                    same(self, their, our)
                    self.assertEqual(getattr(our, "count", 0), getattr(their, "count", 0))
        for samples in [1.0, None], [1.0, "2.5"], [1, None], [torch.zeros(2), [0, 0]]:
            with self.subTest(samples), feedlane.Loader(samples, 2, tensors="torch") as loader:
                with self.assertRaisesRegex(feedlane.SampleError, "TypeError"):
                    next(iter(loader))

    def test_the_training_of_the_example(self):
        script = os.path.join(os.path.dirname(__file__), *[os.pardir] * 3, "examples", "python", "train_torch.py")

        def losses(loader, workers):
            done = subprocess.run([sys.executable, script, "--loader", loader, "--workers", str(workers), "--epochs", "2"],
                                  check=True, stdout=subprocess.PIPE, text=True, timeout=300)
            return [line.split("(")[0] for line in done.stdout.splitlines()]
        for workers in 0, 2:
            theirs = losses("torch", workers)
            self.assertEqual(len(theirs), 2)
            self.assertEqual(losses("feedlane", workers), theirs)

    def test_error_in_a_sample(self):
        """The same batches come, each failing one is an error in its place, and both go on."""
        import torch
        dataset = Numbers(failing=[13, 500, 999])

        def outcomes(loader):
            iterator, found = iter(loader), []
            while True:
                try:
                    found.append(next(iterator).tolist())
                except StopIteration:
                    return found
                except (ValueError, feedlane.SampleError) as error:
                    self.assertIn("ValueError: sample", str(error))
                    self.assertIn("in __getitem__", str(error))
                    found.append("error")
        for workers in WORKERS:
            with self.subTest(workers=workers):
                theirs = outcomes(torch.utils.data.DataLoader(dataset, 20, num_workers=workers))
                with feedlane.Loader(dataset, 20, num_workers=workers, tensors="torch") as loader:
                    self.assertEqual(outcomes(loader), theirs)
                self.assertEqual(theirs.count("error"), 3)


def iterable():
    """Shards as torch's class, by torch's get_worker_info."""
    import torch_datasets
    return torch_datasets.TorchShards()


class Tensors:
    """torch's own tensors, of every type that both have."""

    def __len__(self):
        return 30

    def __getitem__(self, i):
        import torch
        values = torch.arange(i, i + 6).reshape(2, 3)
        kinds = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32,
                 torch.int64, torch.bool, torch.complex64)
        return [values.t().to(kind) for kind in kinds] + [torch.tensor(i)]


class Lives(unittest.TestCase):
    def test_tensors_kept_in_random_order_and_past_the_loader(self):
        import torch
        draw = random.Random(3)
        loader = feedlane.Loader(Numbers(10_000, size=64), 1, num_workers=1, held=64, tensors="torch")
        kept = []
        for number, tensor in enumerate(loader):
            kept.append((number, tensor))
            while len(kept) > draw.randrange(60):
                number, old = kept.pop(draw.randrange(len(kept)))
                self.assertTrue(bool(torch.all(old == number)))
        loader.close()
        for number, old in kept:
            self.assertTrue(bool(torch.all(old == number)))

    def test_tensors_left_at_exit(self):
        script = ("import torch, feedlane\nfrom datasets import Numbers\n"
                  "loader = feedlane.Loader(Numbers(64), 4, num_workers=0, tensors='torch', held=8)\n"
                  "iterator = iter(loader)\nkept = [next(iterator) for _ in range(5)]; kept.append(kept)\n"
                  "torch.kept = kept[2]\n")
        finished = subprocess.run([sys.executable, "-c", script], cwd=os.path.dirname(os.path.abspath(__file__)),
                                  capture_output=True, text=True, timeout=120)
        self.assertEqual((finished.returncode, finished.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
