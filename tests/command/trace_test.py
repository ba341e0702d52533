# SPDX-License-Identifier: Apache-2.0
"""`feedlane trace` beside trainers that run: what Perfetto's trace processor finds in its files is what the library counts, also
while records are overwritten, and after the trainer was killed.
Usage: trace_test.py FEEDLANE PREPARED LIBFEEDLANE"""
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import perfetto

FEEDLANE, PREPARED, LIBRARY = sys.argv[1:4]
del sys.argv[1:4]
DEADLINE_S = 60
BUCKETS = 47


class Histogram(ctypes.Structure):
    _fields_ = [("count", ctypes.c_uint64), ("sum_ns", ctypes.c_uint64), ("buckets", ctypes.c_uint64 * BUCKETS)]


class Timings(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, Histogram) for name in ("exposed", "start", "queue", "work", "ready", "hold")]


class Stats(ctypes.Structure):  # the beginning of feedlane_stats
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in ("batches", "samples", "bytes", "epochs")]


class Monitor:
    """The library's own figures, which stay after the trainer's end."""

    def __init__(self, pid):
        self.library = ctypes.CDLL(LIBRARY)
        self.handle = ctypes.c_void_p()
        status = self.library.feedlane_monitor_open(ctypes.c_int64(pid), 0, ctypes.byref(self.handle), None)
        assert status == 0, status

    def close(self):
        self.library.feedlane_monitor_destroy(ctypes.byref(self.handle))

    def batches(self):
        stats = Stats(size=ctypes.sizeof(Stats))
        assert self.library.feedlane_monitor_get_stats(self.handle, ctypes.byref(stats)) == 0
        return stats.batches

    def timings(self, worker=-1):
        """None: there are fewer workers."""
        timings = Timings(size=ctypes.sizeof(Timings))
        status = self.library.feedlane_monitor_get_timings(self.handle, worker, ctypes.byref(timings))
        return timings if status == 0 else None

    def wait_for(self, batches):
        deadline = time.monotonic() + DEADLINE_S
        while self.batches() < batches:
            assert time.monotonic() < deadline, (self.batches(), batches)
            time.sleep(0.001)


# What is yielded, by which worker it was made, and for how long `next` waited.
YIELDED = """select extract_arg(arg_set_id, 'debug.batch') as batch from slice s join track t on s.track_id = t.id
             where t.name = 'held by the trainer' order by batch"""
WORK = """select t.name as worker, count(*) as n, sum(s.dur) as ns from slice s join track t on s.track_id = t.id
          where t.name like 'worker %' and extract_arg(s.arg_set_id, 'debug.task') in (select
            extract_arg(s.arg_set_id, 'debug.task') from slice s join track t on s.track_id = t.id
            where t.name = 'held by the trainer')
          group by worker order by worker"""
# A sum over no rows is NULL: the trainer may never have waited.
WAITS = "select count(*) as n, coalesce(sum(dur), 0) as ns from slice where name like 'wait for%'"
FLOWS = """select count(*) as n from flow f join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id
           join track p on a.track_id = p.id join track q on b.track_id = q.id
           where extract_arg(a.arg_set_id, 'debug.task') = extract_arg(b.arg_set_id, 'debug.task')
             and ((p.name like 'slot %' and q.name like 'worker %') or (p.name like 'worker %' and q.name like 'held%'))
             and extract_arg(a.arg_set_id, 'debug.batch') < 10"""
ABOUT = """select replace(key, 'debug.', '') as key, display_value as value from slice s join args using (arg_set_id)
           where s.name = 'feedlane trace'"""


