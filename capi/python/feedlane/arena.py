# SPDX-License-Identifier: Apache-2.0
"""Arenas: values with arrays that all processes of a machine share, without a copy."""
from __future__ import annotations

import asyncio
import functools
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar

import numpy as np

from . import _core, collate, dtypes, errors, feeding, lifetime, tree

if TYPE_CHECKING:
    import numpy.typing as npt

    from .batch import Batch, BatchTensor

_FULL = {"evict": _core.FULL_EVICT, "wait": _core.FULL_WAIT, "fail": _core.FULL_FAIL}


class Arena:
    """Memory for entries that several processes share. This process is the arena's owner, or a member that has joined it.

    put(key, value) stores a value: an array, a tensor, or dicts, lists and tuples of them and of numbers and texts. Every process
    gets it as a feedlane.Batch, whose `data` is the value, with arrays in read-only shared memory. put(None, value) sends a value
    instead: a member's to the owner, the owner's to each member. stream() receives such values.

      bytes      memory for entries, at least 64 KiB; an entry may take a third of it
      members    processes besides the owner at the same time
      entries    entries at the same time; 0: one per 64 KiB, at least 1024
      leases     batches that one process may hold
      when_full  what put does without free memory: "evict" entries with a key, least recently used first, "wait" until memory is
                 released, or "fail" with LimitError
      path       path of a Unix socket to create, at which processes of the same user may join
      serve      False: no thread serves the members. The owner then serves them only in calls of this object that wait
      tensors, allow_pickle   see Loader

    A batch keeps the memory of its entry until release(), the end of a `with` block, or its last array. If a process ends, what
    it held is free again, and what it had put stays. Any thread may call any method."""

    _server: threading.Thread | None = None

    def __init__(self, bytes: int, *, members: int = 16, entries: int = 0, leases: int = 0,
                 when_full: Literal["evict", "wait", "fail"] = "evict", path: str | os.PathLike[str] | None = None,
                 serve: bool = True, tensors: Literal["numpy", "torch"] = "numpy", allow_pickle: bool = False) -> None:
        if when_full not in _FULL:
            raise ValueError(f'when_full={when_full!r}: must be "evict", "wait" or "fail"')
        core = _core.Arena.create(
            errors.whole("bytes", bytes, 0, 2**63 - 1), errors.whole("members", members, 1, 2**31 - 1),
            errors.whole("entries", entries, 0, 2**31 - 1), errors.whole("leases", leases, 0, 2**31 - 1), _FULL[when_full],
            None if path is None else os.fsencode(path))
        self._set_up(core, tensors, allow_pickle)
        if serve:
            self._server = threading.Thread(target=_serve, args=(core,), name="feedlane-arena", daemon=True)
            self._server.start()

    def _set_up(self, core: _core.Arena, tensors: str, allow_pickle: bool) -> None:
        if tensors not in ("numpy", "torch"):
            raise ValueError(f'tensors={tensors!r}: must be "numpy" or "torch"')
        self._core, self._is_torch, self.allow_pickle = core, tensors == "torch", allow_pickle
        lifetime.keep(self)

    @classmethod
    def join(cls, owner: int | str | socket.socket | os.PathLike[str], *, timeout: float | None = 60,
             tensors: Literal["numpy", "torch"] = "numpy", allow_pickle: bool = False) -> Self:
        """Joins the arena of another process: by its path, or by the descriptor of an offer(), which is consumed. Raises
        PeerDead if there is no owner, Timeout if it does not answer in time, and LimitError if all places are taken."""
        self = cls.__new__(cls)
        timeout_ns = feeding.nanoseconds(timeout)
        if isinstance(owner, (str, os.PathLike)):
            core = _core.Arena.join(-1, os.fsencode(owner), timeout_ns)
        else:
            fd = owner.detach() if isinstance(owner, socket.socket) else errors.whole("owner", owner, 0, 2**31 - 1)
            core = _core.Arena.join(fd, None, timeout_ns)
        self._set_up(core, tensors, allow_pickle)
        return self

    def offer(self) -> socket.socket:
        """The owner: returns a socket for one member, which may be passed to a process of any user. Pass it to join there, or
        its descriptor. Raises LimitError if all places are taken."""
        return socket.socket(fileno=self._core.offer())

    def close(self) -> None:
        """Leaves the arena; the owner ends it. Calls in other threads raise StateError. Batches that are held stay valid."""
        self._core.close()
        if self._server is not None and self._server is not threading.current_thread():
            self._server.join()  # else it would want the GIL while the interpreter ends

    def __del__(self) -> None:
        if hasattr(self, "_core"):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- putting ----

    def put(self, key: str | bytes | None, value: Any, *, pinned: bool = False, timeout: float | None = None) -> None:
        """Stores the value under the key, of 1 to 64 bytes, and replaces an earlier one; or sends it, if the key is None. The
        arrays are copied once, into the arena. pinned: the entry is never evicted. Raises Timeout if there was no memory in time,
        LimitError if the value is too large, SlotsHeld if this process holds too many batches, PeerDead if the owner has ended,
        and TypeError for a value that cannot be stored."""
        leaves = collate.Leaves(True, self.allow_pickle)
        plan = collate.whole(value, leaves)
        names = _names(value, len(leaves))
        timeout_ns = feeding.nanoseconds(timeout)
        for number, leaf in enumerate(leaves):
            if len(leaf.shape) >= _core.MAX_NDIM:
                raise TypeError(f"array {number} has {len(leaf.shape)} dimensions, but at most {_core.MAX_NDIM - 1} are allowed")
        fields = tuple((name, leaf.dtype, leaf.shape) for name, leaf in zip(names, leaves))
        entry = self._reserve(key, fields, tree.dump(plan, leaves.numbers, self.allow_pickle), pinned, timeout_ns)
        try:
            for number, leaf in enumerate(leaves):
                _fill(leaf, entry, number)
            self._publish(entry, timeout_ns)
        finally:
            if entry.is_held:
                entry.release()

    def reserve(self, key: str | bytes | None, fields: Mapping[str, tuple[npt.DTypeLike | str, tuple[int, ...]]], *,
                metadata: bytes | None = None, pinned: bool = False, timeout: float | None = None) -> Reservation:
        """Reserves memory for an entry that is written in place: use it as `with arena.reserve(key, {"x": ("float32", (3, 4))}) as
        arrays: arrays["x"][:] = ...`. The entry is published at the end of the block, or given up after an exception. Do not keep
        the arrays. Raises as put does."""
        all_fields = tuple((name, dtypes.of_numpy(dtype)[0], tuple(shape)) for name, (dtype, shape) in fields.items())
        timeout_ns = feeding.nanoseconds(timeout)
        return Reservation(self, self._reserve(key, all_fields, metadata, pinned, timeout_ns), timeout_ns)

    def _reserve(self, key: str | bytes | None, fields: tuple[Any, ...], metadata: bytes | None, pinned: bool,
                 timeout_ns: int) -> Batch:
        found = self._core.reserve(None if key is None else _key(key), fields, metadata, pinned, timeout_ns)
        if isinstance(found, int):
            raise _outcome(found, "there was no memory in time: release batches, or drop entries")
        return self._adopt(found)

    def _publish(self, entry: Batch, timeout_ns: int) -> None:
        status = self._core.publish(entry, timeout_ns)
        if status:
            raise _outcome(status, "the owner has not taken earlier requests in time")

    # ---- getting ----

    def get(self, key: str | bytes, *, timeout: float | None = 0) -> Batch:
        """Returns the entry, without a copy. If there is none, waits for it. Raises KeyError if there is none in time, SlotsHeld if
        this process holds too many batches, PeerDead if there is none and the owner has ended, and CorruptError if the entry's
        maker has overwritten it."""
        found = self._core.get(_key(key), 0, feeding.nanoseconds(timeout))
        if found == _core.TIMEOUT:
            raise KeyError(key)
        return self._adopt(found)

    def get_or_put(self, key: str | bytes, make: Callable[[], Any], *, pinned: bool = False,
                   timeout: float | None = None) -> Batch:
        """Returns the entry. If there is none, one process calls `make` and puts the result, and the others wait for it. If that
        process ends or `make` raises, the next one makes it. Raises Timeout, as `get` does otherwise, and exceptions of `make`."""
        timeout_ns = feeding.nanoseconds(timeout)
        while True:
            found = self._core.get(_key(key), _core.GET_MAKE, timeout_ns)
            if found != _core.ABSENT:
                return self._adopt(found)
            try:
                self.put(key, make(), pinned=pinned, timeout=timeout)
            except BaseException:
                if not self._core.is_closed:
                    self._core.drop(_key(key), 0)
                raise

    def drop(self, key: str | bytes) -> None:
        """Removes the entry, if there is one. Batches of it stay valid."""
        status = self._core.drop(_key(key), _core.FOREVER)
        if status:
            raise _outcome(status, "the owner has not taken earlier requests in time")

    def receive(self, *, timeout: float | None = None) -> Batch:
        """Returns the next value that was sent to this process. Raises Timeout, SlotsHeld, PeerDead if the owner has ended and all
        was received, and StateError after close."""
        return self._adopt(self._core.receive(feeding.nanoseconds(timeout)))

    def stream(self) -> Iterator[Batch]:
        """Receives values until the owner has ended, or the arena was closed."""
        while True:
            try:
                yield self.receive()
            except (errors.PeerDead, errors.StateError):
                return

    def _adopt(self, found: Batch | int) -> Batch:
        if isinstance(found, int):
            raise _outcome(found, "nothing came in time")
        return found.adopt(self._convert, functools.partial(tree.load, allow_pickle=self.allow_pickle))

    def _convert(self, tensor: BatchTensor, owner: int) -> Any:
        is_torch = owner == tree.TORCH or (owner == tree.ANY and self._is_torch)
        return tensor.as_torch() if is_torch else tensor.numpy()

    # ---- asyncio ----

    async def aget(self, key: str | bytes, *, timeout: float | None = None) -> Batch:
        """As get, for asyncio. By default it waits without a limit."""
        found = self._core.get(_key(key), 0, 0)
        if found == _core.TIMEOUT and timeout != 0:
            return await asyncio.to_thread(self.get, key, timeout=timeout)
        if found == _core.TIMEOUT:
            raise KeyError(key)
        return self._adopt(found)

    async def aput(self, key: str | bytes | None, value: Any, *, pinned: bool = False, timeout: float | None = None) -> None:
        """As put, for asyncio."""
        await asyncio.to_thread(self.put, key, value, pinned=pinned, timeout=timeout)

    async def astream(self) -> AsyncIterator[Batch]:
        """As stream, for asyncio."""
        while True:
            try:
                found = self._core.receive(0)
                received = await asyncio.to_thread(self.receive) if found == _core.TIMEOUT else self._adopt(found)
            except (errors.PeerDead, errors.StateError):
                return
            yield received

    # ---- state ----

    def stats(self) -> dict[str, int]:
        """bytes, hits, misses and held (batches of this process); at the owner also used_bytes, free_bytes, entries, members,
        leased, waiting, published and evicted. See feedlane_arena_stats."""
        return self._core.stats()

    @staticmethod
    def observe(pid: int, nth: int = 0) -> dict[str, Any] | None:
        """Reads arena `nth` of process `pid`, its owner, without its help: the numbers of stats(), and `processes`, a list with
        number, pid, cut_off, held, waiting, granted_bytes, hits and misses of each process. None: there is no such arena. Raises
        PeerDead if there is no such process, and SystemCallError if it belongs to another user."""
        return _core.Arena.observe(pid, nth)

    def events(self) -> Iterator[str]:
        """Yields what has happened since the last call: members that ended, left, or were cut off. At the owner."""
        while (event := self._core.event()) is not None:
            yield event[1]


