# SPDX-License-Identifier: Apache-2.0
"""What loaders say of an epoch: stamps, histograms, trace, report, what bounds it, and the line that shows its progress. Skipped
without numpy; DataLoader without torch, and tqdm's bar without tqdm.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python observe_test.py [unittest's arguments]"""
import importlib.util
import io
import os
import sys
import tempfile
import time
import unittest
from unittest import mock

from numpy_or_skip import np  # noqa: F401
import feedlane
from feedlane import _core, progress
from datasets import Gate, Gated, Numbers, Slow
from processes import DEADLINE_S, Trainer

has_torch = importlib.util.find_spec("torch") is not None


class Stream:
    """An iterable data set."""

    def __iter__(self):
        return iter(range(5))


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


class Broken(Terminal):
    """A terminal that has gone."""

    def write(self, _text):
        raise BrokenPipeError


def run(loader):
    for batch in loader:
        del batch  # its slot is free


def made(loader):
    """Batches that its workers have committed."""
    return sum(worker["tasks"] for worker in loader.workers())


def stamps_of(loader):
    """By batch, what its stamps say."""
    found = {}
    for batch in loader.batches():
        with batch:
            found[batch.number] = batch.stamps
    return found


class Stamps(unittest.TestCase):
    def test_they_never_decrease(self):
        for workers in 0, 2:
            with self.subTest(workers=workers), feedlane.Loader(Numbers(200), 4, num_workers=workers) as loader:
                before, yielded = time.monotonic_ns(), 0
                for batch in loader.batches():
                    stamps = batch.stamps
                    batch.release()
                    self.assertEqual(batch.stamps, stamps)
                    steps = [before, *stamps[:-1], time.monotonic_ns()]
                    self.assertEqual(steps, sorted(steps))
                    self.assertLess(yielded, stamps.yielded_ns)
                    self.assertLessEqual(stamps.exposed_ns, stamps.yielded_ns - before)
                    yielded = stamps.yielded_ns
                self.assertGreater(yielded, 0)

    def test_trace_and_histograms_are_of_them(self):
        for workers in 0, 2:
            with self.subTest(workers=workers):
                with feedlane.Loader(Numbers(80), 4, num_workers=workers, trace=64) as loader:
                    stamps, records, timings = stamps_of(loader), loader.trace(), loader.timings()
                    each = [loader.timings(worker)["work"]["count"] for worker in range(workers)]
                    with self.assertRaisesRegex(IndexError, f"has {workers} workers"):
                        loader.timings(max(workers, 1))
                    self.assertEqual([r["sequence"] for r in loader.trace(15)], list(range(15, 21)))
                    self.assertEqual(loader.trace(21), [])
                self.assertEqual(set(stamps), set(range(20)))
                self.assertEqual({r["batch"]: tuple(r[name] for name in feedlane.Stamps._fields) for r in records}, stamps)
                self.assertTrue(all(r["released_ns"] >= r["yielded_ns"] and r["rows"] == 4 for r in records))
                self.assertEqual(timings["work"]["count"], 20)
                self.assertEqual(timings["work"]["sum_ns"], sum(s.committed_ns - s.begun_ns for s in stamps.values()))
                self.assertEqual(sum(timings["work"]["buckets"]), 20)
                self.assertEqual((timings["exposed"]["count"], timings["start"]["count"]), (19, 1))
                self.assertEqual(timings["start"]["sum_ns"], stamps[0].exposed_ns)
                self.assertEqual(sum(each), 20 if workers else 0)

    def test_name_and_trace(self):
        with feedlane.Loader(Numbers(8), name="n" * 63, trace=7) as loader:
            self.assertEqual((loader.name, loader.info()["name"], loader.info()["trace"]), ("n" * 63, "n" * 63, 7))
        with mock.patch.dict(os.environ):
            os.environ.pop("FEEDLANE_TRACE", None)
            with feedlane.Loader(Numbers(8)) as loader:
                self.assertEqual((loader.name, loader.info()["name"], loader.info()["trace"]), (None, "", 0))
                run(loader)
                with self.assertRaisesRegex(feedlane.StateError, "trace="):
                    loader.trace()
        makes = [lambda **named: feedlane.Loader(Numbers(8), **named)]
        if has_torch:
            makes.append(lambda **named: iter(feedlane.DataLoader(Numbers(8), num_workers=1, **named)))
        for make in makes:
            for named, argument in ({"name": "ü" * 32}, "config.name"), ({"trace": 2**24 + 1}, "config.trace"):
                with self.subTest(argument), self.assertRaises(feedlane.ArgumentError) as caught:
                    make(**named)
                self.assertEqual(caught.exception.argument, argument)


