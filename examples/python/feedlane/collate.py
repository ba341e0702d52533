# SPDX-License-Identifier: Apache-2.0
"""From samples to a plan (see tree.py) and leaves. What comes together, and as what, is what torch's default_collate and
default_convert do; other than there no tensor is made: each leaf knows how to write its samples into a batch's slot."""
import collections.abc as abc
import sys

import numpy as np

from . import _abi, dtypes, tree

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
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise TypeError(f"tensors must be dense and on the CPU, not {tensor.layout} on {tensor.device}")
    name = str(_same(tensors, "dtype", lambda t: t.dtype)).removeprefix("torch.")
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
    dtype, stored = dtypes.of_numpy(_same(arrays, "dtype", lambda a: a.dtype))
    shape = _same(arrays, "shape", np.shape)

    def fill(view):
        if stacked:
            np.stack(arrays, out=view)
        else:
            view[...] = arrays[0]

    return Leaf(dtype, stored, (len(arrays), *shape) if stacked else shape, fill)


def _number_leaf(numbers, dtype=None):
    array = np.array(numbers, dtype)
    if array.dtype.kind == "O":
        raise OverflowError("a number of the batch has no 64-bit type")
    return _array_leaf([array], False)


def _integer_leaf(numbers):
    """As torch: bool if all are, else int64. Numpy would go on to uint64, then to float64 without a word."""
    if not all(isinstance(number, int) for number in numbers):
        return _number_leaf(numbers)
    try:
        return _number_leaf(numbers, np.bool_ if all(isinstance(number, bool) for number in numbers) else np.int64)
    except OverflowError:
        raise OverflowError("an integer of the batch is beyond int64, the 64-bit type of all of them") from None


class Leaves(list):
    """Collects the leaves while a plan is made."""

    def plan(self, leaf, owner=tree.ANY):
        if len(self) == _abi.MAX_TENSORS:
            raise TypeError(f"more than {_abi.MAX_TENSORS} tensors in a batch")
        self.append(leaf)
        return (tree.LEAF, len(self) - 1, owner)


def _mapping_plan(example, keys, children):
    if type(example) is dict:
        return (tree.DICT, keys, children)
    try:
        type(example)({})
    except TypeError:  # a mapping that can't be made of another one
        return (tree.DICT, keys, children)
    return (tree.MAPPING, keys, type(example), children)


def batch(samples, leaves):
    """default_collate: a list of samples that are alike."""
    first = samples[0]
    if _is_tensor(first):
        return leaves.plan(_torch_leaf(samples, True))
    if isinstance(first, np.ndarray):
        return leaves.plan(_array_leaf(samples, True))
    if isinstance(first, (np.bool_, np.number)):
        return leaves.plan(_number_leaf(samples))
    if isinstance(first, float):
        return leaves.plan(_number_leaf(samples, np.float64))
    if isinstance(first, int):
        return leaves.plan(_integer_leaf(samples))
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
    """What a collate_fn returned, as it is: arrays come back as numpy's, tensors as torch's, the rest pickled."""
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
