# SPDX-License-Identifier: Apache-2.0
"""`feedlane bench` and tools/bench/compare-peers measure what they say: each measurement, short, as JSON with the members that are
promised, and as a table. Not how fast anything is. How long it may take, Meson says.

Usage: bench_test.py PATH_OF_FEEDLANE PATH_OF_COMPARE FOLDER_OF_THE_STAND_IN_FOR_CUDAS_DRIVER"""
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

FEEDLANE, COMPARE, STAND_IN = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
if len(os.sched_getaffinity(0)) < 2:
    print("skipped: one processor")
    sys.exit(77)


# Of each as little as there can be: where others keep the processors busy, each hand-over between two processes that wait
# busily takes as long as a process is let run, and a quick round has a million of them.
def bench(*arguments, program=(FEEDLANE, "bench"), env=None):
    return subprocess.run([*program, *arguments, "--tiny", "--rounds", "1"], check=True,
                          stdout=subprocess.PIPE, text=True, env=env).stdout


def over_stand_in(**more):
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, (STAND_IN, os.environ.get("LD_LIBRARY_PATH")))), **more}


def figures(name, *arguments, **how):
    """Rows, ratios."""
    said = json.loads(bench(name, "--json", *arguments, **how))
    got = said["groups"][name]
    assert list(said["groups"]) == [name] and said["machine"]["processors"] >= 2 and all(ns > 0 for ns in got["line_ns"])
    for ratio, spread in got["ratios"].items():
        assert spread["min"] <= spread["median"] <= spread["max"] and len(spread["rounds"]) == 1, ratio
    return got["rows"], {ratio: spread["median"] for ratio, spread in got["ratios"].items()}


def compared(name, *arguments):
    return figures(name, *arguments, program=(COMPARE,))


