# SPDX-License-Identifier: Apache-2.0
"""The library's samplers, and an adapter for any Python iterable of indices."""
from __future__ import annotations

import array
import enum
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from . import _core, errors

_A = TypeVar("_A")
_R = TypeVar("_R")

_LARGEST_BATCH = 65536  # most rows of a batch sampler without an attribute batch_size


class _Kind(enum.IntEnum):
    """FEEDLANE_SAMPLER_* of feedlane.h; abi_test.py compares them."""

    SEQUENTIAL = 0
    RANDOM = 1
    SUBSET = 2
    WEIGHTED = 3
    BATCH = 4
    DISTRIBUTED = 5
    TOKENS = 6
    MIXTURE = 7
    CUSTOM = 8


class Rank(NamedTuple):
    """The rank of this process, the number of ranks, and their source; see feedlane_rank in feedlane.h."""

    rank: int
    world: int
    source: str
    warning: str


def rank_detect() -> Rank:
    """Reads the rank from the launcher's environment variables: torchrun's, Open MPI's, MVAPICH's, PMI's, Flux's or Slurm's, or
    FEEDLANE_RANK and FEEDLANE_WORLD_SIZE. Without any of them: rank 0 of 1, source "none". Raises ArgumentError if one variable
    of a pair is missing or invalid."""
    return Rank(**_core.rank_detect())


class Sampler:
    """Yields the indices of an epoch, or lists of indices if it is a batch sampler. The epoch is 0 until set_epoch is called. A
    loader takes its own copy."""

    rank: int | None = None  # the rank whose indices it yields, if it is distributed

    def __init__(self, handle: _core.Sampler, *, batch_rows: int = 0, python: _Iterated | None = None,
                 length: Callable[[], int] | None = None) -> None:
        self.handle, self.batch_rows, self.epoch, self._turn = handle, batch_rows, 0, 0
        self.python = python  # the callbacks over the Python iterable that supplies the indices, or None
        self._length = length  # returns the length if the library does not know it

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch whose indices the next iteration yields. Iterations do not advance it."""
        self.epoch = epoch

    def __len__(self) -> int:
        """The number of indices, or batches, in an epoch. Raises TypeError if it is unknown."""
        length = self.handle.length()
        if length >= 0:
            return length
        try:
            return self._length()  # type: ignore[misc]  # if it is None: the TypeError below
        except (TypeError, NotImplementedError) as reason:
            raise TypeError("this sampler has no length: the number of its indices is unknown") from reason

    def _run(self, function: Callable[[_A], _R], argument: _A) -> _R:
        try:
            return function(argument)
        except errors.FeedlaneError as exception:
            raised = self.failure(exception)
            if raised is exception:
                raise
        raise raised

    def failure(self, exception: errors.FeedlaneError) -> BaseException:
        """Returns the exception to raise for this error of the library: the error, with the Python iterable's exception as its
        cause. A KeyboardInterrupt or SystemExit of the iterable is returned itself, once."""
        if self.python is None or not exception.argument.startswith("callbacks."):
            return exception  # not from the iterable
        interruption = self.python.take_interruption()
        if interruption is not None:
            return interruption
        exception.__cause__ = self.python.reason
        return exception

    def __iter__(self) -> Iterator[Any]:
        """Yields the indices, or batches of them as lists, and None when a live sampler has none now. Raises StateError if another
        iteration has begun since."""
        self._turn += 1
        turn = self._turn
        self._run(self.handle.restart, self.epoch)
        # A live sampler keeps indices until it has as many as requested.
        wanted = self.batch_rows or (1 if self.python is not None and self.python.wake_fd else 4096)
        while True:
            if turn != self._turn:
                raise errors.make(_core.E_STATE, "another iteration over this sampler has begun")
            indices = self._run(self.handle.next, wanted)
            if indices is None:
                return
            if not indices:
                yield None
            elif self.batch_rows:
                yield indices
            else:
                yield from indices


def _seed(seed: int) -> int:
    return errors.whole("seed", seed, -2**63, 2**64 - 1) % 2**64  # torch accepts negative seeds too


def sequential(length: int) -> Sampler:
    """Yields 0, 1, ... length - 1. Raises ArgumentError if `length` is negative."""
    return Sampler(_core.Sampler(_Kind.SEQUENTIAL, length=length))


def random(length: int, seed: int = 0, *, num_samples: int = 0, replacement: bool = False,
           shuffle: Literal["torch", "torch_loader", "feistel"] = "torch") -> Sampler:
    """Yields shuffled indices. shuffle="torch": as torch's RandomSampler with a generator seeded with seed + epoch;
    "torch_loader": as torch's DataLoader(shuffle=True) after manual_seed(seed), epoch after epoch; "feistel": takes no memory,
    up to 2^62 indices. num_samples: indices in an epoch; 0: `length`. replacement: draws each index from all indices. Raises
    ValueError or ArgumentError if a number is out of its domain."""
    kind = {"torch": _core.SHUFFLE_TORCH, "feistel": _core.SHUFFLE_FEISTEL, "torch_loader": _core.SHUFFLE_TORCH_LOADER}
    return Sampler(_core.Sampler(_Kind.RANDOM, length=length, seed=_seed(seed), num_samples=num_samples,
                                 replacement=replacement, shuffle=errors.choice("shuffle", shuffle, kind)))


def subset(indices: Iterable[int], seed: int = 0, *, shuffle: bool = True) -> Sampler:
    """Yields only these indices, in another order in each epoch, or without `shuffle` in the given order. Raises TypeError if
    one is not an integer, and OverflowError if one exceeds 64 bits."""
    return Sampler(_core.Sampler(_Kind.SUBSET, indices=_integers(indices), no_shuffle=not shuffle, seed=_seed(seed)))


def weighted(weights: Iterable[float], num_samples: int = 0, seed: int = 0, *, replacement: bool = True) -> Sampler:
    """Draws indices with probabilities in proportion to their weights. num_samples: indices in an epoch; 0: the number of
    weights. Raises ArgumentError if a weight is negative or not finite, if no weight is above 0, or if there are too few
    positive weights for `num_samples` without replacement."""
    return Sampler(_core.Sampler(_Kind.WEIGHTED, weights=array.array("d", weights), num_samples=num_samples,
                                 seed=_seed(seed), without_replacement=not replacement))


def distributed(length: int, rank: int = 0, world: int = 0, seed: int = 0, *, shuffle: bool = True,
                drop_last: bool = False) -> Sampler:
    """Yields this rank's part of 0 ... length - 1. With world 0, the launcher's environment variables give rank and world. So
    that all ranks get the same number of indices, drop_last leaves some out; otherwise some are repeated. Raises ArgumentError
    if there is no such rank, or if one of a launcher's variables is missing."""
    sampler = Sampler(_core.Sampler(_Kind.DISTRIBUTED, length=length, world=world, rank=rank, seed=_seed(seed),
                                    no_shuffle=not shuffle, drop_last=drop_last))
    sampler.rank = rank if world else rank_detect().rank
    return sampler


