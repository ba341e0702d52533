# SPDX-License-Identifier: Apache-2.0
"""tools/bench_torch.py measures both loaders, where torch is.  Usage: bench_torch_test.py BENCH_TORCH PATH_OF_FEEDLANE"""
import json
import os
import subprocess
import sys

tool, feedlane = sys.argv[1:]
if len(os.sched_getaffinity(0)) < 2:
    print("skipped: one processor")
    sys.exit(77)
done = subprocess.run([sys.executable, tool, "--quick", "--rounds", "1", "--json", "--feedlane", feedlane],
                      stdout=subprocess.PIPE, text=True, timeout=250)
if done.returncode == 77:
    print(done.stdout)
    sys.exit(77)
assert done.returncode == 0, done.returncode
got = json.loads(done.stdout)
assert [row["bytes"] for row in got["handoff"]] == [4 << 10, 1 << 20]
for row in got["handoff"]:
    best = [max(spread["median"] for spread in row[name].values()) for name in ("feedlane_batches_s", "torch_batches_s")]
    assert min(best) > 0 and abs(best[0] / best[1] / row["ratio"] - 1) < 0.01, row
assert [row["workers"] for row in got["startup"]] == [1, 2]
for row in got["startup"]:
    for loader in ("torch", "feedlane"):
        for name in ("first_batch_ms", "epoch_restart_ms", "shutdown_ms"):
            assert row[loader][name] > 0, (loader, name)
