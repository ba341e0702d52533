# SPDX-License-Identifier: Apache-2.0
"""DLPack's element types and numpy's. bfloat16 isn't one of numpy's: it comes and goes as torch's."""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from .records import DType

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


def of_numpy(dtype: npt.DTypeLike) -> tuple[DType, np.dtype[Any]]:
    """((code, bits) of DLPack, as numpy stores it here): another byte order becomes this machine's. TypeError: DLPack or a tensor
    has no such type, such as texts, objects and floats of 128 bits."""
    dtype = np.dtype(dtype)
    code = _CODES.get(dtype.kind)
    if code is None or dtype.itemsize > 16 or (dtype.kind == "f" and dtype.itemsize > 8):
        raise TypeError(f"tensors can't be of {dtype}")
    return (code, dtype.itemsize * 8), dtype.newbyteorder("=")


BFLOAT16: DType = (4, 16)


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
