# SPDX-License-Identifier: Apache-2.0
"""The compiled module says what the record of feedlane.h says: constants, the configuration's members by offset and size, and
every counter and its annotation by its name. Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python abi_test.py capi/abi/interface.json"""
import json
import sys
import typing
import unittest

import numpy_or_skip  # noqa: F401
import feedlane
from feedlane import _core, errors, records
from datasets import Numbers

RECORD = {}
if __name__ == "__main__":  # workers import this too
    with open(sys.argv.pop(1), encoding="utf-8") as file:
        RECORD = json.load(file)

# Of feedlane_loader_config, what the module has arguments of its own for; and what is not Python's.
OBJECTS = {"sampler", "dataset", "fields", "field_count", "state", "state_bytes", "argv", "envp", "worker_config",
           "worker_config_bytes", "pinned"}


def fields(struct):
    return {field["name"]: field for field in RECORD["structs"][struct]["fields"]
            if field["name"] not in ("size", "reserved")}


# The dicts of records.py, by the struct that each is made of.
DICTS = {"feedlane_stats": records.Stats, "feedlane_worker_stats": records.WorkerStats, "feedlane_pool_stats": records.PoolStats,
         "feedlane_state_info": records.StateInfo, "feedlane_rank": records.RankInfo, "feedlane_worker_info": records.WorkerSetup}
# Of feedlane_worker_info, what belongs to another field, or is of no use to Python.
NOT_SET_UP = {"iterable", "config_bytes", "fields", "field_count", "retries", "retry_backoff_ns"}


class Abi(unittest.TestCase):
    def test_constants(self):
        names = [n for n in vars(_core) if n.isupper() and isinstance(getattr(_core, n), int)]
        self.assertGreater(len(names), 30)
        for name in names:
            with self.subTest(name):
                self.assertEqual(getattr(_core, name), RECORD["constants"]["FEEDLANE_" + name])

    def test_configuration(self):
        recorded = {name: (field["offset"], field["bytes"]) for name, field in fields("feedlane_loader_config").items()
                    if name not in OBJECTS}
        self.assertEqual(_core.Loader.config_layout(), recorded)

    def test_counters(self):
        with feedlane.Loader(Numbers(8), 4, num_workers=1) as loader:
            next(iter(loader))
            self.assertEqual(list(loader.stats()), list(fields("feedlane_stats")))
            self.assertEqual(list(loader.workers()[0]), list(fields("feedlane_worker_stats")))
        self.assertEqual(list(feedlane.Pool("none").stats()), list(fields("feedlane_pool_stats")))
        self.assertEqual(set(_core.rank_detect()), set(fields("feedlane_rank")))

    def test_annotations(self):
        kinds = {"char": str, "const void *": bytes}
        for struct, kind in DICTS.items():
            with self.subTest(kind.__name__):
                recorded = {name: kinds.get(field["type"], int) for name, field in fields(struct).items()
                            if kind is not records.WorkerSetup or name not in NOT_SET_UP}
                self.assertEqual(typing.get_type_hints(kind), recorded)
        every = {kind for kind in vars(records).values() if typing.is_typeddict(kind)}
        self.assertEqual(every, set(DICTS.values()))

    def test_every_error_has_its_exception(self):
        statuses = {n: v for n, v in RECORD["constants"].items() if n.startswith("FEEDLANE_E_")}
        for name, status in statuses.items():
            self.assertIn(status, errors.BY_STATUS, name)
            self.assertEqual(errors.make(status, "text").status, status)
        self.assertEqual(len(set(errors.BY_STATUS.values())), len(errors.BY_STATUS))


if __name__ == "__main__":
    unittest.main()
