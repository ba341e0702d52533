# SPDX-License-Identifier: Apache-2.0
"""Makes plans (see tree.py) and leaves of samples. Samples are collated as by torch's default_collate and default_convert, but
without making tensors: each leaf can write its samples into a batch's slot."""
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
# If values may be pickled: the bytes that all values in a plan may take; further ones are pickled.
_MAX_VALUES = 1 << 20
_VALUE_BYTES = 8  # approximate size of a short value


class Leaf:
    """A tensor to write: its element type (DLPack's, or torch's name of a type that DLPack does not have), the numpy type that
    stores it, its shape, and `write(view)`, which writes it through a numpy view of its place."""

    __slots__ = ("dtype", "_stored", "shape", "_write", "place")

    shape: tuple[int, ...]
    place: tuple[int, int]  # address and size of its only source, if known, for core/collate.cpp

    def __init__(self, dtype: DType | str, stored: np.dtype[Any], shape: abc.Iterable[int],
                 write: abc.Callable[[npt.NDArray[Any]], None]) -> None:
        self.dtype, self._stored, self.shape, self._write = dtype, stored, tuple(shape), write

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self._stored.itemsize

    def fill(self, memory: memoryview) -> None:
        """Writes the tensor to `memory`, which has nbytes bytes."""
        if self.nbytes:
            self._write(np.ndarray(self.shape, self._stored, buffer=memory))


AnyLeaf = Leaf | _core.Leaf | _core.Pack
"""What has dtype, shape and fill."""


def is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor. Does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _same(samples: abc.Sequence[Any], what: str, describe: abc.Callable[[Any], Any]) -> Any:
    first = describe(samples[0])
    for position, sample in enumerate(samples):
        if describe(sample) != first:
            raise TypeError(f"the batch's sample {position} has {what} {describe(sample)}, but its first sample has {first}")
    return first


def torch_leaf(tensors: abc.Sequence[Any], stacked: bool) -> Leaf:
    """Makes one tensor of the batch from equal tensors or, if not `stacked`, from a single one. Raises TypeError or
    RuntimeError if the tensors cannot become one."""
    torch = sys.modules["torch"]
    for position, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"the batch's sample {position} is of {type(tensor)}, but its first sample is a tensor")
        if not _is_dense(tensor):
            raise TypeError(f"tensors must be dense and on the CPU, not {tensor.layout} on {tensor.device}")
        if tensor.requires_grad:
            raise RuntimeError("a tensor of the batch requires gradients, which cannot be sent to another process: detach() it")
    kind = functools.reduce(torch.promote_types, (t.dtype for t in tensors))
    return leaf_of_tensors(tensors, kind, _same(tensors, "shape", lambda t: tuple(t.shape)), stacked)


def leaf_of_tensors(tensors: abc.Sequence[Any], kind: Any, shape: tuple[int, ...], stacked: bool) -> Leaf:
    """As torch_leaf, for dense CPU tensors of this shape without gradients; the leaf gets the type `kind`."""
    torch = sys.modules["torch"]
    shape = (len(tensors), *shape) if stacked else shape
    name = str(kind).removeprefix("torch.")
    dtype: DType | str
    if name == "bfloat16":
        dtype, stored = dtypes.BFLOAT16, np.dtype(np.int16)
    else:
        try:
            dtype, stored = dtypes.of_numpy(name)
        except TypeError:  # a type that neither numpy nor DLPack has
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
    """Whether a leaf preserves the complete tensor, except for its strides."""
    return type(tensor) is sys.modules["torch"].Tensor and not tensor.requires_grad and _is_dense(tensor)


def _of_tensor(tensor: Any, leaves: Leaves, owner: int) -> Plan:
    """Makes the plan of one tensor, unchanged. Raises Unusual if no leaf can hold the tensor and it may be pickled."""
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
    """Makes the plan of the tensors of a batch. If values may be pickled, torch's default_collate collates tensors that are not
    plain, such as subclasses."""
    if leaves.pickles and not all(map(is_plain, tensors)):
        from torch.utils.data._utils import collate as torch_collate
        default_collate: Any = torch_collate.default_collate
        return whole(default_collate(tensors), leaves)
    return leaves.plan(torch_leaf(tensors, True))


