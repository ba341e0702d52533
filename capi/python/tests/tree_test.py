# SPDX-License-Identifier: Apache-2.0
"""What holds a batch's tensors together: any worker can write it, and the trainer reads it without running anything.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python tree_test.py [unittest's arguments]"""
import base64
import collections
import contextlib
import itertools
import json
import math
import os
import pathlib
import pickle
import random
import sys
import tempfile
import time
import tracemalloc
import unittest
import unittest.mock
import warnings

from numpy_or_skip import np
import feedlane
from feedlane import tree
from datasets import Numbers, Point, Scribbler, Small, Written, by_python, everyday, odd, Odd, small_arrays, the_first


def load(words, tensors=0, allow_pickle=False):
    """Reads a plan, whose mark may be missing."""
    return tree.load(tree.MARK + words.removeprefix(tree.MARK), tensors, allow_pickle)


def read(blob, tensors=0, allow_pickle=False):
    """As Batch.data does, with a leaf's number in its place."""
    return tree.build(load(blob, tensors, allow_pickle), lambda number, owner: ("leaf", number, owner),
                      tree.numbers_of(tree.MARK + blob.removeprefix(tree.MARK)))


def part(memory, kind, offset, *shape, owner=0):
    """The array or tensor that a part of `memory` is."""
    node = json.dumps(["part", owner, kind, len(shape)]).encode()
    return tree.build(load(node, 1), lambda _number, _owner: memory, (offset, *shape))


def written(value, **named):
    return tree.dump((tree.VALUE, value), **named)


def pickled(value):
    return base64.b64encode(pickle.dumps(value)).decode()


class Runs:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


class Values(unittest.TestCase):
    SAME = [None, True, False, 0, -1, 2**63 - 1, -2**63, 2**63, -2**200, 0.5, -0.0, math.inf, 1 + 2j, "", "caf\u00e9",
            "lone \udce9", "\0", b"", bytes(range(256)), bytearray(b"ab"), {1, "a"}, frozenset({(1, (2.5, None))}),
            pathlib.Path("a/b"), np.float32(1.5), np.int8(-3), np.bool_(True), np.complex64(1j), np.str_("ab"),
            np.bytes_(b"ab"), np.datetime64("2026-01-02"), np.timedelta64(5, "ms"), np.float64(0.1)]

    def test_come_back_as_they_were(self):
        for value in self.SAME:
            with self.subTest(value=value):
                found = read(written(value))
                self.assertIs(type(found), type(value))
                self.assertEqual(found, value)
                self.assertEqual(str(found), str(value))  # -0.0 and units
        self.assertTrue(math.isnan(read(written(math.nan))))

    def test_arrays_of_strings(self):
        for array in np.array(["a", "bcd"]), np.array([[b"a", b"bc"]]), np.array([], "U3"), np.array("x"):
            found = read(written(array))
            self.assertEqual((found.dtype, found.shape, found.tolist()), (array.dtype, array.shape, array.tolist()))
            self.assertTrue(found.flags.writeable)

    def test_leaves_in_their_order_with_their_owner(self):
        leaves = feedlane.collate.Leaves()
        made = {"a": [np.zeros(1)] * 5, "b": (np.zeros(2), {"c": np.zeros(3)})}
        for collate, owner in (feedlane.collate.single, tree.ANY), (feedlane.collate.whole, tree.NUMPY):
            leaves.clear()
            found = read(tree.dump(collate(made, leaves)), len(leaves))
            number = iter([("leaf", n, owner) for n in range(7)])
            self.assertEqual(found["a"], [next(number) for _ in range(5)])
            self.assertEqual(list(found["b"]), [next(number), {"c": next(number)}])

    def test_what_can_be_changed_is_each_batchs_own(self):
        for value in {1}, bytearray(b"a"), np.array(["a"]):
            blob = written(value)
            self.assertIsNot(read(blob), read(blob))

    def test_through_a_loader(self):
        for workers in 0, 1:
            with self.subTest(workers=workers), feedlane.Loader(Numbers(8), 4, num_workers=workers,
                                                                collate_fn=everyday) as loader:
                for number, batch in enumerate(loader):
                    expected = everyday([np.full(8, i, np.int64) for i in range(4 * number, 4 * number + 4)])
                    self.assertEqual(batch["rows"].tolist(), expected["rows"].tolist())
                    self.assertIs(type(batch["point"]), Point)
                    self.assertEqual(batch["point"].x.tolist(), expected["point"].x.tolist())
                    self.assertIs(type(batch["ordered"]), collections.OrderedDict)
                    self.assertIs(batch["default"].default_factory, list)
                    for name in "ordered", "default", "names", "mixed", 7, ("a", 1):
                        self.assertEqual(batch[name], expected[name])
                self.assertEqual(number, 1)

    # promise: loader-metadata
    def test_others_need_the_trainers_leave(self):
        for workers in 0, 1:
            with self.subTest(workers=workers):
                with feedlane.Loader(Numbers(4), 4, num_workers=workers, collate_fn=odd) as loader:
                    with self.assertRaisesRegex(feedlane.SampleError, r"datasets\.Odd.*allow_pickle=True"):
                        next(iter(loader))
                with feedlane.Loader(Numbers(4), 4, num_workers=workers, collate_fn=odd, allow_pickle=True) as loader:
                    batch = next(iter(loader))
                    self.assertEqual(batch["odd"], Odd(4))
                    self.assertEqual((type(batch["kept"]), dict(batch["kept"]), batch["kept"].note), (Odd.Dict, {"a": 1}, "n"))

    def test_limits_when_it_is_written(self):
        nested = (tree.VALUE, 1)
        for _ in range(tree.MAX_DEPTH):
            nested = (tree.LIST, (nested,))
        with self.assertRaisesRegex(ValueError, "64 levels"):
            tree.dump(nested)
        with self.assertRaisesRegex(ValueError, "at most 16777216"):
            written("x" * tree.MAX_BYTES)
        with self.assertRaisesRegex(ValueError, "1048576 nodes"):
            tree.dump((tree.LIST, ((tree.VALUE, 1),) * tree.MAX_NODES))


