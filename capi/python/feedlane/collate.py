# SPDX-License-Identifier: Apache-2.0
"""From samples to a plan (see tree.py) and leaves. What comes together, and as what, is what torch's default_collate and
default_convert do; other than there no tensor is made: each leaf knows how to write its samples into a batch's slot."""
from __future__ import annotations

import array
import collections.abc as abc
import copy
import functools
import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core, dtypes, objects, tree

if TYPE_CHECKING:
    import numpy.typing as npt

    from .records import DType, Plan

_TEXT = (str, bytes)
# Of the values that stand in a plan, where they may be pickled instead: bytes, in all.
_MAX_VALUES = 1 << 20
_VALUE_BYTES = 8  # that a short one takes, about


class Leaf:
    """A tensor to be: its type (DLPack's, or torch's name of one that DLPack doesn't have), the one that numpy stores it as, its
    shape, and `fill(view)`, which writes it through a numpy view of its place."""

    __slots__ = ("dtype", "stored", "shape", "fill", "place")

    shape: tuple[int, ...]
    place: tuple[int, int]  # address and bytes of its one source, where that is known, for core/collate.cpp

    def __init__(self, dtype: DType | str, stored: np.dtype[Any], shape: abc.Iterable[int],
                 fill: abc.Callable[[npt.NDArray[Any]], None]) -> None:
        self.dtype, self.stored, self.shape, self.fill = dtype, stored, tuple(shape), fill


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of torch's, which this doesn't import."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _same(samples: abc.Sequence[Any], what: str, describe: abc.Callable[[Any], Any]) -> Any:
    first = describe(samples[0])
    for position, sample in enumerate(samples):
        if describe(sample) != first:
            raise TypeError(f"the batch's sample {position} has {what} {describe(sample)}, its first one {first}")
    return first


def torch_leaf(tensors: abc.Sequence[Any], stacked: bool) -> Leaf:
    """One tensor of the batch, of tensors that are alike; not stacked: of one. TypeError, RuntimeError: they can't be one."""
    torch = sys.modules["torch"]
    for position, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"the batch's sample {position} is of {type(tensor)}, its first one a tensor")
        if not _is_dense(tensor):
            raise TypeError(f"tensors must be dense and on the CPU, not {tensor.layout} on {tensor.device}")
        if tensor.requires_grad:
            raise RuntimeError("a tensor of the batch requires gradients, which don't cross the border of a process: detach() it")
    kind = functools.reduce(torch.promote_types, (t.dtype for t in tensors))
    return leaf_of_tensors(tensors, kind, _same(tensors, "shape", lambda t: tuple(t.shape)), stacked)


def leaf_of_tensors(tensors: abc.Sequence[Any], kind: Any, shape: tuple[int, ...], stacked: bool) -> Leaf:
    """The same of dense tensors on the CPU without gradients, of this shape, which become one of the type `kind`."""
    torch = sys.modules["torch"]
    shape = (len(tensors), *shape) if stacked else shape
    name = str(kind).removeprefix("torch.")
    dtype: DType | str
    if name == "bfloat16":
        dtype, stored = dtypes.BFLOAT16, np.dtype(np.int16)
    else:
        try:
            dtype, stored = dtypes.of_numpy(name)
        except TypeError:  # one that neither numpy nor DLPack has
            dtype, stored = name, np.dtype(f"V{dtypes.torch_itemsize(kind)}")

    def fill(view: npt.NDArray[Any]) -> None:
        with torch.no_grad():
            if isinstance(dtype, str):
                place = torch.from_numpy(view.reshape(-1).view(np.uint8)).view(kind).view(shape)
                for row, tensor in zip(place if stacked else (place,), tensors):
                    row.copy_(tensor)
                return
            place = torch.from_numpy(view)
            if name == "bfloat16":
                place = place.view(torch.bfloat16)
            if stacked:
                torch.stack(tensors, 0, out=place)
            else:
                place.copy_(tensors[0])

    return Leaf(dtype, stored, shape, fill)


def _is_dense(tensor: Any) -> bool:
    torch = sys.modules["torch"]
    return (tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized and
            not getattr(tensor, "is_nested", False))


def is_plain(tensor: Any) -> bool:
    """Whether a leaf carries all of a tensor, but for its strides."""
    return type(tensor) is sys.modules["torch"].Tensor and not tensor.requires_grad and _is_dense(tensor)


