# SPDX-License-Identifier: Apache-2.0
"""tools/bench/peer_torch.py measures both loaders, where torch is.  Usage: bench_torch_test.py PEER_TORCH PATH_OF_FEEDLANE"""
import json
import os
import subprocess
import sys

tool, feedlane = sys.argv[1:]
if len(os.sched_getaffinity(0)) < 2:
    print("skipped: one processor")
    sys.exit(77)
done = subprocess.run([sys.executable, tool, "--quick", "--rounds", "1", "--json", "--feedlane", feedlane],
                      stdout=subprocess.PIPE, text=True)
if done.returncode == 77:
    print(done.stdout)
    sys.exit(77)
assert done.returncode == 0, done.returncode
got = json.loads(done.stdout)
group = got["groups"]["torch"]
handoff, startup = group["rows"][:5], group["rows"][5:]
assert [row["bytes"] for row in handoff] == [4 << 10, 64 << 10, 1 << 20, 16 << 20, 147 << 20]
for row in handoff:
    ours, theirs = (row[name]["rounds"] for name in ("feedlane_batches_s", "torch_batches_s"))
    assert abs(ours[0] / theirs[0] / row["ratio"]["median"] - 1) < 0.01, row
    assert row["ratio"] == group["ratios"][f"torch.{row['bytes']}.over_best"]
    best = max(row["torch_searched"], key=lambda tried: tried["batches_s"])
    assert (best["workers"], best["prefetch"], best["way"]) == (row["workers"], row["prefetch"], row["way"]), "both run with torch's best"
    assert {tried["way"] for tried in row["torch_searched"]} == {"tensors"} | ({"arrays", "bytes"} if row["bytes"] <= 32 << 20 else set())
assert [row["workers"] for row in startup] == [1, 2]
for row in startup:
    for name in ("first_batch_ms", "new_epoch_ms", "end_ms"):
        for loader in ("torch", "feedlane"):
            assert row[name][loader]["median"] > 0, (loader, name)