def array_leaf(arrays: abc.Sequence[Any], stacked: bool) -> Leaf:
    """As torch_leaf, for arrays."""
    for position, found in enumerate(arrays):
        if not isinstance(found, (np.ndarray, np.generic)):
            raise TypeError(f"the batch's sample {position} is of {type(found)}, but its first sample is an array")
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
    """Promotes as torch does: to the widest type of the highest kind, so that an integer never makes a float wider."""
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
    raise TypeError(f"samples of one batch mix numbers with {type(number)}")


def _number_leaf(numbers: Any, dtype: npt.DTypeLike) -> Leaf:
    return array_leaf([np.array(numbers, dtype)], False)


def _mixed_leaf(numbers: abc.Sequence[Any]) -> Leaf:
    """As in torch: all bool give bool, int gives int64, and a float among them gives float32. Numpy would silently promote to
    uint64, then to float64."""
    dtype = _common_type([_type_of(number) for number in numbers])
    try:
        return _number_leaf(numbers, dtype)
    except OverflowError:
        raise OverflowError("an integer of the batch does not fit into int64") from None


class Unusual(Exception):
    """A plan would change this value, and it may be pickled. So it is pickled unchanged, together with the value that contains
    it."""


class Leaves(list[Any]):
    """Collects the leaves while a plan is made. Some leaves share one tensor: those beyond the largest number of tensors in a
    batch, those with more dimensions than a tensor may have, and those of a type that DLPack does not have.

    packs: False if the leaves are declared, so that their number is fixed. pickles: whether values may be pickled. numbers: of
    the parts and objects, see tree.py."""

    _pack: _core.Pack | None

    def __init__(self, packs: bool = True, pickles: bool = False) -> None:
        super().__init__()
        self.packs, self.pickles, self._pack = packs, pickles, None
        self.numbers = array.array("q")
        self._room = _MAX_VALUES

    def has_room(self, size: int) -> bool:
        """Counts a value of `size` bytes and returns whether it may be stored in the plan. For values that could also be
        pickled."""
        self._room -= size + _VALUE_BYTES
        return self._room >= 0

    def is_full(self) -> bool:
        """Whether another leaf would share a tensor with others."""
        return len(self) >= _core.MAX_TENSORS - (self.packs and self._pack is None)

    def object(self, value: Any) -> Plan:
        """Collects a value that is pickled, and returns its plan. Raises pickle's errors."""
        if not self.packs:  # all leaves are declared
            return (tree.VALUE, value)
        made = objects.Object(value)
        leaf = Leaf(*dtypes.of_numpy(np.uint8), (made.bytes,), made.write)
        number = self._packed(leaf, made.start, made.bytes)
        return (tree.OBJECT, number)

    def mark(self) -> tuple[int, int, int]:
        """For `back_to`: what was collected so far."""
        return len(self), len(self.numbers), len(self._pack) if self._pack is not None else 0

    def back_to(self, mark: tuple[int, int, int]) -> None:
        """Discards what was collected since, because the value is pickled instead."""
        leaves, numbers, packed = mark
        del self[leaves:], self.numbers[numbers:]
        if self._pack is not None:
            self._pack.cut(packed)
            self._pack = self._pack if packed else None

    def _packed(self, leaf: Leaf | _core.Leaf, *numbers: int) -> int:
        """Puts the leaf into the shared tensor, and its offset and these numbers into `numbers`. Returns the tensor's number."""
        if self._pack is None:
            self._pack, self._pack_number = _core.Pack(), len(self)
            self.append(self._pack)
        self.numbers.append(self._pack.add(leaf))
        self.numbers.extend(numbers)
        return self._pack_number

    def plan(self, leaf: Leaf | _core.Leaf, owner: int = tree.ANY) -> Plan:
        """Collects a leaf and returns its plan: a tensor of the batch, or a part of the shared one. Raises TypeError if the
        leaves are declared and this leaf cannot be a tensor."""
        shape = leaf.shape
        if not self.is_full() and len(shape) <= _core.MAX_NDIM and not isinstance(leaf.dtype, str):
            self.append(leaf)
            return (tree.LEAF, len(self) - 1, owner)
        if not self.packs:
            raise TypeError(f"a batch of declared fields has at most {_core.MAX_TENSORS} tensors of at most {_core.MAX_NDIM} "
                            f"dimensions and of types that DLPack has")
        number = self._packed(leaf, *shape)
        dtype = leaf.dtype
        return (tree.PART, number, owner, dtype if isinstance(dtype, str) else dtypes.name_of(dtype), len(shape))