def _of_tensor(tensor: Any, leaves: Leaves, owner: int) -> Plan:
    """One tensor, as it is. Unusual: no leaf can carry it, and it may be pickled."""
    if not leaves.pickles:
        return leaves.plan(torch_leaf([tensor], False), owner)
    if (not is_plain(tensor) or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg() or leaves.is_full() or
            tensor.dim() > _core.MAX_NDIM):
        raise Unusual
    leaf = torch_leaf([tensor], False)
    if isinstance(leaf.dtype, str):
        raise Unusual
    leaf.place = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    return leaves.plan(leaf, owner)


def _stacked(tensors: abc.Sequence[Any], leaves: Leaves) -> Plan:
    """Tensors of a batch. What subclasses come together as they say themselves."""
    if leaves.pickles and not all(map(is_plain, tensors)):
        from torch.utils.data._utils import collate as torch_collate
        default_collate: Any = torch_collate.default_collate
        return whole(default_collate(tensors), leaves)
    return leaves.plan(torch_leaf(tensors, True))


def array_leaf(arrays: abc.Sequence[Any], stacked: bool) -> Leaf:
    """The same of arrays."""
    for position, found in enumerate(arrays):
        if not isinstance(found, (np.ndarray, np.generic)):
            raise TypeError(f"the batch's sample {position} is of {type(found)}, its first one an array")
    common = _common_type([a.dtype for a in arrays])
    dtype: DType | str
    name = dtypes.beyond_dlpack(common)
    dtype, stored = (name, common) if name is not None else dtypes.of_numpy(common)
    shape = _same(arrays, "shape", np.shape)

    def fill(view: npt.NDArray[Any]) -> None:
        if stacked:
            np.stack(arrays, out=view)
        else:
            view[...] = arrays[0]

    return Leaf(dtype, stored, (len(arrays), *shape) if stacked else shape, fill)


def _common_type(found: list[np.dtype[Any]]) -> np.dtype[Any]:
    """As torch promotes: the widest of the highest kind, so that an integer never makes a float wider."""
    kinds = "biufc"
    if any(dtype.kind not in kinds for dtype in found):
        return functools.reduce(np.promote_types, found)
    highest = max(kinds.index("i" if dtype.kind == "u" else dtype.kind) for dtype in found)
    if kinds[highest] in "fc":
        found = [dtype for dtype in found if dtype.kind == kinds[highest]]
    return functools.reduce(np.promote_types, found)


def _type_of(number: Any) -> np.dtype[Any]:
    if isinstance(number, np.generic):
        return number.dtype
    for python, dtype in (bool, np.bool_), (int, np.int64), (float, np.float32), (complex, np.complex64):
        if isinstance(number, python):
            return np.dtype(dtype)
    raise TypeError(f"a sample of {type(number)} among numbers")


def _number_leaf(numbers: Any, dtype: npt.DTypeLike) -> Leaf:
    return array_leaf([np.array(numbers, dtype)], False)


def _mixed_leaf(numbers: abc.Sequence[Any]) -> Leaf:
    """As torch: bool if all are, int64 for int, and a float among them makes float32. Numpy would go on to uint64, then to
    float64 without a word."""
    dtype = _common_type([_type_of(number) for number in numbers])
    try:
        return _number_leaf(numbers, dtype)
    except OverflowError:
        raise OverflowError("an integer of the batch is beyond int64, the 64-bit type of all of them") from None


class Unusual(Exception):
    """A plan would change this value, and it may be pickled: it is pickled as it is, with what is around it."""


