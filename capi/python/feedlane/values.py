# SPDX-License-Identifier: Apache-2.0
"""JSON nodes for those values in a batch's plan that are neither tensors nor containers (see tree.py):

    "text"  1  0.5  true  null           themselves
    ["int", hex]                         an integer of more than 64 bits
    ["complex", real, imaginary]
    ["bytes", base64]  ["bytearray", base64]  ["path", text]
    ["set", node ...]  ["frozenset", node ...]  ["tuple", node ...] of such values; a tuple only in keys and sets
    ["numpy", dtype, base64]             a numpy scalar
    ["texts", dtype, base64, length ...] an array of numpy strings
    ["pickle", base64]                   any other value"""
from __future__ import annotations

import binascii
import collections
import collections.abc as abc
import functools
import math
import pathlib
import pickle
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_FEW_KEYS = 64
_INT_TEXT = 20  # characters of the longest 64-bit integer
_DTYPE = re.compile(r"[<>|](?:[biufc]\d{1,2}|[SU]\d{1,9}|[mM]8(?:\[\d{0,9}(?:generic|Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)")


class Malformed(ValueError):
    """The data that a worker wrote does not have the required format."""


class Budget:
    """Counts nodes against a limit."""

    def __init__(self, nodes: int) -> None:
        self._left = self._nodes = nodes

    def take(self) -> None:
        """Counts one node. Raises Malformed if the limit is exceeded."""
        self._left -= 1
        if self._left < 0:
            raise Malformed(f"more than {self._nodes} nodes")


def bounded_int(text: str) -> int:
    """Returns the integer in JSON's text. Raises ValueError beyond 64 bits, because the conversion time of long integers grows
    with the square of their length."""
    if len(text) > _INT_TEXT:
        raise ValueError("an integer of more than 64 bits")
    return int(text)


def _base64(data: bytes | bytearray) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


# ---- in the worker ----

def pickled(value: Any, allow_pickle: bool, budget: Budget) -> Any:
    """Returns the node of a value that is pickled. Raises TypeError if pickling is not allowed, and pickle's errors."""
    budget.take()
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if not allow_pickle:
        raise TypeError(f"a batch holds a value of type {kind}, which must be pickled: return arrays, numbers, strings, bytes, "
                        f"lists, tuples or dicts of them, or use Loader(allow_pickle=True), with which workers can run any code "
                        f"in the trainer")
    return ["pickle", _base64(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))]


def node_of(value: Any, allow_pickle: bool, budget: Budget, depth: int) -> Any:
    """Returns the node of any value; `depth`: number of levels allowed. Raises ValueError beyond this depth, and TypeError as
    `pickled` does."""
    kind = type(value)
    if kind is str or kind is float or kind is bool or value is None:
        budget.take()
        return value
    if kind is int:
        budget.take()
        return value if -2**63 <= value < 2**63 else ["int", hex(value)]
    if kind in _COLLECTIONS:
        budget.take()
        if not depth:
            raise ValueError("a set or a key is nested too deeply")
        return [kind.__name__, *(node_of(item, allow_pickle, budget, depth - 1) for item in value)]
    write = _WRITERS.get(kind)
    if write is None and isinstance(value, np.generic) and _DTYPE.fullmatch(value.dtype.str):
        write = _numpy
    if write is None and kind is np.ndarray and value.dtype.kind in "SU" and value.dtype.itemsize:
        write = _texts
    if write is None:
        return pickled(value, allow_pickle, budget)
    budget.take()
    return write(value)


def _numpy(value: np.generic) -> list[Any]:
    return ["numpy", value.dtype.str, _base64(value.tobytes())]


def _texts(value: npt.NDArray[Any]) -> list[Any]:
    return ["texts", value.dtype.str, _base64(value.tobytes()), *value.shape]


_COLLECTIONS: set[type] = {set, frozenset, tuple}
_WRITERS: dict[type, abc.Callable[[Any], list[Any]]] = {
    complex: lambda value: ["complex", value.real, value.imag],
    bytes: lambda value: ["bytes", _base64(value)],
    bytearray: lambda value: ["bytearray", _base64(value)],
    type(pathlib.Path()): lambda value: ["path", str(value)],
}


# ---- in the trainer ----