class Malformed(unittest.TestCase):
    def test_words_that_are_none(self):
        deep = b'["list",' * 70 + b"1" + b"]" * 70
        for words in (b"\xff", b"{}", b"[]", b"[1]", b"[[]]", b'["what"]', b'["leaf"]', b'["leaf",3]', b'["leaf",-1]',
                      b'["leaf",true]', b'["leaf",0,0]', b'["dict"]', b'["dict","dict",1]', b'["dict","set"]', b'["dict",["int","1"]]',
                      b'["dict","dict",["set"],1]', b'["dict","defaultdict eval"]', b'["named"]', b'["named","os:stat_result"]',
                      b'["named","feedlane.nothing:X"]', b'["named","subprocess:Popen",1]', b'["named","builtins:tuple",1]',
                      b'["int"]', b'["int",5]', b'["int","x"]', b'["complex",1]', b'["bytes","a"]', b'["bytes",[]]',
                      b'["bytearray",4]', b'["path","\\u0000"]', b'["set",["set"]]', b'["numpy","O","AAAA"]',
                      b'["numpy","<i4","AAA="]', b'["numpy","<i3","AAAA"]', b'["numpy","<U1","/////w=="]',
                      b'["texts","<U1","AAAA",1]', b'["texts","|S1","YQ==",-1]', b'["texts","|S1","YQ==",1e9]',
                      b'["texts","|S1","",4611686018427387904,4]', b'["texts","<i4","AAAAAA==",1]', b"1" * 21, b"1" * 10**6,
                      b'["pickle","gARLAS4="]', pickle.dumps((0, 0, 0)), b"cos\n_exit\n(I77\ntR.", deep, b"[" * 10**6,
                      b'["object",0,0,0]', b'["object"]', b'["part",0,"int8"]', b'["part",3,"int8",1]', b'["part",0,"int8",-1]',
                      b'["part",0,"int8",65]', b'["part",0,"int8",1.0]', b'["part",0,"object",1]', b'1\0' + bytes(8),
                      b'1\0' + bytes(5),
                      b'["list"' + b",1" * tree.MAX_NODES + b"]", b" " * (tree.MAX_BYTES + 1)):
            with self.subTest(words=words[:60]), self.assertRaises(tree.Malformed):
                read(words, tensors=4)

    def test_leaves_beyond_the_tensors(self):
        self.assertEqual(read(b'["list",["leaf",0],["leaf",2]]', tensors=2), [("leaf", 0, 0), ("leaf", 1, 2)])
        with self.assertRaisesRegex(tree.Malformed, "1 tensors"):
            read(b'["list",["leaf",0],["leaf",0]]', tensors=1)

    def test_parts_of_any_type_that_torch_names(self):
        """The name of a type is the worker's text: what no tensor can be of is Malformed."""
        try:
            import torch
        except ImportError as missing:
            self.skipTest(str(missing))
        whole = torch.arange(64, dtype=torch.uint8)

        def of_type(name):
            return part(whole, name, 16, 2, owner=tree.TORCH)

        self.assertEqual(of_type("int16").tolist(), whole[16:20].view(torch.int16).tolist())
        for name in filter(tree._DTYPE.fullmatch, dir(torch)):
            with self.subTest(name), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, of types that are new in it
                try:
                    self.assertEqual(of_type(name).shape, (2,))
                except tree.Malformed:
                    pass
        # A name of a later torch's that is no element type.
        with unittest.mock.patch.object(torch, "int77", torch.strided, create=True):
            with self.assertRaisesRegex(tree.Malformed, "unknown type 'int77'"):
                of_type("int77")

    def test_parts_of_impossible_shapes(self):
        memories = [np.zeros(64, np.uint8)]
        with contextlib.suppress(ImportError):
            import torch
            memories.append(torch.zeros(64, dtype=torch.uint8))
        for shape in (2**31, 2**62, 0), (3, 2**63 - 1, 0), (1,) * 64 + (2**63 - 1, 0):
            for kind in "bool", "float32", "complex64":
                for memory in memories:
                    with self.subTest(shape=shape[-3:], kind=kind), self.assertRaises(tree.Malformed):
                        part(memory, kind, 0, *shape)

    def test_integers_of_parts(self):
        memory = np.arange(64, dtype=np.uint8)
        self.assertEqual(part(memory, "uint8", 3, 2, 2).tolist(), [[3, 4], [5, 6]])
        for kind, numbers in (("int8", (65,)), ("int8", (-1,)), ("int8", (63, 2)), ("int8", (0, -1)), ("int16", (1,)), ("int64", (2**62,)),
                              ("int8", (2**63 - 1, 2))):
            with self.subTest(kind=kind, numbers=numbers), self.assertRaises(tree.Malformed):
                part(memory, kind, *numbers)
        plan = load(b'["list",["part",0,"int8",1],["part",0,"int8",0]]', 1)
        for numbers, found in (((0, 2, 2), [[0, 1], 2]), ((0, 2), None), ((), None), ((0, 2, 2, 0), None)):
            with self.subTest(numbers=numbers), contextlib.nullcontext() if found else self.assertRaises(tree.Malformed):
                self.assertEqual([part.tolist() for part in tree.build(plan, lambda *_: memory, numbers)], found)

    def test_many_names_of_types(self):
        """Each takes a search for ml_dtypes."""
        with self.assertRaisesRegex(tree.Malformed, "more than 256 element types"):
            load(json.dumps(["list", *(["part", 0, f"int{n}", 0] for n in range(300))]).encode(), 1)

    def test_nodes_are_counted_before_they_are_made(self):
        words = b"[" + b"[]," * 5_000_000 + b"[]]"
        tracemalloc.start()
        with self.assertRaisesRegex(tree.Malformed, "more than 1048576 nodes"):
            load(words)
        self.assertLess(tracemalloc.get_traced_memory()[1], 100 << 20)
        tracemalloc.stop()
        self.assertEqual(read(written("[,{" * (1 << 20))), "[,{" * (1 << 20))  # a text is one node

    def test_keys_that_hash_alike_are_refused(self):
        prime = 2**61 - 1
        crafted = {"integers": [["int", hex(prime * (2**40 + i))] for i in range(30_000)],
                   "tuples": [["tuple", *(-1 - (i >> bit & 1) for bit in range(14))] for i in range(1 << 14)]}
        for name, keys in crafted.items():
            for node in ["set", *keys], ["frozenset", *keys], ["dict", "dict", *(half for key in keys for half in (key, 0))]:
                with self.subTest(keys=name, node=node[0]), self.assertRaisesRegex(tree.Malformed, "equal hash values"):
                    load(json.dumps(node).encode())
        usual = set(itertools.product((-2, -1, 0, 1), repeat=6)) | set(range(100_000)) | {i / 8 for i in range(10_000)}
        self.assertEqual(read(written(usual)), usual)

    def test_a_long_number_takes_no_time(self):
        began = time.process_time()
        with self.assertRaises(tree.Malformed):
            read(b'["list",' + b"9" * (tree.MAX_BYTES - 10) + b"]")
        self.assertLess(time.process_time() - began, 5)  # by int() it would be hours

    def test_a_class_is_looked_up_without_running_anything(self):
        self.assertNotIn("this", sys.modules)
        with self.assertRaises(tree.Malformed):
            read(b'["named","this:Zen"]')
        self.assertNotIn("this", sys.modules)
        self.assertEqual(read(b'["named","datasets:Point",1,2]'), Point(1, 2))
        for fields in b"", b",1", b",1,2,3":
            with self.assertRaisesRegex(tree.Malformed, "not a named tuple of"):
                read(b'["named","datasets:Point"' + fields + b"]")

    def test_changed_words_are_read_or_malformed(self):
        """Whatever a byte is changed to, nothing else is raised, and only plain types come out."""
        samples = [np.full(8, i, np.int64) for i in range(4)]
        leaves = feedlane.collate.Leaves()
        good = tree.dump(feedlane.collate.whole(everyday(samples), leaves))
        draw = random.Random(1)
        refused = 0
        for _ in range(20_000):
            words = bytearray(good)
            for _ in range(draw.choice((1, 1, 2, 5))):
                at = draw.randrange(len(words))
                what = draw.randrange(3)
                if what == 0:
                    words[at] = draw.choice(b'[]",0123456789{}x\\\xff')
                elif what == 1:
                    del words[at:at + draw.choice((1, 5))]
                else:
                    words[at:at] = draw.choice([b"[", b"]", b",", b'"', b"0", b'["leaf",0]', b'["pickle","gARLAS4="]'])
            try:
                read(bytes(words), len(leaves))
            except tree.Malformed:
                refused += 1
        self.assertGreater(refused, 10_000)

    def test_pickles_that_cant_be_read(self):
        for blob in b"", b"garbage", b"cno_such_module\nx\n.":
            words = json.dumps(["pickle", base64.b64encode(blob).decode()]).encode()
            with self.assertRaisesRegex(tree.Malformed, "can't be read"):
                read(words, allow_pickle=True)
        with self.assertRaisesRegex(tree.Malformed, "not a mutable mapping"):
            read(json.dumps(["dict", ["pickle", pickled([1, 2])], 0, 1]).encode(), allow_pickle=True)


