# SPDX-License-Identifier: Apache-2.0
"""The tests that every package of capi/ has: one method for each name in the last table of docs/integrating.md, for Loader, and
for DataLoader where torch is installed. They use what the package exports. The programs that it starts are trainers of
contract_programs.py.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python contract_test.py INTERFACE_JSON EXAMPLES_OF_C DATA [unittest's arguments]"""
import functools
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

from numpy_or_skip import np
import feedlane
import reference
from contract_programs import DATALOADER, LOADER, make, next_of, pids
from datasets import Checksum, Deadly, Digits, Gate, Gated, Numbers, plain
from memory_test import descriptors, mappings, slots_held
from processes import DEADLINE_S, Trainer, ended, watched

RECORD, C_EXAMPLES, DATA = map(os.path.abspath, sys.argv[1:4])
HERE = os.path.dirname(os.path.abspath(__file__))
try:
    import torch
    has_torch = hasattr(feedlane, "DataLoader")
except ImportError:
    torch, has_torch = None, False
KINDS = (LOADER, DATALOADER) if has_torch else (LOADER,)


def output_of(program, *arguments):
    return subprocess.run([os.path.join(C_EXAMPLES, program), *arguments], stdout=subprocess.PIPE, text=True, check=True,
                          timeout=60).stdout


def fnv1a(value, batch):
    for array in batch:
        value = reference.fnv1a(value, np.ascontiguousarray(array).tobytes())
    return value


def first_of(batch):
    """The first number of a batch of Numbers."""
    return int(batch[0, 0])