class Leaves(list[Any]):
    """Collects the leaves while a plan is made. Those that don't fit share one tensor: beyond the most tensors of a batch, or
    of more dimensions than a tensor's, or of a type that DLPack doesn't have.

    packs: False where the leaves are declared, as many as there are. pickles: whether values may be pickled."""

    _pack: Pack | None

    def __init__(self, packs: bool = True, pickles: bool = False) -> None:
        super().__init__()
        self.packs, self.pickles, self._pack = packs, pickles, None
        self._room = _MAX_VALUES

    def has_room(self, size: int) -> bool:
        """Whether a value of `size` bytes may stand in the plan, where it may be pickled instead. Counts it."""
        self._room -= size + _VALUE_BYTES
        return self._room >= 0

    def is_full(self) -> bool:
        """Whether a further leaf would share one tensor with others."""
        return len(self) >= _core.MAX_TENSORS - (self.packs and self._pack is None)

    def object(self, value: Any) -> Plan:
        """Collects a value that is pickled. Its plan. What pickle raises."""
        if not self.packs:  # all leaves are declared
            return (tree.VALUE, value)
        made = objects.Object(value)
        leaf = Leaf(*dtypes.of_numpy(np.uint8), (made.bytes,), made.write)
        number, offset = self._packed(leaf)
        return (tree.OBJECT, number, offset, made.start, made.bytes)

    def forget(self) -> None:
        """What was collected of a value that is pickled instead."""
        self.clear()
        self._pack = None

    def _packed(self, leaf: Leaf) -> tuple[int, int]:
        """The number of the shared tensor, and where the leaf lies in it."""
        if self._pack is None:
            self._pack = Pack()
            self.append(self._pack)
        offset = self._pack.add(leaf)
        return self.index(self._pack), offset

    def plan(self, leaf: Leaf, owner: int = tree.ANY) -> Plan:
        """Collects a leaf. Its plan: a tensor of the batch, or a part of the shared one. TypeError: the leaves were
        declared, and this is none that a tensor can be."""
        if not self.is_full() and len(leaf.shape) <= _core.MAX_NDIM and not isinstance(leaf.dtype, str):
            self.append(leaf)
            return (tree.LEAF, len(self) - 1, owner)
        if not self.packs:
            raise TypeError(f"a batch of declared fields has at most {_core.MAX_TENSORS} tensors of at most {_core.MAX_NDIM} "
                            f"dimensions and of types that DLPack has")
        number, offset = self._packed(leaf)
        name = leaf.dtype if isinstance(leaf.dtype, str) else dtypes.name_of(leaf.dtype)
        return (tree.PART, number, owner, name, offset, leaf.shape)


class Pack(Leaf):
    """Leaves one after the other in a tensor of bytes."""

    __slots__ = ("_parts",)
    _ALIGNMENT = 64

    def __init__(self) -> None:
        super().__init__(*dtypes.of_numpy(np.uint8), (0,), self._fill)
        self._parts: list[tuple[Leaf, int, int]] = []

    def add(self, leaf: Leaf) -> int:
        """Where in the tensor it will lie, in bytes from its start."""
        offset = -(-self.shape[0] // self._ALIGNMENT) * self._ALIGNMENT
        size = math.prod(leaf.shape) * leaf.stored.itemsize
        self._parts.append((leaf, offset, size))
        self.shape = (offset + size,)
        return offset

    def _fill(self, view: npt.NDArray[Any]) -> None:
        for leaf, offset, size in self._parts:
            if size:
                leaf.fill(view[offset:offset + size].view(leaf.stored).reshape(leaf.shape))


def mapping_plan(example: abc.Mapping[Any, Any], keys: tuple[Any, ...], children: tuple[Plan, ...]) -> Plan:
    """The plan of a mapping of the example's kind, with what else the example has."""
    if type(example) is dict:
        return (tree.MAPPING, keys, {}, children)
    try:  # one of its own kind: what else it has comes along
        shell: Any = copy.copy(example)
        for key in keys:
            shell[key] = None
    except TypeError:  # a mapping that can't be copied or written
        shell = {}
    return (tree.MAPPING, keys, shell, children)


def batch(samples: abc.Sequence[Any], leaves: Leaves) -> Plan:
    """default_collate: a list of samples that are alike. The plan of the batch, its leaves, of shape [samples, ...], appended to
    `leaves`. TypeError, RuntimeError, OverflowError: the samples can't be put together."""
    first = samples[0]
    if is_tensor(first):
        return _stacked(samples, leaves)
    if isinstance(first, np.ndarray):
        return leaves.plan(array_leaf(samples, True))
    if isinstance(first, float):
        return leaves.plan(_number_leaf(array.array("d", samples), np.float64))
    if isinstance(first, (int, np.bool_, np.number)):
        return leaves.plan(_mixed_leaf(samples))
    if isinstance(first, _TEXT):
        return texts(samples, leaves)
    if isinstance(first, abc.Mapping):
        keys = tuple(first)
        return mapping_plan(first, keys, tuple(batch([s[key] for s in samples], leaves) for key in keys))
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return (tree.NAMED, type(first), tuple(batch(column, leaves) for column in zip(*samples)))
    if isinstance(first, abc.Sequence):
        if any(len(sample) != len(first) for sample in samples):
            raise RuntimeError("sequences in the samples of a batch must have the same length")
        return (tree.LIST, tuple(batch(column, leaves) for column in zip(*samples)))
    if hasattr(first, "__array__") or hasattr(first, "__dlpack__"):  # of JAX, Arrow, polars
        return leaves.plan(array_leaf([_as_array(sample) for sample in samples], True))
    raise TypeError(f"samples of {type(first)} can't be put together: use arrays, tensors, numbers, strings, and dicts, "
                    "tuples and lists of them, or a collate_fn")


def texts(samples: abc.Sequence[Any], leaves: Leaves) -> Plan:
    """Strings or bytes come together as the list or tuple that they are in, whatever else is there."""
    kind = type(samples)
    if leaves.pickles and not all(type(sample) in _TEXT and leaves.has_room(len(sample)) for sample in samples):
        return leaves.object(samples)
    return (tree.TUPLE if kind is tuple else tree.LIST, tuple((tree.VALUE, sample) for sample in samples))


def _as_array(value: Any) -> npt.NDArray[Any]:
    """Of an array that isn't numpy's. A view, where it can be one."""
    if hasattr(value, "__array__"):
        return np.asarray(value)
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError) as reason:
        raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__} is no array of numpy's, and can't become one: "
                        f"{reason}") from reason


