#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/bench/peers.py measures what it says: data, settings, and the death of a worker. Usage: peers_test.py ROOT"""

import inspect
import itertools
import os
import pathlib
import signal
import sys
import tempfile
import unittest

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy")
    sys.exit(77)

sys.path.insert(0, sys.argv[1] + "/tools/bench")

import peer_loaders  # noqa: E402
import peer_one  # noqa: E402
import peer_work  # noqa: E402

SEQUENCES = 70 * peer_work.BATCH["tokens"]


def write(folder):
    """Sequences of one, two and three tokens, and 100 batches of rows."""
    lengths = 1 + np.arange(SEQUENCES) % 3
    places = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places.tofile(folder / "tokens.idx")
    np.arange(1, places[-1] + 1, dtype=np.uint16).tofile(folder / "tokens.bin")
    table = np.ones((100 * peer_work.BATCH["table"], peer_work.COLUMNS), np.float32)
    table[:, 0] = np.arange(len(table))
    np.save(folder / "table.npy", table)


def child(program):
    """Runs it in a forked process, for a minute at most."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            program()
        finally:
            os._exit(1)
    return pid


def busy():
    for _ in itertools.count():
        pass


def busy_child():
    """It has used more time than an idle one has."""
    pid = child(busy)
    while peer_one.nanoseconds(pid) < 50_000_000:
        pass
    return pid


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


class Peers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        write(pathlib.Path(cls.temporary.name))

    def killed(self, epochs, work="tokens"):
        contender = peer_loaders.Contender("made up", lambda *_, **__: epochs, (work,), {})
        return peer_one.kill(contender, work, self.temporary.name, {})

    def plain(self, work="tokens"):
        return peer_loaders.plain_loop(work, self.temporary.name, False)

    def test_a_contender_can_be_called_with_each_of_its_settings(self):
        for contender in peer_loaders.CONTENDERS:
            make = contender.make
            if make in (peer_loaders.torch_dataloader, peer_loaders.feedlane_dataloader):
                make = lambda *arguments, **settings: None  # noqa: E731: torch_like has them
                inspect.signature(peer_loaders.torch_like).bind(None, "table", "folder", True, **contender.fixed,
                                                                **{name: values[0] for name, values in contender.searched.items()})
            inspect.signature(make).bind("table", "folder", True, **contender.fixed,
                                         **{name: values[0] for name, values in contender.searched.items()})
        names = [(contender.name, work) for contender in peer_loaders.CONTENDERS for work in contender.works]
        self.assertEqual(len(names), len(set(names)))

    def test_a_batch_is_the_same_in_each_form(self):
        array = peer_work.pad([np.array([1, 2], np.uint16), np.array([3], np.uint16)])
        self.assertEqual(array.tolist(), [[1, 2], [3, 0]])
        for form in "arrays", "bytes":
            np.testing.assert_array_equal(peer_work.unpacked(peer_work.packed(array, form)), array)

    def test_an_epoch_without_a_worker_says_so(self):
        for work in "tokens", "table":
            self.assertEqual(self.killed(self.plain(work), work), "no worker process")

    def test_the_busiest_child_is_killed_and_samples_are_counted(self):
        self.addCleanup(end, child(signal.pause))
        worker = busy_child()
        self.addCleanup(end, child(signal.pause))

        def epoch():
            for number, batch in enumerate(self.plain()()):
                if number == peer_one.KILLED_AT + 1:
                    self.assertEqual(os.waitpid(worker, 0)[1], signal.SIGKILL)
                yield batch
        self.assertRegex(self.killed(epoch), "^each sample once, longest wait ")

    def test_what_follows_a_death_is_told(self):
        def with_child(batches):
            worker = busy_child()
            yield from itertools.islice(self.plain()(), batches)
            os.waitpid(worker, 0)

        def short():
            yield from with_child(peer_one.KILLED_AT + 10)

        def failing():
            yield from with_child(peer_one.KILLED_AT + 1)
            raise RuntimeError

        def twice():
            first = None
            for number, batch in enumerate(with_child(SEQUENCES)):
                first = batch if first is None else first
                yield first if number == 40 else batch
        self.assertEqual(self.killed(short), f"ends without an error, with {32 * (peer_one.KILLED_AT + 10):,} of {SEQUENCES:,} samples")
        self.assertRegex(self.killed(failing), "^RuntimeError after ")
        self.assertIn("others than asked for", self.killed(twice))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