def in_child(work):
    """What `work`, run in a forked child, returns: a number below 256."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Contract(unittest.TestCase):
    def gated(self, first=8):
        """(a gate, the data set that waits at it)"""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        gate = Gate(folder)
        self.addCleanup(gate.close)
        self.addCleanup(gate.open)
        return gate, Gated(folder, first=first)

    def raised(self, kind, use):
        with self.assertRaises(kind) as caught:
            use()
        return caught.exception

    # ---- the same bytes as in other languages ----

    def test_record(self):
        """By abi_test.py: structs, constants and functions as they are declared."""
        subprocess.run([sys.executable, "-B", os.path.join(HERE, "abi_test.py"), RECORD], check=True, timeout=60)

    def test_checksum(self):
        """Workers in C, workers in Python of a trainer in C, then both in Python. With the latter the seed is torch's, from which the seeds of rows are derived; otherwise the
        bytes are those of C."""
        program = os.path.join(C_EXAMPLES, "worker")
        self.assertEqual(output_of("trainer", program), reference.worker_checksum())
        code = f"import sys; sys.path.insert(0, {HERE!r}); import feedlane, datasets; feedlane.worker_main(datasets.Checksum.of)"
        self.assertEqual(output_of("trainer", sys.executable, "-c", code), reference.worker_checksum())
        order = feedlane.samplers.random(1000, seed=7)
        fields = {"x": (np.float32, (64,)), "label": (np.int64, ())}
        for more in [], ["pull"]:
            value = reference.FNV_START
            with feedlane.Loader(None, 32, worker=[program, *more], fields=fields, sampler=order, seed=7, num_workers=2) as loader:
                for _ in range(3):
                    value = functools.reduce(fnv1a, map(dict.values, loader), value)
            self.assertEqual(f"checksum: {value:016x}\n", reference.worker_checksum())
        for workers in 0, 2:
            value = reference.FNV_START
            with feedlane.Loader(Checksum(), 32, sampler=order, seed=7, num_workers=workers) as loader:
                for _ in range(3):
                    value = functools.reduce(fnv1a, loader, value)
            self.assertEqual(f"checksum: {value:016x}\n", reference.worker_checksum(reference.torch_base_seed(7)))

    def test_digest(self):
        expected = output_of("digest", DATA)
        for kind in KINDS:
            for workers in (0, 2) if kind == LOADER else (2,):
                order, value = feedlane.samplers.random(1797, seed=1), reference.FNV_START
                loader = getattr(feedlane, kind)(Digits(DATA), 64, sampler=order, num_workers=workers,
                                                 persistent_workers=workers > 0)
                for epoch in range(10):
                    if kind == DATALOADER:  # a Loader has a copy of the sampler, and counts
                        order.set_epoch(epoch)
                    value = functools.reduce(fnv1a, loader, value)
                with self.subTest(kind, workers=workers):
                    self.assertEqual(f"digest: {value:016x}\n", expected)

    def test_zero_copy(self):
        for workers in 0, 1:
            with feedlane.Loader(Numbers(8), 4, num_workers=workers) as loader, next(loader.batches()) as batch:
                tensor = batch.tensors[0]
                arrays = [tensor.numpy(), np.from_dlpack(tensor), batch.data]
                arrays += [torch.from_dlpack(tensor)] if torch else []
                for array in arrays:
                    self.assertEqual(np.asarray(array).__array_interface__["data"][0], tensor.address)
                self.written_elsewhere(tensor.address, tensor.nbytes, arrays)
        if has_torch:
            batch = next(iter(feedlane.DataLoader(Numbers(8), 4, num_workers=1)))
            self.written_elsewhere(batch.data_ptr(), batch.nelement() * batch.element_size(), [batch])

    def written_elsewhere(self, address, size, arrays):
        """What another process writes into the segment, as a worker does, is what these arrays show."""
        inside = [m for m in mappings("feedlane-data") if m[0] <= address and address + size <= m[1]]
        self.assertEqual(len(inside), 1, "in one mapping of a data segment")
        code = textwrap.dedent(f"""
            import os
            folder = "/proc/{os.getpid()}/fd/"
            for fd in os.listdir(folder):
                if os.path.islink(folder + fd) and "memfd:feedlane-data" in os.readlink(folder + fd):
                    os.pwrite(os.open(folder + fd, os.O_RDWR), bytes([77]), {inside[0][2] + address - inside[0][0]})
            """)
        for array in arrays:
            self.assertEqual([int(n) for n in array[:, 0]], [0, 1, 2, 3])
        subprocess.run([sys.executable, "-c", code], check=True)
        for array in arrays:
            self.assertEqual([int(n) for n in array[:, 0]], [77, 1, 2, 3])

    # ---- errors ----

    def test_error(self):
        said = "ValueError: sample 17 is broken", "in __getitem__", "datasets.py"
        for workers in 0, 2:
            with self.subTest(workers=workers), feedlane.Loader(Numbers(40, failing=[17]), 4, num_workers=workers) as loader:
                iterator = iter(loader)
                self.assertEqual([first_of(next(iterator)) for _ in range(4)], [0, 4, 8, 12])
                error = self.raised(feedlane.SampleError, lambda: next(iterator))
                self.assertEqual((error.sample, error.batch), (17, 4))
                self.assertIn(error.worker, range(2) if workers else (-1,))
                for words in said:
                    self.assertIn(words, str(error))
                    self.assertIn(words, error.traceback)
                self.assertEqual([first_of(batch) for batch in iterator], [20, 24, 28, 32, 36])
        if has_torch:
            iterator = iter(feedlane.DataLoader(Numbers(40, failing=[17]), 4, num_workers=2))
            self.assertEqual([first_of(next(iterator)) for _ in range(4)], [0, 4, 8, 12])
            error = self.raised(ValueError, lambda: next(iterator))
            for words in said:
                self.assertIn(words, str(error))
            self.assertEqual([first_of(batch) for batch in iterator], [20, 24, 28, 32, 36])

    def test_misuse(self):
        loader = feedlane.Loader(Numbers(40), 4, held=4)
        batches = loader.batches()
        batch = next(batches)
        tensor, array = batch.tensors[0], batch.data
        batch.release()
        for use in (lambda: batch.tensors, lambda: batch.data, lambda: batch.indices, lambda: tensor.address, tensor.numpy,
                    lambda: np.from_dlpack(tensor), tensor.__dlpack__, batch.__enter__, batch.release):
            self.assertIn("released", str(self.raised(feedlane.StaleBatch, use)))
        self.assertEqual(slots_held(loader), 1, "the array's reference is its own")
        next(batches).release()
        self.assertEqual(array[:, 0].tolist(), [0, 1, 2, 3])
        second = loader.batches()
        self.assertIn("another iteration", str(self.raised(feedlane.StateError, lambda: next(batches))))
        loader.close()
        loader.close()
        for use in (lambda: next(second), lambda: iter(loader), lambda: len(loader), loader.stats, loader.state_dict):
            self.assertIn("closed", str(self.raised(feedlane.StateError, use)))
        for arguments, words in (({"batch_size": -5}, "batch_size=-5"), ({"num_workers": -1}, "workers"),
                                 ({"dispatch": "best"}, "dispatch='best'"), ({"retries": -1}, "config.retries")):
            self.assertIn(words, str(self.raised(ValueError, lambda: feedlane.Loader(Numbers(40), **arguments))))
        if has_torch:
            for arguments, words in (({"held": 0}, "held=0"), ({"num_workers": -1}, "num_workers")):
                self.assertIn(words, str(self.raised(ValueError, lambda: feedlane.DataLoader(Numbers(40), **arguments))))

    # ---- processes ----

    def test_worker_killed(self):
        for kind in KINDS:
            for number in signal.SIGKILL, signal.SIGSEGV:
                with self.subTest(kind, number=number):
                    gate, dataset = self.gated(first=44)
                    dataset.samples = 400
                    loader = make(kind, dataset, 2)
                    iterator = iter(loader)
                    found = [next_of(iterator) for _ in range(10)]
                    gate.wait_for()  # a worker is in a sample
                    for pid in pids(kind, loader, iterator):
                        os.kill(pid, number)
                    gate.open()
                    found += [batch.tolist() for batch in iterator]
                    self.assertEqual([row[0] for batch in found for row in batch], list(range(400)))
                    if kind == LOADER:
                        self.assertEqual(loader.stats()["restarts"], 2)
                        self.assertIn("worker died", [event.kind for event in loader.events()])
        with tempfile.TemporaryDirectory() as folder:  # at a sample's own hands
            dataset = Deadly(os.path.join(folder, "marker"), failing=[333])
            with feedlane.Loader(dataset, 4, num_workers=2) as loader:
                self.assertEqual([row[0] for batch in loader for row in batch.tolist()], list(range(1000)))
                stats = loader.stats()
                self.assertEqual((stats["restarts"], stats["samples"]), (1, 1000))
                self.assertTrue(all(isinstance(value, int) for name, value in stats.items() if name != "rank_source"))
                self.assertLessEqual({"batches", "huge_bytes"}, set(stats))

    def trainer(self, kind, workers, what):
        """A program: (Trainer, its workers), which is in the midst of `what`."""
        gate, dataset = self.gated()
        trainer = self.enterContext(Trainer(os.path.join(HERE, "contract_programs.py"), kind, workers, dataset.folder, what))
        found = watched(self, trainer.numbers())
        self.assertEqual((len(found), ended(found, 0)), (workers, workers == 0))
        if what != "idle":
            gate.wait_for(workers or 1)
            trainer.go()
        return trainer, found

    def test_trainer_killed(self):
        for kind in KINDS:
            for what in "idle", "busy":
                with self.subTest(kind, what=what):
                    trainer, found = self.trainer(kind, 2, what)
                    trainer.kill()
                    self.assertTrue(ended(found, 1), "a worker lives on")

    def test_interrupt(self):
        for kind in KINDS:
            for workers in (2, 0) if kind == LOADER else (2,):
                with self.subTest(kind, workers=workers):
                    trainer, found = self.trainer(kind, workers, "interrupt")
                    trainer.wait_until_asleep()
                    trainer.send_signal(signal.SIGINT)
                    self.assertEqual(trainer.line(), "KeyboardInterrupt")
                    self.assertEqual(trainer.wait(DEADLINE_S), 130)
                    self.assertTrue(ended(found, DEADLINE_S), "a worker lives on")

    def test_exits(self):
        """All memory is in memfds, which go with the last process."""
        for kind in KINDS:
            for what, code in ("return", 0), ("raise", 1), ("exit", 3), ("_exit", 4):
                with self.subTest(kind, what=what):
                    trainer, found = self.trainer(kind, 2, what)
                    self.assertEqual(trainer.wait(DEADLINE_S), code)
                    self.assertTrue(ended(found, DEADLINE_S), "a worker lives on")

    def test_fork(self):
        with feedlane.Loader(Numbers(), 2) as loader:
            iterator, batch = loader.batches(), None
            batch = next(iterator)
            tensor = batch.tensors[0]
            uses = (lambda: next(iterator), lambda: batch.indices, lambda: batch.skipped, lambda: batch.data,
                    lambda: batch.tensors, tensor.numpy, lambda: tensor.address, batch.release, loader.stats)

            def child():
                for number, use in enumerate(uses):
                    try:
                        use()
                        return number + 1
                    except feedlane.Forked:
                        pass
                loader.close()
                own = feedlane.Loader(Numbers(), 2)
                with next(own.batches()) as batch:
                    return 0 if batch.indices == [0, 1] else 100
            self.assertEqual(in_child(child), 0)
            self.assertEqual(batch.indices, [0, 1])
            self.assertEqual(first_of(next(iterator).data), 2)
        if has_torch:
            iterator = iter(feedlane.DataLoader(Numbers(40), 2, num_workers=1))
            next(iterator)

            def child_of_torch():
                try:
                    next(iterator)
                except feedlane.Forked:
                    return 0
                return 1
            self.assertEqual(in_child(child_of_torch), 0)
            self.assertEqual([first_of(batch) for batch in iterator], list(range(2, 40, 2)))

    # ---- how long things live ----

    def test_kept(self):
        with feedlane.Loader(Numbers(80), 4, num_workers=2, held=2) as loader:
            batches, kept = loader.batches(), []
            with self.assertRaisesRegex(feedlane.SlotsHeld, "held="):
                while True:
                    kept.append(next(batches))
            self.assertEqual(len(kept), loader.stats()["slots"])
            kept.pop(0).release()
            kept.append(next(batches))
            cycle = [kept.pop()]
            cycle.append(cycle)
            del cycle  # garbage that only the collector finds
            self.assertEqual(first_of(next(batches).data), 4 * (len(kept) + 2))
            del batches
            kept.clear()
        for workers in 0, 1:
            self.kept_beyond_the_end(workers)
        if has_torch:  # what a loop keeps beyond `held` is copied
            kept = list(feedlane.DataLoader(Numbers(400), 4, num_workers=2, held=2))
            self.assertEqual([first_of(batch) for batch in kept], list(range(0, 400, 4)))

    def kept_beyond_the_end(self, workers):
        gc.collect()
        before = descriptors(), len(mappings())
        loader = feedlane.Loader(Numbers(32), 4, num_workers=workers, held=16)
        arrays = list(loader)
        whole = list(loader.batches())
        tensor = whole[3].tensors[0]
        loader.close()
        del loader
        gc.collect()
        self.assertEqual([first_of(array) for array in arrays], list(range(0, 32, 4)))
        self.assertEqual(plain(whole[2].data), plain(arrays[2]))
        late = np.from_dlpack(tensor)
        whole.clear()
        del tensor
        random.Random(2).shuffle(arrays)
        while arrays:
            arrays.pop()
        self.assertEqual(first_of(late), 12)
        del late
        gc.collect()
        self.assertEqual((descriptors(), len(mappings())), before)

    def test_view(self):
        with feedlane.Loader(Numbers(80), 4, held=2) as loader:
            batches = loader.batches()
            with next(batches) as batch:
                part, tensor = batch.data[2:, 3], batch.tensors[0]
            del batch
            for other in batches:
                other.release()
            gc.collect()
            self.assertEqual(part.tolist(), [2, 3])
            self.raised(feedlane.StaleBatch, tensor.numpy)
            self.assertEqual(slots_held(loader), 1)
            del part
            self.assertEqual(slots_held(loader), 0)
        if has_torch:
            iterator = iter(feedlane.DataLoader(Numbers(400), 4, num_workers=1, held=2))
            part = next(iterator)[2:, 3]
            self.assertEqual(len(list(iterator)), 99)
            del iterator
            gc.collect()
            self.assertEqual(part.tolist(), [2, 3])

    # ---- threads ----

    def test_busy(self):
        gate, dataset = self.gated()
        with feedlane.Loader(dataset, 8, num_workers=1, timeout=60) as loader:
            iterator, found = loader.batches(), []
            next(iterator).release()

            def take():
                try:
                    found.append(first_of(next(iterator).data))
                except Exception as error:
                    found.append(type(error))
                    gate.open()
            threads = [threading.Thread(target=take) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(found, [feedlane.Busy, 8])
            cycle = [next(iterator)]  # released by the collector, in a thread of its own
            cycle.append(cycle)
            del cycle
            self.assertEqual(loader.stats()["slots_held"], 1)
            collector = threading.Thread(target=gc.collect)
            collector.start()
            collector.join()
            self.assertEqual(loader.stats()["slots_held"], 0)

    def test_close(self):
        gate, dataset = self.gated()
        gc.collect()
        before = len(descriptors()), len(mappings())
        loader, told, counted = feedlane.Loader(dataset, 8, num_workers=1), [], threading.Event()

        def take():
            for _ in loader:
                pass

        def count():
            while loader.stats():
                counted.set()

        def tell(work):
            try:
                work()
            except feedlane.FeedlaneError as error:
                told.append((type(error), str(error)))
        threads = [threading.Thread(target=tell, args=[work]) for work in (take, count)]
        for thread in threads:
            thread.start()
        gate.wait_for()
        counted.wait(DEADLINE_S)
        found = watched(self, pids(LOADER, loader, None))
        loader.close()  # a worker that is busy is killed after some seconds
        self.assertTrue(ended(found, DEADLINE_S), "a worker lives on")
        for thread in threads:
            thread.join(DEADLINE_S)
        self.assertEqual(told, [(feedlane.StateError, "the loader was closed")] * 2)
        loader = None
        gc.collect()
        self.assertEqual((len(descriptors()) - len(found), len(mappings())), before)

    def test_finalizer(self):
        gate, dataset = self.gated()
        loader = feedlane.Loader(dataset, 8, num_workers=2, persistent_workers=True)
        iterator = iter(loader)
        next(iterator)
        gate.wait_for(2)
        found = watched(self, pids(LOADER, loader, None))
        began = time.monotonic()
        del iterator, loader
        gc.collect()
        self.assertLess(time.monotonic() - began, 2, "stopping takes 5 s")
        self.assertTrue(ended(found, DEADLINE_S), "a worker lives on")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
