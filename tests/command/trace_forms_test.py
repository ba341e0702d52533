# SPDX-License-Identifier: Apache-2.0
"""The forms of `feedlane trace`, from made-up records: Perfetto's trace processor finds in each file the slices, flows, counters
and annotations that the records mean; JSON is added to another file and nothing else in it changes.
Usage: trace_forms_test.py TRACE_FORMS"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import perfetto

TRACE_FORMS = sys.argv.pop(1)
E_SAMPLE, E_QUARANTINED = -12, -15
US = 1000
S = 1_000_000_000
MONOTONIC, BOOTTIME, REALTIME = 5000 * S, 7000 * S, 1_790_860_000 * S + 123_456_789
BASE = 227 * 7_889_238 * S  # the last multiple of torch's step
T = MONOTONIC - 60 * S


def record(task, batch, worker, slot, *stamps, exposed=0, **more):
    """Stamps: dispatched, begun, committed, swept, yielded, released, in microseconds after T; None: has not happened."""
    names = ("dispatched_ns", "begun_ns", "committed_ns", "swept_ns", "yielded_ns", "released_ns")
    times = {name: T + us * US for name, us in zip(names, stamps) if us is not None}
    return {"task": task, "epoch": 2, "batch": batch, "worker": worker, "slot": slot, "rows": 4, "bytes": 4096,
            "exposed_ns": exposed * US, **times, **more}


RECORDS = [
    record(1, 0, 0, 0, 10, 20, 50, 52, 55, 90, exposed=40),
    record(2, 1, 1, 1, 11, 21, 51, 53, 70, 110),  # held while batch 0 still is
    record(3, 2, 0, 2, 12, 50, 80, 81, 95, 95, exposed=5, status=E_SAMPLE, rows=0),
    record(4, 3, 1, 0, 91, 92, 120, 121, 130, None, exposed=15, attempt=1),  # still held
    record(5, 4, 0, 1, 111, 112, None, None, 140, 140, exposed=3, status=E_QUARANTINED),  # its worker died
    record(6, 5, 0, 2, 113, 141, None),  # in work
    record(7, 6, 1, 3, 131),  # queued
    record(8, 7, -1, 4, 141, 142, 150, 150, 150, 160, exposed=9),  # inline
    {"task": 0, "slot": 5, "worker": 0, "batch": 0},  # a slot that was never used
]
GIVEN = {"pid": 4321, "nth": 1, "program": "python train.py", "name": "train \"set\"", "lost": 17, "earlier": 3, "records": RECORDS,
         "clocks": [{"monotonic_ns": MONOTONIC, "boottime_ns": BOOTTIME, "realtime_ns": REALTIME}]}
WORK = [("worker 0", "batch 0", 20, 30), ("worker 0", "batch 2", 50, 30), ("worker 0", "batch 4", 112, 28),
        ("worker 0", "batch 5", 141, -1), ("worker 1", "batch 1", 21, 30), ("worker 1", "batch 3", 92, 28)]
WAITS = {"wait for batch 0": (15, 40), "wait for batch 2": (90, 5), "wait for batch 3": (115, 15), "wait for batch 4": (137, 3),
         "wait for batch 7": (141, 9)}
TORCH = """{
  "schemaVersion": 1,
  "traceEvents": [
  {"ph": "X", "name": "a \\"pid\\": ]}", "pid": 4321, "tid": 4321, "ts": 2811.250, "dur": 10.5, "args": {"l": [1, [2]]}},
  {"ph": "X", "name": "kernel", "pid": 0, "tid": 7, "ts": 2812, "dur": 1}
  ],
  "traceName": "t.json",  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790850000000000000
}
"""


def write(folder, given, torch=None):
    paths = [os.path.join(folder, name) for name in ("made.pftrace", "made.json")]
    if torch is not None:
        paths += [os.path.join(folder, "torch.json"), os.path.join(folder, "both.json")]
        with open(paths[2], "w", encoding="latin-1") as file:
            file.write(torch)
    done = subprocess.run([TRACE_FORMS, *paths], input=json.dumps(given), text=True, capture_output=True, timeout=60)
    return done, paths


class Forms(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def written(self, given=None, torch=None):
        done, paths = write(self.folder, given or GIVEN, torch)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return paths

    def check_slices(self, path, origin, is_json):
        """The same in both forms. A slice that has not ended: -1, and in JSON it lasts until the loader was read."""
        slices = ("select t.name as track, s.name as name, s.ts as ts, s.dur as dur, s.depth as depth from slice s join "
                  + ("(select tt.id as id, thread.name as name from thread_track tt join thread using (utid))" if is_json else "track")
                  + " t on s.track_id = t.id order by s.ts, s.depth")
        rows, = perfetto.query(path, slices)
        tracks = {}
        for row in rows:
            begin, dur = row["ts"] - origin, row["dur"]
            if is_json and begin + dur == MONOTONIC - T:
                dur = -1
            self.assertEqual((begin % US, max(dur, 0) % US), (0, 0), row)
            tracks.setdefault(row["track"], []).append((row["name"], begin // US, dur // US if dur >= 0 else -1, row["depth"]))
        work = [(track, *slice[:3]) for track in ("worker 0", "worker 1") for slice in tracks[track]]
        self.assertEqual(work, WORK)
        self.assertEqual([(name, begin, dur) for name, begin, dur, _ in tracks["made inline"]], [("batch 7", 142, 8)])
        self.assertEqual({name: (begin, dur) for name, begin, dur, _ in tracks["next"] if name.startswith("wait")}, WAITS)
        self.assertEqual([(name, begin, dur) for name, begin, dur, _ in tracks["next"] if "E_" in name],
                         [("batch 2: E_SAMPLE", 95, 0), ("batch 4: E_QUARANTINED", 140, 0)])
        self.assertEqual(tracks["slot 0"], [("batch 0", 10, 80, 0), ("queued", 10, 10, 1), ("work", 20, 30, 1),
                                            ("ready", 50, 5, 1), ("held", 55, 35, 1),
                                            ("batch 3", 91, -1, 0), ("queued", 91, 1, 1), ("work", 92, 28, 1),
                                            ("ready", 120, 10, 1), ("held", 130, -1, 1)])
        self.assertEqual(tracks["slot 3"], [("batch 6", 131, -1, 0), ("queued", 131, -1, 1)])
        held = sorted(slice[:3] for track, found in tracks.items() if track.startswith("held by") for slice in found)
        self.assertEqual(held, [("batch 0", 55, 35), ("batch 1", 70, 40), ("batch 3", 130, -1), ("batch 7", 150, 10)])
        self.assertNotIn("slot 5", tracks)
        return tracks

    def test_perfetto(self):
        path, _ = self.written()
        tracks = self.check_slices(path, BOOTTIME - MONOTONIC + T, False)
        self.assertEqual(len([t for t in tracks if t.startswith("held by")]), 1)  # tracks of one name, which Perfetto merges
        flows, process, about, ready, used, arguments, clocks, inline = perfetto.query(
            path,
            """select p.name as source, q.name as target, a.name as batch from flow f join slice a on f.slice_out = a.id
               join slice b on f.slice_in = b.id join track p on a.track_id = p.id join track q on b.track_id = q.id
               order by a.ts, b.ts""",
            """select distinct p.pid as pid, p.name as name from process_track t join process p using (upid)
               where t.name like 'worker%'""",
            """select key, display_value as value from slice s join args using (arg_set_id)
               where s.name = 'feedlane trace' and key like 'debug.%'""",
            """select ts, value from counter c join counter_track t on c.track_id = t.id where t.name = 'batches ready'
               order by ts""",
            """select max(value) as most, count(*) as changes from counter c join counter_track t on c.track_id = t.id
               where t.name = 'slots in use'""",
            """select key, display_value as value from slice s join track t on s.track_id = t.id join args using (arg_set_id)
               where t.name = 'worker 0' and s.name = 'batch 2'""",
            """select clock_name as name, clock_value as value from clock_snapshot order by name""",
            "select distinct extract_arg(arg_set_id, 'debug.worker') as worker from slice where name = 'batch 7'")
        self.assertEqual([(f["source"], f["target"], f["batch"]) for f in flows if f["batch"] == "batch 0"],
                         [("slot 0", "worker 0", "batch 0"), ("worker 0", "held by the trainer", "batch 0")])
        self.assertEqual([(f["source"], f["target"]) for f in flows if f["batch"] == "batch 2"],
                         [("slot 2", "worker 0"), ("worker 0", "next")])
        self.assertEqual(len(flows), 7 + 6)  # to work: all but batch 6; from there: all but 5 and 6, which were not yielded
        self.assertEqual(process, [{"pid": 4321, "name": "python train.py"}])
        about = {row["key"].removeprefix("debug."): row["value"] for row in about}
        self.assertEqual((about["lost"], about["earlier"], about["records"], about["name"]), ("17", "3", "9", 'train "set"'))
        self.assertEqual([int(row["value"]) for row in ready], [1, 2, 1, 0, 1, 0, 1, 0])
        self.assertEqual((used[0]["most"], ready[0]["ts"]), (4, T + 50 * US + BOOTTIME - MONOTONIC))
        arguments = {row["key"].removeprefix("debug."): row["value"] for row in arguments}
        self.assertEqual(arguments, {"epoch": "2", "batch": "2", "task": "3", "worker": "0", "slot": "2", "attempt": "0",
                                     "rows": "0", "bytes": "4096", "status": "E_SAMPLE"})
        self.assertEqual(inline, [{"worker": -1}])
        clocks = {row["name"]: int(row["value"]) for row in clocks}  # large ones are strings
        self.assertEqual((clocks["MONOTONIC"], clocks["REALTIME"], clocks["BOOTTIME"]), (MONOTONIC, REALTIME, BOOTTIME))

    def test_json(self):
        _, path = self.written()
        with open(path, encoding="utf-8") as file:
            text = json.load(file)
        self.assertEqual((text["displayTimeUnit"], text["baseTimeNanoseconds"]), ("ms", BASE))
        self.assertEqual((text["feedlane"]["lost"], text["feedlane"]["earlier"]), (17, 3))
        for event in text["traceEvents"]:
            self.assertGreater(event["pid"], 1 << 22)  # beyond the numbers that Linux gives
        first = next(e for e in text["traceEvents"] if e["ph"] == "X" and e["name"] == "wait for batch 0")
        self.assertEqual(round(first["ts"] * US), REALTIME - MONOTONIC + T + 15 * US - BASE)
        origin = REALTIME - MONOTONIC + T - BASE
        tracks = self.check_slices(path, origin, True)
        self.assertEqual(sorted(t for t in tracks if t.startswith("held by")), ["held by the trainer 1", "held by the trainer 2"])
        flows, = perfetto.query(path, "select count(*) as n from flow")
        self.assertEqual(flows[0]["n"], 7 + 6)

    def test_a_batch_that_begins_at_its_dispatch_flows_from_the_slot_to_the_worker(self):
        one = {**GIVEN, "records": [record(1, 0, 0, 0, 10, 10, 50, 52, 55, 90, exposed=40)]}
        done, paths = write(self.folder, one)
        self.assertEqual(done.returncode, 0, done.stderr)
        flows, = perfetto.query(paths[0], """select p.name as source, q.name as target from flow f join slice a on f.slice_out = a.id
            join slice b on f.slice_in = b.id join track p on a.track_id = p.id join track q on b.track_id = q.id order by f.id""")
        self.assertEqual(sorted((f["source"], f["target"]) for f in flows),
                         [("slot 0", "worker 0"), ("worker 0", "held by the trainer")])
        flows, = perfetto.query(paths[1], "select count(*) as n from flow")
        self.assertEqual(flows[0]["n"], 2)

    def test_merged(self):
        _, _, torch, both = self.written(torch=TORCH)
        with open(both, encoding="utf-8") as file:
            text = file.read()
        merged, alone = json.loads(text), json.loads(TORCH)
        events = [e for e in merged["traceEvents"] if e.get("cat") != "feedlane"]
        self.assertEqual(events, alone.pop("traceEvents"))
        self.assertEqual({name: merged[name] for name in alone}, alone)
        self.assertTrue(text.startswith(TORCH[:TORCH.index("\n  ],\n")]) and text.endswith(TORCH[TORCH.index("],\n") + 1:]))
        first = next(e for e in merged["traceEvents"] if e["name"] == "wait for batch 0")
        self.assertEqual(round(first["ts"] * US), REALTIME - MONOTONIC + T + 15 * US - merged["baseTimeNanoseconds"])
        threads, = perfetto.query(both, "select count(*) as n from slice s join thread_track t on s.track_id = t.id "
                                        "join thread using (utid) join process using (upid) where pid = 4321")
        self.assertEqual(threads[0]["n"], 1)  # torch's row has its own slices alone
        # Once more, as for a second loader.
        done, paths = write(self.folder, dict(GIVEN, nth=2), text)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(paths[3], encoding="utf-8") as file:
            twice = json.load(file)
        self.assertEqual(len({e["pid"] for e in twice["traceEvents"] if e.get("cat") == "feedlane"}), 2)
        self.assertEqual(len([name for name in twice if name.startswith("feedlane")]), 2)
        flows, = perfetto.query(paths[3], "select count(*) as n from flow")
        self.assertEqual(flows[0]["n"], 2 * (7 + 6))

    def test_nothing_to_merge_with(self):
        _, _, _, both = self.written(torch='{"traceEvents": []}')
        with open(both, encoding="utf-8") as file:
            first = next(e for e in json.load(file)["traceEvents"] if e["name"] == "wait for batch 0")
        self.assertEqual(int(first["ts"]), (REALTIME - MONOTONIC + T + 15 * US) // US)  # without a base: since 1970
        for wrong, why in (("[]", "array"), ('{"a": 1}', "traceEvents"), ('{"traceEvents": [', "not JSON"), ("\x1f\x8b", "gunzip")):
            with self.subTest(wrong):
                done, paths = write(self.folder, GIVEN, wrong)
                self.assertEqual(done.returncode, 1)
                self.assertIn(why, done.stderr)

    def test_no_records(self):
        path, text = self.written(dict(GIVEN, records=[]))
        slices, = perfetto.query(path, "select name from slice")
        self.assertEqual([row["name"] for row in slices], ["feedlane trace"])
        with open(text, encoding="utf-8") as file:
            self.assertFalse([e for e in json.load(file)["traceEvents"] if e["ph"] != "M"])


if __name__ == "__main__":
    missing = perfetto.why_missing()
    if missing:
        print("skipped:", missing)
        sys.exit(77)
    unittest.main()
