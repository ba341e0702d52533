# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at every bytecode of the Python package ends in KeyboardInterrupt: nothing is lost, nothing is leaked.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python signals_test.py [unittest's arguments]"""
import gc
import os
import signal
import sys
import unittest

from numpy_or_skip import np
import feedlane
from datasets import Numbers

PACKAGE = os.path.dirname(feedlane.__file__)
FILES = ("inline", "samplers", "loader", "iteration", "batch", "maker", "collate", "tree")


class Interrupter:
    """Sends a signal to this process at the n-th bytecode that it runs in the package: Python looks for signals between
    bytecodes, though not between any two."""

    def __init__(self, n, number=signal.SIGINT, files=FILES):
        self.n = self.left = n
        self.number, self.where = number, None
        self._files = {os.path.join(PACKAGE, name + ".py") for name in files}

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _called(self, frame, event, argument):
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        return self._step(frame, event, argument)

    def _step(self, frame, event, _argument):
        if event in ("call", "opcode"):
            self.left -= 1
            if self.left == 0:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
                self.in_destructor = "__del__" in (frame.f_code.co_name, frame.f_back.f_code.co_name)
                signal.raise_signal(self.number)
        return self._step


def interrupters(*more, step=1):
    """Interrupters at the first bytecode, and every `step` later, until one isn't reached twice in a row. CPython 3.13 shows the
    bytecodes of a function that has run without a trace, as after an exception in one, only from its next call on. So there is always
    one."""
    n, missed = 1, 0
    with Interrupter(0, *more):  # never interrupts
        while missed < 2:
            yield (interrupter := Interrupter(n, *more))
            if interrupter.where is None:
                missed += 1
            else:
                n, missed = n + step, 0


class Indices:
    """Not the library's."""

    def __iter__(self):
        return iter(range(40))


class Interrupting(Numbers):
    """Ctrl-C comes while sample `i` of `failing` is made."""

    def __getitem__(self, i):
        if i in self.failing:
            signal.raise_signal(signal.SIGINT)
        return np.full(self.size, i, np.int64)


class Everywhere(unittest.TestCase):
    def setUp(self):
        self.ignored = []
        hook, sys.unraisablehook = sys.unraisablehook, lambda what: self.ignored.append(str(what.object))
        self.addCleanup(setattr, sys, "unraisablehook", hook)

    def interrupt_everywhere(self, loader, use):
        """Runs `use` with Ctrl-C at its first bytecode, its second one, ... until it has no more. Returns their number."""
        for interrupter in interrupters():
            gc.collect(0)
            iterator, outcome = loader.batches(), "nothing"
            try:
                with interrupter:
                    use(iterator)
                if interrupter.where is None:
                    continue
                next(iterator)  # in a sampler that had given what was asked for: the next one tells
            except KeyboardInterrupt:
                outcome = "KeyboardInterrupt"
            # What a destructor raises is never seen, no matter who writes it.
            with self.subTest(interrupter.where, n=interrupter.n):
                if not interrupter.in_destructor:
                    self.assertEqual((outcome, self.ignored), ("KeyboardInterrupt", []))
                self.ignored.clear()
                self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)
                del iterator
                self.assertEqual(int(next(iter(loader))[0, 0]), 0)
                self.assertEqual(loader.stats()["slots_held"], 0)
        return interrupter.n

    def test_next_without_workers(self):
        with feedlane.Loader(Numbers(40), 4, held=2) as loader:
            self.assertGreater(self.interrupt_everywhere(loader, next), 300)

    def test_next_with_a_python_sampler(self):
        with feedlane.Loader(Numbers(40), 4, sampler=Indices(), held=2) as loader:
            self.assertGreater(self.interrupt_everywhere(loader, next), 300)

    def test_release(self):
        with feedlane.Loader(Numbers(40), 4, held=2) as loader:
            for interrupter in interrupters():
                batch = next(loader.batches())
                try:
                    with interrupter:
                        batch.release()
                except KeyboardInterrupt:
                    pass
                batch = None
                with self.subTest(interrupter.where):
                    self.assertEqual((loader.stats()["slots_held"], self.ignored), (0, []))
            self.assertGreater(interrupter.n, 8)

    def test_tensors(self):
        with feedlane.Loader(Numbers(40), 4, held=2) as loader:
            for make in (lambda tensor: tensor.__dlpack__(), lambda tensor: tensor.__dlpack__(max_version=(1, 0)),
                         lambda tensor: tensor.numpy()):
                for interrupter in interrupters():
                    batch, made = next(loader.batches()), None
                    try:
                        with interrupter:
                            made = make(batch.tensors[0])
                    except KeyboardInterrupt:
                        pass
                    with self.subTest(interrupter.where):
                        self.assertEqual(made is None, interrupter.where is not None)
                        made = None
                        batch.release()
                        self.assertEqual((loader.stats()["slots_held"], self.ignored), (0, []))
                self.assertGreater(interrupter.n, 8)


