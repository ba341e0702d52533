# SPDX-License-Identifier: Apache-2.0
"""Tensors of a batch for other libraries, in place, as capsules of the DLPack protocol.

A capsule that nobody consumes must give its tensor back when it is dropped: in a destructor that may run while an
exception is on its way, or while the interpreter ends. Python code can't run safely there, so the destructors are C
functions: those of numpy's own capsules, which do just what the protocol says and fit every capsule of that form."""
import ctypes as c
import functools

import numpy as np

from . import _abi, errors

_api = c.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = c.py_object, [c.c_void_p, c.c_char_p, c.c_void_p]
_get_destructor = _api.PyCapsule_GetDestructor
_get_destructor.restype, _get_destructor.argtypes = c.c_void_p, [c.py_object]

_LEGACY, _VERSIONED = b"dltensor", b"dltensor_versioned"
for _name in _LEGACY, _VERSIONED:  # a capsule has the pointer only, and may live longer than this module
    _api.Py_IncRef(c.py_object(_name))


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

CPU = (1, 0)  # kDLCPU, device 0


def capsule(loader, token, index, max_version):
    """Tensor `index` of the batch that `token` names. It holds a reference of the batch until its consumer drops it."""
    versioned = _Numpy.versioned is not None and max_version is not None and max_version[0] >= 1
    function = _abi.library.feedlane_batch_dlpack if versioned else _abi.library.feedlane_batch_dlpack_legacy
    name, destructor = (_VERSIONED, _Numpy.versioned) if versioned else (_LEGACY, _Numpy.legacy)
    out, room = c.c_void_p(), errors.ErrorRoom.shared()
    export = functools.partial(function, loader, token, index, 0, c.byref(out), room.struct)
    # Both in one call of C code: between bytecodes Ctrl-C may raise, and a tensor in no capsule would be lost.
    both = map(functools.partial.__call__, (export, functools.partial(_new, out, name, destructor)))
    try:
        return tuple(both)[1]
    except ValueError:  # no capsule without a tensor
        raise room.exception(room.struct.code) from None


def array(tensor):
    """A tensor of a batch as numpy's array."""
    if _Numpy.versioned is not None:
        return np.from_dlpack(tensor)
    # Only the versioned form can say that it may be written, and numpy before 1.25 knows no bool in the other one. So the
    # array lies over memory that a capsule comes with, which nobody consumes.
    memory = (c.c_char * tensor.nbytes).from_address(tensor.address)
    memory.capsule = tensor.__dlpack__()
    return np.ndarray(tensor.shape, tensor.dtype, memory)