def mapping_plan(example: abc.Mapping[Any, Any], keys: tuple[Any, ...], children: tuple[Plan, ...]) -> Plan:
    """Makes the plan of a mapping of the example's class, with the example's other attributes."""
    if type(example) is dict:
        return (tree.MAPPING, keys, {}, children)
    try:  # a mapping of the same class, with its other attributes
        shell: Any = copy.copy(example)
        for key in keys:
            shell[key] = None
    except TypeError:  # a mapping that can't be copied or written
        shell = {}
    return (tree.MAPPING, keys, shell, children)


def batch(samples: abc.Sequence[Any], leaves: Leaves) -> Plan:
    """As default_collate: collates a list of samples of equal structure. Returns the plan of the batch, and appends its leaves,
    of shape [samples, ...], to `leaves`. Raises TypeError, RuntimeError or OverflowError if the samples cannot be collated."""
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
    if hasattr(first, "__array__") or hasattr(first, "__dlpack__"):  # arrays of JAX, Arrow, polars
        return leaves.plan(array_leaf([_as_array(sample) for sample in samples], True))
    raise TypeError(f"samples of {type(first)} can't be put together: use arrays, tensors, numbers, strings, and dicts, "
                    "tuples and lists of them, or a collate_fn")


def texts(samples: abc.Sequence[Any], leaves: Leaves) -> Plan:
    """Makes the plan of strings or bytes: they stay in the list or tuple that contains them, with any other elements."""
    kind = type(samples)
    if leaves.pickles and not all(type(sample) in _TEXT and leaves.has_room(len(sample)) for sample in samples):
        return leaves.object(samples)
    return (tree.TUPLE if kind is tuple else tree.LIST, tuple((tree.VALUE, sample) for sample in samples))


def _as_array(value: Any) -> npt.NDArray[Any]:
    """Makes a numpy array of another kind of array, as a view if possible."""
    if hasattr(value, "__array__"):
        return np.asarray(value)
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError) as reason:
        raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__} cannot be converted to a numpy array: "
                        f"{reason}") from reason


def single(sample: Any, leaves: Leaves) -> Plan:
    """As default_convert: converts one sample without a batch dimension; numbers and strings stay unchanged. Returns the plan,
    and appends its leaves to `leaves`."""
    before = leaves.mark()
    try:
        return _single(sample, leaves)
    except Unusual:
        leaves.back_to(before)
        return leaves.object(sample)


def _single(sample: Any, leaves: Leaves) -> Plan:
    if is_tensor(sample):
        return _of_tensor(sample, leaves, tree.ANY)
    if isinstance(sample, (np.ndarray, np.generic)) and sample.dtype.kind not in "OSU":
        return leaves.plan(array_leaf([np.asarray(sample)], False))
    return _nested(sample, leaves, _single, (tree.LIST,))


def whole(value: Any, leaves: Leaves) -> Plan:
    """Makes the plan of a collate_fn's result, unchanged: arrays become numpy arrays again, tensors torch tensors. Appends the
    leaves to `leaves`. If values may be pickled, and a plan would change a part of the result, all of it is pickled."""
    before = leaves.mark()
    try:
        return _core.collate_whole(value, leaves, part, Unusual if leaves.pickles else None)
    except Unusual:
        leaves.back_to(before)
        return leaves.object(value)


def part(value: Any, leaves: Leaves) -> Plan:
    """Makes the plan of a part that core/collate.cpp does not support. Raises Unusual if a plan would change the part, and it
    may be pickled."""
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
    """Whether a tensor can have this type."""
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
    """Makes a plan without leaves: arrays and tensors are ordinary values, which only pickle can store."""
    return _nested(value, None, lambda inner, _: values_alone(inner), (tree.TUPLE,))