class Parts(unittest.TestCase):
    """More arrays than a batch has tensors."""

    def check(self, found, number):
        for mine, wanted in zip(found, small_arrays(number), strict=True):
            for name in "xy":
                self.assertIs(type(mine[name]), np.ndarray)
                self.assertEqual((mine[name].dtype, mine[name].shape), (wanted[name].dtype, wanted[name].shape))
                self.assertEqual(mine[name].tolist(), wanted[name].tolist())

    def test_of_changing_shapes(self):
        for workers in 0, 1:
            with self.subTest(workers=workers), feedlane.Loader(Small(), 1, num_workers=workers,
                                                                collate_fn=the_first, held=4) as loader:
                for number, found in enumerate(loader):
                    self.check(found, number)
                    found[-1]["x"][:] = 7  # its own memory
                kept = list(itertools.islice(loader, 2))
                for number, batch in enumerate(loader.batches()):
                    self.check(batch.data, number)  # made by tree.build, not by core/cursor.cpp
                for number, found in enumerate(kept):
                    self.check(found, number)

    def test_integers_that_are_wrong(self):
        leaves = feedlane.collate.Leaves()
        good = tree.dump(feedlane.collate.whole(small_arrays(0), leaves), leaves.numbers)
        at = good.index(b"\0", len(tree.MARK)) + 1
        wrong = [good[:-8], good[:-1], good + bytes(8), good[:at - 1]]
        for place, value in (0, -1), (0, 3), (0, 2**62), (1, 3), (2, -1), (2, 2**62):  # an offset; an offset and a length
            words = bytearray(good)
            words[at + 8 * place:at + 8 * place + 8] = value.to_bytes(8, sys.byteorder, signed=True)
            wrong.append(bytes(words))
        for words in good, *wrong:
            with self.subTest(words=words[-20:]), feedlane.Loader(
                    Written(words), 1, num_workers=1, collate_fn=the_first, worker_init_fn=by_python) as loader:
                with contextlib.nullcontext() if words is good else self.assertRaises(feedlane.CorruptError):
                    self.check(next(iter(loader)), 0)


    def test_a_size_beyond_all_memory(self):
        pack = feedlane._core.Pack()
        leaf = feedlane.collate.Leaf((1, 8), np.dtype(np.uint8), (100,), lambda view: view.fill(7))
        self.assertEqual([pack.add(leaf) for _ in range(2)], [0, 128])
        for size in 2**62, 2**64 - 128, 2**64:
            with self.assertRaises(OverflowError):
                pack.add(feedlane.collate.Leaf((1, 8), np.dtype(np.uint8), (size,), None))
        self.assertEqual((len(pack), pack.shape), (2, (228,)))
        memory = bytearray(228)
        pack.fill(memory)
        self.assertEqual(memory, b"\7" * 100 + bytes(28) + b"\7" * 100)
        with self.assertRaisesRegex(ValueError, "has 227 bytes, but the tensor takes 228"):
            pack.fill(memoryview(memory)[1:])


