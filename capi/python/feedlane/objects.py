# SPDX-License-Identifier: Apache-2.0
"""Values that are pickled, as in torch's loader, by the reducers of multiprocessing and of torch. So a value keeps its type,
and an object that occurs in it twice remains one object. Large memory is stored next to the pickle, where the trainer's arrays
and tensors view it: arrays through pickle's out-of-band buffers, tensors by storage. Each storage is stored once, and only the
range that tensors view.

In the batch's slot, an object is a row of bytes: a header, the pickle, the buffers. Only a loader with allow_pickle reads it."""
from __future__ import annotations

import io
import pickle
import sys
import traceback
from collections.abc import Callable
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import numpy as np

from .values import Malformed

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

_ALIGNMENT = 64


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Object:
    """A pickled value and its buffers. bytes: their total size."""

    def __init__(self, value: Any) -> None:
        """Raises pickle's errors."""
        stream = io.BytesIO()
        buffers: list[memoryview] = []
        pickler = _Pickler(stream, buffers)
        try:
            pickler.dump(value)
            shown = pickler.storages
            storages = [storage.bytes() for storage in shown]
        finally:
            pickler.release()
        places, end = [], 0
        for buffer in (*buffers, *storages):
            places.append((end, len(buffer)))
            end = _aligned(end + len(buffer))
        count = len(buffers)
        header = pickle.dumps((places[:count], [(*place, storage.first) for place, storage in zip(places[count:], shown)]),
                              pickle.HIGHEST_PROTOCOL)
        self._buffers = [np.frombuffer(buffer, np.uint8) for buffer in (*buffers, *storages)]
        head = stream.getvalue()
        self._places, self._head = places, (header, head)
        self.start = _aligned(len(header) + len(head))  # offset of the buffers
        self.bytes = self.start + end

    def write(self, place: Bytes) -> None:
        """Writes it to its place of `bytes` bytes."""
        end = 0
        for part in self._head:
            place[end:end + len(part)] = np.frombuffer(part, np.uint8)
            end += len(part)
        for (offset, size), buffer in zip(self._places, self._buffers):
            place[self.start + offset:self.start + offset + size] = buffer


