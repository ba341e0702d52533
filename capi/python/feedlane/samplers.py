# SPDX-License-Identifier: Apache-2.0
"""The library's samplers, and any Python iterable of indices as one."""
from __future__ import annotations

import array
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from . import _core, errors

_A = TypeVar("_A")
_R = TypeVar("_R")

_LARGEST_BATCH = 65536  # rows of a batch sampler that doesn't say


class Rank(NamedTuple):
    """Which process of how many this is, and what said so; see feedlane_rank in feedlane.h."""

    rank: int
    world: int
    source: str
    warning: str


def rank_detect() -> Rank:
    """As the launcher's variables have it: torchrun's, Open MPI's, PMI's, Slurm's, or FEEDLANE_RANK and FEEDLANE_WORLD_SIZE.
    Without any it is rank 0 of 1 by "none"; half of a pair is an ArgumentError."""
    return Rank(**_core.rank_detect())


class Sampler:
    """Yields indices, or lists of them if it is a batch sampler, of the epoch that set_epoch named (0 at first). A loader
    takes a copy of its own."""

    rank: int | None = None  # whose part of the indices it yields, if it is distributed

    def __init__(self, handle: _core.Sampler, *, batch_rows: int = 0, python: _Iterated | None = None,
                 length: Callable[[], int] | None = None) -> None:
        self.handle, self.batch_rows, self.epoch, self._turn = handle, batch_rows, 0, 0
        self.python = python  # the callbacks over a Python iterable that it draws from in the end, or None
        self._length = length  # says how many there are where the library can't

    def set_epoch(self, epoch: int) -> None:
        """The epoch whose indices the next iteration yields. It doesn't count by itself."""
        self.epoch = epoch

    def __len__(self) -> int:
        """The number of indices, or of batches, in an epoch. TypeError: nobody knows."""
        length = self.handle.length()
        if length >= 0:
            return length
        try:
            return self._length()  # type: ignore[misc]  # None: the TypeError below
        except (TypeError, NotImplementedError) as reason:
            raise TypeError("this sampler doesn't say how many there are") from reason

    def _run(self, function: Callable[[_A], _R], argument: _A) -> _R:
        try:
            return function(argument)
        except errors.FeedlaneError as exception:
            raised = self.failure(exception)
            if raised is exception:
                raise
        raise raised

    def failure(self, exception: errors.FeedlaneError) -> BaseException:
        """What to raise when the library says this: with what the Python iterable raised as its cause. A KeyboardInterrupt
        or a SystemExit is itself what is raised, once."""
        if self.python is None or not exception.argument.startswith("callbacks."):
            return exception  # not the iterable's
        interruption = self.python.take_interruption()
        if interruption is not None:
            return interruption
        exception.__cause__ = self.python.reason
        return exception

    def __iter__(self) -> Iterator[Any]:
        """The indices, or batches of them as lists. StateError: another iteration has begun since."""
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


def _seed(seed: int) -> int:
    return errors.whole("seed", seed, -2**63, 2**64 - 1) % 2**64  # negative ones are torch's too


def sequential(length: int) -> Sampler:
    """0, 1, ... length - 1. ArgumentError: a negative length."""
    return Sampler(_core.sequential(length))


def random(length: int, seed: int = 0, *, num_samples: int = 0, replacement: bool = False,
           shuffle: Literal["torch", "torch_loader", "feistel"] = "torch") -> Sampler:
    """Shuffled. "torch": as torch's RandomSampler with a generator seeded with seed + epoch; "torch_loader": as torch's
    DataLoader(shuffle=True) after manual_seed(seed), epoch after epoch; "feistel": without memory, up to 2^62. num_samples:
    indices in an epoch; 0: `length`. replacement: each is drawn from all. ValueError, ArgumentError: a number out of its
    domain."""
    kind = {"torch": _core.SHUFFLE_TORCH, "feistel": _core.SHUFFLE_FEISTEL, "torch_loader": _core.SHUFFLE_TORCH_LOADER}
    return Sampler(_core.random({"length": length, "seed": _seed(seed), "num_samples": num_samples, "replacement": replacement,
                                 "shuffle": errors.choice("shuffle", shuffle, kind)}))


def subset(indices: Iterable[int], seed: int = 0, *, shuffle: bool = True) -> Sampler:
    """These indices only, in another order each epoch, or as they are given. TypeError: one is no integer. OverflowError: one is
    beyond 64 bits."""
    return Sampler(_core.subset(_integers(indices), not shuffle, _seed(seed)))


def weighted(weights: Iterable[float], num_samples: int = 0, seed: int = 0, *, replacement: bool = True) -> Sampler:
    """Each index as likely as its weight says. num_samples: indices in an epoch; 0: as many as weights. ArgumentError: a weight
    that is negative or not finite, none above 0, or too few for so many samples without replacement."""
    config = {"num_samples": num_samples, "seed": _seed(seed), "without_replacement": not replacement}
    return Sampler(_core.weighted(array.array("d", weights), config))


def distributed(length: int, rank: int = 0, world: int = 0, seed: int = 0, *, shuffle: bool = True,
                drop_last: bool = False) -> Sampler:
    """This rank's part of 0 ... length - 1; with world 0 the launcher's variables say which that is. drop_last: what can't be
    shared out evenly is left out, else indices are repeated. ArgumentError: no such rank, or half of a launcher's variables."""
    sampler = Sampler(_core.distributed({"length": length, "world": world, "rank": rank, "seed": _seed(seed),
                                         "no_shuffle": not shuffle, "drop_last": drop_last}))
    sampler.rank = rank if world else rank_detect().rank
    return sampler


