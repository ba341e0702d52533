# SPDX-License-Identifier: Apache-2.0
"""Rings without a loader.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python ring_test.py [unittest's arguments]"""
import asyncio
import multiprocessing
import os
import signal
import tempfile
import threading
import unittest

import numpy_or_skip  # noqa: F401
import feedlane
import numpy as np

ROW = np.dtype([("sender", "i4"), ("number", "i8")])


def rows(sender, first, count):
    made = np.zeros(count, ROW)
    made["sender"], made["number"] = sender, np.arange(first, first + count)
    return made


def send(ring, sender, count, last=None):
    """Sends `count` messages in parts of 7. last: a signal with which this process then ends."""
    with feedlane.Sender(ring, ROW) as tx:
        for first in range(0, count, 7):
            tx.send(rows(sender, first, min(7, count - first)))
        if last is not None:
            os.kill(os.getpid(), last)


class Case(unittest.TestCase):
    def setUp(self):
        self.context = multiprocessing.get_context("spawn")

    def started(self, *arguments):
        process = self.context.Process(target=send, args=arguments)
        process.start()
        self.addCleanup(process.kill)

    def ring(self, *arguments, **options):
        receiver = feedlane.Receiver(*arguments, **options)
        self.addCleanup(receiver.close)
        return receiver

    def pair(self, message="i8", capacity=8):
        receiver = self.ring(message, capacity)
        sender = feedlane.Sender(receiver.offer(), message)
        self.addCleanup(sender.close)
        return receiver, sender


class Processes(Case):
    def test_messages_of_each_sender_stay_in_order(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "ring")
            receiver = self.ring(ROW, 16, senders=3, path=path)
            for number in range(2):
                self.started(path, number, 1000)
            with receiver.offer() as socket:
                self.started(socket, 2, 1000)
            received = {0: [], 1: [], 2: []}
            while min(map(len, received.values())) < 1000:  # a ring whose first senders have left is at its end before the last comes
                try:
                    messages = receiver.receive()
                except EOFError:
                    continue
                received[messages["sender"][0]].extend(messages["number"])
            self.assertEqual(received, {number: list(range(1000)) for number in range(3)})

    def test_a_killed_sender_loses_nothing_that_it_sent(self):
        receiver = self.ring(ROW, 256)
        with receiver.offer() as socket:
            self.started(socket, 5, 100, signal.SIGKILL)
        self.assertEqual(np.concatenate(list(receiver)).tolist(), rows(5, 0, 100).tolist())

    def test_a_sender_whose_receiver_has_ended_raises_peer_dead(self):
        receiver, sender = self.pair()
        self.assertEqual(sender.send(np.zeros(8, "i8")), 8)
        receiver.close()
        with self.assertRaises(feedlane.PeerDead):
            sender.send(np.zeros(1, "i8"))

    def test_a_ring_of_another_process_can_be_observed(self):
        receiver, sender = self.pair()
        sender.send(np.zeros(3, "i8"))
        receiver.receive()
        seen = feedlane.Receiver.observe(os.getpid())
        self.assertEqual((seen["message_bytes"], seen["capacity"], seen["lanes"], seen["received"]), (8, 8, 1, 3))
        self.assertIsNone(feedlane.Receiver.observe(os.getpid(), 1))

    def test_a_forked_child_is_refused(self):
        receiver, _ = self.pair()
        child = os.fork()
        if child == 0:
            try:
                receiver.receive(timeout=0)
            except feedlane.Forked:
                os._exit(7)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)


