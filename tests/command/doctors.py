# SPDX-License-Identifier: Apache-2.0
"""Runs `feedlane doctor` for tests."""
import json
import subprocess

STATUS = {"ok": 0, "warning": 1, "problem": 2}
CHECKS = ["processors", "memory", "memory_limit", "descriptors", "processes", "locked_memory", "file_size", "address_space",
          "kernel", "memfd", "pidfd", "membarrier", "huge_pages", "overcommit", "ptrace", "proc"]


def run(feedlane, *arguments, **options):
    return subprocess.run([feedlane, "doctor", *map(str, arguments)], capture_output=True, text=True, **options)


def doctor(feedlane, *arguments, **options):
    """What it found, as JSON. Its exit status is that of the worst state. Without --pid it may complain of other processes, which
    are not this test's."""
    done = run(feedlane, "--json", *arguments, **options)
    assert done.stderr == "" or "--pid" not in arguments, done.stderr
    found = json.loads(done.stdout)
    states = [check["state"] for check in found["machine"]]
    states += [finding["state"] for loader in found["loaders"] for finding in loader["findings"]]
    assert found["status"] == max(states, key=STATUS.get), found
    assert done.returncode == STATUS[found["status"]], (done.returncode, found["status"])
    return found
