# SPDX-License-Identifier: Apache-2.0
"""10,000 batches take no more mappings, descriptors, messages or processes than 100 do: counted by strace over the trainer
and its workers."""
# promise: fault-descriptor-count
import os
import shutil
import subprocess
import sys
import tempfile

CALLS = ["mmap", "munmap", "mremap", "memfd_create", "openat", "ftruncate", "fallocate", "sendmsg", "recvmsg", "clone", "clone3",
         "vfork", "fork", "close", "brk", "eventfd2", "socketpair", "pipe2"]

if shutil.which("strace") is None:
    print("strace is not there: skipped")
    sys.exit(77)


def count(batches):
    with tempfile.NamedTemporaryFile("r") as report:
        subprocess.run(["strace", "-f", "-c", "-U", "name,calls", "-e", "trace=" + ",".join(CALLS), "-o", report.name,
                        sys.argv[1], "take", str(batches)], check=True, timeout=100,
                       # LeakSanitizer doesn't run under a tracer
                       env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"})
        counts = dict.fromkeys(CALLS, 0)
        for line in report:
            words = line.split()
            if len(words) == 2 and words[1].isdigit():
                counts[words[0]] = int(words[1])
            elif len(words) == 2 and words[0].isdigit():
                counts[words[1]] = int(words[0])
        counts.pop("total", None)
        return counts


def over_runs(batches, pick):
    """What one message more or less at start or end does to a single count is no growth: of three runs."""
    runs = [count(batches) for _ in range(3)]
    return {call: pick(run[call] for run in runs) for call in CALLS}


few, many = over_runs(100, max), over_runs(10_000, min)
assert few["mmap"] > 0 and few["memfd_create"] == 2, f"strace counted {few}"
more = {call: (few[call], many[call]) for call in CALLS if many[call] > few[call]}
assert not more, f"grew from 100 to 10,000 batches: {more}"
print("calls for 100 and for 10,000 batches:", ", ".join(f"{c} {few[c]}/{many[c]}" for c in CALLS if few[c]))
