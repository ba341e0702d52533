# SPDX-License-Identifier: Apache-2.0
"""The sampler that a Loader's arguments request, and the source of its random numbers."""
from __future__ import annotations

import collections.abc as abc
import random
import secrets
import sys
from types import ModuleType
from typing import Any

from . import errors, samplers


def is_iterable(dataset: Any) -> bool:
    """Whether the data set is iterated, not indexed. torch's class for such data sets inherits a __getitem__ that only raises."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(dataset, data.IterableDataset):
        return True
    return isinstance(dataset, abc.Iterable) and not hasattr(dataset, "__getitem__")


def length_of(thing: Any) -> int | None:
    """Returns its length, or None if it has none."""
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None


def epoch_of(dataset: Any) -> int | None:
    """Returns the epoch passed to the data set's set_epoch, if its attribute `epoch` or `_epoch` (as in Hugging Face's) shows
    it."""
    for name in "epoch", "_epoch":
        try:
            return int(getattr(dataset, name))
        except (AttributeError, TypeError, ValueError):
            pass
    return None


def _rank_of(sampler: Any) -> int:
    """Returns the rank of a distributed sampler (torch's DistributedSampler also has an attribute `rank`), otherwise the
    launcher's rank."""
    inner = getattr(sampler, "sampler", None)  # set if `sampler` is torch's BatchSampler
    for candidate in sampler, inner:
        rank = getattr(candidate, "rank", None)
        if isinstance(rank, int) and rank >= 0:
            return rank
    try:
        return samplers.rank_detect().rank
    except errors.ArgumentError:  # one of a launcher's variables is missing: an order that needs it reports this
        return 0


def torch_base_seed(seed: int) -> int:
    """Returns the base seed that torch's DataLoader draws after torch.manual_seed(seed). torch seeds worker w with this number
    plus w."""
    state = [seed % 2**32]  # mt19937's own seeding, which Python's differs from
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + i) % 2**32)
    generator = random.Random()
    generator.setstate((3, (*state, 624), None))
    high = generator.getrandbits(32)
    return (high << 32 | generator.getrandbits(32)) % 2**63


class Order:
    """The order of a Loader. `sampler` is None for an iterable data set. `base_seed` is the workers' base seed. Workers mix
    `rank` into their seeds, because with `seed` the workers of all ranks would otherwise draw the same random numbers. If
    torch's generator gives the base seed, `rank` is 0, as with torch, which leaves this to the program."""

    _torch: ModuleType | None
    _generator: Any
    base_seed: int | None

    def __init__(self, dataset: Any, iterable: bool, shuffle: bool | None, sampler: Any, batch_sampler: Any,
                 batch_size: int | None, drop_last: bool, generator: Any, seed: int | None, torch: ModuleType | None,
                 persistent: bool, workers: int) -> None:
        """Raises ValueError if arguments exclude each other."""
        self._dataset, self._persistent, self._torch, self._generator = dataset, persistent, None, None
        if iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("shuffle, sampler and batch_sampler are not allowed for an iterable data set, which has its own order")
        if sampler is not None and shuffle:
            raise ValueError("sampler and shuffle cannot be combined")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError("batch_sampler cannot be combined with batch_size, shuffle, sampler or drop_last")
        if batch_size is None and drop_last:
            raise ValueError("drop_last needs a batch_size")
        if generator is not None and (torch is None or seed is not None):
            raise ValueError('generator needs tensors="torch", and cannot be combined with seed')
        self.base_seed, self.rank = None, 0
        if seed is not None:
            self.rank = _rank_of(batch_sampler if batch_sampler is not None else sampler)
            self.base_seed = torch_base_seed(seed)
        elif torch is not None:
            self._torch, self._generator = torch, generator
        self.sampler = None if iterable else self._sampler(shuffle, sampler, batch_sampler, seed)
        # Set for a Python iterable that torch iterates itself. torch's BatchSampler iterates any other one, with its first batch.
        itself = batch_sampler is not None or batch_size is None
        starts = self._torch is not None and self.sampler is not None and itself
        self._starts = self.sampler.python if starts and self.sampler is not None else None
        self._workers = workers

    def _sampler(self, shuffle: bool | None, sampler: Any, batch_sampler: Any, seed: int | None) -> samplers.Sampler:
        if batch_sampler is not None:
            return samplers.of(batch_sampler, batches=True)
        if sampler is not None:
            return samplers.of(sampler)
        if not shuffle:
            return samplers.sequential(len(self._dataset))
        if self._torch is not None:
            return samplers.of(self._torch.utils.data.RandomSampler(self._dataset, generator=self._generator))
        drawn = secrets.randbits(32) if seed is None else seed
        return samplers.random(len(self._dataset), drawn, shuffle="torch_loader")

    def start(self) -> int | None:
        """Repeats the steps of torch's DataLoader at the start of an iteration, so that later draws are the same: it iterates
        its sampler, then draws. Returns the workers' base seed if it was not known before, otherwise None."""
        if self._torch is None or (self._persistent and self.base_seed is not None):
            return None
        if self._starts is not None:
            self._starts.start(again=self._workers > 0)
        drawn: int = self._torch.empty((), dtype=self._torch.int64).random_(generator=self._generator).item()
        if self.base_seed is not None:
            return None
        self.base_seed = drawn
        return drawn

    def take_base_seed(self, seed: int) -> None:
        """Sets the base seed of a resumed run."""
        self.base_seed = seed

    def take_interruption(self) -> BaseException | None:
        """Returns a KeyboardInterrupt or SystemExit that a Python sampler has raised and that was not raised in the loop yet."""
        callbacks = self.sampler.python if self.sampler is not None else None
        return callbacks.take_interruption() if callbacks is not None else None

    def says_no_batch_size(self) -> bool:
        """Whether this is a user-defined batch sampler that does not declare the largest size of a batch."""
        callbacks = self.sampler.python if self.sampler is not None else None
        return callbacks is not None and callbacks.rows > 0 and not callbacks.says_rows

    def length(self, batch_size: int | None, drop_last: bool) -> int:
        """Returns the number of batches in an epoch if the library does not know it: for a Python sampler or an iterable data
        set that has a length. Raises TypeError if it has none."""
        count = length_of(self._dataset if self.sampler is None else self.sampler)
        if count is None:
            raise TypeError("this loader has no length: the number of its batches is unknown")
        if batch_size is None:
            return count
        return count // batch_size if drop_last else -(-count // batch_size)