def tokens(lengths: Iterable[int], max_tokens: int, max_rows: int, seed: int = 0, *, padded: bool = False, window: int = 0,
           shuffle: bool = True, drop_last: bool = False, drop_long: bool = False, rank: int = 0, world: int = 0) -> Sampler:
    """Yields batches, as lists, of at most `max_rows` samples that have at most `max_tokens` tokens together. lengths: tokens
    of each sample. padded: a batch counts as rows * the longest length. window: number of shuffled samples that are sorted by
    length together; 0: 8192. Every rank gets the same number of batches, so some batches are split or, with drop_last, left
    out. With world 0, the launcher's environment variables give rank and world. drop_long: samples above the budget are left
    out. Raises ArgumentError for such a sample without drop_long, for a negative length, and if there is no such rank."""
    handle = _core.Sampler(_Kind.TOKENS, lengths=_integers(lengths), max_tokens=max_tokens, max_rows=max_rows,
                           seed=_seed(seed), window=window, padded=padded, no_shuffle=not shuffle, drop_last=drop_last,
                           drop_long=drop_long, world=world, rank=rank)
    sampler = Sampler(handle, batch_rows=max_rows)
    sampler.rank = rank if world else rank_detect().rank
    return sampler


def mixture(lengths: Iterable[int], weights: Iterable[float] | Mapping[int, Iterable[float]], num_samples: int = 0,
            seed: int = 0, *, window: int = 0, shuffle: bool = True, drop_last: bool = False, rank: int = 0,
            world: int = 0) -> Sampler:
    """Mixes sources in proportion to weights. Source i has lengths[i] indices, which follow those of source i - 1, as in a
    torch.utils.data.ConcatDataset. weights: one number per source; or a dict of such lists, whose keys are the samples of
    training from which they apply, {0: ..., 1_000_000: ...}. num_samples: indices in an epoch over all ranks; 0: the number of
    samples in all sources. In each source, an epoch continues where the previous one ended. window: number of samples that are
    shuffled together; 0: 1024. shuffle=False: each source in its own order. With world 0, the launcher's environment variables
    give rank and world. Raises ArgumentError if a length or weight is negative, if all weights are 0, if stages do not begin at
    0 or do not ascend, or if there is no such rank. Raises ValueError if a list of weights is not as long as `lengths`."""
    stages = weights if isinstance(weights, Mapping) else {0: weights}
    rows = array.array("d")
    for row in stages.values():
        rows.extend(row)
    sampler = Sampler(_core.Sampler(_Kind.MIXTURE, lengths=_integers(lengths), weights=rows, from_=_integers(stages),
                                    num_samples=num_samples, seed=_seed(seed), window=window, no_shuffle=not shuffle,
                                    drop_last=drop_last, world=world, rank=rank))
    sampler.rank = rank if world else rank_detect().rank
    return sampler