class Names(unittest.TestCase):
    def test_tensors_are_called_by_their_keys(self):
        batch = {"a": np.zeros(3), "b": [np.zeros(2), {"c": np.zeros(1)}]}
        with feedlane.Loader([batch] * 4, 2, num_workers=1) as loader:
            for found in loader.batches():
                with found:
                    self.assertEqual([tensor.name for tensor in found.tensors], ["a", "b.0", "b.1.c"])
        with feedlane.Loader([np.zeros(3)] * 4, 2) as loader, next(loader.batches()) as found:
            self.assertEqual(found.tensors[0].name, "0")

    def test_arrays_of_a_batchs_tensors(self):
        with feedlane.Loader([np.arange(3.0)] * 4, 2, num_workers=1) as loader, next(loader.batches()) as batch:
            tensor = batch.tensors[0]
            array = np.asarray(tensor)
            self.assertEqual((array.dtype, array.tolist()), (np.float64, [[0, 1, 2]] * 2))
            self.assertTrue(np.shares_memory(array, tensor.numpy()))
            self.assertEqual(np.asarray(tensor, np.float32).dtype, np.float32)
            described = tensor.__array_interface__
            self.assertEqual((described["shape"], described["typestr"]), ((2, 3), "<f8"))
            self.assertEqual(bytes(described["data"]), array.tobytes())
        self.assertEqual(array.tolist(), [[0, 1, 2]] * 2)  # it keeps the batch


