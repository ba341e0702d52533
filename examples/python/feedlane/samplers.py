# SPDX-License-Identifier: Apache-2.0
"""The library's samplers, and any Python iterable of indices as one."""
import ctypes as c
import weakref

from . import _abi, errors

_LARGEST_BATCH = 65536  # rows of a batch sampler that doesn't say


def _destroy(handle):
    _abi.library.feedlane_sampler_destroy(c.byref(handle))


class Sampler:
    """Yields indices, or lists of them if it is a batch sampler, of the epoch that set_epoch named (0 at first). A loader
    takes a copy of its own."""

    def __init__(self, function, *arguments, batch_rows=0, keep=None):
        self.handle, self.batch_rows, self.epoch = c.c_void_p(), batch_rows, 0
        self.keep = keep  # what its callbacks need
        room = errors.ErrorRoom.shared()
        errors.check(function(*arguments, c.byref(self.handle), room.struct), room)
        weakref.finalize(self, _destroy, self.handle)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        length = c.c_int64()
        errors.check(_abi.library.feedlane_sampler_length(self.handle, length))
        if length.value < 0:
            raise TypeError("this sampler doesn't say how many there are")
        return length.value

    def __iter__(self):
        room = errors.ErrorRoom.shared()
        errors.check(_abi.library.feedlane_sampler_restart(self.handle, self.epoch, room.struct), room)
        indices, got = (c.c_int64 * (self.batch_rows or 4096))(), c.c_uint64()
        while True:
            status = _abi.library.feedlane_sampler_next(self.handle, indices, len(indices), got, room.struct)
            if errors.check(status, room) == _abi.END:
                return
            if self.batch_rows:
                yield indices[:got.value]
            else:
                yield from indices[:got.value]


def sequential(length):
    return Sampler(_abi.library.feedlane_sampler_sequential, length)


def random(length, seed=0, *, num_samples=0, replacement=False, shuffle="torch"):
    """Shuffled. "torch": as torch's RandomSampler with a generator seeded with seed + epoch; "torch_loader": as torch's
    DataLoader(shuffle=True) after manual_seed(seed), epoch after epoch; "feistel": without memory, up to 2^62."""
    kind = {"torch": _abi.SHUFFLE_TORCH, "feistel": _abi.SHUFFLE_FEISTEL, "torch_loader": _abi.SHUFFLE_TORCH_LOADER}
    config = _abi.RandomConfig(length=length, seed=seed, num_samples=num_samples, replacement=replacement,
                               shuffle=kind[shuffle])
    return Sampler(_abi.library.feedlane_sampler_random, config)


def subset(indices, seed=0, *, shuffle=True):
    """These indices only, in another order each epoch, or as they are given."""
    array = (c.c_int64 * len(indices))(*indices)
    return Sampler(_abi.library.feedlane_sampler_subset, array, len(array), not shuffle, seed)


def weighted(weights, num_samples=0, seed=0, *, replacement=True):
    """Each index as likely as its weight says."""
    array = (c.c_double * len(weights))(*weights)
    config = _abi.WeightedConfig(num_samples=num_samples, seed=seed, without_replacement=not replacement)
    return Sampler(_abi.library.feedlane_sampler_weighted, array, len(array), config)


def distributed(length, rank=0, world=0, seed=0, *, shuffle=True, drop_last=False):
    """This rank's part; with world 0 the launcher's variables say which that is."""
    config = _abi.DistributedConfig(length=length, world=world, rank=rank, seed=seed, no_shuffle=not shuffle,
                                    drop_last=drop_last)
    return Sampler(_abi.library.feedlane_sampler_distributed, config)


def batch(inner, batch_size, drop_last=False):
    """Batches of another one's indices."""
    return Sampler(_abi.library.feedlane_sampler_batch, inner.handle, batch_size, drop_last, batch_rows=batch_size,
                   keep=inner)


class _Iterated:
    """The callbacks over a Python iterable, which is iterated anew each epoch."""

    def __init__(self, iterable, batches):
        self._iterable, self._batches, self._iterator, self._left = iterable, batches, None, 0
        self.failure = None  # what it raised, for the loader to raise again
        try:
            length = len(iterable)
        except TypeError:
            length = 0
        self.rows = (getattr(iterable, "batch_size", None) or _LARGEST_BATCH) if batches else 0
        self.table = _abi.SamplerCallbacks(restart=_abi.SAMPLER_RESTART(self._restart),
                                           next=_abi.SAMPLER_NEXT(self._next), length=length, batch_rows=self.rows)

    def _guarded(self, call, error):
        try:
            return call()
        except BaseException as reason:  # nothing may be thrown through the library
            self.failure = reason
            error.contents.text = f"the sampler: {type(reason).__name__}: {reason}".encode()[:383]
            return _abi.E_SAMPLE

    def _restart(self, _user_data, _epoch, _seed, error):
        def call():
            self._iterator, self._left = iter(self._iterable), self.table.length
            return _abi.OK
        return self._guarded(call, error)

    def _draw(self, cap):
        """Up to `cap` indices, one batch of a batch sampler; None or nothing at the end."""
        if self._batches:
            drawn = next(self._iterator, None)
            self._left -= 1
        else:
            drawn = [index for _, index in zip(range(cap), self._iterator)]
            self._left -= len(drawn)
        if self._left == 0:
            # The library knows that this was the last and won't ask again. Some samplers draw a last random number at
            # their very end, which torch's loader gets to: the next epoch depends on it.
            self._iterator = iter(list(self._iterator))
        return drawn

    def _next(self, _user_data, indices, cap, got, error):
        def call():
            drawn = self._draw(cap)
            drawn = None if drawn is None else list(drawn)
            got[0] = 0
            if not drawn:
                return _abi.END
            if len(drawn) > cap:
                raise ValueError(f"a batch of {len(drawn)} indices, {cap} at most: say so by a batch_size attribute")
            for position, index in enumerate(drawn):
                indices[position] = int(index)
            got[0] = len(drawn)
            return _abi.OK
        return self._guarded(call, error)


def of(iterable, batches=False):
    """A sampler over anything that yields indices, or lists of them; a Sampler is taken as it is."""
    if isinstance(iterable, Sampler):
        return iterable
    callbacks = _Iterated(iterable, batches)
    return Sampler(_abi.library.feedlane_sampler_custom, callbacks.table, batch_rows=callbacks.rows, keep=callbacks)
