# SPDX-License-Identifier: Apache-2.0
"""Memory registered with a device, so that copies from it needn't wait for the processor."""
import atexit
import ctypes as c
import warnings

from . import _abi, errors

_left = []  # handles of pools that loaders, batches or streams still had when the Pool went: their end is tried again
_of_devices = {}


def _end_left(_left=_left, _destroy=_abi.library.feedlane_pool_destroy, _byref=c.byref):
    for _ in range(len(_left)):
        try:
            handle = _left.pop(0)  # no other thread has it from here on
        except IndexError:
            return
        if _destroy(_byref(handle)) != 0:
            _left.append(handle)


atexit.register(_end_left)


class Pool:
    """What Loader(pin_memory=...) registers its slots with. It may be dropped before loaders and batches that have it.

    backend     "cuda": by the driver's library; "mlock": pages stay resident; "none"
    device      "cuda": which, by its number
    custom      instead of both: the address of a feedlane_backend (feedlane.h) whose functions aren't Python's
    budget_bytes  registered at a time at most; 0: any number
    """

    def __init__(self, backend="cuda", device=0, *, custom=None, budget_bytes=0):
        _end_left()
        self.device = device if backend == "cuda" and custom is None else None  # of CUDA's
        config = _abi.PoolConfig(backend=None if custom else backend.encode(), custom=custom, device=device,
                                 budget_bytes=budget_bytes)
        self.handle, room = c.c_void_p(), errors.ErrorRoom.shared()
        errors.check(_abi.library.feedlane_pool_create(config, self.handle, room.struct), room)

    def stats(self):
        """The library's counters, by name."""
        struct = _abi.PoolStats()
        errors.check(_abi.library.feedlane_pool_get_stats(self.handle, struct))
        return struct.values()

    def current_stream(self):
        """The address of torch's stream of this thread on this device."""
        import torch
        return torch.cuda.current_stream(self.device).cuda_stream

    # The function as a default: a module's names may be gone when the interpreter ends.
    def __del__(self, _left=_left, _end_left=_end_left):
        if getattr(self, "handle", None):
            _left.append(self.handle)
            _end_left()


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