class Hostile(unittest.TestCase):
    def outcomes(self, words, mark=tree.MARK, **arguments):
        """For each of four batches its number, or the error. Worker 1 writes `words` behind the mark of a plan."""
        found = {}
        with feedlane.Loader(Scribbler(mark + words), 4, num_workers=2, dispatch="round_robin", fields={"x": (np.int64, (8,))},
                             held=8, **arguments) as loader:
            for batch in loader.batches():
                try:
                    found[batch.number] = batch.data[:, 0].tolist()
                except Exception as error:
                    found[batch.number] = error
                del batch
        return found

    def test_a_workers_words_are_errors_that_name_it(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "ran")
            for words in (pickle.dumps(Runs(path)), json.dumps(["pickle", pickled(Runs(path))]).encode(),
                          b'["list",["leaf",0],["leaf",0]]', b'["leaf",200]', os.urandom(64)):
                with self.subTest(words=words[:40]):
                    found = self.outcomes(words)
                    self.assertEqual((found[0], found[2]), ([0, 1, 2, 3], [8, 9, 10, 11]))
                    for number in 1, 3:
                        self.assertIsInstance(found[number], feedlane.CorruptError)
                        self.assertEqual((found[number].worker, found[number].batch), (1, number))
                        self.assertIn("(worker 1, batch ", str(found[number]))
                    self.assertFalse(os.path.exists(path))
            for words, mark in (b'["object",0,0,8]', tree.MARK), (b'["leaf",0]', b""):
                self.assertEqual([type(value) for value in self.outcomes(words, mark).values()][1::2], [feedlane.CorruptError] * 2)
            # That the folder would be made, and that the trainer can have it so.
            self.outcomes(json.dumps(["pickle", pickled(Runs(path))]).encode(), allow_pickle=True)
            self.assertTrue(os.path.exists(path))


if __name__ == "__main__":
    unittest.main()
