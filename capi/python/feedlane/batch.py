# SPDX-License-Identifier: Apache-2.0
"""A batch in the trainer's hands, and its tensors where they lie in shared memory."""
from __future__ import annotations

import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from . import _core, dtypes, errors, tree, values

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    from .records import Plan

_CPU = (1, 0)  # kDLCPU, device 0


class BatchTensor:
    """One tensor of a batch. Made to be handed to np.from_dlpack or torch.from_dlpack, which copy nothing: what they
    return keeps the batch's memory, whatever becomes of this object, of the batch and of the loader.

    shape (in elements), dtype ("float32"), nbytes, offset (bytes from the start of the batch's slot)."""

    __slots__ = ("_batch", "_index", "shape", "dtype", "nbytes", "offset", "_name", "_address")

    def __init__(self, batch: Batch, index: int) -> None:
        self._name, dtype, self.shape, self.nbytes, self.offset, self._address = batch._tensor(index)
        self._batch, self._index, self.dtype = batch, index, dtypes.name_of(dtype)

    @property
    def name(self) -> str:
        """The field's. Without declared fields the keys and positions that lead to it in the batch, joined by dots; its number, if
        there are none."""
        if self._name == str(self._index):
            return self._batch._names().get(self._index) or self._name
        return self._name

    @property
    def address(self) -> int:
        """The address of its first byte in this process. StaleBatch: the batch was released."""
        return self._batch._tensor(self._index)[-1]

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    def __dlpack__(self, *, stream: object = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        if stream is not None:
            raise BufferError(f"stream {stream!r}: memory of the CPU has no streams")
        is_versioned = max_version is not None and max_version[0] >= 1
        if self._batch.is_read_only and not is_versioned:
            raise BufferError("a consumer's memory is read-only, which DLPack can say from version 1.0 on: the caller asks for an "
                              "older one. Take .numpy() or .torch(); for JAX jax.device_put(tensor.numpy()), for Paddle "
                              "paddle.to_tensor(tensor.numpy())")
        if dl_device not in (None, _CPU) or copy:
            raise BufferError("shared as it is, on the CPU: it isn't copied, to no other device either")
        return self._batch._capsule(self._index, is_versioned)

    def numpy(self) -> npt.NDArray[Any]:
        """A numpy array over its memory, of its shape and dtype; a consumer's isn't writeable. TypeError: numpy has no such dtype.
        StaleBatch: the batch was released."""
        array = self._batch._array(self._index)
        if array is None and dtypes.find_beyond_numpy(self.dtype):
            array = self._batch._array(self._index)
        if array is None:
            raise TypeError(f'numpy has no {self.dtype}: use tensors="torch", or install ml_dtypes')
        return array

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """For np.asarray: the array of numpy(), which keeps the batch's memory."""
        array = self.numpy()
        if copy is False and dtype is not None and np.dtype(dtype) != array.dtype:
            raise ValueError(f"{self.dtype} can't become {np.dtype(dtype)} without a copy")
        return np.array(array, dtype) if copy else array if dtype is None else array.astype(dtype, copy=False)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """As numpy's arrays have it. Its data is an object that keeps the batch's memory."""
        array = self.numpy()
        if array.dtype.kind == "V":  # a type of ml_dtypes, which the interface cannot name: numpy asks __array__ next
            raise AttributeError(f"no __array_interface__ of {self.dtype}")
        described = array.__array_interface__
        return {"version": 3, "shape": array.shape, "typestr": described["typestr"], "descr": described["descr"],
                "data": array.reshape(-1).view(np.uint8) if array.size else b""}

    def torch(self) -> Tensor:
        """A torch tensor over its memory, of its shape and dtype. ImportError: there is no torch. StaleBatch: the batch was
        released. A consumer's memory is read-only, which torch doesn't know: a ReadOnlyWarning says so."""
        if self._batch.is_read_only:
            warn_of_torch(stacklevel=3)
        return self.as_torch()

    def as_torch(self) -> Tensor:
        """The same without the warning, for those who know."""
        import torch
        from torch.utils import dlpack
        if self.dtype == "bool" and not self._batch.is_read_only:
            return torch.from_numpy(self.numpy())  # by DLPack torch takes none before 2.2
        tensor: Tensor = dlpack.from_dlpack(self._batch._capsule(self._index, False))
        return tensor

    def __repr__(self) -> str:
        return f"BatchTensor({self.name!r}, shape={self.shape}, dtype={self.dtype})"


def warn_of_torch(stacklevel: int) -> None:
    """That torch tensors over a consumer's memory must not be written."""
    warnings.warn("torch tensors of a shared loader are in read-only memory, which torch doesn't know: an operation in place ends the "
                  "process with SIGSEGV. clone() them before, or copy them to a device", errors.ReadOnlyWarning,
                  stacklevel=stacklevel + 1)


class Stamps(NamedTuple):
    """When the steps of a batch happened, in nanoseconds of CLOCK_MONOTONIC (time.monotonic_ns()); each is at least the one before
    it. exposed_ns, a duration, is for how long `next` waited for the batch; 0: it was there."""

    dispatched_ns: int
    begun_ns: int
    committed_ns: int
    swept_ns: int
    yielded_ns: int
    exposed_ns: int


class Batch(_core.Batch):
    """Holds one reference of the batch: until release(), the end of a `with`, or its own end. `data` is what the data set
    made, with numpy arrays or torch tensors that hold references of their own."""

    _convert: Callable[[BatchTensor, int], Any]
    _allow_pickle: bool = False
    _data: tuple[Any] | None = None

    def adopt(self, convert: Callable[[BatchTensor, int], Any], allow_pickle: bool) -> Self:
        """Itself. convert: makes an array or a tensor of a BatchTensor and its owner, see tree.py."""
        self._convert, self._allow_pickle = convert, allow_pickle
        return self

    @property
    def stamps(self) -> Stamps:
        """When it was sent to its worker, begun, committed, read by the trainer and yielded. Valid after release() too."""
        return Stamps(*self._stamps)

    @property
    def tensors(self) -> list[BatchTensor]:
        """Its tensors, in the order of the data set's leaves. StaleBatch: it was released."""
        return [BatchTensor(self, i) for i in range(self.tensor_count)]

    @property
    def data(self) -> Any:
        """What the data set made. StaleBatch: it was released. CorruptError: what its worker wrote doesn't hold together."""
        self._check_held()
        if self._data is None:
            self._data = (self._read(),)
        return self._data[0]

    def _plan(self) -> Plan:
        """Any worker may have written there: it is copied once, and checked before it is used."""
        return tree.load(self._metadata(tree.MAX_BYTES + 1), self.tensor_count, self._allow_pickle)

    def _names(self) -> dict[int, str]:
        """What tree.names says of its plan. {}: it has none that holds together."""
        try:
            return tree.names(self._plan())
        except values.Malformed:
            return {}

    def _fields(self) -> Any:
        """The tensors of a worker that says nothing else, by name."""
        tensors = self.tensors
        by_name = {tensor._name: self._convert(tensor, tree.ANY) for tensor in tensors}
        return by_name if len(by_name) == len(tensors) else [self._convert(tensor, tree.ANY) for tensor in tensors]

    def _read(self) -> Any:
        try:
            plan = self._plan()
            if plan[0] == tree.FIELDS:
                return self._fields()
            return tree.build(plan, lambda leaf, owner: self._convert(BatchTensor(self, leaf), owner))
        except (values.Malformed, ImportError) as reason:  # the latter of a tensor of torch's, where there is no torch
            raise errors.make(_core.E_CORRUPT, f"what the worker wrote of the batch's structure: {reason}", worker=self.worker,
                              attempt=self.attempt, epoch=self.epoch, batch=self.number) from reason

    def record_stream(self, stream: Any) -> None:
        """For a Loader with pin_memory: copies of these arrays are enqueued on this stream (torch's, or its address), so the
        memory isn't given back before it has done what is enqueued when the last array is gone. Up to four streams:
        LimitError. StateError: the loader has no pin_memory. StaleBatch: it was released."""
        self._record_stream(getattr(stream, "cuda_stream", stream))

    def release(self) -> None:
        """Gives the memory back to the workers, once no array of it is left either. A second time: StaleBatch."""
        self._data = None
        self._release()  # StaleBatch even while arrays keep the token good: the library couldn't tell this reference from theirs

    def __enter__(self) -> Self:
        self._check_held()
        return self

    def __exit__(self, _kind: type[BaseException] | None, _reason: BaseException | None,
                 _traceback: TracebackType | None) -> None:
        if self.is_held:
            self.release()


_core.set_up(np.ndarray, dtypes.BY_KEY, errors.from_library, Batch, values.Malformed)