def single(sample: Any, leaves: Leaves) -> Plan:
    """default_convert: one sample without a batch dimension; numbers and strings stay what they are. The plan, its leaves
    appended to `leaves`, which has no others."""
    try:
        return _single(sample, leaves)
    except Unusual:
        leaves.forget()
        return leaves.object(sample)


def _single(sample: Any, leaves: Leaves) -> Plan:
    if is_tensor(sample):
        return _of_tensor(sample, leaves, tree.ANY)
    if isinstance(sample, (np.ndarray, np.generic)) and sample.dtype.kind not in "OSU":
        return leaves.plan(array_leaf([np.asarray(sample)], False))
    return _nested(sample, leaves, _single, (tree.LIST,))


def whole(value: Any, leaves: Leaves) -> Plan:
    """What a collate_fn returned, as it is: arrays come back as numpy's, tensors as torch's. The plan, its leaves appended to
    `leaves`. Where values may be pickled, what a plan would change is pickled, with all that is in it."""
    before = len(leaves)
    try:
        return _core.collate_whole(value, leaves, part, Unusual if leaves.pickles else None)
    except Unusual:
        del leaves[before:]
        return leaves.object(value)


def part(value: Any, leaves: Leaves) -> Plan:
    """Of a part of it that core/collate.cpp doesn't know. Unusual: it may be pickled."""
    if is_tensor(value):
        return _of_tensor(value, leaves, tree.TORCH)
    if leaves.pickles:
        return _atom(value, leaves)
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OSU":
        return leaves.plan(array_leaf([value], False), tree.NUMPY)
    if not isinstance(value, (abc.Sequence, abc.Mapping, np.generic)) and hasattr(value, "__array__"):
        return leaves.plan(array_leaf([_as_array(value)], False), tree.NUMPY)
    return _nested(value, leaves, part, (tree.TUPLE,))


def _atom(value: Any, leaves: Leaves) -> Plan:
    kind = type(value)
    if kind in (float, bool, complex, type(None)) or (kind in _TEXT and leaves.has_room(len(value))) or (
            kind is int and leaves.has_room(value.bit_length() // 3)):
        return (tree.VALUE, value)
    if isinstance(value, np.generic) and is_known(value.dtype):
        return (tree.VALUE, value)
    raise Unusual


def is_known(dtype: np.dtype[Any]) -> bool:
    """Whether a tensor can be of this type."""
    try:
        dtypes.of_numpy(dtype)
    except TypeError:
        return False
    return True


def _nested(value: Any, leaves: Any, inner: abc.Callable[[Any, Any], Plan], tuple_kind: tuple[int]) -> Plan:
    if isinstance(value, abc.Mapping):
        return mapping_plan(value, tuple(value), tuple(inner(value[key], leaves) for key in value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return (tree.NAMED, type(value), tuple(inner(item, leaves) for item in value))
    if type(value) is tuple:
        return (*tuple_kind, tuple(inner(item, leaves) for item in value))
    if type(value) is list:
        return (tree.LIST, tuple(inner(item, leaves) for item in value))
    return (tree.VALUE, value)


def values_alone(value: Any) -> Plan:
    """A plan without leaves: arrays and tensors are values like others, which only pickle can carry."""
    return _nested(value, None, lambda inner, _: values_alone(inner), (tree.TUPLE,))
