# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of a shared loader: batches that a feeder in another process delivers."""
from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Literal, NoReturn

from . import _core, batch, errors, feeding, iteration, lifetime, observe, pinned


class Consumer(iteration.Batches):
    """Returned by feedlane.join, and iterated like a Loader. Its arrays are in read-only memory: numpy refuses writes to them,
    torch does not, see join. The first iteration yields the feeder's current epoch, each further one the next epoch. A loop
    that ends early returns the rest of its epoch to the feeder. `timeout`: seconds to wait for a batch, 0: no limit; it may be
    set.

    `next` raises SampleError (for an exception of the data set), Quarantined, Timeout and SlotsHeld, as a Loader's `next` does,
    and
      PeerDead      the feeder has ended; raised after all batches that it had delivered
      Hung          the feeder has evicted this consumer. Batches that it holds stay valid
      StateError    the feeder is in a later epoch, which is the exception's `needed`, or has stopped the epoch
    """

    name = None
    progress = False

    def __init__(self, core: _core.Loader, torch: ModuleType | None, pool: pinned.Pool | None, timeout: float,
                 allow_pickle: bool) -> None:
        """Called by join."""
        self._core, self._torch, self._pool, self._wanted = core, torch, pool, -1
        self._streams = pinned.records_streams(pool, torch)
        self.timeout, self.allow_pickle = timeout, allow_pickle

    def close(self) -> None:
        """Leaves the feeder. Remaining batches and arrays stay valid and keep their slots. A `next` in another thread or
        task raises StateError."""
        super().close()

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch. Without this call, the first epoch is the feeder's current one, and each iteration
        adds one. An epoch can be iterated once: the iteration raises StateError if the epoch is over or was already iterated."""
        self._wanted = epoch

    def __len__(self) -> int:
        """The number of batches in an epoch for this consumer. Raises TypeError if the feeder does not know it."""
        length = self._core.info()["batches"]
        if length < 0:
            raise TypeError("this loader has no length: the number of its batches is unknown")
        return length

    def _begin(self) -> _core.Loader:
        if self._core.is_closed:
            raise iteration.closed()
        self._core.begin(self._wanted if self._wanted >= 0 else self._core.info()["next_epoch"])
        self._wanted = -1
        return self._core

    def _stop(self, core: _core.Loader, turn: int) -> None:
        """Returns the rest of the epoch to the feeder."""
        if turn == core.turn and not core.is_closed:
            core.stop()

    def load_state_dict(self, state: Mapping[str, bytes]) -> NoReturn:
        """Raises StateError: only the feeder's loader can load a state."""
        raise errors.make(_core.E_STATE, "the feeder decides the order: load the state there, before consumers join")

    def _figures(self) -> observe.Figures:
        return observe.Nothing(_core.E_STATE, "a consumer has no workers: use the feeder's loader")


def join(feeder: feeding.Place | int | str | os.PathLike[str], *, id: int | None = None, lag: feeding.Lag | None = None,
         evict_after: float | None = None, timeout: float | None = 60, tensors: Literal["numpy", "torch"] = "numpy",
         batch_timeout: float = 0, allow_pickle: bool = False, pin_memory: pinned.Pool | bool = False) -> Consumer:
    """Joins a feeder, which is a Loader with `share` in another process. Pass the descriptor of Feeder.open_consumer, a Place,
    or the Loader's share_path. A descriptor or Place is consumed, even if joining fails, unless an argument is invalid.
      id, lag, evict_after   with a path: as for Feeder.open_consumer
      timeout                seconds to wait for the feeder's reply, in its serve, wait_for_consumers or finish; None: no limit
      tensors                "numpy" or "torch": type of the arrays of a batch. Torch does not support read-only memory: an
                             operation in place on a tensor of a batch (add_, copy_ into it, out=) ends the process with
                             SIGSEGV. clone() the tensor before, or copy it to a device. `join` issues one ReadOnlyWarning
      batch_timeout          seconds that `next` waits for a batch; 0: no limit
      allow_pickle           see Loader: a worker, or the feeder, can then run any code in this process
      pin_memory             see Loader: registers the feeder's memory in this process, for reading. The feeder's loader needs
                             `fields`: only memory that is reserved for them is registered
    Raises PeerDead if the feeder has ended or none listens at the path, and Timeout if it does not reply in time. Raises
    LimitError or ArgumentError as Feeder.open_consumer does. Raises CorruptError or AbiError if the other end is not a feeder,
    or is one of another version. Raises Unsupported or DeviceError if memory cannot be registered for reading. Raises
    ImportError if torch is missing."""
    if tensors not in ("numpy", "torch"):
        raise ValueError(f'tensors={tensors!r}: must be "numpy" or "torch"')
    if batch_timeout < 0:
        raise ValueError(f"batch_timeout={batch_timeout!r}: must not be negative")
    timeout_ns = feeding.nanoseconds(timeout)
    if not isinstance(feeder, (str, os.PathLike)) and (id is not None or lag is not None or evict_after is not None):
        raise ValueError("id, lag and evict_after are allowed only with a path: for a descriptor pass them to open_consumer")
    torch = importlib.import_module("torch") if tensors == "torch" else None
    path, config, descriptor = None, None, -1
    if isinstance(feeder, (str, os.PathLike)):
        path, config = os.fsencode(feeder), feeding.consumer_config(id, "block" if lag is None else lag, evict_after)
    elif isinstance(feeder, feeding.Place):
        descriptor = feeder.detach()
    else:
        descriptor = errors.whole("feeder", feeder, 0, 2**31 - 1)
    try:
        pool = pinned.pool_for(pin_memory, torch)
    except BaseException:
        if descriptor >= 0:
            os.close(descriptor)
        raise
    core = _core.Loader.join(descriptor, path, config, pool.handle if pool is not None else None, timeout_ns)
    consumer = Consumer(lifetime.keep(core), torch, pool, batch_timeout, allow_pickle)
    if torch is not None:
        batch.warn_of_torch(stacklevel=2)
    return consumer
