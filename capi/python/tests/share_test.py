# SPDX-License-Identifier: Apache-2.0
"""Shared loaders: feeders, consumers in processes and threads, ends of either, states.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python share_test.py [unittest's arguments]"""
import contextlib
import multiprocessing
import signal
import threading
import time
import unittest

import numpy_or_skip  # noqa: F401
import feedlane
import share_programs
from datasets import Numbers, outcomes
from processes import DEADLINE_S
from share_cases import SAMPLES, Case, order, served, told
from share_programs import BATCH, firsts, loader


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


if __name__ == "__main__":
    unittest.main()