class Stop(BaseException):
    pass


def stop(*_):
    raise Stop


class Others(unittest.TestCase):
    def handle(self, number, handler):
        self.addCleanup(signal.signal, number, signal.signal(number, handler))

    def test_any_signal(self):
        ignored = []
        hook, sys.unraisablehook = sys.unraisablehook, lambda what: ignored.append(str(what.object))
        self.addCleanup(setattr, sys, "unraisablehook", hook)
        for number in signal.SIGQUIT, signal.SIGCHLD, signal.SIGRTMIN:
            self.handle(number, stop)
            with feedlane.Loader(Numbers(40), 4, held=2) as loader:
                for interrupter in interrupters(number, step=5):
                    iterator, outcome = loader.batches(), "nothing"
                    try:
                        with interrupter:
                            next(iterator)
                    except Stop:
                        outcome = "Stop"
                    if interrupter.where is not None and not interrupter.in_destructor:
                        with self.subTest(interrupter.where, number=number):
                            self.assertEqual((outcome, ignored), ("Stop", []))
                    ignored.clear()
                self.assertGreater(interrupter.n, 300)

    def test_a_handler_that_is_set_in_a_sample_stays(self):
        self.handle(signal.SIGUSR2, stop)

        class Setting(Numbers):
            def __getitem__(self, i):
                if i == 0:
                    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
                return super().__getitem__(i)
        with feedlane.Loader(Setting(8), 4) as loader:
            next(iter(loader))
        self.assertIs(signal.getsignal(signal.SIGUSR2), signal.SIG_IGN)

    def test_a_handler_that_closes_the_loader(self):
        loader = None
        self.handle(signal.SIGUSR1, lambda *_: loader.close())
        for use in (lambda: loader.close()), (lambda: next(iterator)):
            for workers in 0, 1:
                for interrupter in interrupters(signal.SIGUSR1, ("loader", "iteration"), step=1 + 4 * workers):
                    loader = feedlane.Loader(Numbers(40), 4, num_workers=workers)
                    iterator = loader.batches()
                    try:
                        with interrupter:
                            use()
                    except feedlane.StateError as error:
                        self.assertIn("closed", str(error))
                    loader.close()
                self.assertGreater(interrupter.n, 8)


class Building(unittest.TestCase):
    def test_what_a_handler_raises_while_a_batch_is_built_ends_the_loop(self):
        class Leaving(str):
            """A value that is made in the trainer, where the signal comes."""

            def __reduce__(self):
                return signal.raise_signal, (signal.SIGUSR1,)

        def leave(*_):
            raise SystemExit(3)
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, leave))
        with feedlane.Loader(Numbers(8), 4, collate_fn=lambda samples: [Leaving("x"), samples[0]], allow_pickle=True) as loader:
            with self.assertRaises(SystemExit):
                next(iter(loader))
            self.assertEqual(loader.stats()["slots_held"], 0)


class Inside(unittest.TestCase):
    def test_a_sample_is_interrupted_at_once(self):
        with feedlane.Loader(Interrupting(failing=[5]), 4) as loader:
            iterator = iter(loader)
            next(iterator)
            with self.assertRaises(KeyboardInterrupt):
                next(iterator)
            self.assertEqual(int(next(iterator)[0, 0]), 8)

    def test_a_sample_that_goes_through_a_loader_itself(self):
        class Outer(Numbers):
            def __getitem__(self, i):
                with feedlane.Loader(Interrupting(failing=[2] if i == 5 else []), 2) as inner:
                    return np.concatenate([row for _, batch in zip(range(3), inner) for row in batch])
        with feedlane.Loader(Outer(), 4) as loader:
            iterator = iter(loader)
            next(iterator)
            with self.assertRaises(KeyboardInterrupt):
                next(iterator)
            self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)
            self.assertEqual(next(iterator).shape, (4, 48))

    def test_a_handler_that_only_takes_note(self):
        seen = []
        before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        with feedlane.Loader(Numbers(40), 4, held=2) as loader:
            for interrupter in interrupters(signal.SIGUSR1, step=7):
                with interrupter:
                    self.assertEqual(int(next(iter(loader))[0, 0]), 0)
                with self.subTest(interrupter.where):
                    self.assertEqual(len(seen), interrupter.where is not None)
                seen.clear()


if __name__ == "__main__":
    unittest.main()
