# SPDX-License-Identifier: Apache-2.0
"""feedlane.DataLoader's worker processes where they aren't forked: what reaches them, and what an error says when they end."""
import os
import signal
import subprocess
import sys
import tempfile
import unittest

import numpy_or_skip  # noqa: F401

try:
    import torch
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

import feedlane

try:
    import cloudpickle
except ImportError:
    cloudpickle = None


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return i


class Deadly(Numbers):
    def __getitem__(self, i):
        os.kill(os.getpid(), signal.SIGSEGV)


_PROGRAM = """
import sys
import torch, feedlane
class Cell:
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor(i)
{}
try:
    print([batch.tolist() for batch in feedlane.DataLoader(Cell(), 4, num_workers=1, multiprocessing_context="spawn")])
except Exception as error:
    print(type(error).__name__, error, *getattr(error, "__notes__", ()))
"""


def output(program):
    """What a session prints that has no main module to import."""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=300).stdout


class Processes(unittest.TestCase):
    @unittest.skipIf(cloudpickle is None, "there is no cloudpickle")
    def test_lambdas(self):
        class Local(Numbers):
            pass
        for way in "spawn", "forkserver":
            loader = feedlane.DataLoader(Local(), 4, num_workers=1, multiprocessing_context=way,
                                         collate_fn=lambda samples: torch.tensor(samples) + 1, worker_init_fn=lambda _: None)
            self.assertEqual([batch.tolist() for batch in loader], [[1, 2, 3, 4], [5, 6, 7, 8]])

    @unittest.skipIf(cloudpickle is None, "there is no cloudpickle")
    def test_a_notebook(self):
        self.assertEqual(output(_PROGRAM.format("")), "[[0, 1, 2, 3], [4, 5, 6, 7]]\n")

    def test_without_cloudpickle(self):
        self.assertIn("install cloudpickle", output(_PROGRAM.format("sys.modules['cloudpickle'] = None")))

    def test_without_cloudpickle_a_lambda(self):
        found = output("import sys; sys.modules['cloudpickle'] = None\nimport feedlane\ntry:\n"
                       "    iter(feedlane.DataLoader([1], num_workers=1, collate_fn=lambda x: x, multiprocessing_context='spawn'))\n"
                       "except Exception as error:\n    print(type(error).__name__, *error.__notes__)\n")
        self.assertIn("install cloudpickle", found)

    def test_without_a_main_guard(self):
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write("import feedlane\nlist(feedlane.DataLoader([1], num_workers=1, multiprocessing_context='spawn'))\n")
            file.flush()
            found = subprocess.run([sys.executable, file.name], check=False, capture_output=True, text=True, timeout=300).stderr
        self.assertIn('must be under `if __name__ == "__main__":`', found.splitlines()[-1])

    def test_the_signal_is_told(self):
        with self.assertRaisesRegex(feedlane.Quarantined, r"DataLoader worker \(pid \d+\) is killed by signal: Segmentation fault \(SIGSEGV\)"):
            list(feedlane.DataLoader(Deadly(), 4, num_workers=1))

    def test_progress_bars(self):
        self.assertEqual(len(feedlane.DataLoader(Numbers(), 3, num_workers=2)), 3)
        try:
            import tqdm
        except ImportError:
            self.skipTest("there is no tqdm")
        with open(os.devnull, "w", encoding="ascii") as nowhere:
            bar = tqdm.tqdm(feedlane.DataLoader(Numbers(), 3, num_workers=2), disable=False, file=nowhere)
            self.assertEqual((bar.total, len(list(bar)), bar.n), (3, 3, 3))

    def test_collating_that_was_extended(self):
        known = torch.utils.data._utils.collate.default_collate_fn_map
        before = dict(known)
        known[int] = _negative
        try:
            self.assertEqual([b.tolist() for b in feedlane.DataLoader(Numbers(), 4, num_workers=1)],
                             [[0, -1, -2, -3], [-4, -5, -6, -7]])
        finally:
            known.clear()
            known.update(before)


def _negative(numbers, *, collate_fn_map=None):
    return -torch.tensor(numbers)


if __name__ == "__main__":
    unittest.main()
