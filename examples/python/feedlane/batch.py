# SPDX-License-Identifier: Apache-2.0
"""A batch in the trainer's hands, and its tensors where they lie in shared memory."""
import ctypes as c

import numpy as np

from . import _abi, dlpack, dtypes, errors, tree


class BatchTensor:
    """One tensor of a batch. Made to be handed to np.from_dlpack or torch.from_dlpack, which copy nothing: what they
    return keeps the batch's memory, whatever becomes of this object, of the batch and of the loader."""

    __slots__ = ("_batch", "_index", "shape", "dtype", "nbytes", "offset", "name", "_address")

    def __init__(self, batch, index):
        t = batch._struct.tensors[index]
        self._batch, self._index, self._address = batch, index, t.data
        self.shape = tuple(t.shape[:t.ndim])
        self.dtype = dtypes.name_of(t.dtype)
        self.nbytes, self.offset, self.name = t.bytes, t.offset, (t.name or b"").decode()

    @property
    def address(self):
        """Where it lies in this process."""
        self._batch._must_be_held()
        return self._address

    def __dlpack_device__(self):
        return dlpack.CPU

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if stream is not None:
            raise BufferError(f"stream {stream!r}: memory of the CPU has no streams")
        if dl_device not in (None, dlpack.CPU) or copy:
            raise BufferError("shared as it is, on the CPU: it isn't copied, to no other device either")
        self._batch._must_be_held()
        return dlpack.capsule(self._batch._loader, self._batch._struct.token, self._index, max_version)

    def numpy(self):
        if self.dtype == "bool" and not dlpack.NUMPY_HAS_BOOL:
            return np.from_dlpack(_AsBytes(self)).view(np.bool_)
        if self.dtype == "bfloat16":
            raise TypeError('numpy has no bfloat16: use tensors="torch"')
        return np.from_dlpack(self)

    def torch(self):
        import torch
        return torch.from_dlpack(self)

    def __repr__(self):
        return f"BatchTensor({self.name!r}, shape={self.shape}, dtype={self.dtype})"


class _AsBytes:
    """A tensor of bool for a numpy whose DLPack doesn't know them."""

    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack_device__(self):
        return dlpack.CPU

    def __dlpack__(self, **_):
        batch = self._tensor._batch
        return dlpack.capsule(batch._loader, batch._struct.token, self._tensor._index, None, as_bytes=True)


class Batch:
    """Holds one reference of the batch: until release(), the end of a `with`, or its own end. `data` is what the data set
    made, with numpy arrays or torch tensors that hold references of their own."""

    def __init__(self, loader, struct, convert):
        # The handle's value: it is good for a batch's functions after the loader's end too.
        self._loader, self._struct, self._convert, self._released = loader.value, struct, convert, False
        self._data = None
        self.epoch, self.number, self.worker, self.attempt = struct.epoch, struct.batch, struct.worker, struct.attempt
        self.rows = struct.count

    def _must_be_held(self):
        if self._released:
            raise errors.make(_abi.E_STALE, "the batch was released")

    @property
    def tensors(self):
        """Its leaves, in order."""
        self._must_be_held()
        return [BatchTensor(self, i) for i in range(self._struct.tensor_count)]

    @property
    def indices(self):
        """The data set indices of its rows; None of an iterable data set."""
        self._must_be_held()
        return self._struct.indices[:self._struct.count] if self._struct.indices else None

    @property
    def skipped(self):
        """The data set indices of samples that were left out of it."""
        self._must_be_held()
        return self._struct.skipped[:self._struct.skipped_count]

    @property
    def data(self):
        self._must_be_held()
        if self._data is None:
            plan = tree.load(c.string_at(self._struct.metadata, self._struct.metadata_bytes))
            self._data = (tree.build(plan, lambda leaf, kind: self._convert(BatchTensor(self, leaf), kind)),)
        return self._data[0]

    def release(self):
        """Gives the memory back to the workers, once no array of it is left either. A second time: StaleBatch."""
        self._must_be_held()  # its arrays keep the token good: the library couldn't tell this reference from theirs
        self._released, self._data = True, None
        errors.check(_abi.library.feedlane_batch_release(self._loader, self._struct.token))

    def __enter__(self):
        self._must_be_held()
        return self

    def __exit__(self, *_):
        if not self._released:
            self.release()

    # The function as a default: a module's names may be gone when the interpreter ends.
    def __del__(self, _release=_abi.library.feedlane_batch_release):
        if not getattr(self, "_released", True):
            _release(self._loader, self._struct.token)
