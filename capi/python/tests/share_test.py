# SPDX-License-Identifier: Apache-2.0
"""Shared loaders: feeders, consumers in processes and threads, ends of either, states, read-only memory, arguments.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python share_test.py [unittest's arguments]"""
import contextlib
import ctypes
import importlib.util
import multiprocessing
import os
import pathlib
import signal
import tempfile
import threading
import time
import unittest
import warnings

from numpy_or_skip import np
import feedlane
import share_programs
from datasets import Numbers, outcomes
from processes import DEADLINE_S, Trainer
from share_programs import BATCH, firsts, loader

PROGRAMS = pathlib.Path(share_programs.__file__)
SAMPLES = 402  # the last batch has 2


def trainer(kind, where, *more):
    """A process of share_programs.py. `where`: a path, or a Place, which is closed here."""
    if not isinstance(where, feedlane.Place):
        return Trainer(PROGRAMS, kind, where, *more)
    with where:
        return Trainer(PROGRAMS, kind, where.fd, *more, pass_fds=[where.fd])


def told(process):
    """What it has printed of an epoch: batches, and the length that it ends with; None: it has ended."""
    batches = []
    while line := process.line():
        if line.startswith("end"):
            return batches, int(line.split()[1])
        batches.append(list(map(int, line.split())))
    return batches, None


def order(samples, epochs=1):
    """The batches of each epoch, as a loader that isn't shared yields them."""
    with loader(samples) as own:
        return [[firsts(batch) for batch in own] for _ in range(epochs)]


@contextlib.contextmanager
def served(shared, epochs=1):
    """Another thread serves so many epochs. Its exception, or None, is in the list that this yields, once the `with` is over."""
    failures = []

    def run():
        try:
            for _ in range(epochs):
                shared.serve()
            shared.finish()
            failures.append(None)
        except Exception as failure:
            failures.append(failure)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield failures
    finally:
        thread.join(DEADLINE_S)


@contextlib.contextmanager
def attended(shared):
    """Another thread has consumers join, without an epoch."""
    is_over = threading.Event()

    def run():
        while not is_over.is_set():
            shared.wait_for_consumers(1024, timeout=0.02)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(DEADLINE_S)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.path = os.path.join(self.folder, "feeder.sock")

    def shared(self, share, samples=SAMPLES, **more):
        return self.enterContext(loader(samples, share=share, **more))

    def started(self, *arguments):
        return self.enterContext(trainer(*arguments))

    def joined(self, shared, *place, **more):
        return self.enterContext(feedlane.join(shared.open_consumer(*place), **more))


