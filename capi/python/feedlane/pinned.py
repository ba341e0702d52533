# SPDX-License-Identifier: Apache-2.0
"""Memory registered with a device, so that copies from it do not wait for the processor."""
from __future__ import annotations

import warnings
from types import ModuleType
from typing import TYPE_CHECKING

from . import _core

if TYPE_CHECKING:
    from .records import PoolStats

_of_devices: dict[int, Pool] = {}


class Pool:
    """A pool for Loader(pin_memory=...) and join(pin_memory=...), which register the loader's slots with it. It may be dropped before loaders and
    batches that use it.

      backend       "cuda": through the driver's library; "mlock": pages stay resident; "none"
      device        number of the device, for a backend with devices
      custom        instead of both: address of a feedlane_backend (feedlane.h) whose functions are not Python's
      budget_bytes  limit for the memory registered at the same time; 0: no limit

    Raises Unsupported if there is no driver or no such backend, DeviceError if the driver failed, and LimitError if the system
    or the budget allows too little memory.
    """

    def __init__(self, backend: str = "cuda", device: int = 0, *, custom: int | None = None, budget_bytes: int = 0) -> None:
        # Number of a device of torch's, or None.
        self.device = device if backend not in ("none", "mlock") and custom is None else None
        self.handle = _core.Pool(None if custom else backend, custom or 0, {"device": device, "budget_bytes": budget_bytes})

    def stats(self) -> PoolStats:
        """Returns the library's counters, by name: buffers, in_use, pending, registered_bytes, acquired, waited_ns, failures."""
        return self.handle.stats()

    def current_stream(self) -> int:
        """Returns the address of this thread's current torch stream on this device. Raises ImportError if torch is missing."""
        import torch
        stream: int = torch.cuda.current_stream(self.device).cuda_stream
        return stream


def records_streams(pool: Pool | None, torch: ModuleType | None) -> bool:
    """Whether batches in this pool's memory are recorded on torch's current stream."""
    return pool is not None and torch is not None and pool.device is not None


def pool_for(pin_memory: Pool | bool, torch: ModuleType | None) -> Pool | None:
    """Returns the Pool that Loader's argument requests, or None. `torch`: the module, if tensors are torch's. Raises ValueError
    for True without torch."""
    if isinstance(pin_memory, Pool) or not pin_memory:
        return pin_memory or None
    if torch is None:
        raise ValueError('pin_memory=True needs tensors="torch"; for numpy arrays pass a feedlane.Pool')
    if not torch.cuda.is_available():
        warnings.warn("pin_memory=True has no effect, because torch finds no CUDA device", stacklevel=3)
        return None
    device = torch.cuda.current_device()
    if device not in _of_devices:
        _of_devices[device] = Pool("cuda", device)
    return _of_devices[device]
