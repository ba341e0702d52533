# SPDX-License-Identifier: Apache-2.0
"""Shared loaders: memory that consumers can't write to, and arguments that are refused.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python share_refusals_test.py [unittest's arguments]"""
import ctypes
import importlib.util
import os
import pathlib
import unittest
import warnings

from numpy_or_skip import np
import feedlane
from datasets import Numbers
from share_cases import SAMPLES, Case, attended, served
from share_programs import loader


class Memory(Case):
    def batch(self, **more):
        shared = self.shared("every")
        consumer = self.joined(shared, **more)
        shared.serve(0)
        with served(shared):
            batch = next(consumer.batches())
            consumer.close()
        return batch

    def test_numpy(self):
        [tensor] = self.batch().tensors
        for array in tensor.numpy(), tensor.numpy()[1:, ::2]:
            self.assertFalse(array.flags.writeable)
            with self.assertRaises(ValueError):
                array[0] = 1
            with self.assertRaises(ValueError):
                array.flags.writeable = True
        self.assertTrue(memoryview(tensor.numpy().base).readonly)
        consumer = self.joined(shared := self.shared("every"))
        with served(shared), consumer:
            self.assertFalse(any(batch.flags.writeable for batch in consumer))
        with loader(8) as own:
            self.assertTrue(all(batch.flags.writeable for batch in own))

    def test_dlpack(self):
        [tensor] = self.batch().tensors
        self.assertRaises(BufferError, tensor.__dlpack__)
        self.assertRaises(BufferError, tensor.__dlpack__, max_version=(0, 8))
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        capsule = tensor.__dlpack__(max_version=(1, 0))
        flags = ctypes.c_uint64.from_address(get(capsule, b"dltensor_versioned") + 8 + 2 * ctypes.sizeof(ctypes.c_void_p))
        self.assertEqual(flags.value & 1, 1)  # DLPACK_FLAG_BITMASK_READ_ONLY
        if tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1):
            self.assertFalse(np.from_dlpack(tensor).flags.writeable)

    @unittest.skipIf(importlib.util.find_spec("torch") is None, "no torch")
    def test_torch(self):
        import torch
        with self.assertWarns(feedlane.ReadOnlyWarning):
            batch = self.batch(tensors="torch")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertIsInstance(batch.data, torch.Tensor)
            self.assertEqual(batch.data.clone().add_(1).sub(1).tolist(), batch.data.tolist())
            self.assertRaises(feedlane.ReadOnlyWarning, batch.tensors[0].torch)
            self.assertEqual(batch.data.data_ptr(), batch.tensors[0].address)
            try:
                taken = torch.from_dlpack(batch.tensors[0])
            except BufferError:  # it asks for DLPack's form before 1.0, which can't say that memory is read-only
                pass
            else:  # it has been told, and doesn't look
                self.assertEqual(taken.data_ptr(), batch.tensors[0].address)


class Arguments(Case):
    def test_of_the_loader(self):
        for more in ({"share": "all"}, {"consumers": 2}, {"share_path": self.path}, {"share_tail": True},
                     {"share": "every", "share_tail": True}, {"share": "every", "consumers": 0},
                     {"share": "every", "consumers": 1.5}, {"share": "every", "consumers": 1025},
                     {"share": "every", "share_path": "a\0b"}, {"share": "every", "share_path": ""},
                     {"share": "every", "share_path": "x" * 108},
                     {"share": "every", "tensors": "torch"}, {"share": "every", "progress": True},
                     {"share": "every", "num_workers": 0},
                     {"share": "every", "pin_memory": feedlane.Pool("none"), "fields": {"x": (np.int64, (8,))}}):
            with self.subTest(more), self.assertRaises(ValueError):
                feedlane.Loader(Numbers(8), 2, **{"num_workers": 1, **more}).close()

    def test_of_places(self):
        shared = self.shared("deal", consumers=2)
        for arguments in ((2,), (-1,), (0.5,), (0, "never"), (0, "observe"), (0, "block", 1), (0, "evict", 0), (0, "evict", -1)):
            with self.subTest(arguments), self.assertRaises(ValueError):
                shared.open_consumer(*arguments)
        place = shared.open_consumer(1)
        self.assertEqual(place.id, 1)
        self.assertRaises(feedlane.ArgumentError, shared.open_consumer, 1)
        other = shared.open_consumer()
        self.assertEqual(other.id, 0)
        self.assertRaises(feedlane.LimitError, shared.open_consumer)
        other.close()
        self.assertEqual(shared.open_consumer(0).id, 0)  # nobody can join by it any more
        os.close(place.detach())
        self.assertRaises(ValueError, place.detach)

    def test_of_waits(self):
        shared = self.shared("every")
        for call in shared.serve, shared.finish, lambda timeout: shared.wait_for_consumers(timeout=timeout):
            for wrong in -1, float("nan"):
                self.assertRaises(ValueError, call, wrong)
        self.assertRaises(feedlane.PeerDead, shared.serve)
        self.assertRaises(feedlane.StateError, iter, shared)
        self.assertRaises(feedlane.StateError, shared.batches)

    def test_of_a_loader_that_is_not_shared(self):
        with loader(8) as own:
            for call in own.open_consumer, own.serve, own.finish, own.consumers, own.wait_for_consumers:
                self.assertRaises(feedlane.StateError, call)
            self.assertEqual(sum(map(len, own)), 8)

    def test_of_joining(self):
        for more in {"tensors": "jax"}, {"batch_timeout": -1}, {"timeout": -1}, {"id": 0}, {"lag": "block"}, {"evict_after": 1}:
            with self.subTest(more), self.assertRaises(ValueError):
                feedlane.join(0, **more)
        self.assertRaises(ValueError, feedlane.join, -1)
        self.assertRaises(ValueError, feedlane.join, 1.5)
        self.assertRaises(feedlane.PeerDead, feedlane.join, self.path)
        with open(os.devnull) as file:
            self.assertRaises(feedlane.FeedlaneError, feedlane.join, os.dup(file.fileno()))
        shared = self.shared("every", share_path=self.path)
        with attended(shared):
            self.assertRaises(feedlane.ArgumentError, feedlane.join, self.path, id=1)
            with feedlane.join(self.path, id=0, lag="evict", evict_after=5):
                self.assertRaises(feedlane.LimitError, feedlane.join, pathlib.Path(self.path))

    def test_of_a_feeder_with_consumers(self):
        shared = self.shared("every")
        with loader(SAMPLES) as own:
            next(iter(own))
            state = own.state_dict()
        consumer = self.joined(shared)
        self.assertRaises(feedlane.StateError, shared.load_state_dict, state)
        self.assertEqual(consumer.diagnose()["bound"], "nothing")
        self.assertRaises(feedlane.StateError, consumer.info)
        self.assertRaises(feedlane.StateError, consumer.workers)
        consumer.set_epoch(7)
        iter(consumer)
        consumer.set_epoch(7)
        self.assertRaises(feedlane.StateError, iter, consumer)


if __name__ == "__main__":
    unittest.main()
