# SPDX-License-Identifier: Apache-2.0
"""`feedlane bench` measures what it says: each measurement, short, as JSON with the members that are promised, and as a
table. Not how fast anything is.  Usage: bench_test.py PATH_OF_FEEDLANE"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

FEEDLANE = sys.argv.pop(1)
if len(os.sched_getaffinity(0)) < 2:
    print("skipped: one processor")
    sys.exit(77)


def bench(*arguments):
    return subprocess.run(
        [FEEDLANE, "bench", *arguments, "--quick", "--rounds", "1"], check=True, stdout=subprocess.PIPE, text=True, timeout=100
    ).stdout


def figures(name):
    return json.loads(bench(name, "--json"))


class Bench(unittest.TestCase):
    def check_positive(self, row, *names):
        for name in names:
            self.assertGreater(row[name], 0, name)

    def test_floor(self):
        self.check_positive(figures("floor"), "rtt_ns")

    def test_ring(self):
        got = figures("ring")
        self.check_positive(got["floor"], "rtt_ns")
        self.check_positive(got["spsc"], "rtt_ns", "rtt_over_floor", "one_way_mmsg_s", "batched_mmsg_s")
        self.assertAlmostEqual(got["spsc"]["rtt_ns"] / got["floor"]["rtt_ns"], got["spsc"]["rtt_over_floor"], delta=0.02)
        for peer in ("boost::lockfree::spsc_queue", "boost::lockfree::queue", "boost::interprocess::message_queue", "pipe"):
            self.check_positive(got["peers"][peer], "rtt_ns", "one_way_mmsg_s")
        self.assertIsNone(got["peers"]["eventfd"]["one_way_mmsg_s"])  # it holds one message

    def test_lanes(self):
        got = figures("lanes")
        self.assertEqual([row["producers"] for row in got], [1, 2])
        for row in got:
            self.check_positive(row, "mmsg_s", "peer_boost_queue_mmsg_s")

    def test_handoff(self):
        got = figures("handoff")
        self.assertEqual([(row["bytes"], row["workers"]) for row in got[:2]], [(4096, 1), (4096, 2)])
        for row in got:
            self.check_positive(row, "batches_s", "gb_s", "memcpy_gb_s", "ratio", "trainer_cpu_us")
            self.assertAlmostEqual(row["batches_s"] * row["bytes"] / 1e9 / row["gb_s"], 1, delta=0.01)

    def test_startup(self):
        got = figures("startup")
        self.assertEqual({(row["workers"], row["mode"]) for row in got}, {(w, m) for w in (1, 2) for m in ("fork", "spawn")})
        for row in got:
            self.assertEqual(row["arena_bytes"], 64 << 20)
            self.check_positive(row, "pages_ms", "free_ms", "first_batch_ms", "epoch_restart_us", "eventfd_rtt_us", "shutdown_ms")

    def test_loader(self):
        got = figures("loader")
        self.assertEqual([row["workers"] for row in got["collated"]], [0, 1, 2])
        for row in got["collated"]:
            self.check_positive(row, "sample_bytes", "batch_size", "samples_s", "loop_samples_s", "ratio")
        self.assertEqual(got["oversubscribed"]["workers"], 64)
        self.check_positive(got["oversubscribed"], "batch_us", "eventfd_us", "ratio")

    def test_cpp(self):
        got = figures("cpp")
        self.assertEqual(list(got), ["rows", "tensors", "dlpack"])
        for row in got.values():
            self.check_positive(row, "c_ns", "cpp_ns", "ratio")
            self.assertAlmostEqual(row["cpp_ns"] / row["c_ns"], row["ratio"], delta=0.02 * row["ratio"])

    def test_sizes_and_workers_of_ones_own(self):
        rows = json.loads(bench("handoff", "--json", "--bytes", "4096", "8192", "--workers", "2"))
        self.assertEqual([(row["bytes"], row["workers"]) for row in rows], [(4096, 2), (8192, 2)])
        self.assertEqual({row["workers"] for row in json.loads(bench("startup", "--json", "--workers", "3"))}, {3})

    @unittest.skipUnless(shutil.which("gnuplot"), "no gnuplot")
    def test_plots(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, curve in (("ring", "boost::lockfree::spsc_queue"), ("handoff", "memcpy by one process")):
                picture = os.path.join(folder, f"{name} 'of' sizes.svg")
                bench(name, "--plot", picture)
                with open(picture, encoding="utf-8") as svg:
                    text = svg.read()
                self.assertIn("<svg", text)
                self.assertIn(curve, text)
        nowhere = subprocess.run([FEEDLANE, "bench", "handoff", "--bytes", "4096", "--quick", "--rounds", "1", "--plot",
                                  "/nowhere/at.svg"], capture_output=True, text=True, timeout=100)
        self.assertNotEqual(nowhere.returncode, 0)
        self.assertIn("gnuplot", nowhere.stderr)

    def test_tables(self):
        self.assertIn("boost::lockfree::spsc_queue", bench("ring"))

    def test_one_processor_is_refused(self):
        one = str(min(os.sched_getaffinity(0)))
        done = subprocess.run(["taskset", "-c", one, FEEDLANE, "bench", "floor"], capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 1)
        self.assertIn("need two processors", done.stderr)

    def test_what_is_refused(self):
        for wrong in (["bench"], ["bench", "ring", "--rounds", "0"], ["bench", "nothing"], []):
            done = subprocess.run([FEEDLANE, *wrong], capture_output=True, text=True, timeout=100)
            self.assertNotEqual(done.returncode, 0, wrong)
            self.assertTrue(done.stderr or done.stdout)


if __name__ == "__main__":
    unittest.main()
