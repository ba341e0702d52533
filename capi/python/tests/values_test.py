# SPDX-License-Identifier: Apache-2.0
"""Batches, values and indices of any kind through feedlane.DataLoader: what torch's loader yields of them, its own does."""
import collections
import dataclasses
import gc
import os
import pickle
import resource
import signal
import subprocess
import sys
import unittest
import weakref

from numpy_or_skip import np

try:
    import torch
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)
if int(torch.__version__.split(".")[0]) < 2:
    print("skipped: the loader of torch", torch.__version__, "waits for ever for some of these values")
    sys.exit(77)

import feedlane
from feedlane import objects

Point = collections.namedtuple("Point", "x y")


class Marked(torch.Tensor):
    """A subclass."""


class Attributed(Point):
    """A named tuple that can have attributes."""


class Row(list):
    """A list of its own kind."""


class Unloadable:
    def __setstate__(self, state):
        raise KeyError("of the class")

    def __getstate__(self):
        return 1


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    name: str


class Made(torch.utils.data.Dataset):
    """What a function makes of an index."""

    def __init__(self, make, length=4):
        self.make, self.length = make, length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return self.make(i)


class Keys(torch.utils.data.Dataset):
    """Tells what it was asked for."""

    def __getitem__(self, key):
        return f"{type(key).__name__} {key!r}"


class KeysAtOnce(Keys):
    def __getitems__(self, keys):
        return [f"{type(keys).__name__} {self[key]}" for key in keys]


class Deadly(Keys):
    """Ends the first worker that is asked for the key."""

    def __init__(self, path):
        self.path = path

    def __getitem__(self, key):
        if key == ("c", 2) and not os.path.exists(self.path):
            with open(self.path, "w", encoding="ascii"):
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(key)


def itself(samples):
    return samples


