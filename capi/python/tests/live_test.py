# SPDX-License-Identifier: Apache-2.0
"""Live samplers: threads and coroutines add indices while a Loader takes them.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python live_test.py [unittest's arguments]"""
import asyncio
import gc
import os
import select
import threading
import unittest
import weakref

import numpy_or_skip  # noqa: F401
import feedlane
from feedlane import samplers
from datasets import Numbers
from processes import DEADLINE_S


def rows(batch):
    return [int(row[0]) for row in batch]


class InThread:
    """Runs a function in a thread, and waits for it at the end."""

    def __init__(self, function, *arguments):
        self.thread = threading.Thread(target=function, args=arguments)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.thread.join()


class Feeding(unittest.TestCase):
    def test_each_request_is_answered_before_the_next_one_comes(self):
        for workers in 0, 2:
            live = feedlane.Live()
            with self.subTest(workers=workers), feedlane.Loader(Numbers(), 1, sampler=live, num_workers=workers) as loader:
                batches = iter(loader)
                for index in 7, 3, 3:
                    with InThread(live.put, index):
                        self.assertEqual(rows(next(batches)), [index])
                with InThread(live.end):
                    self.assertEqual(list(batches), [])

    def test_every_index_of_several_threads_comes_once(self):
        for workers in 0, 2:
            live, left = feedlane.Live(), threading.Semaphore(0)

            def produce(first):
                for index in range(first, first + 200):
                    live.put(index)
                left.release()

            def finish():
                left.acquire()
                left.acquire()
                live.end()
            with self.subTest(workers=workers), feedlane.Loader(Numbers(), 3, sampler=live, num_workers=workers) as loader, \
                    InThread(produce, 0), InThread(produce, 200), InThread(finish):
                self.assertEqual(sorted(index for batch in loader for index in rows(batch)), list(range(400)))

    def test_a_list_is_a_batch_at_once(self):
        live = feedlane.Live(batch_size=4)
        with feedlane.Loader(Numbers(), batch_sampler=live, num_workers=1) as loader:
            batches = iter(loader)
            for batch in [5], [1, 2, 3, 4], [9, 8]:
                with InThread(live.put, batch):
                    self.assertEqual(rows(next(batches)), batch)
            live.put([1] * 5)
            self.assertRaisesRegex(feedlane.SampleError, "5 indices, but at most 4", next, batches)

    def test_single_indices_wait_for_a_full_batch_or_the_end(self):
        live = feedlane.Live()
        for index in 1, 2, 3:
            live.put(index)
        with feedlane.Loader(Numbers(), 2, sampler=live, timeout=0.02) as loader:
            batches = iter(loader)
            self.assertEqual(rows(next(batches)), [1, 2])
            self.assertRaises(feedlane.Timeout, next, batches)
            live.end()
            live.put(4)
            live.end()
            self.assertEqual([rows(batch) for batch in batches], [[3]])
            self.assertEqual([rows(batch) for batch in loader], [[4]])

    def test_coroutines_add_requests_to_a_loader_that_waits_in_their_event_loop(self):
        for workers in 0, 1:
            live = feedlane.Live()

            async def main(loader):
                batches, answers = aiter(loader), []
                for index in 4, 5:
                    answer = asyncio.ensure_future(anext(batches))
                    while loader._asleep is None:
                        await asyncio.sleep(0)
                    live.put(index)
                    answers.append(rows(await answer))
                live.end()
                return answers, [rows(batch) async for batch in batches]
            with self.subTest(workers=workers), feedlane.Loader(Numbers(), 1, sampler=live, num_workers=workers) as loader:
                self.assertEqual(asyncio.run(asyncio.wait_for(main(loader), DEADLINE_S)), ([[4], [5]], []))


class Protocol(unittest.TestCase):
    def test_any_iterable_with_a_descriptor_may_have_nothing_now(self):
        read, write = os.pipe()
        self.addCleanup(os.close, write)
        os.set_blocking(read, False)

        class Bytes:
            """The bytes of a pipe as indices."""

            def fileno(self):
                return read

            def __iter__(self):
                while True:
                    try:
                        data = os.read(read, 16)
                    except BlockingIOError:
                        yield None
                        continue
                    if not data:
                        return
                    yield from data
        with os.fdopen(read, "rb"), feedlane.Loader(Numbers(), 1, sampler=Bytes(), num_workers=1) as loader:
            batches = iter(loader)
            with InThread(os.write, write, bytes([8, 9])):
                self.assertEqual([rows(next(batches)), rows(next(batches))], [[8], [9]])

    def test_none_without_a_descriptor_is_refused(self):
        with feedlane.Loader(Numbers(), 1, sampler=[1, None]) as loader:
            batches = iter(loader)
            self.assertEqual(rows(next(batches)), [1])
            self.assertRaisesRegex(feedlane.SampleError, "NoneType", next, batches)

    def test_iterated_without_a_loader_it_yields_none_when_there_is_nothing_now(self):
        live = feedlane.Live()
        indices = iter(samplers.of(live))
        self.assertIsNone(next(indices))
        live.put(6)
        live.put(7)
        self.assertEqual([next(indices), next(indices), next(indices)], [6, 7, None])
        batches = iter(samplers.batch(samplers.of(live), 2))
        live.put(1)
        self.assertIsNone(next(batches))
        live.put(2)
        self.assertEqual(next(batches), [1, 2])

    def test_its_descriptor_is_readable_from_an_addition_until_it_is_asked(self):
        live = feedlane.Live()
        items = iter(live)

        def is_readable():
            return select.select([live], [], [], 0)[0] != []
        self.assertFalse(is_readable())
        for add in lambda: live.put(1), live.end:
            add()
            self.assertTrue(is_readable())
            next(items, None)
            self.assertIsNone(next(items, None))
            self.assertFalse(is_readable())

    def test_its_descriptor_lives_as_long_as_a_loader_takes_from_it(self):
        live = feedlane.Live()
        fd, gone = live.fileno(), weakref.ref(live)
        loader = feedlane.Loader(Numbers(), 1, sampler=live)
        loader.sampler = None
        del live
        gc.collect()
        os.fstat(fd)
        loader.close()
        del loader
        gc.collect()
        self.assertIsNone(gone())


if __name__ == "__main__":
    unittest.main()
