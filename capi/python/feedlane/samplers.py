# SPDX-License-Identifier: Apache-2.0
"""The library's samplers, and any Python iterable of indices as one."""
import array
import functools
import itertools
from collections import namedtuple

from . import _core, errors

_LARGEST_BATCH = 65536  # rows of a batch sampler that doesn't say

Rank = namedtuple("Rank", "rank world source warning")
Rank.__doc__ = "Which process of how many this is, and what said so; see feedlane_rank in feedlane.h."


def rank_detect():
    """As the launcher's variables have it: torchrun's, Open MPI's, PMI's, Slurm's, or FEEDLANE_RANK and FEEDLANE_WORLD_SIZE.
    Without any it is rank 0 of 1 by "none"; half of a pair is an ArgumentError."""
    return Rank(**_core.rank_detect())


class Sampler:
    """Yields indices, or lists of them if it is a batch sampler, of the epoch that set_epoch named (0 at first). A loader
    takes a copy of its own."""

    rank = None  # whose part of the indices it yields, if it is distributed

    def __init__(self, handle, *, batch_rows=0, python=None, length=None):
        self.handle, self.batch_rows, self.epoch, self._turn = handle, batch_rows, 0, 0
        self.python = python  # the callbacks over a Python iterable that it draws from in the end, or None
        self._length = length  # says how many there are where the library can't

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        length = self.handle.length()
        if length >= 0:
            return length
        try:
            return self._length()
        except (TypeError, NotImplementedError) as reason:
            raise TypeError("this sampler doesn't say how many there are") from reason

    def _run(self, function, argument):
        try:
            return function(argument)
        except errors.FeedlaneError as exception:
            raised = self.failure(exception)
            if raised is exception:
                raise
        raise raised

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
        self._run(self.handle.restart, self.epoch)
        while True:
            if turn != self._turn:
                raise errors.make(_core.E_STATE, "another iteration over this sampler has begun since")
            indices = self._run(self.handle.next, self.batch_rows or 4096)
            if indices is None:
                return
            if self.batch_rows:
                yield indices
            else:
                yield from indices


def _seed(seed):
    return errors.whole("seed", seed, -2**63, 2**64 - 1) % 2**64  # negative ones are torch's too


def sequential(length):
    """0, 1, ... length - 1."""
    return Sampler(_core.sequential(length))


def random(length, seed=0, *, num_samples=0, replacement=False, shuffle="torch"):
    """Shuffled. "torch": as torch's RandomSampler with a generator seeded with seed + epoch; "torch_loader": as torch's
    DataLoader(shuffle=True) after manual_seed(seed), epoch after epoch; "feistel": without memory, up to 2^62."""
    kind = {"torch": _core.SHUFFLE_TORCH, "feistel": _core.SHUFFLE_FEISTEL, "torch_loader": _core.SHUFFLE_TORCH_LOADER}
    return Sampler(_core.random({"length": length, "seed": _seed(seed), "num_samples": num_samples, "replacement": replacement,
                                 "shuffle": errors.choice("shuffle", shuffle, kind)}))


def subset(indices, seed=0, *, shuffle=True):
    """These indices only, in another order each epoch, or as they are given."""
    return Sampler(_core.subset(_integers(indices), not shuffle, _seed(seed)))


def weighted(weights, num_samples=0, seed=0, *, replacement=True):
    """Each index as likely as its weight says."""
    config = {"num_samples": num_samples, "seed": _seed(seed), "without_replacement": not replacement}
    return Sampler(_core.weighted(array.array("d", weights), config))


def distributed(length, rank=0, world=0, seed=0, *, shuffle=True, drop_last=False):
    """This rank's part; with world 0 the launcher's variables say which that is."""
    sampler = Sampler(_core.distributed({"length": length, "world": world, "rank": rank, "seed": _seed(seed),
                                         "no_shuffle": not shuffle, "drop_last": drop_last}))
    sampler.rank = rank if world else rank_detect().rank
    return sampler


def batch(inner, batch_size, drop_last=False):
    """Batches of another one's indices."""
    def length():
        return len(inner) // batch_size if drop_last else -(-len(inner) // batch_size)
    sampler = Sampler(_core.batch(inner.handle, batch_size, drop_last), batch_rows=batch_size, python=inner.python,
                      length=length)
    sampler.rank = inner.rank
    return sampler


class _Iterated:
    """The callbacks over a Python iterable, which is iterated anew each epoch: until it ends, as some draw a last random
    number there, and what __len__ says need not be so. To the library its length is unknown."""

    def __init__(self, iterable, batches):
        self._iterable, self._batches, self._iterator = iterable, batches, iter(())
        self._begin = None  # what `start` has brought
        self.interruption = None  # a KeyboardInterrupt or SystemExit that nobody was told of yet
        # What it raised in this epoch. A generator is at its end then, which would look like the epoch's.
        self.reason = None
        self.says_rows = bool(getattr(iterable, "batch_size", None))
        self.rows = 0 if not batches else iterable.batch_size if self.says_rows else _LARGEST_BATCH

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
        interruption, self.interruption = self.interruption, None
        return interruption

    def _keep(self, reason):
        self.reason = reason
        if not isinstance(reason, Exception):
            self.interruption = reason

    # ---- for core/callbacks.cpp ----

    def failed(self, reason):
        """Text and traceback for the library."""
        if reason is not self.reason:
            self._keep(reason)
        return b"the sampler: " + errors.one_line(reason), b""

    def restart(self):
        self.reason = self.interruption = None
        self._iterator = iter(())
        begin, self._begin = self._begin, None
        self._iterator = iter(self._iterable) if begin is None else begin()

    def draw(self, cap):
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
    return Sampler(_core.custom(callbacks, callbacks.rows), batch_rows=callbacks.rows, python=callbacks,
                   length=callbacks.__len__)
