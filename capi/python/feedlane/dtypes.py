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
