# SPDX-License-Identifier: Apache-2.0
"""DLPack's element types and numpy's. bfloat16 isn't one of numpy's: it comes and goes as torch's."""
import numpy as np

from . import _abi

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


def of_numpy(dtype):
    """(DLPack's, as numpy stores it here): another byte order becomes this machine's."""
    dtype = np.dtype(dtype)
    code = _CODES.get(dtype.kind)
    if code is None or dtype.itemsize > 16 or (dtype.kind == "f" and dtype.itemsize > 8):
        raise TypeError(f"tensors can't be of {dtype}")
    return _abi.Dtype(code, dtype.itemsize * 8, 1), dtype.newbyteorder("=")


BFLOAT16 = _abi.Dtype(4, 16, 1)


def name_of(dtype):
    """As numpy and torch call it: "float32", "bfloat16", "bool"."""
    name = _NAMES.get(dtype.code, f"code {dtype.code} ")
    return name if name == "bool" else f"{name}{dtype.bits}"


# By `code << 8 | bits`, for _core.
BY_KEY = {code << 8 | np.dtype(kind + str(bytes_)).itemsize * 8: np.dtype(kind + str(bytes_))
          for kind, code in _CODES.items() for bytes_ in {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16),
                                                          "b": (1,)}[kind]}
if _abi.core is not None:
    _abi.core.set_up(np.ndarray, _abi.Dtype)