class Trainers(Case):
    """Processes."""

    def test_every_by_descriptor(self):
        shared = self.shared("every", consumers=2)
        trainers = [self.started("trainer", shared.open_consumer()) for _ in range(2)]
        self.assertEqual([shared.serve() for _ in range(2)], [True, True])
        self.assertTrue(shared.finish(DEADLINE_S))
        for epoch in order(SAMPLES, 2):
            for process in trainers:
                self.assertEqual(told(process), (epoch, len(epoch)))
        self.assertEqual([process.wait() for process in trainers], [0, 0])

    def test_deal_by_path(self):
        for tail in False, True:
            with self.subTest(tail=tail):
                shared = self.shared("deal", consumers=2, share_path=self.path, share_tail=tail)
                trainers = [self.started("trainer", self.path, rank) for rank in (1, 0)][::-1]
                self.assertTrue(shared.wait_for_consumers(timeout=DEADLINE_S))
                self.assertEqual({(c.id, c.state, c.lag) for c in shared.consumers()},
                                 {(0, "attached", "block"), (1, "attached", "block")})
                self.assertEqual({c.pid for c in shared.consumers()}, {process.pid for process in trainers})
                self.assertEqual([shared.serve() for _ in range(2)], [True, True])
                self.assertTrue(shared.finish(DEADLINE_S))
                for epoch in order(SAMPLES, 2):
                    dealt = epoch if tail else epoch[:len(epoch) // 2 * 2]
                    for rank, process in enumerate(trainers):
                        self.assertEqual(told(process)[0], dealt[rank::2])
                self.assertEqual([event.kind for event in shared.events()], ["consumer left"] * 2)
                shared.close()

    def test_multiprocessing(self):
        for method in "spawn", "fork":
            with self.subTest(method):
                context = multiprocessing.get_context(method)
                shared, results = self.shared("deal", consumers=2), context.SimpleQueue()
                processes = []
                for _ in range(2):
                    with shared.open_consumer() as place:
                        processes.append(context.Process(target=share_programs.in_process, args=(place, results)))
                        processes[-1].start()
                self.assertTrue(shared.serve())
                found = dict(results.get() for _ in processes)
                [epoch] = order(SAMPLES)
                self.assertEqual(found, {rank: epoch[:len(epoch) // 2 * 2][rank::2] for rank in range(2)})
                for process in processes:
                    process.join()
                    self.assertEqual(process.exitcode, 0)
                shared.close()

    def test_error_in_a_trainer(self):
        shared = self.shared("every", consumers=2)
        failing, other = (self.started(kind, shared.open_consumer()) for kind in ("failing", "newcomer"))
        self.assertTrue(shared.serve())
        [epoch] = order(SAMPLES)
        self.assertEqual(told(failing), (epoch[:2], None))
        self.assertEqual(failing.wait(), 1)
        self.assertEqual(told(other), (epoch, len(epoch)))

    def test_killed_and_replaced(self):
        shared = self.shared("deal", consumers=2, samples=1600)
        killed, other = self.started("killed", shared.open_consumer(0)), self.started("newcomer", shared.open_consumer(1))
        self.assertRaises(feedlane.PeerDead, shared.serve)
        self.assertEqual([c.state for c in shared.consumers() if c.id == 0], ["none"])
        replacement = self.started("newcomer", shared.open_consumer(0))
        self.assertTrue(shared.serve())
        [epoch] = order(1600)
        before, after = told(killed), told(replacement)
        self.assertEqual((len(before[0]), before[1]), (3, None))
        self.assertEqual(before[0] + after[0], epoch[0::2])
        self.assertEqual(told(other)[0], epoch[1::2])
        self.assertEqual(killed.wait(), -signal.SIGKILL)

    def test_killed_feeder(self):
        feeder = self.started("feeder", self.path)
        self.assertEqual(feeder.line(), "ready")
        consumers = [self.enterContext(feedlane.join(self.path, batch_timeout=DEADLINE_S)) for _ in range(2)]
        iterators = list(map(iter, consumers))
        for iterator in iterators:
            next(iterator)
        feeder.kill()
        for iterator in iterators:
            found = outcomes(iterator, 100)
            delivered = [number for number in found if isinstance(number, int)]
            self.assertEqual(found[:len(delivered)], delivered)
            self.assertEqual({type(other) for other in found[len(delivered):]}, {feedlane.PeerDead})
        self.assertRaises(feedlane.PeerDead, consumers[0].state_dict)
        self.assertRaises(feedlane.PeerDead, feedlane.join, self.path)

    def test_interrupt(self):
        feeder = self.started("interrupted", "-")
        self.assertEqual(feeder.line(), "ready")
        feeder.wait_until_asleep()
        feeder.send_signal(signal.SIGINT)
        self.assertEqual(feeder.line(), "interrupted")

    def test_write(self):
        shared = self.shared("every")
        writing = self.started("writing", shared.open_consumer())
        with contextlib.suppress(feedlane.PeerDead):  # the writer may end before the epoch
            shared.serve()
        self.assertEqual((writing.line(), writing.line()), ("writes", ""))
        self.assertEqual(writing.wait(), -signal.SIGSEGV)


class Epochs(Case):
    """Consumers in this process, whose feeder is served by another thread or beforehand."""

    def test_as_a_loader(self):
        epochs, shared = order(SAMPLES, 4), self.shared("every")
        self.assertEqual(len(shared), len(epochs[0]))
        consumer = self.joined(shared)
        with served(shared, 4) as failures, consumer:
            self.assertEqual([firsts(batch) for batch in consumer], epochs[0])
            self.assertEqual(len(consumer), len(epochs[0]))
            for batch in consumer:
                break  # what is left of epoch 1 goes back
            consumer.set_epoch(3)  # epoch 2 too
            for number, batch in enumerate(consumer.batches()):
                with batch:
                    self.assertEqual((batch.epoch, batch.number, batch.missed), (3, number, 0))
                    self.assertEqual(firsts(batch.data), epochs[3][number])
            self.assertEqual(consumer.stats()["epochs"], 3)
        self.assertEqual(failures, [None])
        self.assertRaises(feedlane.StateError, iter, consumer)

    def test_states(self):
        for share, consumers in ("every", 1), ("deal", 2):
            with self.subTest(share):
                shared = self.shared(share, consumers=consumers)
                group = [self.joined(shared) for _ in range(consumers)]
                [epoch] = order(SAMPLES)
                with served(shared):
                    iterators = list(map(iter, group))
                    for _ in range(3):
                        list(map(next, iterators))
                    states = [consumer.state_dict() for consumer in group]
                    for consumer in group:
                        consumer.close()
                for state in states:
                    with loader(SAMPLES) as resumed:
                        resumed.load_state_dict(state)
                        self.assertEqual([firsts(batch) for batch in resumed], epoch[3 * consumers:])
                    with self.shared("every", share_path=self.path) as again:
                        again.load_state_dict(state)
                        consumer = self.joined(again)
                        with served(again), consumer:
                            self.assertEqual([firsts(batch) for batch in consumer], epoch[3 * consumers:])
                self.assertRaises(feedlane.StateError, group[0].load_state_dict, states[0])

    def test_errors_of_batches(self):
        shared = self.enterContext(feedlane.Loader(Numbers(24, failing=(9,)), BATCH, num_workers=1, share="every", consumers=2))
        group = [self.joined(shared) for _ in range(2)]
        self.assertTrue(shared.serve())
        for consumer in group:
            found = outcomes(iter(consumer))
            self.assertIsInstance(found[2], feedlane.SampleError)
            self.assertIn("sample 9 is broken", str(found[2]))
            self.assertEqual((found[2].batch, found[2].sample), (2, 9))
            self.assertEqual(found[:2] + found[3:], [0, 4, 12, 16, 20])

    def test_missed(self):
        shared = self.shared("every", samples=40)
        consumer = self.joined(shared, None, "observe")
        self.assertTrue(shared.serve())
        found = [(batch.number, batch.missed) for batch in consumer.batches()]
        self.assertGreater(found[0][1], 0)
        for (before, _), (number, missed) in zip([(-1, 0), *found], found):
            self.assertEqual(number, before + 1 + missed)
        self.assertEqual(found[-1][0], len(shared) - 1)

    def test_evicted(self):
        shared = self.shared("every")
        consumer = self.joined(shared, None, "evict", 0.05)
        batches = iter(consumer)
        self.assertFalse(shared.serve(0))
        self.assertRaises(feedlane.PeerDead, shared.serve, DEADLINE_S)
        self.assertIsInstance(outcomes(batches, 1000)[-1], feedlane.Hung)
        self.assertIn("consumer evicted", [event.kind for event in shared.events()])

    def test_held(self):
        shared = self.shared("every", samples=1600)
        consumer = self.joined(shared)
        with served(shared) as failures, consumer:
            batches, kept = iter(consumer), []
            with self.assertRaises(feedlane.SlotsHeld):
                for batch in batches:
                    kept.append(batch)
            self.assertGreater(len(kept), 3)
            [epoch], count = order(1600), len(kept)
            del batch, kept[1:]
            self.assertEqual([firsts(batch) for batch in batches], epoch[count:])
            self.assertEqual(firsts(kept[0]), epoch[0])
            del kept[:]
        self.assertEqual(failures, [None])

    def test_waiting_in_an_epoch(self):
        """wait_for_consumers is what serve's PeerDead asks for; meanwhile the others get their batches, and serve tells the end."""
        shared = self.shared("every", consumers=2, share_path=self.path)
        self.assertRaises(feedlane.PeerDead, shared.serve)
        found = []

        def train():
            with feedlane.join(self.path) as consumer:
                found.extend(firsts(batch) for batch in consumer)
        thread = threading.Thread(target=train)
        thread.start()
        self.assertTrue(shared.wait_for_consumers(1, DEADLINE_S))
        while thread.is_alive():
            self.assertFalse(shared.wait_for_consumers(2, 0.05))
        used = time.process_time()
        self.assertFalse(shared.wait_for_consumers(2, 0.3))  # the epoch is over, and serve has not said so
        self.assertLess(time.process_time() - used, 0.15)
        self.assertEqual(found, order(SAMPLES)[0])
        self.assertTrue(shared.serve(0))
        self.assertTrue(shared.finish(DEADLINE_S))

    def test_timeouts(self):
        shared = self.shared("every", consumers=2)
        self.assertFalse(shared.wait_for_consumers(timeout=0))
        consumer = self.joined(shared, batch_timeout=0.01)
        self.assertTrue(shared.wait_for_consumers(1, timeout=DEADLINE_S))
        self.assertFalse(shared.wait_for_consumers(timeout=0.01))
        self.assertFalse(shared.finish(0.01))
        self.assertRaises(feedlane.Timeout, next, iter(consumer))
        self.assertFalse(shared.serve(0))
        self.assertRaises(feedlane.StateError, shared.finish)
        consumer.close()
        self.assertRaises(feedlane.PeerDead, shared.serve)


class Memory(Case):
    def batch(self, **more):
        shared = self.shared("every")
        consumer = self.joined(shared, **more)
        shared.serve(0)
        with served(shared):
            batch = next(consumer.batches())
            consumer.close()
        return batch

    def test_numpy(self):
        [tensor] = self.batch().tensors
        for array in tensor.numpy(), tensor.numpy()[1:, ::2]:
            self.assertFalse(array.flags.writeable)
            with self.assertRaises(ValueError):
                array[0] = 1
            with self.assertRaises(ValueError):
                array.flags.writeable = True
        self.assertTrue(memoryview(tensor.numpy().base).readonly)
        consumer = self.joined(shared := self.shared("every"))
        with served(shared), consumer:
            self.assertFalse(any(batch.flags.writeable for batch in consumer))
        with loader(8) as own:
            self.assertTrue(all(batch.flags.writeable for batch in own))

    def test_dlpack(self):
        [tensor] = self.batch().tensors
        self.assertRaises(BufferError, tensor.__dlpack__)
        self.assertRaises(BufferError, tensor.__dlpack__, max_version=(0, 8))
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        capsule = tensor.__dlpack__(max_version=(1, 0))
        flags = ctypes.c_uint64.from_address(get(capsule, b"dltensor_versioned") + 8 + 2 * ctypes.sizeof(ctypes.c_void_p))
        self.assertEqual(flags.value & 1, 1)  # DLPACK_FLAG_BITMASK_READ_ONLY
        if tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1):
            self.assertFalse(np.from_dlpack(tensor).flags.writeable)

    @unittest.skipIf(importlib.util.find_spec("torch") is None, "no torch")
    def test_torch(self):
        import torch
        with self.assertWarns(feedlane.ReadOnlyWarning):
            batch = self.batch(tensors="torch")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertIsInstance(batch.data, torch.Tensor)
            self.assertEqual(batch.data.clone().add_(1).sub(1).tolist(), batch.data.tolist())
            self.assertRaises(feedlane.ReadOnlyWarning, batch.tensors[0].torch)
            self.assertEqual(batch.data.data_ptr(), batch.tensors[0].address)
            self.assertRaises(BufferError, torch.from_dlpack, batch.tensors[0])


class Arguments(Case):
    def test_of_the_loader(self):
        for more in ({"share": "all"}, {"consumers": 2}, {"share_path": self.path}, {"share_tail": True},
                     {"share": "every", "share_tail": True}, {"share": "every", "consumers": 0},
                     {"share": "every", "consumers": 1.5}, {"share": "every", "consumers": 1025},
                     {"share": "every", "share_path": "a\0b"}, {"share": "every", "share_path": "x" * 108},
                     {"share": "every", "tensors": "torch"}, {"share": "every", "progress": True},
                     {"share": "every", "num_workers": 0},
                     {"share": "every", "pin_memory": feedlane.Pool("none"), "fields": {"x": (np.int64, (8,))}}):
            with self.subTest(more), self.assertRaises(ValueError):
                feedlane.Loader(Numbers(8), 2, **{"num_workers": 1, **more}).close()

    def test_of_places(self):
        shared = self.shared("deal", consumers=2)
        for arguments in ((2,), (-1,), (0.5,), (0, "never"), (0, "observe"), (0, "block", 1), (0, "evict", 0), (0, "evict", -1)):
            with self.subTest(arguments), self.assertRaises(ValueError):
                shared.open_consumer(*arguments)
        place = shared.open_consumer(1)
        self.assertEqual(place.id, 1)
        self.assertRaises(feedlane.ArgumentError, shared.open_consumer, 1)
        other = shared.open_consumer()
        self.assertEqual(other.id, 0)
        self.assertRaises(feedlane.LimitError, shared.open_consumer)
        other.close()
        self.assertEqual(shared.open_consumer(0).id, 0)  # nobody can join by it any more
        os.close(place.detach())
        self.assertRaises(ValueError, place.detach)

    def test_of_waits(self):
        shared = self.shared("every")
        for call in shared.serve, shared.finish, lambda timeout: shared.wait_for_consumers(timeout=timeout):
            for wrong in -1, float("nan"):
                self.assertRaises(ValueError, call, wrong)
        self.assertRaises(feedlane.PeerDead, shared.serve)
        self.assertRaises(feedlane.StateError, iter, shared)
        self.assertRaises(feedlane.StateError, shared.batches)

    def test_of_a_loader_that_is_not_shared(self):
        with loader(8) as own:
            for call in own.open_consumer, own.serve, own.finish, own.consumers, own.wait_for_consumers:
                self.assertRaises(feedlane.StateError, call)
            self.assertEqual(sum(map(len, own)), 8)

    def test_of_joining(self):
        for more in {"tensors": "jax"}, {"batch_timeout": -1}, {"timeout": -1}, {"id": 0}, {"lag": "block"}, {"evict_after": 1}:
            with self.subTest(more), self.assertRaises(ValueError):
                feedlane.join(0, **more)
        self.assertRaises(ValueError, feedlane.join, -1)
        self.assertRaises(ValueError, feedlane.join, 1.5)
        self.assertRaises(feedlane.PeerDead, feedlane.join, self.path)
        with open(os.devnull) as file:
            self.assertRaises(feedlane.FeedlaneError, feedlane.join, os.dup(file.fileno()))
        shared = self.shared("every", share_path=self.path)
        with attended(shared):
            self.assertRaises(feedlane.ArgumentError, feedlane.join, self.path, id=1)
            with feedlane.join(self.path, id=0, lag="evict", evict_after=5):
                self.assertRaises(feedlane.LimitError, feedlane.join, pathlib.Path(self.path))

    def test_of_a_feeder_with_consumers(self):
        shared = self.shared("every")
        with loader(SAMPLES) as own:
            next(iter(own))
            state = own.state_dict()
        consumer = self.joined(shared)
        self.assertRaises(feedlane.StateError, shared.load_state_dict, state)
        self.assertEqual(consumer.diagnose()["bound"], "nothing")
        self.assertRaises(feedlane.StateError, consumer.info)
        self.assertRaises(feedlane.StateError, consumer.workers)
        consumer.set_epoch(7)
        iter(consumer)
        consumer.set_epoch(7)
        self.assertRaises(feedlane.StateError, iter, consumer)


if __name__ == "__main__":
    unittest.main()
