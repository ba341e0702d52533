# SPDX-License-Identifier: Apache-2.0
"""Tensors of a batch for other libraries, in place, as capsules of the DLPack protocol.

A capsule that nobody consumes must give its tensor back when it is dropped: in a destructor that may run while an
exception is on its way, or while the interpreter ends. Python code can't run safely there, so the destructors are C
functions: those of numpy's own capsules, which do just what the protocol says and fit every capsule of that form."""
import ctypes as c

import numpy as np

from . import _abi, errors

_api = c.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = c.py_object, [c.c_void_p, c.c_char_p, c.c_void_p]
_get_destructor = _api.PyCapsule_GetDestructor
_get_destructor.restype, _get_destructor.argtypes = c.c_void_p, [c.py_object]

_LEGACY, _VERSIONED = b"dltensor", b"dltensor_versioned"  # kept here: a capsule has the pointer only


class _Numpy:
    """numpy's destructors. Before 2.1 it has none for the versioned form, which then isn't offered."""

    legacy = _get_destructor(np.zeros(1).__dlpack__())
    versioned = None


try:
    _capsule = np.zeros(1).__dlpack__(max_version=(1, 0))
    if "dltensor_versioned" in repr(_capsule):
        _Numpy.versioned = _get_destructor(_capsule)
    del _capsule
except TypeError:
    pass

try:
    np.from_dlpack(np.zeros(1, np.bool_))
    NUMPY_HAS_BOOL = True
except (RuntimeError, TypeError, BufferError):  # before 1.25
    NUMPY_HAS_BOOL = False

CPU = (1, 0)  # kDLCPU, device 0
_UINT = 1
# Of the tensor's type code: behind data, device and ndim, and in the new form behind version, context, deleter and flags.
_LEGACY_CODE, _VERSIONED_CODE = 20, 32 + 20


def capsule(loader, token, index, max_version, as_bytes=False):
    """Tensor `index` of the batch that `token` names. It holds a reference of the batch until its consumer drops it.
    `as_bytes`: a tensor of bool as one of uint8."""
    versioned = _Numpy.versioned is not None and max_version is not None and max_version[0] >= 1
    function = _abi.library.feedlane_batch_dlpack if versioned else _abi.library.feedlane_batch_dlpack_legacy
    out = c.c_void_p()
    status = function(loader, token, index, 0, c.byref(out), None)
    if status != _abi.OK:
        raise errors.make(status)
    if as_bytes:
        c.c_uint8.from_address(out.value + (_VERSIONED_CODE if versioned else _LEGACY_CODE)).value = _UINT
    if versioned:
        return _new(out, _VERSIONED, _Numpy.versioned)
    return _new(out, _LEGACY, _Numpy.legacy)