class Bench(unittest.TestCase):
    def check_positive(self, row, *names):
        for name in names:
            value = row[name]["median"] if isinstance(row[name], dict) else row[name]
            self.assertGreater(value, 0, name)

    def test_ring_of_the_command_is_compared_with_the_line_only(self):
        rows, ratios = figures("ring")
        self.assertEqual(sorted(ratios), ["ring.round_trip_over_line", "ring.send_receive_round_trip_over_line"])
        self.assertEqual(len(rows), 9)
        for row in rows:
            self.assertIn(row["name"].split(",")[0], ("floor", "feedlane"))
            self.check_positive(row, *(("one_way_mmsg_s",) if row["rtt_ns"] is None else ("rtt_ns", "rtt_over_line")))

    def test_floor(self):
        rows, _ = figures("floor")
        self.check_positive(rows[0], "rtt_ns")

    def test_ring(self):
        rows, ratios = compared("ring")
        named = {row["name"]: row for row in rows}
        spsc = "boost::lockfree::spsc_queue"
        calls, rigtorp, folly = "feedlane, send and receive", "rigtorp::SPSCQueue", "folly::ProducerConsumerQueue"
        peers = {rigtorp, folly} & set(named)  # those that were compiled in
        for name in ("feedlane", calls, spsc, *peers, "boost::lockfree::queue", "boost::interprocess::message_queue", "pipe",
                     "eventfd"):
            self.check_positive(named[name], "rtt_ns", "rtt_over_line", "rtt_cpu_ns")
        for name in (*peers, "boost::lockfree::queue", "boost::interprocess::message_queue", "pipe"):
            self.check_positive(named[name], "one_way_mmsg_s", "one_way_cpu_ns")
        # Both sides look for a line without sleeping, so they use at most two processors, and more than one that slept would.
        self.assertLessEqual(named["floor"]["rtt_cpu_ns"]["median"], 2.1 * named["floor"]["rtt_ns"]["median"])
        self.assertIsNone(named["eventfd"]["one_way_mmsg_s"])  # it holds one message
        self.assertAlmostEqual(named["feedlane"]["rtt_ns"]["median"] / named["floor"]["rtt_ns"]["median"]
                               / ratios["ring.round_trip_over_line"], 1, delta=0.01)
        self.assertAlmostEqual(named[calls]["rtt_ns"]["median"] / named["floor"]["rtt_ns"]["median"]
                               / ratios["ring.send_receive_round_trip_over_line"], 1, delta=0.01)
        for way, ratio in ("single", "single"), ("sent by one", "sent_by_one"), ("batched", "batched"):
            for ours, prefix in ("feedlane", "ring."), (calls, "ring.send_receive_"):
                mine, theirs = (named[f"{name}, {way}"]["one_way_mmsg_s"]["median"] for name in (ours, spsc))
                self.assertAlmostEqual(mine / theirs / ratios[f"{prefix}{ratio}_over_spsc"], 1, delta=0.01)
        mine = named[f"{calls}, single"]["one_way_mmsg_s"]["median"]
        for name, ratio in (rigtorp, "rigtorp"), (folly, "folly"):
            self.assertEqual(name in peers, f"ring.send_receive_single_over_{ratio}" in ratios)
            if name in peers:
                theirs = named[name]["one_way_mmsg_s"]["median"]
                self.assertAlmostEqual(mine / theirs / ratios[f"ring.send_receive_single_over_{ratio}"], 1, delta=0.01)
        best = [named[f"{spsc}, single"], *(named[name] for name in peers)]
        self.assertEqual(len(peers) == 2, "ring.send_receive_single_over_best" in ratios)
        if len(peers) == 2:
            theirs = max(row["one_way_mmsg_s"]["median"] for row in best)
            self.assertAlmostEqual(mine / theirs / ratios["ring.send_receive_single_over_best"], 1, delta=0.01)

    def test_latency(self):
        rows, ratios = compared("latency")
        self.assertEqual([row["rate"] for row in rows], [rate for rate in (10**4, 10**5, 10**6) for _ in range(4)])
        for row in rows:
            self.check_positive(row, "messages", "p50_ns", "p99_ns", "p999_ns", "max_ns", "receiver_cpu_share")
            self.assertLessEqual(row["receiver_cpu_share"]["median"], 1.1)
            values = [row[f"{name}_ns"]["median"] for name in ("p50", "p99", "p999", "max")]
            self.assertEqual(values, sorted(values), row["name"])
        for rate in 10**4, 10**5, 10**6:
            ours, polled = (next(row for row in rows if row["rate"] == rate and row["name"].startswith(name))
                            for name in ("feedlane", "boost::lockfree::spsc_queue, polled"))
            for name in "p50", "p99":
                self.assertAlmostEqual(ours[f"{name}_ns"]["median"] / polled[f"{name}_ns"]["median"]
                                       / ratios[f"latency.{rate}.{name}_over_spsc"], 1, delta=0.01)

    def test_lanes(self):
        rows, ratios = compared("lanes")
        self.assertEqual([row["producers"] for row in rows], [1, 2, 4, 8])
        for row in rows:
            self.check_positive(row, "mmsg_s", "boost_spsc_queues_mmsg_s", "boost_queue_mmsg_s")
            self.assertIn(f"lanes.{row['producers']}.over_spscs", ratios)
            self.assertIn(f"lanes.{row['producers']}.over_queue", ratios)

    def test_handoff(self):
        rows, ratios = figures("handoff", "--bytes", "4096", "1048576")
        self.assertEqual([(row["bytes"], row["workers"]) for row in rows], [(n, w) for n in (4096, 1 << 20) for w in (1, 2)])
        for row in rows:
            self.check_positive(row, "batches_s", "gb_s", "copiers_gb_s", "ratio", "trainer_wall_us", "prefetch")
            self.assertAlmostEqual(row["batches_s"]["median"] * row["bytes"] / 1e9 / row["gb_s"], 1, delta=0.01)
            self.assertAlmostEqual(row["gb_s"] / row["copiers_gb_s"] / row["ratio"]["median"], 1, delta=0.01)
            self.assertIn(f"handoff.{row['bytes']}.{row['workers']}.trainer_over_line", ratios)
            is_read = f"handoff.{row['bytes']}.{row['workers']}.over_read_copiers" in ratios
            self.assertEqual(is_read, row["workers"] < len(os.sched_getaffinity(0)))
            self.assertEqual(is_read, row["over_read_copiers"] is not None)

    def test_arena(self):
        rows, ratios = figures("arena", "--bytes", "4096", "1048576")
        ended, rows = [row for row in rows if "ended_bytes" in row], [row for row in rows if "senders" in row]
        self.assertEqual([row["ended_bytes"] for row in ended], [1 << 20, 256 << 20])
        for row in ended:
            self.check_positive(row, "owner_end_us", "process_end_us", "ratio")
            self.assertIn(f"arena.{row['ended_bytes']}.end_over_poll", ratios)
        self.assertEqual([(row["bytes"], row["senders"]) for row in rows], [(n, s) for n in (4096, 1 << 20) for s in (1, 4)])
        for row in rows:
            self.check_positive(row, "entries_s", "gb_s", "copiers_gb_s", "ratio")
            self.assertAlmostEqual(row["entries_s"] * row["bytes"] / 1e9 / row["gb_s"], 1, delta=0.01)
            self.assertIn(f"arena.{row['bytes']}.{row['senders']}.over_copiers", ratios)
            alone = ("over_read_copiers", "put_to_receive_p50_us", "put_to_receive_p99_us", "get_p50_us", "get_p99_us")
            if row["senders"] == 1:
                self.check_positive(row, *alone)
                self.assertLessEqual(row["get_p50_us"]["median"], row["get_p99_us"]["median"])
                self.assertLessEqual(row["put_to_receive_p50_us"]["median"], row["put_to_receive_p99_us"]["median"])
            else:
                self.assertEqual([row[name] for name in alone], [None] * len(alone))

    def test_startup(self):
        rows, ratios = figures("startup")
        self.assertEqual({(row["workers"], row["mode"]) for row in rows}, {(w, m) for w in (1, 2) for m in ("fork", "spawn")})
        for row in rows:
            self.assertEqual(row["arena_bytes"], 64 << 20)
            self.check_positive(row, "first_batch_ms", "epoch_restart_us", "bare_wake_us", "shutdown_ms")
            for name in "first_batch_over_pages", "new_epoch_over_wake", "end_over_pages":
                self.assertIn(f"startup.{row['mode']}.{row['workers']}.{name}", ratios)

    def test_loader(self):
        rows, ratios = compared("loader")
        self.assertEqual([(row["sample_bytes"], row.get("by"), row["workers"]) for row in rows],
                         [(n, by, w) for n, by in ((256, "get"), (256, "fetch"), (3 << 10, "get"), (147 << 10, "get")) for w in (0, 1, 2)]
                         + [(64, None, 64)])
        self.assertIn("loader.256.0.fetch_over_loops", ratios)
        for row in rows[:-1]:
            self.check_positive(row, "sample_bytes", "batch_size", "samples_s", "loops_samples_s", "ratio")
        self.check_positive(rows[-1], "batch_us", "eventfd_us", "ratio")
        self.assertIn("loader.crowd_over_eventfds", ratios)

    def test_small(self):
        rows, ratios = compared("small")
        self.assertEqual([(row["batch_size"], row["by"]) for row in rows],
                         2 * [(n, by) for n in (64, 512) for by in ("fetch", "get, prefetching", "get")])
        self.assertEqual(len(ratios), len(rows))
        self.assertIn("small.262144.64.get_ahead_over_loop", ratios)
        for row in rows:
            self.check_positive(row, "sample_ns", "loop_ns", "ratio")

    def test_reads(self):
        rows, ratios = compared("reads")
        self.assertEqual([(row["reads"], row["of"]) for row in rows],
                         [(1, "one read"), *((n, of) for n in (16, 64) for of in ("task in hand", "tasks ahead"))])
        for row in rows:
            self.check_positive(row, "samples_per_second", "of_what_they_allow")
        self.assertEqual(list(ratios), ["reads.16.over_reads_in_flight", "reads.64.over_reads_in_flight"])

    def test_cpp(self):
        rows, ratios = compared("cpp")
        self.assertEqual(list(ratios), ["cpp.rows.over_c", "cpp.tensors.over_c", "cpp.dlpack.over_c"])
        for row in rows:
            self.check_positive(row, "c_ns", "cpp_ns", "ratio")
            self.assertAlmostEqual(row["cpp_ns"]["median"] / row["c_ns"]["median"] / row["ratio"]["median"], 1, delta=0.02)

    def test_device(self):
        rows, ratios = figures("device", env=over_stand_in())
        sizes, others = (1 << 18, 1 << 22, 1 << 26), ("alloc_host", "pageable", "pin_then_copy")
        self.assertEqual([row["bytes"] for row in rows], [*sizes, 1 << 22])
        for row in rows:
            self.assertEqual(row["device"], "stand-in, no GPU")
        for row in rows[:-1]:
            self.check_positive(row, "slot_gb_s", *(f"{other}_gb_s" for other in others), *(f"over_{other}" for other in others))
            for other in others:
                self.assertAlmostEqual(row["slot_gb_s"]["median"] / row[f"{other}_gb_s"]["median"]
                                       / ratios[f"device.{row['bytes']}.over_{other}"], 1, delta=0.01)
        loop = rows[-1]
        self.check_positive(loop, "workers", "batches", "copy_ms", "fed_batch_ms", "work_ms")
        for name in "loop", "pin_then_copy_loop":
            self.assertAlmostEqual(loop[f"{name}_ms"]["median"] / loop["work_ms"]["median"]
                                   / ratios[f"device.overlap.{name}_over_work"], 1, delta=0.01)
        self.assertEqual(len(ratios), len(sizes) * len(others) + 2)
        self.assertIn("stand-in, no GPU", bench("device", env=over_stand_in()))

    def test_device_is_skipped_where_there_is_none(self):
        nowhere = [over_stand_in(FEEDLANE_STAND_IN_DEVICES="0")]
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            nowhere.append(None)  # and no driver
        for env in nowhere:
            done = subprocess.run([FEEDLANE, "bench", "device", "--json"], capture_output=True, text=True, env=env)
            self.assertEqual((done.returncode, done.stdout), (77, ""), done.stderr)
            self.assertRegex(done.stderr, r"\Afeedlane: bench device: skipped: no CUDA (device|driver).*\n\Z")
        done = subprocess.run([FEEDLANE, "bench", "all", "--json", "--tiny", "--rounds", "1"], capture_output=True, text=True,
                              env=over_stand_in(FEEDLANE_STAND_IN_DEVICES="0"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(sorted(json.loads(done.stdout)["groups"]), ["arena", "floor", "handoff", "ring", "startup"])

    def test_sizes_workers_and_prefetch_of_ones_own(self):
        rows, _ = figures("handoff", "--bytes", "4096", "8192", "--workers", "2", "--prefetch", "3", "--no-pin")
        self.assertEqual([(row["bytes"], row["workers"], row["prefetch"]) for row in rows], [(4096, 2, 3), (8192, 2, 3)])
        rows, ratios = figures("handoff", "--bytes", "4096", "--rate-only")
        self.assertEqual((rows[0]["ratio"], ratios), (None, {}))
        self.assertEqual({row["workers"] for row in figures("startup", "--workers", "3")[0]}, {3})

    @unittest.skipUnless(shutil.which("gnuplot"), "no gnuplot")
    def test_plots(self):
        with tempfile.TemporaryDirectory() as folder:
            for program, arguments, curve in (((COMPARE,), ("ring",), "boost::lockfree::spsc_queue"),
                                              ((FEEDLANE, "bench"), ("handoff", "--bytes", "4096", "65536"), "memcpy by 2 threads")):
                picture = os.path.join(folder, f"{arguments[0]} 'of' sizes.svg")
                bench(*arguments, "--plot", picture, program=program)
                with open(picture, encoding="utf-8") as svg:
                    text = svg.read()
                self.assertIn("<svg", text)
                self.assertIn(curve, text)
        nowhere = subprocess.run([FEEDLANE, "bench", "handoff", "--bytes", "4096", "--tiny", "--rounds", "1", "--plot",
                                  "/nowhere/at.svg"], capture_output=True, text=True)
        self.assertNotEqual(nowhere.returncode, 0)
        self.assertIn("/nowhere", nowhere.stderr)

    def test_tables(self):
        text = bench("ring", program=(COMPARE,))
        self.assertIn("boost::lockfree::spsc_queue", text)
        self.assertRegex(text, r"are compiled in|not compiled in \(Meson's option peers\): (rigtorp|folly)::")
        self.assertIn("boost::lockfree::spsc_queue, polled", bench("latency", program=(COMPARE,)))

    def test_one_processor_is_refused(self):
        one = str(min(os.sched_getaffinity(0)))
        done = subprocess.run(["taskset", "-c", one, FEEDLANE, "bench", "floor"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("need two processors", done.stderr)

    def test_what_is_refused(self):
        for wrong in ([FEEDLANE, "bench"], [FEEDLANE, "bench", "ring", "--rounds", "0"], [FEEDLANE, "bench", "nothing"], [FEEDLANE],
                      [COMPARE], [COMPARE, "nothing"], [COMPARE, "ring", "--rounds", "0"]):
            done = subprocess.run(wrong, capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0, wrong)
            self.assertTrue(done.stderr or done.stdout)


if __name__ == "__main__":
    unittest.main()
