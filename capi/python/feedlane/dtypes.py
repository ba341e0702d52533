# SPDX-License-Identifier: Apache-2.0
"""DLPack's and numpy's element types. numpy itself lacks bfloat16 and types of less than 16 bits. These are read and returned
as torch's types or, if ml_dtypes is installed (JAX needs it), as types of ml_dtypes."""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from .records import DType

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
BFLOAT16: DType = (4, 16)


def of_numpy(dtype: npt.DTypeLike | str) -> tuple[DType, np.dtype[Any]]:
    """Returns DLPack's (code, bits) and the numpy type that stores such elements here, in this machine's byte order. dtype: a
    type of numpy, torch or ml_dtypes, or a name. Raises TypeError if DLPack or a tensor has no such type, for example for
    texts, objects and 128-bit floats."""
    name = _name_beyond_numpy(dtype)
    if name == "bfloat16":
        return BFLOAT16, _beyond_numpy(name) or np.dtype(np.int16)
    dtype = np.dtype(str(dtype).removeprefix("torch.") if _is_of_torch(dtype) else dtype)
    # ml_dtypes gives numpy's kind to some of its types, which are found by name once it is imported.
    code = _CODES.get(dtype.kind) if _name_beyond_numpy(dtype) is None else None
    if code is None or dtype.itemsize > 16 or (dtype.kind == "f" and dtype.itemsize > 8):
        raise TypeError(f"tensors of type {dtype} are not supported")
    return (code, dtype.itemsize * 8), dtype.newbyteorder("=")


def _is_of_torch(dtype: object) -> bool:
    return type(dtype).__module__ == "torch"


def _name_beyond_numpy(dtype: Any) -> str | None:
    """Returns the name of a type of ml_dtypes, or of bfloat16 in any spelling; None: another type."""
    if isinstance(dtype, str) or _is_of_torch(dtype):
        return "bfloat16" if str(dtype).removeprefix("torch.") == "bfloat16" else None
    kind = dtype.type if isinstance(dtype, np.dtype) else dtype
    is_known = isinstance(kind, type) and kind.__module__.partition(".")[0] == "ml_dtypes"
    return kind.__name__ if is_known else None


def beyond_dlpack(dtype: np.dtype[Any]) -> str | None:
    """Returns the name, which is also torch's, of a type of ml_dtypes that a batch's tensors cannot have. Arrays of such a type
    are stored as parts (tree.PART). None: any other type."""
    name = _name_beyond_numpy(dtype)
    return name if name != "bfloat16" else None


def _beyond_numpy(name: str) -> np.dtype[Any] | None:
    """Returns the type of ml_dtypes; None: ml_dtypes is not installed, or has no such type."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    kind = getattr(ml_dtypes, name, None)
    return np.dtype(kind) if isinstance(kind, type) and issubclass(kind, np.generic) else None


def numpy_named(name: str) -> np.dtype[Any]:
    """Returns the type of this name of numpy or of ml_dtypes. Raises TypeError if neither has one."""
    try:
        return np.dtype(name)
    except TypeError:
        dtype = _beyond_numpy(name)
        if dtype is None:
            raise
        return dtype


def find_beyond_numpy(dtype: str) -> bool:
    """Looks for bfloat16 in ml_dtypes, and returns whether it was found. If so, bfloat16 arrays have this type from now on."""
    found = _beyond_numpy(dtype) if dtype == "bfloat16" else None
    if found is not None:
        BY_KEY[BFLOAT16[0] << 8 | BFLOAT16[1]] = found
    return found is not None


def torch_itemsize(kind: Any) -> int:
    """Returns the size of an element of a torch dtype, in bytes. The dtype has this itself only since torch 2.1."""
    size: int = sys.modules["torch"].empty((), dtype=kind, device="cpu").element_size()
    return size


def name_of(dtype: DType) -> str:
    """Returns the name of (code, bits) in numpy and torch: "float32", "bfloat16", "bool"."""
    code, bits = dtype
    name = _NAMES.get(code, f"code {code} ")
    return name if name == "bool" else f"{name}{bits}"


# By `code << 8 | bits`, for core/view.cpp.
BY_KEY = {code << 8 | np.dtype(kind + str(bytes_)).itemsize * 8: np.dtype(kind + str(bytes_))
          for kind, code in _CODES.items() for bytes_ in {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16),
                                                          "b": (1,)}[kind]}