class _Storage:
    """A torch storage, and the range of its bytes that tensors view."""

    def __init__(self, storage: Any) -> None:
        self._storage, self.first, self._end = storage, storage.nbytes(), 0

    def show(self, first: int, end: int) -> None:
        self.first, self._end = min(self.first, first // _ALIGNMENT * _ALIGNMENT), max(self._end, end)

    def bytes(self) -> Any:
        if self._end <= self.first:
            return b""
        torch = sys.modules["torch"]
        shown: Any = torch.empty(0, dtype=torch.uint8, device="cpu").set_(self._storage)
        return shown.numpy()[self.first:self._end]


class _Pickler(reduction.ForkingPickler):
    def __init__(self, stream: io.BytesIO, buffers: list[memoryview]) -> None:
        self.storages: list[_Storage] = []
        self._numbers: dict[int, int] = {}  # number of each storage, by its address in torch
        super().__init__(stream, pickle.HIGHEST_PROTOCOL, True, lambda buffer: buffers.append(buffer.raw()))
        table: Any = self.dispatch_table
        table[np.ndarray] = _array
        torch = sys.modules.get("torch")
        if torch is not None:
            self._by_torch = {kind: table[kind] for kind in (torch.Tensor, torch.nn.Parameter, torch.UntypedStorage)}
            table.update({torch.Tensor: self._tensor, torch.nn.Parameter: self._tensor, torch.UntypedStorage: self._storage})

    def release(self) -> None:
        """Drops the pickled objects. Its dispatch table contains its own methods, so otherwise it would live until garbage
        collection."""
        self.clear_memo()
        self.dispatch_table = {}

    def _number_of(self, storage: Any) -> int:
        number = self._numbers.setdefault(storage._cdata, len(self.storages))
        if number == len(self.storages):
            self.storages.append(_Storage(storage))
        return number

    def _storage(self, storage: Any) -> Any:
        if storage.device.type != "cpu":
            return self._by_torch[type(storage)](storage)
        number = self._number_of(storage)
        self.storages[number].show(0, storage.nbytes())
        return (_storage, (number,))

    def _tensor(self, tensor: Any) -> Any:
        """Replaces torch's reducer, which would send the complete storage, possibly all of a data set, and would lose
        properties besides the values, such as a quantizer or a conjugate bit."""
        torch = sys.modules["torch"]
        if not (tensor.layout is torch.strided and tensor.device.type == "cpu" and (tensor.is_leaf or not tensor.requires_grad)) or (
                tensor.is_nested or any(getattr(tensor, "names", ()))):
            return self._by_torch[type(tensor)](tensor)
        if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        torch.utils.hooks.warn_if_has_hooks(tensor)
        number, item, offset = self._number_of(_untyped(tensor)), tensor.element_size(), tensor.storage_offset()
        size, stride = tuple(tensor.size()), tensor.stride()
        if tensor.numel():
            last = sum((length - 1) * step for length, step in zip(size, stride))
            self.storages[number].show(offset * item, (offset + last + 1) * item)
        return (_tensor, (type(tensor) is not torch.Tensor, number, tensor.dtype, offset, size, stride, tensor.requires_grad))


def _array(array: npt.NDArray[Any]) -> Any:
    """Reproduces numpy's older pickles, which torch's loader sends: the result is writeable, and numbers are in this machine's
    byte order."""
    if not array.dtype.isnative and array.dtype.names is None and array.dtype.subdtype is None:
        array = array.astype(array.dtype.newbyteorder("="))
    return (array if array.flags.writeable else array.copy("K")).__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _untyped(tensor: Any) -> Any:
    """Returns its storage. torch 1 has no untyped_storage()."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage().untyped()


def _tensor(*_: Any) -> Any:
    """In a pickle, this name stands for the reader's method of the same name."""
    raise NotImplementedError


def _storage(*_: Any) -> Any:
    """As _tensor."""
    raise NotImplementedError


def load(memory: Bytes, start: int) -> Any:
    """Returns the value of an Object that was written to `memory`, with its buffers starting at `start`. The value's arrays and
    tensors view this memory, which must be writable. Raises Malformed if there is no such value or pickle fails, and exceptions
    of the value's classes."""
    stream = io.BytesIO(memory[:start].data)
    try:
        buffers, storages = pickle.load(stream)
        unpickler = _Unpickler(stream, memory[start:], buffers, storages)
        try:
            return unpickler.load()
        finally:
            unpickler.memo.clear()  # it contains its own methods, see _Pickler.release
    except MemoryError:
        raise
    except Exception as reason:
        *_, (frame, _) = traceback.walk_tb(reason.__traceback__)
        if frame.f_code.co_filename != __file__:  # Python code of the value's classes
            raise
        raise Malformed(f"a pickled value that can't be read: {type(reason).__name__}: {reason}") from reason


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, memory: Bytes, buffers: list[tuple[int, int]],
                 storages: list[tuple[int, int, int]]) -> None:
        super().__init__(stream, buffers=[memory[offset:offset + size].data for offset, size in buffers])
        self._memory, self._places = memory, storages
        self._storages: dict[int, Any] = {}

    def find_class(self, module: str, name: str, /) -> Any:
        if module == __name__:
            own: dict[str, Callable[..., Any]] = {"_tensor": self._tensor, "_storage": self._storage}
            return own[name]
        return super().find_class(module, name)

    def _storage(self, number: int) -> Any:
        torch: Any = sys.modules["torch"]
        if number not in self._storages:
            offset, size, _ = self._places[number]
            self._storages[number] = (_untyped(torch.from_numpy(self._memory[offset:offset + size])) if size
                                      else torch.UntypedStorage(0))
        return self._storages[number]

    def _tensor(self, is_parameter: bool, number: int, dtype: Any, offset: int, size: tuple[int, ...], stride: tuple[int, ...],
                requires_grad: bool) -> Any:
        torch: Any = sys.modules["torch"]
        tensor = torch.empty(0, dtype=dtype, device="cpu")
        first = self._places[number][2] // tensor.element_size()
        tensor.set_(self._storage(number), offset - first if self._places[number][1] else 0, size, stride)
        if is_parameter:
            return torch.nn.Parameter(tensor, requires_grad=requires_grad)
        return tensor.requires_grad_() if requires_grad else tensor