def shown(value):
    """All that a loop can see of a value."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            return type(value).__name__, str(value)
        flat = value.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous()
        raw = [] if not flat.numel() else flat.reshape(-1).view(torch.uint8).tolist() if flat.element_size() > 0 else None
        return type(value).__name__, str(value.dtype), tuple(value.shape), value.stride(), value.requires_grad, raw
    if isinstance(value, np.ndarray):
        return type(value).__name__, str(value.dtype), value.shape, value.strides, value.flags.writeable, value.tolist()
    if isinstance(value, collections.abc.Mapping):
        return type(value).__name__, [(key, shown(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [shown(item) for item in value]
    if dataclasses.is_dataclass(value):
        return type(value).__name__, [shown(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return type(value).__name__, repr(value)


def outcome(kind, dataset, **arguments):
    try:
        return [shown(batch) for batch in kind(dataset, num_workers=1, **arguments)]
    except Exception as reason:
        return type(reason)


class Case(unittest.TestCase):
    def same(self, dataset, **arguments):
        theirs, ours = (outcome(kind, dataset, **arguments) for kind in (torch.utils.data.DataLoader, feedlane.DataLoader))
        self.assertEqual(ours, theirs)
        return ours


class Values(Case):
    def test_texts_come_together_as_what_they_are_in(self):
        for sample in (0, "s"), {"a": "s", "b": b"q"}, Point(0, "q"), [{"t": (0, "s")}, ["s"]], "s", collections.OrderedDict(a="s"):
            with self.subTest(sample=sample):
                self.same(Made(lambda _, sample=sample: sample), batch_size=2)

    def test_containers_of_their_own_kinds_stay(self):
        for sample in Row([1, 2]), collections.OrderedDict(a=1), collections.defaultdict(int, a=2), range(3), collections.deque([1]):
            for collate_fn in None, itself:
                with self.subTest(sample=sample, collate_fn=collate_fn):
                    self.same(Made(lambda _, sample=sample: sample), batch_size=2, collate_fn=collate_fn)

    def test_tensors_are_what_they_were(self):
        whole = torch.arange(120.0).reshape(2, 3, 4, 5)
        makes = {"strides": lambda _: whole.transpose(1, 2), "channels last": lambda _: whole.to(memory_format=torch.channels_last),
                 "expanded": lambda _: torch.ones(1, 3).expand(50, 3), "subclass": lambda _: torch.ones(3).as_subclass(Marked),
                 "gradients": lambda _: torch.ones(3, requires_grad=True), "parameter": lambda _: torch.nn.Parameter(torch.ones(3)),
                 "sparse": lambda _: torch.eye(3).to_sparse(), "record": lambda i: Record(torch.ones(3) * i, "r"),
                 "empty": lambda _: (torch.empty(0), torch.empty(0, 3)), "complex": lambda _: torch.ones(3, dtype=torch.complex64),
                 "one": lambda i: torch.tensor(i * 0.5), "fortran": lambda _: np.zeros((3, 2), order="F"),
                 "structured": lambda _: np.zeros(3, [("a", "i4"), ("b", "f8")]), "nothing": lambda _: None}
        for name, make in makes.items():
            with self.subTest(name):
                self.same(Made(make), batch_size=2, collate_fn=itself)

    def test_bits_and_quantizers_stay(self):
        flipped = torch.tensor([1 + 2j, 3 - 1j]).conj()
        makes = [lambda _: flipped, lambda _: flipped.imag]
        if hasattr(torch, "quantize_per_tensor"):
            makes.append(lambda _: torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 10, torch.quint8))
        for make in makes:
            for batch in feedlane.DataLoader(Made(make), 2, num_workers=1, collate_fn=itself):
                self.assertEqual(str(batch[0]), str(make(0)))

    def test_types_of_less_than_a_byte(self):
        for name in "uint1", "uint4", "uint7", "int1", "int4", "bits8", "bits16", "float4_e2m1fn_x2":
            kind = getattr(torch, name, None)
            if kind is not None:
                with self.subTest(name):
                    loader = feedlane.DataLoader([0, 1], num_workers=1, collate_fn=lambda _, kind=kind: torch.empty(4, dtype=kind))
                    self.assertEqual({batch.dtype for batch in loader}, {kind})

    def test_what_is_there_twice_is_one(self):
        def twice(samples):
            tensor = torch.stack(samples)
            row = [1]
            return {"same": tensor, "again": tensor, "part": tensor[0, 1:], "row": row, "again row": row}
        for batch in feedlane.DataLoader(Made(lambda i: torch.ones(4) * i), 2, num_workers=1, collate_fn=twice):
            self.assertIs(batch["same"], batch["again"])
            self.assertIs(batch["row"], batch["again row"])
            batch["same"][0, 1] = 77
            self.assertEqual(batch["part"][0].item(), 77)

    def test_a_batch_that_is_in_itself(self):
        def knot(samples):
            samples.append(samples)
            return samples
        for batch in feedlane.DataLoader([1, 2], 2, num_workers=1, collate_fn=knot):
            self.assertIs(batch[-1], batch)

    def test_deep_and_wide_and_long(self):
        def deep(_):
            value = 1
            for _ in range(150):
                value = [value]
            return value
        for make in deep, lambda _: list(range(20_000)), lambda i: "q" * 20_000_000 + str(i), lambda i: b"q" * 20_000_000:
            self.same(Made(make, 2), batch_size=1, collate_fn=itself)
        self.same(Made(lambda i: "q" * 100_000 + str(i), 2), batch_size=2)

    def test_pickled_memory_stays_in_the_slot(self):
        loader = feedlane.DataLoader(Made(lambda i: torch.full((1 << 22,), float(i)).as_subclass(Marked)), None, num_workers=1)
        for i, batch in enumerate(loader):
            self.assertEqual((type(batch), batch[0].item(), batch[-1].item(), batch.nbytes), (Marked, i, i, 1 << 24))

    def test_of_a_large_storage_goes_what_is_shown(self):
        base = torch.arange(1 << 20)
        self.assertLess(objects.Object([base[5:50:7], base[9:30]]).bytes, 2000)

    def test_a_loop_may_keep_all_of_them(self):
        kept = list(feedlane.DataLoader(Made(lambda i: Record(torch.full((1000,), float(i)), "r"), 30), None, num_workers=2))
        self.assertEqual([(record.x[0].item(), record.x[-1].item()) for record in kept], [(i, i) for i in range(30)])
        del kept
        gc.collect()

    def test_kept_values_stay_what_they_are(self):
        def made(i):
            leaf = torch.full((2,), float(i), requires_grad=True)
            knot = {"leaf": leaf, "again": leaf, "parameter": torch.nn.Parameter(torch.ones(2)), "row": torch.ones(1, 3).expand(4, 3)}
            knot["itself"] = knot
            return knot
        for i, batch in enumerate(list(feedlane.DataLoader(Made(made, 12), None, num_workers=1, collate_fn=itself))):
            self.assertTrue(batch["leaf"].is_leaf and batch["leaf"].requires_grad)
            self.assertEqual((batch["leaf"][0].item(), batch["row"].stride(), type(batch["parameter"])), (i, (0, 1), torch.nn.Parameter))
            self.assertIs(batch["again"], batch["leaf"])
            self.assertIs(batch["itself"], batch)

    def test_dropped_values_free_their_slots_at_once(self):
        gc.disable()
        self.addCleanup(gc.enable)
        loader = feedlane.DataLoader(Made(lambda i: Record(torch.ones(4), "r"), 60), None, num_workers=1)
        iterator = iter(loader)
        for _ in iterator:
            self.assertLessEqual(iterator._core.stats()["slots_held"], 2)

    def test_arrays_can_be_written(self):
        def frozen(_):
            array = np.frombuffer(b"12345678", np.int8)
            return {"bare": array, "within": Record(array, "r")}
        for batch in feedlane.DataLoader(Made(frozen), None, num_workers=1, collate_fn=itself):
            batch["bare"][0] = batch["within"].x[0] = 1

    def test_arrays_of_another_byte_order(self):
        for kind in ">i4", ">f8", ">M8[s]", ">c8", ">U2", [("a", ">i4")]:
            self.same(Made(lambda i, kind=kind: [np.full(3, i).astype(kind), np.zeros((2, 3), kind, "F")]), batch_size=2, collate_fn=itself)

    def test_named_tuples_with_attributes(self):
        def made(_):
            point = Attributed(torch.zeros(2), 1)
            point.extra = 5
            return point
        for batch in feedlane.DataLoader(Made(made), None, num_workers=1, collate_fn=itself):
            self.assertEqual((type(batch), batch.extra, batch.y), (Attributed, 5, 1))

    def test_texts_among_other_values(self):
        self.same(Made(lambda i: {"c": "a" if i % 2 == 0 else None}), batch_size=4)
        self.same(Made(lambda i: (b"a" if i % 2 == 0 else 7, i)), batch_size=4)

    def test_many_texts(self):
        self.same(Made(lambda i: [f"{i} {k}" for k in range(400)], 256), batch_size=256)
        self.same(Made(lambda _: ["x" * 60_000] * 400, 2), batch_size=2, collate_fn=itself)

    def test_other_numbers_of_samples_at_once(self):
        class Odd(Made):
            def __getitems__(self, indices):
                return self.make([torch.tensor(i) for i in indices if i % 2])
        for make in list, tuple, lambda rows: tuple(str(row) for row in rows), lambda rows: rows * 3, lambda rows: rows[:0]:
            self.same(Odd(make), batch_size=4)

    def test_samples_at_once_as_rows_of_one_array(self):
        class Rows(Made):
            def __getitems__(self, indices):
                return self.make(np.array(indices)[:, None] * 8 + np.arange(6))
        for make in (lambda rows: rows, lambda rows: rows.astype(np.float32), lambda rows: rows.reshape(-1, 2, 3),
                     np.asfortranarray, lambda rows: rows[:, ::2], lambda rows: rows[:, :0], lambda rows: rows[:, 0].copy(),
                     lambda rows: rows[:0], lambda rows: rows.astype(np.complex64), lambda rows: rows > 9,
                     lambda rows: rows.astype(object), lambda rows: rows.astype(str),
                     lambda rows: rows.astype(np.uint16),
                     lambda rows: np.ma.masked_array(rows, rows > 9)):
            self.same(Rows(make), batch_size=4)
            self.same(Rows(make), batch_size=4, collate_fn=itself)
        for make in (lambda rows: rows, lambda rows: rows.float().requires_grad_(), lambda rows: rows.t().contiguous().t(),
                     lambda rows: rows[:, 0], lambda rows: rows.to_sparse()):
            self.same(Rows(lambda rows, make=make: list(make(torch.from_numpy(rows)))), batch_size=4)
        for start in list, torch.Tensor.clone:  # torch's loader refuses a tensor in place of its rows
            with feedlane.Loader(Rows(lambda rows, start=start: start(torch.from_numpy(rows))), 4, tensors="torch") as loader:
                rows = torch.cat(list(loader)).tolist()
                self.assertEqual(rows, [[8 * i + k for k in range(6)] for i in range(loader.stats()["samples"])])

    def test_no_method_for_samples_at_once(self):
        class Never(Made):
            __getitems__ = None
        for arguments in {}, {"sampler": np.arange(4)}:
            self.same(Never(lambda i: torch.tensor(int(i))), batch_size=2, **arguments)

    def test_samples_of_a_shard_go_into_the_slot_without_torchs_collating(self):
        class Shard(torch.utils.data.IterableDataset):
            def __iter__(self):
                torch.utils.data._utils.collate.default_collate = None  # in the worker
                for i in range(4):
                    yield {"x": torch.ones(2), "n": np.zeros(3), "i": i, "f": 0.5, "t": "text", "pair": (i, [1.5])}
        for batch in feedlane.DataLoader(Shard(), 2, num_workers=1):
            self.assertEqual((batch["x"].shape, batch["n"].shape, batch["pair"][1][0].dtype), ((2, 2), (2, 3), torch.float64))

    def test_errors_are_of_torchs_types(self):
        for make in (lambda i: torch.ones(i), lambda i: [1] * i, lambda _: None, lambda i: 2**80 + i, lambda _: object(),
                     lambda _: torch.ones(3, requires_grad=True), lambda _: np.array(["a"]), lambda _: torch.eye(3).to_sparse()):
            self.assertTrue(issubclass(self.same(Made(make), batch_size=2), Exception))

    def test_a_batch_too_large_for_its_slot(self):
        with self.assertRaisesRegex(feedlane.LimitError, r"DataLoader\(slot_bytes=\d+\)"):
            list(feedlane.DataLoader(Made(lambda _: torch.ones(1 << 16)), 4, num_workers=1, slot_bytes=1 << 16))

    def test_beyond_the_memory_of_a_usual_slot(self):
        loader = feedlane.DataLoader(Made(lambda i: torch.full((70_000_000,), float(i)), 1), 1, num_workers=1, prefetch_factor=1)
        [batch] = loader
        self.assertEqual((batch.shape, batch[0, -1].item()), ((1, 70_000_000), 0))

    def test_within_a_limit_of_address_space(self):
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        code = ("import feedlane, resource, torch; resource.setrlimit(resource.RLIMIT_AS, (%d,) * 2); "
                "print(sum(len(b) for b in feedlane.DataLoader(list(range(100)), 8, num_workers=4)))" % (used + (2 << 30)))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
        self.assertEqual(done.stdout.strip(), "100", done.stderr)


class Indices(Case):
    def test_of_any_kind(self):
        for keys in (["a", "b", "c"], [("a", 1), ("b", 2)], [0.5, 1.5], [{"i": 1}, {"i": 2}], [2**70, 1], [True, False], [-1, -2],
                     [-2**63, 4], [None], np.array([3, 1, 2]), [slice(0, 3)], [b"x", Point(1, "y")]):
            for arguments in {"batch_size": 2}, {"batch_size": None}:
                with self.subTest(keys=keys, arguments=arguments):
                    self.same(Keys(), sampler=keys, **arguments)
        batches = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(7)), 3, False)
        self.same(Keys(), sampler=batches, batch_size=None)
        self.same(Made(lambda i: int(i)), sampler=torch.tensor([3, 1, 2]), batch_size=2)

    def test_batches_as_the_sampler_yields_them(self):
        for batches in ([[1, 2], [5]], [range(3), (4, 5), [6]], [np.array([1, 2])], [[(True, 1), (True, 2)]], [[-2**63, 4]]):
            for dataset in Keys(), KeysAtOnce():
                with self.subTest(batches=batches, dataset=dataset):
                    self.same(dataset, batch_sampler=batches)

    def test_an_empty_batch(self):
        self.same(Keys(), batch_sampler=[[1], [], [2]], collate_fn=itself)

    def test_are_sent_again_when_a_worker_dies(self):
        path = f"/tmp/feedlane_deadly_{os.getpid()}"
        self.addCleanup(lambda: os.path.exists(path) and os.unlink(path))
        keys = [(letter, number) for letter in "abcde" for number in range(4)]
        loader = feedlane.DataLoader(Deadly(path), 3, sampler=keys, num_workers=2)
        self.assertEqual([key for batch in loader for key in batch], [f"tuple {key!r}" for key in keys])
        self.assertTrue(os.path.exists(path))

    def test_many_of_a_batch(self):
        sampler = torch.utils.data.SubsetRandomSampler(range(100_000))
        torch.manual_seed(3)
        [ours] = feedlane.DataLoader(range(100_000), 100_000, sampler=sampler, num_workers=1)
        torch.manual_seed(3)
        [theirs] = torch.utils.data.DataLoader(range(100_000), 100_000, sampler=sampler)
        self.assertTrue(torch.equal(ours, theirs))

        with self.assertRaisesRegex(ValueError, "70000 indices, but at most 65536"):
            list(feedlane.DataLoader(range(100_000), batch_sampler=[range(70_000)], num_workers=1))

    def test_too_long_a_key_is_refused_with_its_length(self):
        with self.assertRaisesRegex(ValueError, "at most 524272"):
            list(feedlane.DataLoader(Keys(), 1, sampler=["k" * 600_000], num_workers=1))


class Objects(unittest.TestCase):
    def test_what_is_written_is_read_or_malformed(self):
        made = objects.Object({"t": torch.arange(5), "a": np.arange(3.0), "s": "text"})
        memory = np.zeros(made.bytes, np.uint8)
        made.write(memory)
        found = objects.load(memory, made.start)
        self.assertEqual((found["t"].tolist(), found["a"].tolist(), found["s"]), ([0, 1, 2, 3, 4], [0, 1, 2], "text"))
        for start in 0, 7, made.start - 64:
            self.assertRaises(feedlane.values.Malformed, objects.load, memory, max(start, 0))
        self.assertRaises(feedlane.values.Malformed, objects.load, memory[:made.start + 8], made.start)

    def test_nothing_lives_until_the_garbage_collection(self):
        gc.disable()
        self.addCleanup(gc.enable)
        value = Record(torch.ones(8), np.ones(8))
        before = weakref.ref(value)
        made = objects.Object(value)
        memory = np.zeros(made.bytes, np.uint8)
        made.write(memory)
        found = objects.load(memory, made.start)
        after = weakref.ref(found)
        del value, made, found
        self.assertIsNone(before())
        self.assertIsNone(after())

    def test_what_its_class_raises_is_raised(self):
        made = objects.Object(Unloadable())
        memory = np.zeros(made.bytes, np.uint8)
        made.write(memory)
        with self.assertRaisesRegex(KeyError, "of the class"):
            objects.load(memory, made.start)

    def test_gradients_that_cannot_travel(self):
        with self.assertRaisesRegex(RuntimeError, "non-leaf"):
            objects.Object(torch.ones(2, requires_grad=True) * 2)

    def test_what_cannot_be_pickled_is_an_error(self):
        loader = feedlane.DataLoader(Made(lambda _: lambda: 3), 2, num_workers=1, collate_fn=itself)
        with self.assertRaises((AttributeError, pickle.PicklingError)):
            next(iter(loader))


if __name__ == "__main__":
    unittest.main()