class Bounds(unittest.TestCase):
    def test_nothing(self):
        with feedlane.Loader(Numbers(8), num_workers=1) as loader:
            self.assertEqual(loader.diagnose()["bound"], "nothing")
        for use in loader.report, loader.diagnose, loader.timings, loader.info, loader.trace:
            with self.assertRaisesRegex(feedlane.StateError, "closed"):
                use()

    def test_slow_data_set(self):
        with feedlane.Loader(Slow(60, 0.004), num_workers=2, persistent_workers=True, name="train") as loader:
            run(loader)
            run(loader)  # with workers that have started
            diagnosis, report = loader.diagnose(), loader.report()
        self.assertEqual(diagnosis["bound"], "data", diagnosis)
        self.assertEqual((diagnosis["batches"], diagnosis["worker"]), (60, -1))
        self.assertIn("epoch 1 of train: 60 batches of 60", report)
        self.assertIn("bound: " + diagnosis["text"], report)

    def test_slow_trainer(self):
        with feedlane.Loader(Numbers(60), num_workers=1, persistent_workers=True) as loader:
            run(loader)
            for number, batch in enumerate(loader):
                del batch
                deadline = time.monotonic() + DEADLINE_S  # the batch that follows is there
                while made(loader) < 60 + min(60, number + 2) and time.monotonic() < deadline:
                    time.sleep(0.001)
                time.sleep(0.01)
            diagnosis = loader.diagnose()
        self.assertEqual(diagnosis["bound"], "trainer", diagnosis)

    def test_slow_worker(self):
        with feedlane.Loader(Slow(80, 0.004, bad=1), num_workers=3, persistent_workers=True) as loader:
            run(loader)
            run(loader)
            diagnosis = loader.diagnose()
        self.assertEqual((diagnosis["bound"], diagnosis["worker"]), ("worker", 1), diagnosis)

    def test_slots(self):
        with feedlane.Loader(Numbers(80), num_workers=2, held=2) as loader:
            kept = []
            with self.assertRaises(feedlane.SlotsHeld):
                for batch in loader:
                    kept.append(batch)
            self.assertEqual(loader.stats()["slots_held"], len(kept))


class Failing(Numbers):
    """Sample 7 cannot be made."""

    def __getitem__(self, index):
        if index == 7:
            raise OSError(f"sample {index} is broken")
        return super().__getitem__(index)


class Monitors(unittest.TestCase):
    PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import feedlane
from datasets import Numbers
with feedlane.Loader(Numbers(20), 2, num_workers=1, name="other", trace=8) as loader:
    for batch in loader:
        del batch
    print("made", flush=True)
    sys.stdin.readline()