class InPlace(Case):
    def test_messages_in_place(self):
        receiver, sender = self.pair()
        with sender.reserve(5) as messages:
            messages[:] = np.arange(5)
        with receiver.peek(3) as messages:
            self.assertEqual((messages[:].tolist(), len(messages), messages.lane), ([0, 1, 2], 3, 0))
            with self.assertRaises(ValueError):
                messages[0] = 1
        self.assertEqual(receiver.receive().tolist(), [3, 4])

    def test_messages_of_bytes_do_not_lie_next_to_each_other(self):
        receiver, sender = self.pair(5)
        with sender.reserve(2) as messages:
            messages[:] = [list(b"hello"), list(b"world")]
        with receiver.peek() as messages:
            self.assertEqual(np.asarray(messages).tobytes(), b"helloworld")
        self.assertEqual(sender.send(b"helloworld"), 2)
        self.assertEqual(receiver.receive().tobytes(), b"helloworld")

    def test_what_is_not_released_comes_again(self):
        receiver, sender = self.pair()
        sender.send(np.arange(4))
        self.assertEqual(receiver.peek(2)[:].tolist(), [0, 1])
        messages = receiver.peek(3)
        messages.release(1)
        self.assertEqual(receiver.receive().tolist(), [1, 2, 3])

    def test_an_exception_drops_what_was_reserved(self):
        receiver, sender = self.pair()
        with self.assertRaises(KeyError):
            with sender.reserve(2) as messages:
                messages[:] = 1
                raise KeyError
        sender.send(np.arange(2))
        with self.assertRaises(KeyError):
            with receiver.peek() as messages:
                raise KeyError
        self.assertEqual(receiver.receive().tolist(), [0, 1])

    def test_memory_cannot_be_released_under_an_array(self):
        receiver, sender = self.pair()
        sender.send(np.arange(4))
        with self.assertRaisesRegex(BufferError, "still exists"):
            with receiver.peek() as messages:
                array = messages[:]
        with self.assertRaisesRegex(feedlane.StateError, "still in use"):
            receiver.receive()
        receiver.close()
        sender.close()
        self.assertEqual(array.tolist(), [0, 1, 2, 3])  # its memory is there as long as it is
        del array
        with self.assertRaises(feedlane.StateError):
            messages.release()

    def test_closing_with_messages_in_place(self):
        receiver, sender = self.pair()
        sender.send(np.arange(8))
        messages = receiver.peek()
        receiver.close()
        with self.assertRaises(BufferError):
            messages[:]
        with self.assertRaises(feedlane.PeerDead):
            sender.send(np.zeros(1, "i8"))

    def test_a_forked_child_cannot_touch_them(self):
        _, sender = self.pair()
        messages = sender.reserve(2)
        child = os.fork()
        if child == 0:
            try:
                messages[0] = 1
            except BufferError:
                os._exit(7)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)

    def test_a_part_is_released_within_the_block(self):
        receiver, sender = self.pair()
        with sender.reserve(4) as messages:
            messages[:2] = [5, 6]
            messages.release(2)
        with receiver.peek() as messages:
            messages.release(1)
        self.assertEqual(receiver.receive().tolist(), [6])

    def test_released_messages_are_refused(self):
        receiver, sender = self.pair()
        sender.send(np.arange(4))
        messages = receiver.peek()
        messages.release(1)
        with self.assertRaises(BufferError):
            messages[:]
        with self.assertRaises(feedlane.StaleBatch):
            messages.release()
        self.assertEqual(receiver.receive().tolist(), [1, 2, 3])


