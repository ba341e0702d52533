# SPDX-License-Identifier: Apache-2.0
"""`feedlane trace --merge` and a file of torch's profiler, of the same loop: what `next` waited for lies within what torch
recorded around it, and Perfetto's trace processor opens both as one. Skipped without torch 2 or later.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python trace_torch_test.py FEEDLANE"""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import perfetto

for module in "numpy", "torch":
    if importlib.util.find_spec(module) is None:
        print(f"skipped: no {module}")
        sys.exit(77)

import torch as installed

if int(installed.__version__.split(".", 1)[0]) < 2:
    print(f"skipped: torch {installed.__version__} does not say of which clock its times are")
    sys.exit(77)

FEEDLANE = sys.argv.pop(1) if __name__ == "__main__" else ""
BATCHES = 60
TOLERANCE_US = 50  # torch converts the processor's cycles to time; it is some microseconds off


class Slow:
    """A sample takes 1 ms, and each 40th one 20."""

    def __len__(self):
        return 4 * BATCHES

    def __getitem__(self, i):
        import numpy as np
        time.sleep(0.02 if i % 40 == 39 else 0.001)
        return np.full(16, i, np.float32)


def train(path):
    """The trainer: writes torch's file, and keeps the loader until the end of standard input."""
    from torch.profiler import ProfilerActivity, profile, record_function

    import feedlane
    with feedlane.Loader(Slow(), batch_size=4, num_workers=2) as loader:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            batches = iter(loader)
            for i in range(BATCHES):
                with record_function(f"next {i}"):
                    batch = next(batches)
                with record_function("step"):
                    installed.as_tensor(batch).square().sum().item()
                    del batch
        profiler.export_chrome_trace(path)
        print("written", flush=True)
        sys.stdin.read()


class Torch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.torch, self.both = (os.path.join(folder.name, name) for name in ("torch.json", "both.json"))
        trainer = subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), "--train", self.torch],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   env=dict(os.environ, FEEDLANE_TRACE="4096"))
        try:
            self.assertEqual(trainer.stdout.readline(), "written\n")
            subprocess.run([FEEDLANE, "trace", "--pid", str(trainer.pid), "-o", self.both, "--merge", self.torch], check=True,
                           timeout=60)
        finally:
            trainer.stdin.close()
            trainer.wait(60)
            trainer.stdout.close()
        self.pid = trainer.pid

    def test_merged(self):
        with open(self.torch, encoding="utf-8") as file:
            alone = json.load(file)
        with open(self.both, encoding="utf-8") as file:
            both = json.load(file)
        theirs = [e for e in both["traceEvents"] if e.get("cat") != "feedlane"]
        ours = [e for e in both["traceEvents"] if e.get("cat") == "feedlane"]
        self.assertEqual(theirs, alone["traceEvents"])
        self.assertEqual(both["baseTimeNanoseconds"], alone["baseTimeNanoseconds"])
        self.assertFalse({e["pid"] for e in ours} & {e["pid"] for e in theirs})
        self.check_aligned(theirs, ours)

        # In nanoseconds, as Perfetto understands them.
        rows, slices = perfetto.query(
            self.both,
            "select name, ts, dur from slice where name like 'next %' or name like 'wait for batch %' order by ts",
            f"""select count(*) as n from slice s join thread_track t on s.track_id = t.id join thread using (utid)
                join process using (upid) where pid = {self.pid} and s.name like 'batch %'""")
        self.assertEqual(slices[0]["n"], 0)  # torch's rows have torch's slices alone
        self.check_aligned([dict(row, ts=row["ts"] / 1000, dur=row["dur"] / 1000) for row in rows if row["name"].startswith("next")],
                           [dict(row, ts=row["ts"] / 1000, dur=row["dur"] / 1000) for row in rows if row["name"].startswith("wait")])

    def check_aligned(self, theirs, ours):
        """Each wait within torch's slice of the same call. The waits that mattered are most of it."""
        calls = {int(e["name"].split()[1]): e for e in theirs if e["name"].startswith("next ")}
        waits = {int(e["name"].split()[3]): e for e in ours if e["name"].startswith("wait for batch")}
        self.assertEqual(list(calls), list(range(BATCHES)))
        self.assertGreater(len(waits), BATCHES // 10)
        for batch, wait in waits.items():
            if batch == BATCHES:
                continue  # nobody asked for it
            call = calls[batch]
            self.assertGreaterEqual(wait["ts"], call["ts"] - TOLERANCE_US, batch)
            self.assertLessEqual(wait["ts"] + wait["dur"], call["ts"] + call["dur"] + TOLERANCE_US, batch)
        waited, called = (sum(e["dur"] for e in events.values()) for events in (waits, calls))
        self.assertGreater(waited, called / 2)


if __name__ == "__main__":
    if FEEDLANE == "--train":
        train(sys.argv[1])
        sys.exit()
    missing = perfetto.why_missing()
    if missing:
        print("skipped:", missing)
        sys.exit(77)
    unittest.main()
