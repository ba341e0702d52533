# SPDX-License-Identifier: Apache-2.0
"""`feedlane metrics` by the parsers of prometheus_client, and beside what `feedlane top` and `ls` say of the same trainers. Other
loaders of this user may run meanwhile.  Usage: metrics_test.py PATH_OF_FEEDLANE PATH_OF_PREPARED"""
import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

try:
    from prometheus_client import openmetrics, parser
    import prometheus_client.openmetrics.parser
except ImportError:
    print("skipped: no prometheus_client")
    sys.exit(77)

import trainers

PREPARED = sys.argv.pop(2)
FEEDLANE = sys.argv.pop(1)
BUCKETS = 47
STEPS = "exposed_wait first_batch_wait queue work ready hold".split()


def families(text, form="openmetrics"):
    parse = (openmetrics.parser if form == "openmetrics" else parser).text_string_to_metric_families
    got = {family.name: family for family in parse(text)}
    assert all(name.startswith("feedlane_") for name in got), list(got)
    return got


def numbers(text, form="openmetrics"):
    """By the sample's name and its labels."""
    return {(s.name.removeprefix("feedlane_"), frozenset(s.labels.items())): s.value
            for family in families(text, form).values() for s in family.samples}


def metrics(*arguments):
    return trainers.run(FEEDLANE, "metrics", *arguments)


