# SPDX-License-Identifier: Apache-2.0
"""Memory registered with a device, so that copies from it needn't wait for the processor."""
import warnings

from . import _core

_of_devices = {}


class Pool:
    """What Loader(pin_memory=...) registers its slots with. It may be dropped before loaders and batches that have it.

    backend     "cuda": by the driver's library; "mlock": pages stay resident; "none"
    device      "cuda": which, by its number
    custom      instead of both: the address of a feedlane_backend (feedlane.h) whose functions aren't Python's
    budget_bytes  registered at a time at most; 0: any number
    """

    def __init__(self, backend="cuda", device=0, *, custom=None, budget_bytes=0):
        self.device = device if backend == "cuda" and custom is None else None  # of CUDA's
        self.handle = _core.Pool(None if custom else backend, custom or 0, {"device": device, "budget_bytes": budget_bytes})

    def stats(self):
        """The library's counters, by name: buffers, in_use, pending, registered_bytes, acquired, waited_ns, failures."""
        return self.handle.stats()

    def current_stream(self):
        """The address of torch's stream of this thread on this device."""
        import torch
        return torch.cuda.current_stream(self.device).cuda_stream


def pool_for(pin_memory, torch):
    """The Pool that Loader's argument asks for, or None."""
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