def tokens(lengths: Iterable[int], max_tokens: int, max_rows: int, seed: int = 0, *, padded: bool = False, window: int = 0,
           shuffle: bool = True, drop_last: bool = False, drop_long: bool = False, rank: int = 0, world: int = 0) -> Sampler:
    """Batches, as lists, of samples that have at most `max_tokens` together and are at most `max_rows`. lengths: tokens of each
    sample. padded: a batch counts as rows * the longest length. window: shuffled samples that are sorted by length together; 0:
    8192. Every rank gets as many batches: some are split, or left out with drop_last; with world 0 the launcher's variables say
    which rank this is. drop_long: samples above the budget are left out. ArgumentError: such a sample without drop_long, a
    negative length, no such rank."""
    config = {"max_tokens": max_tokens, "max_rows": max_rows, "seed": _seed(seed), "window": window, "padded": padded,
              "no_shuffle": not shuffle, "drop_last": drop_last, "drop_long": drop_long, "world": world, "rank": rank}
    sampler = Sampler(_core.tokens(_integers(lengths), config), batch_rows=max_rows)
    sampler.rank = rank if world else rank_detect().rank
    return sampler


def mixture(lengths: Iterable[int], weights: Iterable[float] | Mapping[int, Iterable[float]], num_samples: int = 0,
            seed: int = 0, *, window: int = 0, shuffle: bool = True, drop_last: bool = False, rank: int = 0,
            world: int = 0) -> Sampler:
    """Sources in proportion to weights. Source i has the lengths[i] indices behind those of source i - 1, as in a
    torch.utils.data.ConcatDataset. weights: a number for each source, or such lists by the sample of training from which they
    count, {0: ..., 1_000_000: ...}. num_samples: indices in an epoch, of all ranks together; 0: those of all sources. An epoch
    goes on where the one before ended, in each source. window: samples that are shuffled together; 0: 1024. shuffle=False: each
    source in its own order. With world 0 the launcher's variables say which rank this is. ArgumentError: a length or weight that
    is negative, only weights of 0, stages that don't begin at 0 or don't ascend, no such rank. ValueError: lists of weights that
    aren't as long as lengths."""
    stages = weights if isinstance(weights, Mapping) else {0: weights}
    rows = array.array("d")
    for row in stages.values():
        rows.extend(row)
    config = {"num_samples": num_samples, "seed": _seed(seed), "window": window, "no_shuffle": not shuffle,
              "drop_last": drop_last, "world": world, "rank": rank}
    sampler = Sampler(_core.mixture(_integers(lengths), rows, _integers(stages), config))
    sampler.rank = rank if world else rank_detect().rank
    return sampler


def batch(inner: Sampler, batch_size: int, drop_last: bool = False) -> Sampler:
    """Batches of another one's indices, as lists of `batch_size`. drop_last: a last one that is shorter is left out.
    ArgumentError: a size below 1, or `inner` yields batches."""
    def length() -> int:
        return len(inner) // batch_size if drop_last else -(-len(inner) // batch_size)
    sampler = Sampler(_core.batch(inner.handle, batch_size, drop_last), batch_rows=batch_size, python=inner.python,
                      length=length)
    sampler.rank = inner.rank
    return sampler


class _Iterated:
    """The callbacks over a Python iterable, which is iterated anew each epoch: until it ends, as some draw a last random
    number there, and what __len__ says need not be so. To the library its length is unknown."""

    def __init__(self, iterable: Any, batches: bool) -> None:
        self._iterable, self._batches = iterable, batches
        self._iterator: Iterator[Any] = iter(())
        self._begin: Callable[[], Iterator[Any]] | None = None  # what `start` has brought
        self.interruption: BaseException | None = None  # a KeyboardInterrupt or SystemExit that nobody was told of yet
        # What it raised in this epoch. A generator is at its end then, which would look like the epoch's.
        self.reason: BaseException | None = None
        self.says_rows = bool(getattr(iterable, "batch_size", None))
        self.rows: int = 0 if not batches else iterable.batch_size if self.says_rows else _LARGEST_BATCH

    def __len__(self) -> int:
        return len(self._iterable)

    def start(self, again: bool) -> None:
        """Calls the iterable's __iter__ now, for the restart that follows; `again`: that one does too, as torch's loader with
        workers."""
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
        """Text and traceback for the library."""
        if reason is not self.reason:
            self._keep(reason)
        return b"the sampler: " + errors.one_line(reason), b""

    def restart(self) -> None:
        self.reason = self.interruption = None
        self._iterator = iter(())
        begin, self._begin = self._begin, None
        self._iterator = iter(self._iterable) if begin is None else begin()

    def draw(self, cap: int) -> array.array[int] | None:
        """Up to `cap` indices, one batch of a batch sampler; None at the end."""
        if self.reason is not None:
            raise self.reason
        if self._batches:
            for rows in self._iterator:
                drawn = _integers(rows)
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


def _integers(iterable: Iterable[Any]) -> array.array[int]:
    """TypeError for what is no integer, OverflowError for one beyond 64 bits."""
    found: array.array[int] = array.array("q")
    found.extend(iter(iterable))
    return found


def _raise(reason: BaseException) -> NoReturn:
    raise reason


def of(iterable: Iterable[Any], batches: bool = False) -> Sampler:
    """A sampler over anything that yields indices, or lists of them (`batches`); a Sampler is taken as it is. ValueError: a
    Sampler of single indices where batches are wanted."""
    if isinstance(iterable, Sampler):
        if batches and not iterable.batch_rows:
            raise ValueError("batch_sampler: a sampler of single indices, not of batches")
        return iterable
    callbacks = _Iterated(iterable, batches)
    return Sampler(_core.custom(callbacks, callbacks.rows), batch_rows=callbacks.rows, python=callbacks,
                   length=callbacks.__len__)