"""

    def test_another_process(self):
        with Trainer("-c", self.PROGRAM, os.path.dirname(__file__)) as other:
            self.assertEqual(other.line(), "made")
            with feedlane.Monitor(other.pid) as monitor:
                self.check(monitor, other.pid)
                other.kill()
                other.wait()
                self.check(monitor, other.pid)  # the last values stay
            with self.assertRaisesRegex(feedlane.StateError, "closed"):
                monitor.stats()
            with self.assertRaises(feedlane.PeerDead):
                feedlane.Monitor(other.pid)

    def check(self, monitor, pid):
        info = monitor.info()
        self.assertEqual((info["pid"], info["name"], info["batches"], monitor.stats()["batches"]), (pid, "other", 10, 10))
        self.assertEqual([worker["tasks"] for worker in monitor.workers()], [10])
        self.assertEqual([record["epoch"] for record in monitor.trace()], [0] * 8)
        self.assertEqual(monitor.timings()["work"]["count"], 10)
        self.assertIn("epoch 0", monitor.report())

    def test_slots_and_errors(self):
        with feedlane.Loader(Failing(8), 2, num_workers=1, skip_budget=1) as loader:
            batches = loader.batches()
            held = next(batches)
            slots = loader.slots()
            self.assertEqual(len(slots), loader.stats()["slots"])
            self.assertEqual([slot["batch"] for slot in slots if slot["yielded_ns"] and not slot["released_ns"]], [0])
            self.assertEqual(loader.errors(), [])
            held.release()
            for batch in batches:
                batch.release()
            error, = loader.errors()
            self.assertEqual((error["kind"], error["sample"], error["batch"], error["count"]), ("sample skipped", 7, 3, 1))
            self.assertIn("sample 7 is broken", error["text"])
            with feedlane.Monitor(os.getpid()) as monitor:
                self.assertEqual(monitor.errors(), [error])

    def test_refusals(self):
        with self.assertRaisesRegex(LookupError, f"process {os.getpid()} has no loader 7"):
            feedlane.Monitor(os.getpid(), 7)
        with self.assertRaisesRegex(ValueError, "pid=0"):
            feedlane.Monitor(0)


@unittest.skipUnless(has_torch, "no torch")
class OfTorch(unittest.TestCase):
    def test_after_the_end(self):
        for named in {}, {"persistent_workers": True}:
            with self.subTest(**named):
                loader = feedlane.DataLoader(Slow(60, 0.004), num_workers=2, name="train", trace=8, **named)
                self.assertIn("no iteration has begun", loader.report())
                with self.assertRaisesRegex(feedlane.StateError, "no iteration"):
                    loader.timings()
                for _ in range(2):
                    run(loader)
                    self.assertIn("of train: 60 batches", loader.report())
                    self.assertEqual(loader.diagnose()["batches"], 60)
                    self.assertGreaterEqual(loader.timings()["work"]["count"], 60)
                    self.assertGreaterEqual(sum(loader.timings(w)["work"]["count"] for w in range(2)), 60)
                    with self.assertRaisesRegex(IndexError, "worker 2 does not exist: the loader has 2 workers"):
                        loader.timings(2)
                    self.assertEqual((loader.info()["name"], loader.info()["in_epoch"]), ("train", 0))
                    records = loader.trace()
                    self.assertEqual(len(records), 8)
                    self.assertEqual(loader.trace(records[5]["sequence"]), records[5:])

    def test_slow_data_set(self):
        loader = feedlane.DataLoader(Slow(60, 0.004), num_workers=2, persistent_workers=True)
        run(loader)
        run(loader)
        self.assertEqual(loader.diagnose()["bound"], "data", loader.report())

    def test_left_early(self):
        loader = feedlane.DataLoader(Numbers(60), num_workers=1)
        for _ in loader:
            break
        self.assertIn("1 batches", loader.report())
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        self.assertIn("2 batches", loader.report(), "the newest iteration")
        self.assertEqual(loader.info()["in_epoch"], 1)

    def test_where_torch_makes_the_batches(self):
        from torch.utils.data.datapipes.iter import IterableWrapper
        for dataset, workers, words in (Numbers(8), 0, "num_workers=0"), (IterableWrapper([1, 2, 3]), 0, "data pipes"):
            with self.subTest(words):
                stream = io.StringIO()
                loader = feedlane.DataLoader(dataset, num_workers=workers, progress=stream)
                run(loader)
                self.assertRegex(loader.report(), f"no measurements.*{words}")
                self.assertEqual((loader.diagnose()["bound"], loader.diagnose()["text"] + "\n"), ("nothing", loader.report()))
                for use in loader.info, loader.timings, loader.trace:
                    with self.assertRaisesRegex(feedlane.Unsupported, words):
                        use()
                self.assertRegex(stream.getvalue(), r"^(8|3)( of \1)? batches in .*/s\n$")


class Progress(unittest.TestCase):
    def setUp(self):
        self.enterContext(mock.patch.object(progress, "_EVERY_S", 0))

    def without_tqdm(self):
        self.enterContext(mock.patch.dict(sys.modules, {"tqdm.auto": None}))

    def test_unasked(self):
        with feedlane.Loader(Numbers(8)) as loader:
            self.assertIs(type(iter(loader)), _core.Cursor, "nothing is between the loop and the compiled iterator")

    def test_terminal(self):
        self.without_tqdm()
        stream = Terminal()
        with feedlane.Loader(Numbers(40), 4, num_workers=1, name="train", progress=stream) as loader:
            shown = iter(loader)
            self.assertEqual(len(shown), 10)
            run(shown)
            self.assertRaises(StopIteration, next, shown)
        said = stream.getvalue()
        self.assertEqual((said[0], said[-1], said.count("\n")), ("\r", "\n", 1))
        lines = said.rstrip("\n").split("\r")[1:]
        self.assertEqual(len(lines), 11, "one for each batch, and the last one")
        for number, line in enumerate(lines):
            self.assertRegex(line, rf"^train epoch 0: {min(number + 1, 10)} of 10 batches in .*/s, waits \d+ %, bound: \w+ *$")
        self.assertTrue(all(len(a.rstrip()) <= len(b) for a, b in zip(lines, lines[1:])), "each covers the one before")

    def test_seldom(self):
        self.without_tqdm()
        stream = Terminal()
        with mock.patch.object(progress, "_EVERY_S", 3600), feedlane.Loader(Numbers(40), progress=stream) as loader:
            run(loader)
        self.assertEqual(stream.getvalue().count("\r"), 1)

    def test_no_terminal(self):
        stream = io.StringIO()
        with feedlane.Loader(Stream(), 2, progress=stream) as loader:
            run(loader)
            run(loader.batches())
        first, second = stream.getvalue().splitlines()
        self.assertRegex(first, r"^epoch 0: 3 batches in ")
        self.assertRegex(second, r"^epoch 1: 3 batches in ")

    def test_stderr(self):
        with mock.patch.object(sys, "stderr", io.StringIO()), feedlane.Loader(Numbers(4), progress=True) as loader:
            run(loader)
            self.assertRegex(sys.stderr.getvalue(), "^epoch 0: 4 of 4 batches")
        with mock.patch.object(sys, "stderr", None), feedlane.Loader(Numbers(4), progress=True) as loader:
            run(loader)

    def test_left_early(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        gate = Gate(folder)
        self.addCleanup(gate.close)
        stream = io.StringIO()
        with feedlane.Loader(Gated(folder), 4, num_workers=1, progress=stream) as loader:
            for number, _ in enumerate(loader):
                if number == 1:
                    gate.wait_for()
                    gate.open()
                    break
            self.assertRegex(stream.getvalue(), r"^epoch 0: 2 of 16 batches .*\n$")
            run(loader)
            self.assertRegex(stream.getvalue().splitlines()[1], "^epoch 1: 16 of 16 batches")

    def test_errors_are_passed_on(self):
        stream = io.StringIO()
        with feedlane.Loader(Numbers(8, failing=[3]), progress=stream) as loader:
            shown, errors = iter(loader), 0
            while True:
                try:
                    next(shown)
                except feedlane.SampleError:
                    errors += 1
                except StopIteration:
                    break
        self.assertEqual(errors, 1)
        self.assertRegex(stream.getvalue(), r"^epoch 0: 7 of 8 batches .*\n$")

    def test_broken_stream(self):
        self.without_tqdm()
        closed = io.StringIO()
        closed.close()
        for stream in Broken(), closed:
            if stream is closed:
                with self.assertRaises(ValueError):
                    stream.isatty()
            with feedlane.Loader(Numbers(8), progress=stream) as loader:
                self.assertEqual(len(list(map(np.copy, loader))), 8)

    def test_resumed(self):
        stream = io.StringIO()
        with feedlane.Loader(Numbers(40), 4) as loader:
            batches = iter(loader)
            for _ in range(3):
                next(batches)
            state = loader.state_dict()
        with feedlane.Loader(Numbers(40), 4, progress=stream) as loader:
            loader.load_state_dict(state)
            for _ in loader:
                break
        self.assertRegex(stream.getvalue(), "^epoch 0: 4 of 10 batches")

    @unittest.skipUnless(has_torch, "no torch")
    def test_of_torch(self):
        for named in {}, {"persistent_workers": True}:
            with self.subTest(**named):
                stream = io.StringIO()
                loader = feedlane.DataLoader(Numbers(40), 4, num_workers=1, name="train", progress=stream, **named)
                for batch in loader:
                    break
                state = loader.state_dict()
                run(loader)
                loader.load_state_dict(state)
                run(loader)
                lines = stream.getvalue().splitlines()
                self.assertEqual(len(lines), 3)
                for line, count in zip(lines, (1, 10, 10)):
                    self.assertRegex(line, rf"^train: {count} of 10 batches in .*, waits \d+ %, bound: \w+$")

    @unittest.skipIf(importlib.util.find_spec("tqdm") is None, "no tqdm")
    def test_tqdm(self):
        stream = Terminal()
        with feedlane.Loader(Numbers(40), 4, num_workers=1, name="train", progress=stream) as loader:
            run(loader)
            for _ in loader:
                break
        said = stream.getvalue()
        self.assertRegex(said, r"train epoch 0: 100%.* 10/10 .*batch/s, waits \d+ %, bound: \w+\]\s*\n")
        self.assertRegex(said, r"train epoch 1:  10%.* 1/10 ")
        self.assertEqual(said.count("\n"), 2)


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    sys.exit(0 if result.wasSuccessful() else 1)