def batch(inner: Sampler, batch_size: int, drop_last: bool = False) -> Sampler:
    """Yields batches of another sampler's indices, as lists of `batch_size`. drop_last: a shorter last batch is left out.
    Raises ArgumentError if the size is below 1 or `inner` yields batches."""
    def length() -> int:
        return len(inner) // batch_size if drop_last else -(-len(inner) // batch_size)
    handle = _core.Sampler(_Kind.BATCH, inner=inner.handle, batch_size=batch_size, drop_last=bool(drop_last))
    sampler = Sampler(handle, batch_rows=batch_size, python=inner.python, length=length)
    sampler.rank = inner.rank
    return sampler


class _Iterated:
    """The callbacks over a Python iterable. In each epoch the iterable is iterated again, to its end, regardless of its
    __len__, because some iterables draw a last random number there. The library treats its length as unknown."""

    def __init__(self, iterable: Any, batches: bool) -> None:
        self._iterable, self._batches = iterable, batches
        self._iterator: Iterator[Any] = iter(())
        self._begin: Callable[[], Iterator[Any]] | None = None  # set by `start`
        self._is_idle = False  # the iterable has yielded None
        self.interruption: BaseException | None = None  # a KeyboardInterrupt or SystemExit not raised in the loop yet
        # Its exception in this epoch. A generator ends when it raises, which would look like the end of the epoch.
        self.reason: BaseException | None = None
        self.says_rows = bool(getattr(iterable, "batch_size", None))
        self.rows: int = 0 if not batches else iterable.batch_size if self.says_rows else _LARGEST_BATCH
        # Of a live iterable, which yields None if it has no index now.
        self.wake_fd: int = iterable.fileno() if hasattr(iterable, "fileno") else 0

    def __len__(self) -> int:
        return len(self._iterable)

    def start(self, again: bool) -> None:
        """Calls the iterable's __iter__ now, for the restart that follows. `again`: the restart calls it too, as torch's loader
        with workers does."""
        try:
            iterator: Iterator[Any] = iter(self._iterable)
            self._begin = None if again else lambda: iterator
        except Exception as reason:
            self._begin = functools.partial(_raise, reason)

    def take_interruption(self) -> BaseException | None:
        interruption, self.interruption = self.interruption, None
        return interruption

    def _keep(self, reason: BaseException) -> None:
        self.reason = reason
        if not isinstance(reason, Exception):
            self.interruption = reason

    # ---- for core/callbacks.cpp ----

    def failed(self, reason: BaseException) -> tuple[bytes, bytes]:
        """Returns text and traceback for the library."""
        if reason is not self.reason:
            self._keep(reason)
        return b"the sampler: " + errors.one_line(reason), b""

    def restart(self) -> None:
        self.reason = self.interruption = None
        self._iterator = iter(())
        begin, self._begin = self._begin, None
        self._iterator = iter(self._iterable) if begin is None else begin()

    def draw(self, cap: int) -> array.array[int] | None:
        """Returns up to `cap` indices; of a batch sampler, one batch. None: the epoch has ended. Empty: there are none now."""
        if self.reason is not None:
            raise self.reason
        if self._batches:
            for rows in self._iterator:
                if rows is None and self.wake_fd:
                    return _integers(())
                drawn = _integers(rows)
                if not drawn:
                    raise ValueError(f"the batch sampler {type(self._iterable).__name__} yielded an empty batch")
                if len(drawn) > cap:
                    raise ValueError(f"the batch sampler yielded {len(drawn)} indices, but at most {cap} are allowed: "
                                     f"give it an attribute batch_size")
                return drawn
            return None
        drawn = _integers(())
        found = itertools.islice(self._iterator, cap)
        self._is_idle = False
        try:
            drawn.extend(self._until_none(found) if self.wake_fd else found)
        except BaseException as reason:
            if not drawn:
                raise
            self._keep(reason)  # raised after the indices before it are used up
        return drawn if drawn or self._is_idle else None

    def _until_none(self, found: Iterator[int | None]) -> Iterator[int]:
        for index in found:
            if index is None:
                self._is_idle = True
                return
            yield index


def _integers(iterable: Iterable[Any]) -> array.array[int]:
    """Converts to an array of 64-bit integers. Raises TypeError for an item that is not an integer, and OverflowError beyond 64
    bits."""
    found: array.array[int] = array.array("q")
    found.extend(iter(iterable))
    return found


def _raise(reason: BaseException) -> NoReturn:
    raise reason


def of(iterable: Iterable[Any], batches: bool = False) -> Sampler:
    """Makes a sampler over any object that yields indices, or lists of them (`batches`). A Sampler is returned unchanged. An object
    with a method `fileno` is live: it may yield None, which means that it has nothing now, and is continued when that descriptor
    is readable, or earlier; see live.Live. Raises ValueError for a Sampler of single indices if `batches` is set."""
    if isinstance(iterable, Sampler):
        if batches and not iterable.batch_rows:
            raise ValueError("batch_sampler must yield batches, not single indices")
        return iterable
    callbacks = _Iterated(iterable, batches)
    return Sampler(_core.Sampler(_Kind.CUSTOM, callbacks=callbacks), batch_rows=callbacks.rows, python=callbacks,
                   length=callbacks.__len__)
