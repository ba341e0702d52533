# SPDX-License-Identifier: Apache-2.0
"""From samples to a plan (see tree.py) and leaves. What comes together, and as what, is what torch's default_collate and
default_convert do; other than there no tensor is made: each leaf knows how to write its samples into a batch's slot."""
import array
import collections.abc as abc
import copy
import functools
import sys

import numpy as np

from . import _core, dtypes, tree

_TEXT = (str, bytes)


class Leaf:
    """A tensor to be: its type, its shape, and `fill(view)`, which writes it through a numpy view of its place."""

    __slots__ = ("dtype", "stored", "shape", "fill")

    def __init__(self, dtype, stored, shape, fill):
        self.dtype, self.stored, self.shape, self.fill = dtype, stored, tuple(shape), fill


def _is_tensor(value):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _same(samples, what, describe):
    first = describe(samples[0])
    for position, sample in enumerate(samples):
        if describe(sample) != first:
            raise TypeError(f"the batch's sample {position} has {what} {describe(sample)}, its first one {first}")
    return first


def _torch_leaf(tensors, stacked):
    torch = sys.modules["torch"]
    for position, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"the batch's sample {position} is of {type(tensor)}, its first one a tensor")
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise TypeError(f"tensors must be dense and on the CPU, not {tensor.layout} on {tensor.device}")
    name = str(functools.reduce(torch.promote_types, (t.dtype for t in tensors))).removeprefix("torch.")
    shape = _same(tensors, "shape", lambda t: tuple(t.shape))
    if name == "bfloat16":
        dtype, stored = dtypes.BFLOAT16, np.dtype(np.int16)
    else:
        try:
            dtype, stored = dtypes.of_numpy(name)
        except TypeError:
            raise TypeError(f"tensors can't be of torch.{name}") from None

    def fill(view):
        place = torch.from_numpy(view)
        if name == "bfloat16":
            place = place.view(torch.bfloat16)
        with torch.no_grad():
            if stacked:
                torch.stack(tensors, 0, out=place)
            else:
                place.copy_(tensors[0])

    return Leaf(dtype, stored, (len(tensors), *shape) if stacked else shape, fill)


def _array_leaf(arrays, stacked):
    for position, found in enumerate(arrays):
        if not isinstance(found, (np.ndarray, np.generic)):
            raise TypeError(f"the batch's sample {position} is of {type(found)}, its first one an array")
    dtype, stored = dtypes.of_numpy(_common_type([a.dtype for a in arrays]))
    shape = _same(arrays, "shape", np.shape)

    def fill(view):
        if stacked:
            np.stack(arrays, out=view)
        else:
            view[...] = arrays[0]

    return Leaf(dtype, stored, (len(arrays), *shape) if stacked else shape, fill)


def _common_type(found):
    """As torch promotes: the widest of the highest kind, so that an integer never makes a float wider."""
    kinds = "biufc"
    if any(dtype.kind not in kinds for dtype in found):
        return functools.reduce(np.promote_types, found)
    highest = max(kinds.index("i" if dtype.kind == "u" else dtype.kind) for dtype in found)
    if kinds[highest] in "fc":
        found = [dtype for dtype in found if dtype.kind == kinds[highest]]
    return functools.reduce(np.promote_types, found)


def _type_of(number):
    if isinstance(number, np.generic):
        return number.dtype
    for python, dtype in (bool, np.bool_), (int, np.int64), (float, np.float32), (complex, np.complex64):
        if isinstance(number, python):
            return np.dtype(dtype)
    raise TypeError(f"a sample of {type(number)} among numbers")


def _number_leaf(numbers, dtype):
    return _array_leaf([np.array(numbers, dtype)], False)


def _mixed_leaf(numbers):
    """As torch: bool if all are, int64 for int, and a float among them makes float32. Numpy would go on to uint64, then to
    float64 without a word."""
    dtype = _common_type([_type_of(number) for number in numbers])
    try:
        return _number_leaf(numbers, dtype)
    except OverflowError:
        raise OverflowError("an integer of the batch is beyond int64, the 64-bit type of all of them") from None


class Leaves(list):
    """Collects the leaves while a plan is made."""

    def plan(self, leaf, owner=tree.ANY):
        if len(self) == _core.MAX_TENSORS:
            raise TypeError(f"more than {_core.MAX_TENSORS} tensors in a batch")
        self.append(leaf)
        return (tree.LEAF, len(self) - 1, owner)


def _mapping_plan(example, keys, children):
    if type(example) is dict:
        return (tree.MAPPING, keys, {}, children)
    try:  # one of its own kind: what else it has comes along
        shell = copy.copy(example)
        for key in keys:
            shell[key] = None
    except TypeError:  # a mapping that can't be copied or written
        shell = {}
    return (tree.MAPPING, keys, shell, children)


def batch(samples, leaves):
    """default_collate: a list of samples that are alike."""
    first = samples[0]
    if _is_tensor(first):
        return leaves.plan(_torch_leaf(samples, True))
    if isinstance(first, np.ndarray):
        return leaves.plan(_array_leaf(samples, True))
    if isinstance(first, float):
        return leaves.plan(_number_leaf(array.array("d", samples), np.float64))
    if isinstance(first, (int, np.bool_, np.number)):
        return leaves.plan(_mixed_leaf(samples))
    if isinstance(first, _TEXT):
        return (tree.LIST, tuple((tree.VALUE, sample) for sample in samples))
    if isinstance(first, abc.Mapping):
        keys = tuple(first)
        return _mapping_plan(first, keys, tuple(batch([s[key] for s in samples], leaves) for key in keys))
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return (tree.NAMED, type(first), tuple(batch(column, leaves) for column in zip(*samples)))
    if isinstance(first, abc.Sequence):
        if any(len(sample) != len(first) for sample in samples):
            raise RuntimeError("sequences in the samples of a batch must have the same length")
        return (tree.LIST, tuple(batch(column, leaves) for column in zip(*samples)))
    raise TypeError(f"samples of {type(first)} can't be put together: use arrays, tensors, numbers, strings, and dicts, "
                    "tuples and lists of them, or a collate_fn")


def single(sample, leaves):
    """default_convert: one sample without a batch dimension; numbers and strings stay what they are."""
    if _is_tensor(sample):
        return leaves.plan(_torch_leaf([sample], False))
    if isinstance(sample, (np.ndarray, np.generic)) and sample.dtype.kind not in "OSU":
        return leaves.plan(_array_leaf([np.asarray(sample)], False))
    return _nested(sample, leaves, single, (tree.LIST,))


def whole(value, leaves):
    """What a collate_fn returned, as it is: arrays come back as numpy's, tensors as torch's."""
    if _is_tensor(value):
        return leaves.plan(_torch_leaf([value], False), tree.TORCH)
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OSU":
        return leaves.plan(_array_leaf([value], False), tree.NUMPY)
    return _nested(value, leaves, whole, (tree.TUPLE,))


def _nested(value, leaves, inner, tuple_kind):
    if isinstance(value, abc.Mapping):
        return _mapping_plan(value, tuple(value), tuple(inner(value[key], leaves) for key in value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return (tree.NAMED, type(value), tuple(inner(item, leaves) for item in value))
    if type(value) is tuple:
        return (*tuple_kind, tuple(inner(item, leaves) for item in value))
    if type(value) is list:
        return (tree.LIST, tuple(inner(item, leaves) for item in value))
    return (tree.VALUE, value)
