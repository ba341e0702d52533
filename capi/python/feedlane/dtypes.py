# SPDX-License-Identifier: Apache-2.0
"""DLPack's element types and numpy's. bfloat16 and types of less than 16 bits aren't numpy's own: they come and go as torch's, or as
those of ml_dtypes, which JAX has too, where it is installed."""
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
    """((code, bits) of DLPack, as numpy stores it here): another byte order becomes this machine's. dtype: numpy's, torch's, that of
    ml_dtypes, or a name. TypeError: DLPack or a tensor has no such type, such as texts, objects and floats of 128 bits."""
    name = _name_beyond_numpy(dtype)
    if name == "bfloat16":
        return BFLOAT16, _beyond_numpy(name) or np.dtype(np.int16)
    dtype = np.dtype(str(dtype).removeprefix("torch.") if _is_of_torch(dtype) else dtype)
    code = _CODES.get(dtype.kind) if name is None else None
    if code is None or dtype.itemsize > 16 or (dtype.kind == "f" and dtype.itemsize > 8):
        raise TypeError(f"tensors can't be of {dtype}")
    return (code, dtype.itemsize * 8), dtype.newbyteorder("=")


def _is_of_torch(dtype: object) -> bool:
    return type(dtype).__module__ == "torch"


def _name_beyond_numpy(dtype: Any) -> str | None:
    """Of a type of ml_dtypes, or of bfloat16 in any spelling; None: another one."""
    if isinstance(dtype, str) or _is_of_torch(dtype):
        return "bfloat16" if str(dtype).removeprefix("torch.") == "bfloat16" else None
    kind = dtype.type if isinstance(dtype, np.dtype) else dtype
    is_known = isinstance(kind, type) and kind.__module__.partition(".")[0] == "ml_dtypes"
    return kind.__name__ if is_known else None


def beyond_dlpack(dtype: np.dtype[Any]) -> str | None:
    """The name, torch's too, of a type of ml_dtypes that no tensor of a batch can be of, but a part of one; None: another one."""
    name = _name_beyond_numpy(dtype)
    return name if name != "bfloat16" else None


def _beyond_numpy(name: str) -> np.dtype[Any] | None:
    """The type of ml_dtypes; None: it isn't installed, or has none such."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    kind = getattr(ml_dtypes, name, None)
    return np.dtype(kind) if isinstance(kind, type) and issubclass(kind, np.generic) else None


def numpy_named(name: str) -> np.dtype[Any]:
    """numpy's type, or that of ml_dtypes. TypeError: neither has one of this name."""
    try:
        return np.dtype(name)
    except TypeError:
        dtype = _beyond_numpy(name)
        if dtype is None:
            raise
        return dtype


def find_beyond_numpy(dtype: str) -> bool:
    """Looks for bfloat16 in ml_dtypes: arrays are of it from then on. Whether it is there."""
    found = _beyond_numpy(dtype) if dtype == "bfloat16" else None
    if found is not None:
        BY_KEY[BFLOAT16[0] << 8 | BFLOAT16[1]] = found
    return found is not None


def torch_itemsize(kind: Any) -> int:
    """Bytes of an element of a torch dtype, which says so itself from torch 2.1 on."""
    size: int = sys.modules["torch"].empty((), dtype=kind, device="cpu").element_size()
    return size


def name_of(dtype: DType) -> str:
    """(code, bits) as numpy and torch call it: "float32", "bfloat16", "bool"."""
    code, bits = dtype
    name = _NAMES.get(code, f"code {code} ")
    return name if name == "bool" else f"{name}{bits}"


# By `code << 8 | bits`, for core/view.cpp.
BY_KEY = {code << 8 | np.dtype(kind + str(bytes_)).itemsize * 8: np.dtype(kind + str(bytes_))
          for kind, code in _CODES.items() for bytes_ in {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16),
                                                          "b": (1,)}[kind]}