class Trace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.output = os.path.join(folder.name, "trace")

    def trainer(self, fault, trace=4096, *more):
        """Running, after its first batches."""
        environment = dict(os.environ, FEEDLANE_TRACE=str(trace))
        if not trace:
            del environment["FEEDLANE_TRACE"]
        process = subprocess.Popen([PREPARED, fault, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   env=environment)
        self.addCleanup(self.end, process)
        self.assertTrue(process.stdout.readline().startswith("running"))
        return process

    def end(self, process):
        """As a trainer that is asked to."""
        process.stdin.close()
        try:
            process.wait(DEADLINE_S)
        finally:
            process.kill()
            process.stdout.close()

    def monitor(self, trainer):
        monitor = Monitor(trainer.pid)
        self.addCleanup(monitor.close)
        return monitor

    def command(self, trainer, *arguments):
        return [FEEDLANE, "trace", "--pid", str(trainer.pid), "-o", self.output, *arguments]

    def run_trace(self, trainer, *arguments, code=0):
        done = subprocess.run(self.command(trainer, *arguments), capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        return done.stderr

    def follow(self, trainer, *arguments):
        """`trace --follow` that reads: its process has opened the loader's memory and blocks the signals that end it."""
        process = subprocess.Popen(self.command(trainer, "--follow", *arguments), stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self.assertLess(time.monotonic(), deadline)
            with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
                blocked = next(int(line.split()[1], 16) for line in status if line.startswith("SigBlk"))
            if blocked & 1 << (signal.SIGTERM - 1):
                return process
            time.sleep(0.001)

    def followed(self, process):
        """The end of `follow`, and what was said."""
        _, said = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 0, said)
        return said

    def check_complete(self, yielded, batches, about):
        """All of the epoch's batches, to the last one: from the first one, unless records had been overwritten before the first
        look."""
        about = {row["key"]: row["value"] for row in about}
        first = yielded[0]["batch"]
        self.assertEqual([row["batch"] for row in yielded], list(range(first, batches)))
        self.assertEqual((about["lost"], first == 0), ("0", about["earlier"] == "0"))

    def test_a_file_says_what_the_library_counts(self):
        trainer = self.trainer("idle")
        monitor = self.monitor(trainer)
        said = self.run_trace(trainer)
        self.assertIn("0 records were lost, 0 were overwritten before the first look", said)
        yielded, work, waits, flows, about, process = perfetto.query(
            self.output, YIELDED, WORK, WAITS, FLOWS, ABOUT, "select pid, name from process where pid != 0")
        self.check_complete(yielded, 10, about)
        self.assertEqual(yielded[0]["batch"], 0)
        # Timings count a batch when it is yielded.
        timings = monitor.timings()
        self.assertEqual(waits[0]["ns"], timings.exposed.sum_ns + timings.start.sum_ns)
        self.assertEqual(waits[0]["n"], timings.exposed.count + timings.start.count - timings.exposed.buckets[0]
                         - timings.start.buckets[0])
        by_worker = {row["worker"]: (row["n"], row["ns"]) for row in work}
        for worker in range(4):
            counted = monitor.timings(worker).work
            self.assertEqual(by_worker.get(f"worker {worker}", (0, 0)), (counted.count, counted.sum_ns), worker)
        self.assertIsNone(monitor.timings(4))
        self.assertEqual(sum(n for n, _ in by_worker.values()), 10)
        self.assertEqual(flows[0]["n"], 20)  # from the dispatch to the worker, from there to the trainer
        self.assertEqual([row["pid"] for row in process], [trainer.pid])
        self.assertTrue(process[0]["name"].endswith("prepared idle"), process)

    def test_json_has_the_same(self):
        trainer = self.trainer("idle")
        self.run_trace(trainer)
        expected = perfetto.query(self.output, WAITS, "select count(*) as n, coalesce(sum(dur), 0) as ns from slice where name = 'work' and dur > 0")
        self.run_trace(trainer, "--form", "chrome")
        found = perfetto.query(self.output, WAITS, "select count(*) as n, coalesce(sum(dur), 0) as ns from slice where name = 'work' and dur > 0")
        self.assertEqual(found, expected)
        with open(self.output, encoding="utf-8") as file:
            text = json.load(file)
        self.assertEqual((text["displayTimeUnit"], text["feedlane"]["lost"], text["feedlane"]["ended"]), ("ms", 0, False))
        self.assertGreater(text["baseTimeNanoseconds"], 0)
        now_us = (time.time_ns() - text["baseTimeNanoseconds"]) / 1000
        times = [event["ts"] for event in text["traceEvents"]]
        self.assertLess(max(times), now_us)
        self.assertGreater(min(times), now_us - 10 * DEADLINE_S * 1e6)

    def test_following_loses_nothing_while_records_are_overwritten(self):
        trainer = self.trainer("failing_samples", 64)
        monitor = self.monitor(trainer)
        process = self.follow(trainer)
        monitor.wait_for(monitor.batches() + 1000)
        trainer.stdin.close()  # the loader ends, and following with it
        said = self.followed(process)
        self.assertIn("0 records were lost", said)
        yielded, about = perfetto.query(self.output, YIELDED, ABOUT)
        self.check_complete(yielded, monitor.batches(), about)
        self.assertGreaterEqual(len(yielded), 1000)
        self.assertIn({"key": "ended", "value": "1"}, about)

    def test_following_keeps_the_newest(self):
        trainer = self.trainer("failing_samples", 64)
        monitor = self.monitor(trainer)
        process = self.follow(trainer, "--max", "100")
        monitor.wait_for(monitor.batches() + 300)
        trainer.stdin.close()
        self.followed(process)
        yielded, about = perfetto.query(self.output, YIELDED, ABOUT)
        about = {row["key"]: int(row["value"]) for row in about if row["value"].isdigit()}
        last = monitor.batches()
        self.assertEqual([row["batch"] for row in yielded], list(range(last - len(yielded), last)))
        self.assertGreaterEqual(about["lost"], 200 - 64)
        # Those in slots come on top, and a record is of a batch that was not yielded too.
        self.assertIn(about["records"], range(100, 200))
        self.assertLessEqual(len(yielded), about["records"])

    def test_a_killed_trainer(self):
        trainer = self.trainer("failing_samples", 64)
        monitor = self.monitor(trainer)
        process = self.follow(trainer)
        monitor.wait_for(monitor.batches() + 300)
        trainer.kill()
        self.followed(process)
        yielded, open_slices, about = perfetto.query(self.output, YIELDED, "select name from slice where dur = -1", ABOUT)
        self.check_complete(yielded, monitor.batches(), about)
        self.assertTrue(open_slices)  # what was under way never ended
        self.assertIn({"key": "ended", "value": "1"}, about)

    def test_a_trace_that_is_too_short_says_what_is_missing(self):
        trainer = self.trainer("slow_trainer", 4)
        self.monitor(trainer).wait_for(60)
        self.run_trace(trainer)
        records, about = perfetto.query(self.output, "select count(*) as n from slice where name = 'work'", ABOUT)
        about = {row["key"]: int(row["value"]) for row in about if row["value"].isdigit()}
        self.assertGreater(about["earlier"], 0)
        self.assertGreaterEqual(about["records"], 4)
        self.assertLess(records[0]["n"], 60)

    def test_interruption_and_time_end_following(self):
        trainer = self.trainer("slow_trainer")
        for end in signal.SIGINT, signal.SIGTERM:
            process = self.follow(trainer)
            process.send_signal(end)
            self.assertIn("records were lost", self.followed(process))
            self.assertTrue(perfetto.query(self.output, YIELDED)[0])
        began = time.monotonic()
        self.run_trace(trainer, "--seconds", "0.5", "--form", "chrome")
        self.assertGreaterEqual(time.monotonic() - began, 0.5)
        self.assertIsNone(trainer.poll())

    def test_a_worker_that_never_ends_its_batch(self):
        trainer = self.trainer("stuck_worker")
        deadline = time.monotonic() + DEADLINE_S
        before, stuck = None, []
        while not stuck or stuck != before:  # in hand at two looks, which are far longer apart than a batch takes
            self.assertLess(time.monotonic(), deadline)
            before = stuck
            self.run_trace(trainer)
            stuck, = perfetto.query(self.output, """select s.name as batch from slice s join track t
                                                    on s.track_id = t.id where t.name = 'worker 1' and s.dur = -1""")
        self.assertEqual(len(stuck), 1)

    def test_inline(self):
        trainer = self.trainer("inline")
        self.run_trace(trainer)
        made, = perfetto.query(self.output, """select count(*) as n, coalesce(min(dur), 0) as ns from slice s join track t on s.track_id = t.id
                                               where t.name = 'made inline' and dur > 0""")
        self.assertGreaterEqual(made[0]["n"], 20)
        self.assertGreaterEqual(made[0]["ns"], 8_000_000)  # four samples of 2 ms

    def test_the_form_follows_the_name_of_the_file_unless_it_is_given(self):
        trainer = self.trainer("idle")
        for name, options, is_json in (("a.json", (), True), ("a.json", ("--form", "perfetto"), False), ("a.pftrace", (), False),
                                       ("a.pftrace", ("--form", "chrome"), True)):
            self.output = os.path.join(os.path.dirname(self.output), name)
            self.run_trace(trainer, *options)
            with open(self.output, "rb") as file:
                self.assertEqual(file.read(1) == b"{", is_json, (name, options))

    def test_what_is_refused(self):
        trainer = self.trainer("idle", 0)
        said = self.run_trace(trainer, code=1)
        self.assertIn("config.trace", said)
        self.assertIn("FEEDLANE_TRACE=4096", said)
        self.assertFalse(os.path.exists(self.output))
        for seconds in "1e10", "nan", "0":
            done = subprocess.run(self.command(trainer, "--seconds", seconds), capture_output=True, text=True, timeout=DEADLINE_S)
            self.assertGreaterEqual(done.returncode, 100, seconds)
        self.assertIn("no loader 1", self.run_trace(trainer, "--loader", "1", code=1))
        with_trace = self.trainer("two_loaders")
        self.run_trace(with_trace, "--loader", "1")
        done = subprocess.run([*self.command(with_trace)[:-1], "/nowhere/trace"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere/trace", done.stderr)
        self.end(trainer)
        self.assertTrue(self.run_trace(trainer, code=1))
        said = self.run_trace(with_trace, "--merge", "/nowhere/torch.json", code=1)
        self.assertIn("/nowhere/torch.json", said)
        with open(self.output, encoding="utf-8") as file:
            self.assertTrue(json.load(file)["traceEvents"])  # the loader's trace alone


if __name__ == "__main__":
    missing = perfetto.why_missing()
    if missing:
        print("skipped:", missing)
        sys.exit(77)
    unittest.main()