def maker_of(node: Any, allow_pickle: bool, budget: Budget, depth: int) -> abc.Callable[[], Any]:
    """Returns a function that makes the value. Each call makes a new one if the value is mutable. Raises Malformed if the node
    is invalid."""
    if type(node) in (str, int, float, bool, type(None)):
        budget.take()
        return functools.partial(_itself, node)
    budget.take()
    if type(node) is not list or not node or type(node[0]) is not str:
        raise Malformed("a node is neither a value nor a list that begins with its kind")
    kind, *what = node
    if kind in ("set", "frozenset", "tuple"):
        items = [key_of(item, allow_pickle, budget, depth - 1) for item in what]
        if kind != "tuple":
            check_hashes(items)
        kinds: dict[str, abc.Callable[[list[Any]], Any]] = {"set": set, "frozenset": frozenset, "tuple": tuple}
        return functools.partial(kinds[kind], items)
    read = _READERS.get(kind)
    if read is None:
        raise Malformed(f"a node of the unknown kind {kind[:40]!r}")
    if kind == "pickle" and not allow_pickle:
        raise Malformed("the value is pickled, but the loader was created without allow_pickle=True")
    try:
        return read(*what)
    except (TypeError, ValueError) as reason:
        raise Malformed(f"a {kind} that is none: {type(reason).__name__}") from None


def key_of(node: Any, allow_pickle: bool, budget: Budget, depth: int) -> Any:
    """Returns a value that is an element of a set or a mapping's key. Raises Malformed if it cannot be one."""
    if depth < 0:
        raise Malformed("too many levels")
    value = maker_of(node, allow_pickle, budget, depth)()
    try:
        hash(value)
    except TypeError:
        raise Malformed(f"a key of type {type(value).__name__}") from None
    return value


def check_hashes(keys: abc.Sequence[Any]) -> None:
    """Raises Malformed if too many keys have the same hash. A set or dict of them could take hours, because the time grows with
    the square of their number. Integers, complex numbers and tuples can be chosen to cause this."""
    if len(keys) > _FEW_KEYS:
        pairs = sum(count * count for count in collections.Counter(map(hash, keys)).values())
        if pairs > _FEW_KEYS * len(keys):
            raise Malformed(f"{len(keys)} keys have too many equal hash values")


def _itself(value: Any) -> Any:
    return value


def _must(condition: object) -> None:
    if not condition:
        raise ValueError


def _text(value: Any) -> Any:
    _must(type(value) is str)
    return value


def _int(digits: Any) -> abc.Callable[[], Any]:
    return functools.partial(_itself, int(_text(digits), 16))


def _complex(real: Any, imaginary: Any) -> abc.Callable[[], Any]:
    _must(type(real) is float and type(imaginary) is float)
    return functools.partial(_itself, complex(real, imaginary))


def _bytes(data: Any) -> abc.Callable[[], Any]:
    return functools.partial(_itself, binascii.a2b_base64(_text(data)))


def _bytearray(data: Any) -> abc.Callable[[], Any]:
    return functools.partial(bytearray, binascii.a2b_base64(_text(data)))


def _path(text: Any) -> abc.Callable[[], Any]:
    _must("\0" not in _text(text))
    return functools.partial(pathlib.Path, text)


def _dtype(text: Any, kinds: str) -> np.dtype[Any]:
    _must(_DTYPE.fullmatch(_text(text)) is not None)
    dtype: np.dtype[Any] = np.dtype(text)
    _must(dtype.kind in kinds and dtype.itemsize > 0)
    return dtype


def _array(dtype: np.dtype[Any], data: Any, shape: tuple[Any, ...]) -> npt.NDArray[Any]:
    data = binascii.a2b_base64(_text(data))
    _must(len(shape) <= 32 and all(type(length) is int and 0 <= length <= len(data) for length in shape))
    _must(math.prod(shape) * dtype.itemsize == len(data))
    if dtype.kind == "U" and data:
        _must(np.frombuffer(data, dtype.byteorder + "u4").max() <= 0x10FFFF)
    return np.ndarray(shape, dtype, bytearray(data))


def _read_numpy(text: Any, data: Any) -> abc.Callable[[], Any]:
    dtype = _dtype(text, "biufcSUmM")
    return functools.partial(_itself, _array(dtype, data, ())[()])


def _read_texts(text: Any, data: Any, *shape: Any) -> abc.Callable[[], Any]:
    array = _array(_dtype(text, "SU"), data, shape)
    return array.copy


def _unpickle(data: Any) -> abc.Callable[[], Any]:
    return functools.partial(_unpickled, binascii.a2b_base64(_text(data)))


def _unpickled(blob: bytes) -> Any:
    try:
        return pickle.loads(blob)
    except Exception as reason:
        raise Malformed(f"a pickled value that can't be read: {type(reason).__name__}: {reason}") from reason


_READERS: dict[str, abc.Callable[..., abc.Callable[[], Any]]] = {
    "int": _int, "complex": _complex, "bytes": _bytes, "bytearray": _bytearray, "path": _path, "numpy": _read_numpy,
    "texts": _read_texts, "pickle": _unpickle}
