# SPDX-License-Identifier: Apache-2.0
"""Both forms of a trace are written for records with any numbers, as another process may have them. The program ends with an error of
UBSan where a number overflows, if it was built with it.  Usage: trace_numbers_test.py PATH_OF_TRACE_FORMS"""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
UNSIGNED = ["task", "rows", "bytes", "dispatched_ns", "begun_ns", "committed_ns", "swept_ns", "yielded_ns", "released_ns", "exposed_ns"]
SIGNED = ["epoch", "batch"]
SHORT = ["worker", "attempt", "slot", "status"]


class Numbers(unittest.TestCase):
    def write(self, records, clock):
        given = {"pid": 7, "program": "p", "records": records,
                 "clocks": [{"monotonic_ns": clock, "boottime_ns": clock, "realtime_ns": clock}]}
        with tempfile.TemporaryDirectory() as folder:
            form = os.path.join(folder, "json")
            done = subprocess.run([PROGRAM, os.path.join(folder, "perfetto"), form], input=json.dumps(given), text=True,
                                  capture_output=True)
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            with open(form, encoding="ascii") as file:
                json.load(file)

    def test_the_largest_and_the_smallest(self):
        for high in 0, 1:
            record = {name: high * (2**64 - 1) for name in UNSIGNED}
            record |= {name: 2**63 - 1 if high else -2**63 for name in SIGNED}
            record |= {name: 2**31 - 1 if high else -2**31 for name in SHORT}
            for clock in 0, 2**63, 2**64 - 1:
                self.write([record, dict(record, task=1), dict(record, task=2, released_ns=0, status=0)], clock)

    def test_any(self):
        source = random.Random(1)
        pick = lambda bits: source.choice([0, 1, 2**bits - 1, 2**(bits - 1), source.getrandbits(bits)])
        for _ in range(30):
            records = []
            for _ in range(40):
                record = {name: pick(64) for name in UNSIGNED}
                record |= {name: pick(64) - 2**63 for name in SIGNED}
                record |= {name: pick(32) - 2**31 for name in SHORT}
                records.append(record)
            self.write(records, pick(64))

    def test_many_held_at_once(self):
        """Not in the square of their number."""
        self.write([{"task": i + 1, "worker": 0, "slot": 0, "yielded_ns": i + 1, "dispatched_ns": 1} for i in range(20_000)], 1)


if __name__ == "__main__":
    unittest.main()