class Reservation:
    """The memory of an entry that is not published yet. See Arena.reserve."""

    def __init__(self, arena: Arena, entry: Batch, timeout_ns: int) -> None:
        self._arena, self._entry, self._timeout_ns = arena, entry, timeout_ns

    def __enter__(self) -> dict[str, npt.NDArray[Any]]:
        self._arrays = {tensor._name: tensor.numpy() for tensor in self._entry.tensors}
        return self._arrays

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._arrays.clear()  # they would keep the reservation
        if kind is None:
            self._arena._publish(self._entry, self._timeout_ns)
        if self._entry.is_held:
            self._entry.release()


def _serve(core: _core.Arena) -> None:
    """Serves members until the arena is closed."""
    while True:
        try:
            core.serve(_core.FOREVER)
        except errors.FeedlaneError:
            return


def _key(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key


def _names(value: Any, count: int) -> list[str]:
    """The names of the tensors: the keys of a flat dict, for members in other languages; otherwise their numbers."""
    keys = list(value) if type(value) is dict else []
    is_flat = len(keys) == count and all(
        isinstance(key, str) and 0 < len(key.encode()) < 32 and hasattr(value[key], "shape") for key in keys)
    return keys if is_flat else [str(number) for number in range(count)]


def _fill(leaf: collate.AnyLeaf, entry: Batch, number: int) -> None:
    """Writes a leaf into its tensor. Keeps no reference to the entry."""
    leaf.fill(memoryview(entry._view(number)))


def _outcome(status: int, text: str) -> errors.FeedlaneError:
    return errors.make(status, text)


class _Items(Protocol):
    def __getitem__(self, index: int, /) -> Any: ...
    def __len__(self) -> int: ...


_Dataset = TypeVar("_Dataset", bound=_Items)


class Cached(Generic[_Dataset]):
    """Returned by cached."""

    def __init__(self, dataset: _Dataset, arena: Arena | str | os.PathLike[str], name: str) -> None:
        self.dataset, self.name = dataset, name
        self._path = os.fspath(arena) if not isinstance(arena, Arena) else None
        self._arena = arena if isinstance(arena, Arena) else None
        self._pid = os.getpid()

    @property
    def arena(self) -> Arena:
        """The arena, which each process joins at its first sample."""
        if self._arena is None or self._pid != os.getpid():
            if self._path is None:
                raise errors.make(_core.E_FORKED, "cached() was given an Arena, which another process cannot use: pass its path")
            self._arena, self._pid = Arena.join(self._path), os.getpid()
        return self._arena

    def __getstate__(self) -> dict[str, Any]:
        if self._path is None:
            raise TypeError("cached() was given an Arena, which cannot be sent to another process: pass its path")
        return {**self.__dict__, "_arena": None}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self.arena.get_or_put(f"{self.name}:{index}", lambda: self.dataset[index])
        with sample:
            return sample.data

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.dataset, name)


def cached(dataset: _Dataset, arena: Arena | str | os.PathLike[str], name: str = "") -> Cached[_Dataset]:
    """Returns a map-style data set whose samples are made once for all epochs, workers, ranks and trials of a machine, as long as the
    arena has room for them. The sample's arrays are in read-only shared memory: a transform must not change them in place.

      dataset   a map-style data set whose samples an Arena can store. A sample must depend on its index only: put random
                augmentation behind the cache
      arena     the path of an Arena, which each process joins when it first needs a sample; or an Arena, for this process alone
      name      tells data sets in one arena apart"""
    return Cached(dataset, arena, name)
