# SPDX-License-Identifier: Apache-2.0
"""The library's samplers, and any Python iterable of indices as one."""
import array
import ctypes as c
import functools
import itertools
from collections import namedtuple

from . import _abi, errors, signals

_LARGEST_BATCH = 65536  # rows of a batch sampler that doesn't say

Rank = namedtuple("Rank", "rank world source warning")
Rank.__doc__ = "Which process of how many this is, and what said so; see feedlane_rank in feedlane.h."


def rank_detect():
    """As the launcher's variables have it: torchrun's, Open MPI's, PMI's, Slurm's, or FEEDLANE_RANK and FEEDLANE_WORLD_SIZE.
    Without any it is rank 0 of 1 by "none"; half of a pair is an ArgumentError."""
    struct, room = _abi.Rank(), errors.ErrorRoom.shared()
    errors.check(_abi.library.feedlane_rank_detect(struct, room.struct), room)
    return Rank(struct.rank, struct.world, struct.source.decode(), struct.warning.decode(errors="replace"))


class Sampler:
    """Yields indices, or lists of them if it is a batch sampler, of the epoch that set_epoch named (0 at first). A loader
    takes a copy of its own."""

    handle = c.c_void_p()
    rank = None  # whose part of the indices it yields, if it is distributed

    def __init__(self, function, *arguments, batch_rows=0, python=None, length=None):
        self.batch_rows, self.epoch, self._turn = batch_rows, 0, 0
        self.python = python  # the callbacks over a Python iterable that it draws from in the end, or None
        self._length = length  # says how many there are where the library can't
        self.handle, room = c.c_void_p(), errors.ErrorRoom.shared()
        errors.check(function(*arguments, c.byref(self.handle), room.struct), room)

    def __del__(self, _destroy=_abi.library.feedlane_sampler_destroy, _byref=c.byref):
        _destroy(_byref(self.handle))

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        length = c.c_int64()
        errors.check(_abi.library.feedlane_sampler_length(self.handle, length))
        if length.value >= 0:
            return length.value
        try:
            return self._length()
        except (TypeError, NotImplementedError) as reason:
            raise TypeError("this sampler doesn't say how many there are") from reason

    def _run(self, function, *arguments):
        room = errors.ErrorRoom.shared()
        arguments = (self.handle, *arguments, room.struct)
        status = function(*arguments) if self.python is None else signals.call(function, *arguments)
        if status < 0:
            raise self.failure(room.exception(status))
        return status

    def failure(self, exception):
        """What to raise when the library says this: with what the Python iterable raised as its cause. A KeyboardInterrupt
        or a SystemExit is itself what is raised, once."""
        if self.python is None or not exception.argument.startswith("callbacks."):
            return exception  # not the iterable's
        interruption = self.python.take_interruption()
        if interruption is not None:
            return interruption
        exception.__cause__ = self.python.reason
        return exception

    def __iter__(self):
        self._turn += 1
        turn = self._turn
        self._run(_abi.library.feedlane_sampler_restart, self.epoch)
        indices, got = (c.c_int64 * (self.batch_rows or 4096))(), c.c_uint64()
        while True:
            if turn != self._turn:
                raise errors.make(_abi.E_STATE, "another iteration over this sampler has begun since")
            if self._run(_abi.library.feedlane_sampler_next, indices, len(indices), got) == _abi.END:
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
                               shuffle=errors.choice("shuffle", shuffle, kind))
    return Sampler(_abi.library.feedlane_sampler_random, config)


def subset(indices, seed=0, *, shuffle=True):
    """These indices only, in another order each epoch, or as they are given."""
    those = _integers(indices)
    array_type = c.c_int64 * len(those)
    return Sampler(_abi.library.feedlane_sampler_subset, array_type.from_buffer(those), len(those), not shuffle, seed)


def weighted(weights, num_samples=0, seed=0, *, replacement=True):
    """Each index as likely as its weight says."""
    likely = (c.c_double * len(weights))(*weights)
    config = _abi.WeightedConfig(num_samples=num_samples, seed=seed, without_replacement=not replacement)
    return Sampler(_abi.library.feedlane_sampler_weighted, likely, len(likely), config)


def distributed(length, rank=0, world=0, seed=0, *, shuffle=True, drop_last=False):
    """This rank's part; with world 0 the launcher's variables say which that is."""
    config = _abi.DistributedConfig(length=length, world=world, rank=rank, seed=seed, no_shuffle=not shuffle,
                                    drop_last=drop_last)
    sampler = Sampler(_abi.library.feedlane_sampler_distributed, config)
    sampler.rank = rank if world else rank_detect().rank
    return sampler


