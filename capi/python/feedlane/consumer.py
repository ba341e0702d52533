# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of a shared loader: batches that a feeder in another process delivers."""
from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Literal, NoReturn

from . import _core, batch, errors, feeding, iteration, lifetime, observe


class Consumer(iteration.Batches):
    """What feedlane.join returns: iterated as a Loader is. Arrays are in read-only memory: numpy refuses to write to them, torch
    does not, see join. The first iteration is of the feeder's present epoch, each further one of the next. A loop that ends early
    gives back the rest of its epoch. `timeout`: seconds to wait for a batch, 0: any time; it may be set.

    `next` raises what the data set has raised as a SampleError, Quarantined, Timeout and SlotsHeld as a Loader's does, and
      PeerDead      the feeder has ended; after all batches that it had delivered
      Hung          the feeder has evicted this consumer. Batches that it holds stay valid
      StateError    the feeder is in a later epoch, `needed` of the exception, or stopped the epoch
    """

    name = None
    progress = False
    _pool = None
    _streams = False

    def __init__(self, core: _core.Loader, torch: ModuleType | None, timeout: float, allow_pickle: bool) -> None:
        """For join."""
        self._core, self._torch, self._wanted = core, torch, -1
        self.timeout, self.allow_pickle = timeout, allow_pickle

    def close(self) -> None:
        """Leaves the feeder. Batches and arrays that are left stay as they are, and keep their slots. Another thread's `next` ends
        with a StateError."""
        self._core.close()

    def set_epoch(self, epoch: int) -> None:
        """The number of the next epoch. Without it the first one is the feeder's present one, and each iteration counts one up. An
        epoch can be iterated once. StateError, by the iteration: it is over, or was iterated."""
        self._wanted = epoch

    def __len__(self) -> int:
        """Batches in an epoch, for this consumer. TypeError: the feeder doesn't know."""
        length = self._core.length()
        if length < 0:
            raise TypeError("this loader doesn't know how many batches there are")
        return length

    def _begin(self) -> _core.Loader:
        if self._core.is_closed:
            raise iteration.closed()
        self._core.begin(self._wanted if self._wanted >= 0 else self._core.next_epoch())
        self._wanted = -1
        return self._core

    def _stop(self, core: _core.Loader, turn: int) -> None:
        """What is left of the epoch goes back to the feeder."""
        if turn == core.turn and not core.is_closed:
            core.stop()

    def load_state_dict(self, state: Mapping[str, bytes]) -> NoReturn:
        """StateError: the feeder's loader goes on from a state."""
        raise errors.make(_core.E_STATE, "the order is the feeder's: load the state there, before consumers come")

    def _figures(self) -> observe.Figures:
        return observe.Nothing(_core.E_STATE, "the workers are the feeder's: ask its loader")


def join(feeder: feeding.Place | int | str | os.PathLike[str], *, id: int | None = None, lag: feeding.Lag | None = None,
         evict_after: float | None = None, timeout: float | None = 60, tensors: Literal["numpy", "torch"] = "numpy",
         batch_timeout: float = 0, allow_pickle: bool = False) -> Consumer:
    """Joins a feeder, a Loader with `share` in another process: by the descriptor of Feeder.open_consumer or a Place, which is
    consumed in every case, or by the Loader's share_path.
      id, lag, evict_after   by path: as for Feeder.open_consumer
      timeout                seconds until the feeder has answered, by its serve, wait_for_consumers or finish; None: any time
      tensors                "numpy" or "torch": what the arrays of a batch are. Torch doesn't know of read-only memory: an
                             operation in place on a tensor of a batch (add_, copy_ into it, out=) ends the process with
                             SIGSEGV. clone() it before, or copy it to a device. A ReadOnlyWarning says so, once
      batch_timeout          seconds that `next` waits for a batch; 0: any time
      allow_pickle           see Loader: a worker, or the feeder, can then run any code in this process
    PeerDead: the feeder has ended, or none listens there. Timeout. LimitError, ArgumentError: see Feeder.open_consumer.
    CorruptError, AbiError: no feeder is there, or another version's. ImportError: there is no torch."""
    if tensors not in ("numpy", "torch"):
        raise ValueError(f'tensors={tensors!r}: must be "numpy" or "torch"')
    if batch_timeout < 0:
        raise ValueError("a time can't be negative")
    timeout_ns = feeding.nanoseconds(timeout)
    if not isinstance(feeder, (str, os.PathLike)) and (id is not None or lag is not None or evict_after is not None):
        raise ValueError("id, lag and evict_after are said where the place is opened, or with a path")
    torch = importlib.import_module("torch") if tensors == "torch" else None
    config = feeding.consumer_config(id, "block" if lag is None else lag, evict_after)
    if isinstance(feeder, (str, os.PathLike)):
        core = _core.Loader.join_path(os.fsencode(feeder), *config, timeout_ns)
    elif isinstance(feeder, feeding.Place):
        core = _core.Loader.join(feeder.detach(), timeout_ns)
    else:
        core = _core.Loader.join(errors.whole("feeder", feeder, 0, 2**31 - 1), timeout_ns)
    consumer = Consumer(lifetime.keep(core), torch, batch_timeout, allow_pickle)
    if torch is not None:
        batch.warn_of_torch(stacklevel=2)
    return consumer