class Waits(Case):
    def test_without_messages_a_receive_times_out(self):
        receiver, sender = self.pair()
        for timeout in 0, 0.01:
            with self.assertRaises(feedlane.Timeout):
                receiver.receive(timeout=timeout)
            with self.assertRaises(feedlane.Timeout):
                receiver.peek(timeout=timeout)
        self.assertEqual(sender.send(np.zeros(20, "i8"), timeout=0.01), 8)
        self.assertEqual(sender.send(np.zeros(20, "i8"), timeout=0), 0)
        with self.assertRaises(feedlane.Timeout):
            sender.reserve(timeout=0.01)

    def test_close_ends_the_wait_of_another_thread(self):
        receiver, _ = self.pair()
        ended = []

        def wait(call):
            try:
                call()
            except feedlane.StateError as reason:
                ended.append(reason)
        thread = threading.Thread(target=wait, args=(receiver.receive,))
        thread.start()
        while True:  # until the thread is in the call
            try:
                receiver.receive(timeout=0)
            except feedlane.Busy:
                break
            except feedlane.Timeout:
                pass
        receiver.close()
        thread.join()
        self.assertEqual(len(ended), 1)

    def test_a_loop_ends_when_the_ring_is_closed(self):
        receiver, sender = self.pair()
        sender.send(np.arange(2))
        for messages in receiver:
            self.assertEqual(messages.tolist(), [0, 1])
            receiver.close()

    def test_a_send_in_asyncio_can_be_cancelled(self):
        receiver, sender = self.pair()

        async def run():
            sending = asyncio.create_task(sender.asend(np.arange(12)))
            await asyncio.sleep(0)
            sending.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await sending
            received = receiver.receive()
            self.assertEqual(await sender.asend(np.arange(1), timeout=0), 1)  # no thread has the sender
            return received
        self.assertEqual(asyncio.run(run()).tolist(), list(range(8)))

    def test_a_second_task_is_refused(self):
        receiver, sender = self.pair()

        async def run():
            first, second = (asyncio.create_task(receiver.areceive()) for _ in range(2))
            with self.assertRaises(feedlane.Busy):
                await second
            sender.send(np.arange(1))
            self.assertEqual((await first).tolist(), [0])
        asyncio.run(run())

    def test_asyncio(self):
        receiver, sender = self.pair(capacity=64)

        async def run():
            waiting = asyncio.create_task(receiver.areceive())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            with self.assertRaises(feedlane.Timeout):
                await receiver.areceive(timeout=0.01)
            waiting = asyncio.create_task(receiver.areceive(2))
            await asyncio.sleep(0)
            await sender.asend(np.arange(5))
            self.assertEqual((await waiting).tolist(), [0, 1])
            sender.close()
            self.assertEqual([messages.tolist() async for messages in receiver], [[2, 3, 4]])
        asyncio.run(run())

    def test_closing_ends_the_wait_of_a_task(self):
        receiver, _ = self.pair()

        async def run():
            waiting = asyncio.create_task(receiver.areceive())
            await asyncio.sleep(0)
            receiver.close()
            with self.assertRaises(feedlane.StateError):
                await waiting
        asyncio.run(run())


class BadInput(Case):
    def test_bad_arguments(self):
        receiver, sender = self.pair()
        for call, error, text in (
                (lambda: feedlane.Receiver("O"), ValueError, "without Python objects"),
                (lambda: feedlane.Receiver(0), ValueError, "message=0"),
                (lambda: feedlane.Receiver(2 << 20), ValueError, "to 1048576"),
                (lambda: feedlane.Receiver(None), ValueError, "message=None"),
                (lambda: feedlane.Receiver(("f4", (3,))), ValueError, "a structured type"),
                (lambda: feedlane.Receiver("S2000000"), feedlane.ArgumentError, "message_bytes"),
                (lambda: feedlane.Receiver("i8", 3), feedlane.ArgumentError, "capacity"),
                (lambda: feedlane.Receiver("i8", senders=5000), feedlane.ArgumentError, "lanes"),
                (lambda: feedlane.Sender("/nonexistent/ring"), feedlane.PeerDead, "ring"),
                (lambda: feedlane.Sender(receiver.offer()), feedlane.LimitError, "lane"),
                (lambda: sender.send(b"123"), ValueError, "multiple of 8"),
                (lambda: sender.send(np.ones(2)), TypeError, "an array of float64 was passed, but a message is a int64"),
                (lambda: feedlane.Receiver.observe(-1), ValueError, "pid=-1"),
                (lambda: receiver.receive(0), ValueError, "most=0"),
                (lambda: receiver.receive(timeout=-1), ValueError, "timeout=-1")):
            with self.assertRaisesRegex(error, text):
                call()
        other = self.ring("i8")
        with self.assertRaisesRegex(ValueError, "has 4 bytes, but the ring's messages have 8"):
            feedlane.Sender(other.offer(), "f4")


if __name__ == "__main__":
    unittest.main()