def batch(inner, batch_size, drop_last=False):
    """Batches of another one's indices."""
    def length():
        return len(inner) // batch_size if drop_last else -(-len(inner) // batch_size)
    sampler = Sampler(_abi.library.feedlane_sampler_batch, inner.handle, batch_size, drop_last, batch_rows=batch_size,
                      python=inner.python, length=length)
    sampler.rank = inner.rank
    return sampler


class _Iterated:
    """The callbacks over a Python iterable, which is iterated anew each epoch: until it ends, as some draw a last random
    number there, and what __len__ says need not be so. To the library its length is unknown."""

    def __init__(self, iterable, batches):
        self._iterable, self._batches, self._iterator = iterable, batches, iter(())
        self._begin = None  # what `start` has brought
        self._interruption = None
        # What it raised in this epoch. A generator is at its end then, which would look like the epoch's.
        self.reason = None
        self.says_rows = bool(getattr(iterable, "batch_size", None))
        self.rows = 0 if not batches else iterable.batch_size if self.says_rows else _LARGEST_BATCH
        self.table = _abi.SamplerCallbacks(restart=_abi.SAMPLER_RESTART(self._restart),
                                           next=_abi.SAMPLER_NEXT(self._next), batch_rows=self.rows)

    def __len__(self):
        return len(self._iterable)

    def start(self, again):
        """Calls the iterable's __iter__ now, for the restart that follows; `again`: that one does too, as torch's loader with
        workers."""
        try:
            iterator = iter(self._iterable)
            self._begin = None if again else lambda: iterator
        except Exception as reason:
            self._begin = functools.partial(_raise, reason)

    def take_interruption(self):
        """A KeyboardInterrupt or SystemExit that nobody was told of yet."""
        interruption, self._interruption = self._interruption, None
        return interruption

    def _keep(self, reason):
        self.reason = reason
        if not isinstance(reason, Exception):
            self._interruption = reason

    def _failed(self, reason, error):
        if reason is not self.reason:
            self._keep(reason)
        error.contents.text = (b"the sampler: " + errors.one_line(reason))[:383]
        return _abi.E_SAMPLE

    def _restart(self, _user_data, _epoch, _seed, error):
        def work():
            self.reason = self._interruption = None
            self._iterator = iter(())
            begin, self._begin = self._begin, None
            self._iterator = iter(self._iterable) if begin is None else begin()
            return _abi.OK
        return signals.called_back(work, lambda reason: self._failed(reason, error), _abi.E_SAMPLE)

    def _draw(self, cap):
        """Up to `cap` indices, one batch of a batch sampler; None at the end."""
        if self.reason is not None:
            raise self.reason
        if self._batches:
            for drawn in self._iterator:
                drawn = _integers(drawn)
                if not drawn:
                    raise ValueError(f"the batch sampler {type(self._iterable).__name__} yielded an empty batch")
                if len(drawn) > cap:
                    raise ValueError(f"a batch of {len(drawn)} indices, {cap} at most: say so by a batch_size attribute")
                return drawn
            return None
        drawn = _integers(())
        try:
            drawn.extend(itertools.islice(self._iterator, cap))
        except BaseException as reason:
            if not drawn:
                raise
            self._keep(reason)  # told when what came before it is used up
        return drawn or None

    def _next(self, _user_data, indices, cap, got, error):
        def work():
            got[0] = 0
            drawn = self._draw(cap)
            if drawn is None:
                return _abi.END
            c.memmove(indices, drawn.buffer_info()[0], len(drawn) * drawn.itemsize)
            got[0] = len(drawn)
            return _abi.OK
        return signals.called_back(work, lambda reason: self._failed(reason, error), _abi.E_SAMPLE)


def _integers(iterable):
    """TypeError for what is no integer, OverflowError for one beyond 64 bits."""
    found = array.array("q")
    found.extend(iter(iterable))
    return found


def _raise(reason):
    raise reason


def of(iterable, batches=False):
    """A sampler over anything that yields indices, or lists of them; a Sampler is taken as it is."""
    if isinstance(iterable, Sampler):
        if batches and not iterable.batch_rows:
            raise ValueError("batch_sampler: a sampler of single indices, not of batches")
        return iterable
    callbacks = _Iterated(iterable, batches)
    return Sampler(_abi.library.feedlane_sampler_custom, callbacks.table, batch_rows=callbacks.rows, python=callbacks,
                   length=callbacks.__len__)
