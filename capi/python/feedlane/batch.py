# SPDX-License-Identifier: Apache-2.0
"""A batch in the trainer's hands, and its tensors where they lie in shared memory."""
import ctypes as c
import operator

from . import _abi, dlpack, dtypes, errors, forks, tree


def _give_back(loader, held, _release=_abi.library.feedlane_batch_release, _token=operator.attrgetter("token")):
    """Takes the one struct out of `held` and releases its token: in one call of C code. Python runs the handlers of signals
    only between bytecodes: Ctrl-C between the two would be a batch that is lost, or one that is released twice."""
    return next(map(_release, (loader,), map(_token, iter(held.pop, None))))


class _Once:
    """Gives a batch back at its own end, unless that was done. A batch is one and has one: what a signal's handler raises in
    a __del__ is dropped, and the rest of that __del__ with it; the other one still runs."""

    _held = ()

    def __init__(self, loader, struct, held):
        self._loader, self._struct, self._held = loader, struct, held

    # The function as a default: a module's names may be gone when the interpreter ends.
    def __del__(self, _give_back=_give_back):
        if self._held and self._struct.token:
            _give_back(self._loader, self._held)


class BatchTensor:
    """One tensor of a batch. Made to be handed to np.from_dlpack or torch.from_dlpack, which copy nothing: what they
    return keeps the batch's memory, whatever becomes of this object, of the batch and of the loader."""

    __slots__ = ("_batch", "_index", "shape", "dtype", "nbytes", "offset", "name", "_address")

    def __init__(self, batch, index):
        t = batch._struct.tensors[index]
        self._batch, self._index, self._address = batch, index, t.data
        self.shape = tuple(t.shape[:t.ndim])
        self.dtype = dtypes.name_of(t.dtype)
        self.nbytes, self.offset, self.name = t.bytes, t.offset, (t.name or b"").decode(errors="replace")

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
        if self.dtype == "bfloat16":
            raise TypeError('numpy has no bfloat16: use tensors="torch"')
        return dlpack.array(self)

    def torch(self):
        import torch
        return torch.from_dlpack(self)

    def __repr__(self):
        return f"BatchTensor({self.name!r}, shape={self.shape}, dtype={self.dtype})"


class Batch(_Once):
    """Holds one reference of the batch: until release(), the end of a `with`, or its own end. `data` is what the data set
    made, with numpy arrays or torch tensors that hold references of their own."""

    def __init__(self, loader, convert, allow_pickle=False):
        # `loader` is the handle's value: it is good for a batch's functions after the loader's end too. The library fills the
        # struct in place, so that a batch that was taken is never nobody's: without a token there is none. `_held` is empty
        # when it was released.
        struct = _abi.Batch()
        super().__init__(loader, struct, [struct])
        self._convert, self._data, self._forks, self._allow_pickle = convert, None, forks.count(), allow_pickle
        self._again = _Once(loader, struct, self._held)

    @classmethod
    def adopt(cls, loader, convert, allow_pickle, struct):
        """The batch that the compiled iterator has taken into the struct at this address."""
        batch = cls(loader, convert, allow_pickle)
        c.memmove(c.addressof(batch._struct), struct, c.sizeof(_abi.Batch))
        return batch

    def _must_be_held(self):
        if not self._held:
            raise errors.make(_abi.E_STALE, "the batch was released")
        if self._forks != forks.count():
            raise errors.make(_abi.E_FORKED, "the batch belongs to the parent process: its memory isn't mapped here")

    epoch = property(lambda self: self._struct.epoch, doc="Which epoch it is of.")
    number = property(lambda self: self._struct.batch, doc="Its number in the epoch, from 0.")
    worker = property(lambda self: self._struct.worker, doc="Who made it; -1: the trainer itself.")
    attempt = property(lambda self: self._struct.attempt, doc="Which attempt made it, from 0.")
    rows = property(lambda self: self._struct.count, doc="How many rows it has.")

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
            self._data = (self._read(),)
        return self._data[0]

    def _read(self):
        """What the data set made. Any worker may have written there: it is copied once, and checked before it is used."""
        struct = self._struct
        blob = c.string_at(struct.metadata, min(struct.metadata_bytes, tree.MAX_BYTES + 1))
        try:
            plan = tree.load(blob, struct.tensor_count, self._allow_pickle)
            return tree.build(plan, lambda leaf, owner: self._convert(BatchTensor(self, leaf), owner))
        except (tree.Malformed, ImportError) as reason:  # the latter of a tensor of torch's, where there is no torch
            raise errors.make(_abi.E_CORRUPT, f"what the worker wrote of the batch's structure: {reason}", worker=self.worker,
                              attempt=self.attempt, epoch=self.epoch, batch=self.number) from reason

    def record_stream(self, stream):
        """For a Loader with pin_memory: copies of these arrays are enqueued on this stream (torch's, or its address), so the
        memory isn't given back before it has done what is enqueued when the last array is gone. Up to four streams."""
        self._must_be_held()
        room = errors.ErrorRoom.shared()
        address = getattr(stream, "cuda_stream", stream)
        errors.check(_abi.library.feedlane_batch_record_stream(self._loader, self._struct.token, address, room.struct), room)

    def release(self):
        """Gives the memory back to the workers, once no array of it is left either. A second time: StaleBatch."""
        self._must_be_held()  # its arrays keep the token good: the library couldn't tell this reference from theirs
        self._data = None
        try:
            status = _give_back(self._loader, self._held)
        except IndexError:  # another thread came first
            status = _abi.E_STALE
        errors.check(status)

    def __enter__(self):
        self._must_be_held()
        return self

    def __exit__(self, *_):
        if self._held:
            self.release()