class Values(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with trainers.Trainer(PREPARED, "two_loaders") as cls.trainer:
            cls.top = trainers.settled(FEEDLANE, cls.trainer.pid)
            listed = json.loads(trainers.run(FEEDLANE, "ls", "--json", "--seconds", "0.01"))["loaders"]
            cls.ls = {row["loader"]: row for row in listed if row["pid"] == cls.trainer.pid}
            cls.open_text = metrics("--pid", str(cls.trainer.pid))
            cls.json_text = metrics("--pid", str(cls.trainer.pid), "--json")
            cls.prometheus_text = metrics("--pid", str(cls.trainer.pid), "--form", "prometheus")
        cls.got = numbers(cls.open_text)

    def of(self, nth, name, **labels):
        about = {"pid": str(self.trainer.pid), "loader": str(nth), "name": self.top[nth]["name"], **labels}
        return self.got[name, frozenset(about.items())]

    def test_loaders(self):
        self.assertEqual(sorted(self.top), [0, 1])
        for nth, top in self.top.items():
            ls = self.ls[nth]
            for name, wanted in (("batches_total", 10), ("batches_total", top["total_batches"]),
                                 ("samples_total", top["total_samples"]), ("yielded_bytes_total", ls["total_bytes"]),
                                 ("epochs_total", 1), ("epoch", top["epoch"]), ("epoch_batch", top["batch"]),
                                 ("epoch_batches", top["batches"]), ("in_epoch", 1), ("reserved_bytes", ls["reserved_bytes"])):
                self.assertEqual(self.of(nth, name), wanted, name)
            self.assertEqual(self.of(nth, "loader_info", version=ls["version"], start="spawn"), 1)
            self.assertEqual(self.of(nth, "slots", state="free"), top["slots_free"])
            self.assertEqual(self.of(nth, "slots", state="held"), top["slots_held"])
            self.assertEqual(sum(self.of(nth, "slots", state=state) for state in ("free", "held", "used")), top["slots"])
            for segment in "control", "data":
                self.assertEqual(self.of(nth, "segment_bytes", segment=segment), ls[f"{segment}_bytes"])
            for reason in "signal", "exit", "hung", "invalid", "unattached":
                self.assertEqual(self.of(nth, "restarts_total", reason=reason), 0)

    def test_workers(self):
        for nth, top in self.top.items():
            for worker in top["each_worker"]:
                number = str(worker["id"])
                self.assertEqual(self.of(nth, "worker_tasks_total", worker=number), worker["total_tasks"])
                self.assertEqual(self.of(nth, "worker_samples_total", worker=number), worker["total_samples"])
                self.assertEqual(self.of(nth, "worker_committed_bytes_total", worker=number), worker["total_bytes"])
                self.assertEqual(self.of(nth, "worker_errors_total", worker=number), 0)
                self.assertEqual(self.of(nth, "worker_generation", worker=number), 0)
                states = {s: self.of(nth, "worker_state", worker=number, state=s)
                          for s in ("none", "starting", "opening", "ready", "stopping", "failed")}
                self.assertEqual([s for s, is_in in states.items() if is_in], [worker["state"]])

    def test_histograms(self):
        bounds = [str((2**b - 1) / 1e9) for b in range(BUCKETS - 1)] + ["+Inf"]
        text = families(self.open_text)
        for name in [f"{step}_seconds" for step in STEPS] + ["worker_work_seconds"]:
            family = text[f"feedlane_{name}"]
            self.assertEqual((family.type, family.unit), ("histogram", "seconds"))
            got = [s for s in family.samples if s.name.endswith("_bucket")]
            rows = [got[i:i + BUCKETS] for i in range(0, len(got), BUCKETS)]
            self.assertEqual(len(rows), 2 if "worker" not in name else 8, name)
            for row in rows:
                self.assertEqual([str(float(s.labels["le"])).replace("inf", "+Inf") for s in row], bounds)
        for nth in self.top:
            # The first batch of the epoch is counted apart; nine more were taken, and all of them released.
            self.assertEqual(self.of(nth, "first_batch_wait_seconds_count"), 1)
            self.assertEqual(self.of(nth, "exposed_wait_seconds_count"), 9)
            for step in "queue", "work", "ready":
                self.assertEqual(self.of(nth, f"{step}_seconds_count"), 10, step)
            work = [self.of(nth, "worker_work_seconds_count", worker=str(w)) for w in range(4)]
            self.assertEqual(sum(work), 10)
            self.assertGreaterEqual(self.of(nth, "work_seconds_sum"), 10 * 0.001)  # each batch sleeps so long

    def test_percentiles_lie_in_their_buckets(self):
        for nth, top in self.top.items():
            for worker in top["each_worker"]:
                buckets = {float(le): value for (name, labels), value in self.got.items() for (key, le) in labels if key == "le"
                           and name == "worker_work_seconds_bucket" and dict(labels)["worker"] == str(worker["id"])
                           and dict(labels)["loader"] == str(nth)}
                count = buckets[float("inf")]
                for share, key in (0.5, "work_p50_ns"), (0.99, "work_p99_ns"):
                    reached = round(min((bound for bound, sum_ in buckets.items() if sum_ >= max(1, share * count)), default=0) * 1e9)
                    self.assertTrue(reached // 2 <= worker[key] <= reached + 1 if count else worker[key] == 0, (reached, worker[key]))

    def test_percentiles_are_those_of_top(self):
        for nth, top in self.top.items():
            for worker in top["each_worker"]:
                for quantile, key in ("0.5", "work_p50_ns"), ("0.99", "work_p99_ns"):
                    got = self.of(nth, "worker_work_percentile_seconds", worker=str(worker["id"]), quantile=quantile)
                    self.assertEqual(round(got * 1e9), worker[key])
            self.assertGreaterEqual(self.of(nth, "percentile_seconds", step="work", quantile="0.5"), 0.001 * 7 / 8)  # each batch sleeps so long

    def test_units_and_kinds(self):
        for name, family in families(self.open_text).items():
            self.assertIn(family.type, ("counter", "gauge", "histogram", "info"))
            self.assertEqual(family.unit, next((unit for unit in ("seconds", "bytes") if name.endswith(f"_{unit}")), ""), name)
            self.assertRegex(family.documentation, r"^\S.*\.$")
        self.assertTrue(self.open_text.endswith("\n# EOF\n"))

    def test_both_forms_say_the_same(self):
        other = numbers(self.prometheus_text, "prometheus")
        starts = [{key: value for key, value in form.items() if key[0] == "start_time_seconds"} for form in (self.got, other)]
        self.assertEqual(*[{key: value for key, value in form.items() if key[0] != "start_time_seconds"}
                           for form in (self.got, other)])
        self.assertEqual(len(starts[0]), 2)
        for key, value in starts[0].items():
            self.assertAlmostEqual(value, starts[1][key], delta=1)
        # What Prometheus's own parser of this form knows: another word after # TYPE is an error to it.
        kinds = {line.split()[3] for line in self.prometheus_text.splitlines() if line.startswith("# TYPE")}
        self.assertEqual(kinds, {"counter", "gauge", "histogram"})
        self.assertNotIn("# UNIT", self.prometheus_text)
        self.assertNotIn("# EOF", self.prometheus_text)


    def test_json(self):
        got = json.loads(self.json_text)["families"]
        wanted = families(self.open_text)
        self.assertEqual([family["name"] for family in got], list(wanted))
        for family in got:
            self.assertEqual(list(family), ["name", "type", "unit", "help", "samples"])
            same = wanted[family["name"]]
            self.assertEqual((family["type"], family["unit"], family["help"]), (same.type, same.unit, same.documentation))
            if family["name"] != "feedlane_start_time_seconds":
                self.assertEqual([(s["name"], s["labels"], s["value"]) for s in family["samples"]],
                                 [(s.name, s.labels, s.value) for s in same.samples])


class Running(unittest.TestCase):
    def test_waits(self):
        with trainers.Trainer(PREPARED, "slow_data") as trainer:
            got = {name: value for (name, labels), value in numbers(metrics("--pid", str(trainer.pid))).items()
                   if {key for key, _ in labels} == {"pid", "loader", "name"}}
        waited = got["exposed_wait_seconds_sum"] + got["first_batch_wait_seconds_sum"]
        self.assertGreater(waited, 0.02)  # a batch takes so long
        # The present wait is in the total already, and in no histogram yet.
        self.assertLessEqual(waited, got["wait_seconds_total"] * 1.01)
        self.assertGreater(waited, got["wait_seconds_total"] * 0.6)

    def test_restarts_by_reason(self):
        with trainers.Trainer(PREPARED, "dying_workers") as trainer:
            before = json.loads(trainers.run(FEEDLANE, "top", "--pid", str(trainer.pid), "--json", "--count", "1", "--seconds", "0.1"))
            got = {dict(labels)["reason"]: value for (name, labels), value in numbers(metrics("--pid", str(trainer.pid))).items()
                   if name == "restarts_total"}
            after = json.loads(trainers.run(FEEDLANE, "top", "--pid", str(trainer.pid), "--json", "--count", "1", "--seconds", "0.1"))
        self.assertGreater(got["signal"], 0)
        self.assertEqual(sum(got.values()), got["signal"])
        self.assertLessEqual(before["total_restarts"], got["signal"])
        self.assertLessEqual(got["signal"], after["total_restarts"])


class Files(unittest.TestCase):
    def test_a_file_is_replaced_as_a_whole(self):
        with trainers.Trainer(PREPARED, "idle") as trainer, tempfile.TemporaryDirectory() as folder:
            for name, form in ("feedlane.prom", "prometheus"), ("feedlane.txt", "openmetrics"):
                path = os.path.join(folder, name)
                metrics("--pid", str(trainer.pid), "-o", path)
                with open(path, encoding="utf-8") as old:
                    metrics("--pid", str(trainer.pid), "-o", path)
                    self.assertNotEqual(os.fstat(old.fileno()).st_ino, os.stat(path).st_ino)
                    was = old.read()
                with open(path, encoding="utf-8") as new:
                    now = new.read()
                self.assertEqual(set(numbers(was, form)), set(numbers(now, form)))
                self.assertEqual(now.endswith("# EOF\n"), form == "openmetrics")
                mask = os.umask(0)
                os.umask(mask)
                self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o666 & ~mask)  # node_exporter is another user
                self.assertEqual(os.listdir(folder), [name])
                os.remove(path)

    def test_what_cannot_be_written(self):
        with trainers.Trainer(PREPARED, "idle") as trainer, tempfile.TemporaryDirectory() as folder:
            there = os.path.join(folder, "folder")
            os.makedirs(os.path.join(there, "within"))
            for path in "/nowhere/feedlane.prom", there:
                done = subprocess.run([FEEDLANE, "metrics", "--pid", str(trainer.pid), "-o", path], stderr=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 1)
                self.assertIn(path, done.stderr)
            self.assertEqual(os.listdir(folder), ["folder"])
            done = subprocess.run(f"{FEEDLANE} metrics >/dev/full", shell=True, stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("standard output", done.stderr)

    def test_no_loader(self):
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as other:
            done = subprocess.run([FEEDLANE, "metrics", "--pid", str(other.pid)], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("has no loader", done.stderr)
            other.stdin.close()


if __name__ == "__main__":
    unittest.main()
