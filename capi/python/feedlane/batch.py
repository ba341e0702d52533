# SPDX-License-Identifier: Apache-2.0
"""A batch that the trainer holds, and its tensors in shared memory."""
from __future__ import annotations

import sys
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
    """One tensor of a batch. np.from_dlpack and torch.from_dlpack accept it and copy nothing. Their results keep the batch's
    memory valid, even after this object, the batch and the loader have ended.

    shape (in elements), dtype ("float32"), nbytes, offset (bytes from the start of the batch's slot)."""

    __slots__ = ("_batch", "_index", "shape", "dtype", "nbytes", "offset", "_name", "_address")

    def __init__(self, batch: Batch, index: int) -> None:
        self._name, dtype, self.shape, self.nbytes, self.offset, self._address = batch._tensor(index)
        self._batch, self._index, self.dtype = batch, index, dtypes.name_of(dtype)

    @property
    def name(self) -> str:
        """The field's name. Without declared fields: the keys and positions that lead to the tensor in the batch, joined by
        dots, or its number if there are none."""
        if self._name == str(self._index):
            return self._batch._names().get(self._index) or self._name
        return self._name

    @property
    def address(self) -> int:
        """The address of its first byte in this process. Raises StaleBatch if the batch was released."""
        return self._batch._tensor(self._index)[-1]

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    def __dlpack__(self, *, stream: object = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        if stream is not None:
            raise BufferError(f"stream={stream!r}: must be None, because CPU memory has no streams")
        is_versioned = max_version is not None and max_version[0] >= 1
        if self._batch.is_read_only and not is_versioned:
            raise BufferError("a consumer's memory is read-only, but the caller uses a DLPack version below 1.0, which cannot "
                              "express this. Use .numpy() or .torch(); with JAX, use jax.device_put(tensor.numpy()); with "
                              "Paddle, use paddle.to_tensor(tensor.numpy())")
        if dl_device not in (None, _CPU) or copy:
            raise BufferError("the tensor can be shared only without a copy, and only on the CPU")
        return self._batch._capsule(self._index, is_versioned)

    def numpy(self) -> npt.NDArray[Any]:
        """Returns a numpy array that views its memory, with its shape and dtype. A consumer's array is not writeable. Raises
        TypeError if numpy has no such dtype, and StaleBatch if the batch was released."""
        array = self._batch._array(self._index)
        if array is None and dtypes.find_beyond_numpy(self.dtype):
            array = self._batch._array(self._index)
        if array is None:
            raise TypeError(f'numpy has no {self.dtype}: use tensors="torch", or install ml_dtypes')
        return array

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """For np.asarray: the array of numpy(), which keeps the batch's memory valid."""
        array = self.numpy()
        if copy is False and dtype is not None and np.dtype(dtype) != array.dtype:
            raise ValueError(f"{self.dtype} cannot be converted to {np.dtype(dtype)} without a copy")
        return np.array(array, dtype) if copy else array if dtype is None else array.astype(dtype, copy=False)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """As in numpy's arrays. Its data is an object that keeps the batch's memory valid."""
        array = self.numpy()
        if array.dtype.kind == "V":  # a type of ml_dtypes, which the interface cannot name; numpy then calls __array__
            raise AttributeError(f"numpy has no {self.dtype}, so __array_interface__ is not available")
        described = array.__array_interface__
        return {"version": 3, "shape": array.shape, "typestr": described["typestr"], "descr": described["descr"],
                "data": array.reshape(-1).view(np.uint8) if array.size else b""}

    def torch(self) -> Tensor:
        """Returns a torch tensor that views its memory, with its shape and dtype. Raises ImportError if torch is missing, and
        StaleBatch if the batch was released. Torch does not support read-only memory, so a consumer gets a ReadOnlyWarning."""
        if self._batch.is_read_only:
            warn_of_torch(stacklevel=3)
        return self.as_torch()

    def as_torch(self) -> Tensor:
        """As torch(), without the warning."""
        import torch
        from torch.utils import dlpack
        if self.dtype == "bool" and not self._batch.is_read_only:
            return torch.from_numpy(self.numpy())  # torch before 2.2 does not accept bool through DLPack
        tensor: Tensor = dlpack.from_dlpack(self._batch._capsule(self._index, False))
        return tensor

    def __repr__(self) -> str:
        return f"BatchTensor({self.name!r}, shape={self.shape}, dtype={self.dtype})"


def warn_of_torch(stacklevel: int) -> None:
    """Warns that torch tensors over a consumer's memory must not be written."""
    warnings.warn("torch tensors of a shared loader are in read-only memory, which torch does not detect: an operation in place ends the "
                  "process with SIGSEGV. clone() them before, or copy them to a device", errors.ReadOnlyWarning,
                  stacklevel=stacklevel + 1)


class Stamps(NamedTuple):
    """Times of a batch's steps, in nanoseconds of CLOCK_MONOTONIC (time.monotonic_ns()); none is earlier than the one before
    it. exposed_ns is a duration: how long `next` waited for the batch; 0: it was ready."""

    dispatched_ns: int
    begun_ns: int
    committed_ns: int
    swept_ns: int
    yielded_ns: int
    exposed_ns: int


class Batch(_core.Batch):
    """Holds a reference to the batch until release(), the end of a `with` block, or the end of this object. `data` is the data
    set's result, with numpy arrays or torch tensors that hold their own references."""

    _convert: Callable[[BatchTensor, int], Any]
    _load: Callable[[bytes, int], Plan]
    _data: tuple[Any] | None = None

    def adopt(self, convert: Callable[[BatchTensor, int], Any], load: Callable[[bytes, int], Plan]) -> Self:
        """Sets how tensors are converted and the plan is read, and returns this object. convert: makes an array or tensor of a
        BatchTensor and its owner, see tree.py. load: tree.load with its options."""
        self._convert, self._load = convert, load
        return self

    @property
    def stamps(self) -> Stamps:
        """When it was sent to its worker, begun, committed, read by the trainer, and yielded. Also valid after release()."""
        return Stamps(*self._stamps)

    @property
    def tensors(self) -> list[BatchTensor]:
        """Its tensors, in the order of the data set's leaves. Raises StaleBatch if it was released."""
        return [BatchTensor(self, i) for i in range(self.tensor_count)]

    @property
    def data(self) -> Any:
        """The data set's result. Raises StaleBatch if it was released, and CorruptError if the worker wrote inconsistent data."""
        self._check_held()
        if self._data is None:
            self._data = (self._read(),)
        return self._data[0]

    @property
    def metadata(self) -> bytes:
        """A copy of the bytes that a worker in another language attached to the batch, or `reserve` to an arena's entry; b"": none.
        Workers of this package describe their batches there, in a format that may change. Raises StaleBatch if it was released."""
        return self._metadata(sys.maxsize)

    def _plan(self) -> tuple[Plan, bytes]:
        """Returns the plan and the metadata that has it. Any worker may write this memory, so it is copied once, and checked
        before it is used."""
        metadata = self._metadata(tree.MAX_BYTES + 1)
        return self._load(metadata, self.tensor_count), metadata

    def _names(self) -> dict[int, str]:
        """Returns tree.names of its plan, or {} if the plan is malformed."""
        try:
            return tree.names(self._plan()[0])
        except values.Malformed:
            return {}

    def _fields(self) -> Any:
        """For a worker that does not use this package: returns the tensors by name, or as a list if a name occurs twice."""
        tensors = self.tensors
        by_name = {tensor._name: self._convert(tensor, tree.ANY) for tensor in tensors}
        return by_name if len(by_name) == len(tensors) else [self._convert(tensor, tree.ANY) for tensor in tensors]

    def _read(self) -> Any:
        try:
            plan, metadata = self._plan()
            if plan[0] == tree.FIELDS:
                return self._fields()
            return tree.build(plan, lambda leaf, owner: self._convert(BatchTensor(self, leaf), owner), tree.numbers_of(metadata))
        except (values.Malformed, ImportError) as reason:  # ImportError: a torch tensor, but torch is missing
            raise errors.make(_core.E_CORRUPT, f"the worker wrote an invalid batch structure: {reason}", worker=self.worker,
                              attempt=self.attempt, epoch=self.epoch, batch=self.number) from reason

    def record_stream(self, stream: Any) -> None:
        """For a Loader with pin_memory: copies of these arrays are enqueued on this stream (torch's, or its address). The
        memory is kept until the stream has completed all work that was enqueued when the last array was dropped. Raises
        LimitError beyond four streams, StateError if the loader has no pin_memory, and StaleBatch if the batch was released."""
        self._record_stream(getattr(stream, "cuda_stream", stream))

    def release(self) -> None:
        """Returns the memory to the workers, as soon as no array of the batch is left. Raises StaleBatch if called twice."""
        self._data = None
        self._release()  # StaleBatch even while arrays keep the token valid: the library cannot tell references apart

    def __enter__(self) -> Self:
        self._check_held()
        return self

    def __exit__(self, _kind: type[BaseException] | None, _reason: BaseException | None,
                 _traceback: TracebackType | None) -> None:
        if self.is_held:
            self.release()


_core.set_up(np.ndarray, dtypes.BY_KEY, errors.from_library, Batch, values.Malformed)
