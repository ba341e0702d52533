# SPDX-License-Identifier: Apache-2.0
"""The compiled module says what the record of feedlane.h says: constants, the configuration's members by offset and size, and
every counter and its annotation by its name. Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python abi_test.py capi/abi/interface.json"""
import json
import sys
import typing
import unittest

from numpy_or_skip import np
import feedlane
from feedlane import _core, errors, records, samplers
from datasets import Numbers

RECORD = {}
if __name__ == "__main__":  # workers import this too
    with open(sys.argv.pop(1), encoding="utf-8") as file:
        RECORD = json.load(file)

# Fields of feedlane_loader_config that are separate arguments of the module, or that Python does not use.
OBJECTS = {"sampler", "dataset", "fields", "field_count", "state", "state_bytes", "argv", "envp", "worker_config",
           "worker_config_bytes", "pinned", "name", "share_path", "share_reserved",
           "worker_cpus", "memory_nodes"}
# Fields of feedlane_sampler_config that are not numbers, or that the module derives from their lengths.
ARRAYS = {"kind", "indices", "lengths", "weights", "count", "from", "stages", "inner", "callbacks"}


def fields(struct):
    return {field["name"]: field for field in RECORD["structs"][struct]["fields"]
            if field["name"] not in ("size", "reserved")}


# The dicts of records.py, by the struct that each is made of.
DICTS = {"feedlane_stats": records.Stats, "feedlane_worker_stats": records.WorkerStats, "feedlane_pool_stats": records.PoolStats,
         "feedlane_state_info": records.StateInfo, "feedlane_rank": records.RankInfo, "feedlane_worker_info": records.WorkerSetup,
         "feedlane_loader_info": records.LoaderInfo, "feedlane_histogram": records.Histogram, "feedlane_percentiles": records.Percentiles,
         "feedlane_timings": records.Timings, "feedlane_batch_record": records.BatchRecord,
         "feedlane_error_record": records.ErrorRecord, "feedlane_diagnosis": records.Diagnosis,
         "feedlane_consumer_stats": records.ConsumerCounters}
# Of feedlane_worker_info, what belongs to another field, or is of no use to Python.
NOT_SET_UP = {"config_bytes", "field_count", "retries", "retry_backoff_ns"}


class Abi(unittest.TestCase):
    def test_constants(self):
        names = [n for n in vars(_core) if n.isupper() and isinstance(getattr(_core, n), int)]
        self.assertGreater(len(names), 30)
        for name in names:
            with self.subTest(name):
                self.assertEqual(getattr(_core, name), RECORD["constants"]["FEEDLANE_" + name])

    def test_kinds_of_samplers(self):
        prefix = "FEEDLANE_SAMPLER_"
        recorded = {n.removeprefix(prefix): v for n, v in RECORD["constants"].items() if n.startswith(prefix)}
        self.assertEqual({kind.name: kind.value for kind in samplers._Kind}, recorded)

    def test_configuration(self):
        for kind, struct, others in ((_core.Loader, "feedlane_loader_config", OBJECTS),
                                     (_core.Sampler, "feedlane_sampler_config", ARRAYS)):
            recorded = {name: (field["offset"], field["bytes"]) for name, field in fields(struct).items()
                        if name not in others}
            self.assertEqual(kind.config_layout(), recorded, struct)

    def test_counters(self):
        with feedlane.Loader(Numbers(8), 4, num_workers=1, trace=8) as loader:
            list(map(np.copy, loader))
            self.assertEqual(list(loader.stats()), list(fields("feedlane_stats")))
            self.assertEqual(list(loader.workers()[0]), list(fields("feedlane_worker_stats")))
            self.assertEqual(list(loader.info()), list(fields("feedlane_loader_info")))
            self.assertEqual(list(loader.timings()), list(fields("feedlane_timings")))
            self.assertEqual(list(loader.timings()["work"]), list(fields("feedlane_histogram")))
            self.assertEqual(len(loader.timings()["work"]["buckets"]), RECORD["constants"]["FEEDLANE_HISTOGRAM_BUCKETS"])
            self.assertEqual(list(loader.trace()[0]), list(fields("feedlane_batch_record")))
            self.assertEqual(list(loader.diagnose()), list(fields("feedlane_diagnosis")))
        self.assertEqual(list(feedlane.Pool("none").stats()), list(fields("feedlane_pool_stats")))
        self.assertEqual(set(_core.rank_detect()), set(fields("feedlane_rank")))

    def test_annotations(self):
        kinds = {"char": str, "const void *": bytes, "feedlane_histogram": records.Histogram,
                 "feedlane_percentiles": records.Percentiles}
        own = {(records.Diagnosis, "bound"): records.Bound, (records.ErrorRecord, "kind"): str, (records.Histogram, "buckets"): list[int],
               (records.WorkerSetup, "fields"): tuple[tuple[str, records.DType, tuple[int, ...]], ...]}
        for struct, kind in DICTS.items():
            with self.subTest(kind.__name__):
                recorded = {name: own.get((kind, name), kinds.get(field["type"], int)) for name, field in fields(struct).items()
                            if kind is not records.WorkerSetup or name not in NOT_SET_UP}
                self.assertEqual(typing.get_type_hints(kind), recorded)
        every = {kind for kind in vars(records).values() if typing.is_typeddict(kind)}
        self.assertEqual(every, set(DICTS.values()))

    def test_bounds(self):
        bounds = {v: n for n, v in RECORD["constants"].items() if n.startswith("FEEDLANE_BOUND_")}
        self.assertEqual(list(typing.get_args(records.Bound)),
                         [bounds[v].removeprefix("FEEDLANE_BOUND_").lower() for v in sorted(bounds)])

    def test_every_error_has_its_exception(self):
        statuses = {n: v for n, v in RECORD["constants"].items() if n.startswith("FEEDLANE_E_")}
        for name, status in statuses.items():
            self.assertIn(status, errors.BY_STATUS, name)
            self.assertEqual(errors.make(status, "text").status, status)
        self.assertEqual(len(set(errors.BY_STATUS.values())), len(errors.BY_STATUS))


if __name__ == "__main__":
    unittest.main()
