# SPDX-License-Identifier: Apache-2.0
"""Memory registered with a device, so that copies from it needn't wait for the processor."""
from __future__ import annotations

import warnings
from types import ModuleType
from typing import TYPE_CHECKING

from . import _core

if TYPE_CHECKING:
    from .records import PoolStats

_of_devices: dict[int, Pool] = {}


class Pool:
    """What Loader(pin_memory=...) registers its slots with. It may be dropped before loaders and batches that have it.

    backend     "cuda": by the driver's library; "mlock": pages stay resident; "none"
    device      "cuda": which, by its number
    custom      instead of both: the address of a feedlane_backend (feedlane.h) whose functions aren't Python's
    budget_bytes  registered at a time at most; 0: any number

    Unsupported: there is no driver, or no such backend. DeviceError: the driver failed. LimitError: the system or the budget
    allows too little.
    """

    def __init__(self, backend: str = "cuda", device: int = 0, *, custom: int | None = None, budget_bytes: int = 0) -> None:
        self.device = device if backend == "cuda" and custom is None else None  # of CUDA's
        self.handle = _core.Pool(None if custom else backend, custom or 0, {"device": device, "budget_bytes": budget_bytes})

    def stats(self) -> PoolStats:
        """The library's counters, by name: buffers, in_use, pending, registered_bytes, acquired, waited_ns, failures."""
        return self.handle.stats()

    def current_stream(self) -> int:
        """The address of torch's stream of this thread on this device. ImportError: there is no torch."""
        import torch
        stream: int = torch.cuda.current_stream(self.device).cuda_stream
        return stream


def pool_for(pin_memory: Pool | bool, torch: ModuleType | None) -> Pool | None:
    """The Pool that Loader's argument asks for, or None. `torch`: the module, if tensors are torch's. ValueError: True without
    torch."""
    if isinstance(pin_memory, Pool) or not pin_memory:
        return pin_memory or None
    if torch is None:
        raise ValueError('pin_memory=True is for tensors="torch": with numpy\'s arrays it takes a feedlane.Pool')
    if not torch.cuda.is_available():
        warnings.warn("pin_memory=True, but torch finds no CUDA device: memory isn't registered", stacklevel=3)
        return None
    device = torch.cuda.current_device()
    if device not in _of_devices:
        _of_devices[device] = Pool("cuda", device)
    return _of_devices[device]
