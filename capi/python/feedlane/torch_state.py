# SPDX-License-Identifier: Apache-2.0
"""The position of a DataLoader's iteration, in the format of torchdata's StatefulDataLoader: the position in the sampler, the
states of samplers, data sets and their iterators, and the generator states from which random orders were drawn."""
from __future__ import annotations

import collections
import contextlib
import copy
import itertools
import logging
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import dataloader as torch_dataloader

from . import _core, errors, torch_arguments

State = dict[str, Any]

_RANDOM = (torch.utils.data.RandomSampler, torch.utils.data.SubsetRandomSampler, torch.utils.data.WeightedRandomSampler)
_log = logging.getLogger(__name__)


def is_stateful(thing: Any) -> bool:
    """Whether it has state_dict() and load_state_dict(state). False for a class, whose methods cannot be called."""
    return not isinstance(thing, type) and callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def state_of(thing: Any) -> Any:
    """Returns its state, or None."""
    return thing.state_dict() if is_stateful(thing) else None


def load(thing: Any, state: Any) -> None:
    """Sets it to this state. It stays unchanged if `state` is None or it is not stateful."""
    if state is not None and is_stateful(thing):
        thing.load_state_dict(state)


@contextlib.contextmanager
def no_draw(generator: torch.Generator | None) -> Iterator[None]:
    """Undoes draws made inside, so that loading a state leaves the generator (None: torch's default one) unchanged."""
    generator = generator if generator is not None else torch.default_generator
    before = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(before)


def draw_as_saved(loader: torch_arguments.Arguments[Any], iterator: Any, with_seed: bool = True) -> torch.Tensor | None:
    """For the first epoch after one whose end was loaded. Draws the workers' seed, if they start with this epoch, from the
    saved state of torch's default generator. Returns the generator state after that draw, or None if this is not such an epoch."""
    random, loader._next_random = loader._next_random, None
    if random is None:
        return None
    with no_draw(None):
        torch.set_rng_state(random)
        if with_seed and loader.generator is None:
            iterator._base_seed = torch.empty((), dtype=torch.int64).random_().item()
        return torch.get_rng_state()


# ---- the data set's side, in a worker or inline ----

def worker_state(number: int | None, is_iterable: bool, dataset: Any, iterator: Any, ended: bool) -> State:
    """Returns the state of one worker; `number` None: inline."""
    fetcher = None
    if is_iterable:
        fetcher = {"dataset_iter_state": state_of(iterator), "fetcher_ended": ended}
    state = {"fetcher_state": fetcher,
             # saved only once for a data set that is its own iterator
             "dataset_state": None if is_iterable and iterator is dataset else state_of(dataset)}
    return state if number is None else {"worker_id": number, **state}


def is_empty(state: State) -> bool:
    """Whether neither the data set nor its iterator has a state."""
    fetcher = state["fetcher_state"]
    return state["dataset_state"] is None and (fetcher is None or fetcher["dataset_iter_state"] is None)


def warn_of_forwarding(steps: int) -> None:
    """Logs a warning that this many batches are made again and dropped."""
    _log.warning("neither the data set nor its iterator has state_dict and load_state_dict: the first %d batches are made again "
                 "and dropped", steps)


# ---- the sampler's side ----

def generator_state(loader: torch_arguments.Arguments[Any]) -> State:
    """Returns the state of the loader's own generator at the beginning of an epoch, for a saved state."""
    return {} if loader.generator is None else {"_generator": loader.generator.get_state()}


class Indices:
    """One pass over an index sampler. Yields the same as iter(index_sampler), and knows its position.

    A state consists of, in this order: the sampler's own state_dict, its iterator's state_dict and, for torch's random
    samplers, the generator's state at the first draw and the number of indices to skip."""

    _iterator: Any  # None before the first draw
    _random: State | None

    def __init__(self, index_sampler: Any, iterator: Any = None) -> None:
        """iterator: of the index sampler, already requested by torch; None: the first draw requests it."""
        self._whole = index_sampler
        # torch's BatchSampler hides the iterator of the sampler inside it.
        self._is_batcher = type(index_sampler) is torch.utils.data.BatchSampler
        self._sampler = index_sampler.sampler if self._is_batcher else index_sampler
        self._is_random = isinstance(self._sampler, _RANDOM)
        self._iterator = self._random = None  # set by the first draw
        self._yielded = self._samples = 0     # batches drawn, and their indices
        # A Python generator does nothing before its first draw, so a new one is equivalent.
        if not self._is_batcher and not (self._is_random and isinstance(iterator, types.GeneratorType)):
            self._iterator = iterator

    def __iter__(self) -> Iterator[Any]:
        self.start()
        if not self._is_batcher:
            for batch in self._iterator:
                self._yielded += 1
                yield batch
            return
        size, drop_last = self._whole.batch_size, self._whole.drop_last
        while True:
            batch = list(itertools.islice(self._iterator, size))
            if not batch or (drop_last and len(batch) < size):
                return
            self._yielded += 1
            self._samples += len(batch)
            yield batch

    def start(self) -> None:
        """Requests the sampler's iterator, as the first draw would."""
        if self._iterator is None:
            self._random = self._random_state()
            self._iterator = iter(self._sampler)

    def _random_state(self) -> State | None:
        if not self._is_random:
            return None
        if self._sampler.generator is not None:
            return {"generator": self._sampler.generator.get_state()}
        return {"default_generator": torch.get_rng_state()}

    def start_as_saved(self, random: torch.Tensor) -> None:
        """Starts with the order that torch's default generator gives in this state."""
        if self.draws_by_default:
            self._restart_random({"yielded": 0, "default_generator": random})

    @property
    def yielded(self) -> int:
        """The number of batches drawn."""
        return self._yielded

    @property
    def draws_by_default(self) -> bool:
        """Whether the order comes from torch's default generator."""
        return self._is_random and self._sampler.generator is None and not is_stateful(self._sampler)

    @property
    def is_stateful(self) -> bool:
        """Whether its state must be saved after each draw, because the number of batches drawn does not determine it."""
        return is_stateful(self._sampler) or is_stateful(self._iterator)

    def state_dict(self, batches: int | None = None) -> State:
        """Returns the state after the newest batch or, unless it is stateful, after this number of batches."""
        batches = self._yielded if batches is None else batches
        inner = state_of(self._iterator)
        if inner is None and self._is_random and not is_stateful(self._sampler):
            samples = min(batches * self._whole.batch_size, self._samples) if self._is_batcher else batches
            inner = {"yielded": samples, **(self._random or self._random_state() or {})}
        state: State = {"_sampler_iter_yielded": batches, "_index_sampler_state": None, "_sampler_iter_state": inner}
        if not self._is_batcher:
            state["_index_sampler_state"] = state_of(self._sampler)
            return state
        state["_sampler_iter_state"] = {"samples_yielded": min(batches * self._whole.batch_size, self._samples)}
        if is_stateful(self._sampler):
            state["_sampler_iter_state"]["sampler_state"] = state_of(self._sampler)
        if inner is not None:
            state["_sampler_iter_state"]["sampler_iter_state"] = inner
        return state

    def load_state_dict(self, state: State) -> None:
        """Loads a state. Called before the first draw."""
        inner, own = state["_sampler_iter_state"], state["_index_sampler_state"]
        self._yielded = skip = state["_sampler_iter_yielded"]
        if self._is_batcher:
            batcher = inner or {}
            self._samples = skip = batcher.get("samples_yielded", skip * self._whole.batch_size)
            inner, own = batcher.get("sampler_iter_state"), batcher.get("sampler_state")
        load(self._sampler, own)
        if self._is_random and inner is not None and not is_stateful(self._sampler):
            self._restart_random(inner)
        else:
            self.start()
        if is_stateful(self._iterator):
            load(self._iterator, inner)
        elif not is_stateful(self._sampler) and not isinstance(self._sampler, torch_dataloader._InfiniteConstantSampler):
            next(itertools.islice(self._iterator, skip, skip), None)

    def _restart_random(self, state: State) -> None:
        """Starts with the order that was drawn from a generator in this state: the sampler's own, or torch's default one."""
        own, sampler = state.get("generator"), self._sampler
        self._random = {key: value for key, value in state.items() if key != "yielded"}
        if own is not None and sampler.generator is not None:
            sampler.generator.set_state(own)
            self._iterator = iter(sampler)
            return
        if sampler.generator is None and not state["yielded"]:
            next(iter(sampler), None)  # takes from the default generator what the first draw of any epoch takes
        sampler = copy.copy(sampler)
        sampler.generator = None
        if own is not None:
            sampler.generator = torch.Generator()
            sampler.generator.set_state(own)
            self._iterator = iter(sampler)
            return
        with no_draw(None):
            torch.set_rng_state(state["default_generator"])
            iterator = iter(sampler)
            self._iterator = itertools.chain(list(itertools.islice(iterator, 1)), iterator)

    def exhaust(self) -> None:
        """Runs to the end of a pass that is over, so that generators get the state in which it left them."""
        if not isinstance(self._sampler, torch_dataloader._InfiniteConstantSampler):
            collections.deque(self, 0)


def next_random(indices: Indices, finished: bool) -> State:
    """For an epoch that is over: returns the state of torch's default generator if the next epoch's order is drawn from it."""
    return {"_default_generator": torch.get_rng_state()} if finished and indices.draws_by_default else {}


def beginning(loader: torch_arguments.Arguments[Any]) -> State:
    """Returns the state before the first batch. Generators stay unchanged, and nothing is iterated or started, so the iteration
    is the same with or without this call."""
    workers, is_iterable = loader.num_workers, loader._dataset_kind == torch_dataloader._DatasetKind.Iterable
    with no_draw(loader.generator):
        seeds = {"_base_seed": torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item(), **generator_state(loader)}
        indices = Indices(loader._index_sampler)
        if workers:
            progress = Progress(indices, workers, 0, seeds, is_iterable, False, {})
            progress.begin()
            state = progress.state_dict()
            state["_snapshot"]["_main_snapshot"]["_workers_have_states"] = is_stateful(loader.dataset)
            return state
        fetcher = {"dataset_iter_state": None, "fetcher_ended": False} if is_iterable else None
        return {**indices.state_dict(), **seeds, "_num_yielded": 0, "_shared_seed": None, "_IterableDataset_len_called": None,
                "fetcher_state": fetcher, "dataset_state": state_of(loader.dataset), "_iterator_finished": False}


# ---- the trainer's side of workers ----

def _nothing() -> None:
    pass


class Progress:
    """The trainer's knowledge of one epoch, which is enough for a state without asking the workers.

    A state contains a snapshot and the number of batches since then, which are made again. Workers with a state send it with
    every `rounds`-th batch (0: never). A snapshot can be taken when each worker's newest batch has brought a state."""

    def __init__(self, indices: Indices, workers: int, rounds: int, seeds: State, is_iterable: bool, has_states: bool,
                 states: dict[int, Any]) -> None:
        self.step = self.taken = 0  # batches yielded; the same plus failed batches
        self._failed: list[int] = []  # for each failed batch, the number of batches yielded before it
        self.finished = False
        self.length_called: int | None = None  # length of the iterable data set, if len(loader) was called before the epoch
        self.unknown = set(range(workers)) if has_states and not states else set()  # workers that have not sent their first state
        self.is_plain = not has_states and not indices.is_stateful  # only numbers have to be recorded
        self._indices, self._workers, self._rounds, self._seeds = indices, workers, rounds, seeds
        self._is_iterable, self._has_states, self._last = is_iterable, has_states, workers - 1
        self._states, self._drawn = dict(states), 0
        self._stale: set[int] = set()
        self._mains: collections.deque[tuple[int, State]] = collections.deque()
        self._saved: Any = None  # a snapshot, set by `begin`
        self.on_known: Callable[[], object] = _nothing  # called once, when all first states are known
        if self.is_plain and rounds > 1:
            self._rounds = 1  # the number of batches determines the position

    def begin(self, step: int = 0, taken: int = 0, last: int | None = None) -> None:
        """Called before the first draw of the epoch, or with the position in a state."""
        self.step, self.taken, self._drawn = step, taken, taken
        self._last = self._workers - 1 if last is None else last
        self._note_main()
        self._saved = self._snapshot()

    @property
    def states(self) -> dict[int, Any]:
        """The newest state of each worker."""
        return self._states

    def keep(self, states: dict[int, Any]) -> None:
        """Keeps the states of workers that continue with another epoch. A new shard's first state is still to come."""
        self._states = dict(states)
        if not self._is_iterable:
            self.unknown -= set(states)
        self._saved = self._snapshot()

    def state_for(self, worker: int) -> Any:
        """Returns the state with which a worker's replacement starts."""
        return self._states.get(worker)

    # ---- what happens ----

    def drew(self) -> None:
        """A batch of indices was drawn."""
        self._drawn += 1
        if not self.is_plain:
            self._note_main()

    def _note_main(self) -> None:
        if self._indices.is_stateful:
            self.is_plain = False
            period = self._rounds if self._rounds <= 1 else self._rounds * self._workers
            if not self._drawn or (period and self._drawn % period == 0):
                self._mains.append((self._drawn, self._indices.state_dict()))

    def told_first(self, told: State) -> None:
        """A batch was taken from the library; the loop may get it later."""
        if told["first"] is not None:
            self._states[told["worker"]] = told["first"]
            self.unknown.discard(told["worker"])
            if not self.unknown:
                self.all_known()

    def all_known(self) -> None:
        """The first state of every worker is known."""
        on_known, self.on_known = self.on_known, _nothing
        on_known()

    def told(self, told: State) -> None:
        """Handles the state that came with a worker's batch or with its end."""
        if self._rounds > 1 and self._is_consistent():
            self._saved = self._snapshot()  # it cannot be taken later
        worker = told["worker"]
        if told["without"] == "lead":
            return
        if not told["without"]:
            self._last = worker
        if told["state"] is not None:
            self._stale.discard(worker)
            self._states[worker] = told["state"]
        elif self._states.get(worker) is None or not is_empty(self._states[worker]):
            self._stale.add(worker)

    def failed(self) -> None:
        """A batch that was due has failed."""
        self._failed.append(self.step)
        self.took()

    def took(self) -> None:
        """A batch was yielded, or has failed."""
        self.taken += 1
        if not self._has_states and not self._is_iterable:
            self._last = (self.taken - 1) % self._workers

    # ---- states ----

    def _is_consistent(self) -> bool:
        if self._stale or not self._rounds:
            return False
        while self._mains and self._mains[0][0] < self.taken:
            self._mains.popleft()
        return not self._indices.is_stateful or bool(self._mains and self._mains[0][0] == self.taken)

    def _snapshot(self, behind: int = 0) -> State:
        step = self.step - behind
        taken = self.taken - behind - (sum(at >= step for at in self._failed) if behind else 0)
        main = self._mains[0][1] if self._indices.is_stateful else self._indices.state_dict(taken)
        if self._is_iterable:
            main = {**main, "_sampler_iter_yielded": taken}
        states = {f"worker_{i}": self._states.get(i) or self._nothing(i) for i in range(self._workers)}
        last = (taken - 1) % self._workers if behind else self._last
        return {"_snapshot_step": step, "_last_yielded_worker_id": last, "_worker_snapshots": states,
                "_main_snapshot": {"_num_workers": self._workers, **main, **self._seeds, "_shared_seed": None,
                                   "_IterableDataset_len_called": self.length_called}}

    def _nothing(self, worker: int) -> State:
        fetcher = {"dataset_iter_state": None, "fetcher_ended": False} if self._is_iterable else None
        return {"worker_id": worker, "fetcher_state": fetcher, "dataset_state": None}

    def state_dict(self, behind: int = 0) -> State:
        """Returns the loader's state in torchdata's format, after the newest batch or `behind` batches earlier. Raises
        ValueError if fewer than `behind` batches have come, and StateError if only a later state is kept."""
        check_behind(behind, self.step)
        finished = self.finished and not behind
        if behind and self.is_plain and not self._is_iterable:
            snapshot = self._snapshot(behind)
        else:
            snapshot = self._snapshot() if not behind and self._is_consistent() else self._saved
        since = self.step - behind - snapshot["_snapshot_step"]
        if since < 0:
            raise errors.make(_core.E_STATE, f"behind={behind}: the workers' newest states are {-since} batches later; call "
                              "state_dict() before you take the next batch")
        return {"_snapshot": snapshot, "_steps_since_snapshot": since, "_iterator_finished": finished,
                **next_random(self._indices, finished)}


def check_behind(behind: int, step: int) -> None:
    """Raises ValueError if fewer than `behind` batches have come."""
    if not 0 <= behind <= step:
        raise ValueError(f"behind={behind!r}: must be from 0 to {step}, the number of batches that have come")


class Resume:
    """A loaded state, converted for a loader with this number of workers. Raises AssertionError, as torchdata does, if the
    number of workers differs and they or the data set have states."""

    main: State
    states: dict[int, Any]

    def __init__(self, state: State, workers: int) -> None:
        self.finished, self.next_random = state["_iterator_finished"], state.get("_default_generator")
        if "_snapshot" in state:
            self._of_workers(state, workers)
        else:
            self._of_none(state, workers)

    def _of_workers(self, state: State, workers: int) -> None:
        snapshot = state["_snapshot"]
        self.main, self.step = snapshot["_main_snapshot"], snapshot["_snapshot_step"]
        self.since, self.last = state["_steps_since_snapshot"], snapshot["_last_yielded_worker_id"]
        states = snapshot["_worker_snapshots"]
        self.states = {i: states[f"worker_{i}"] for i in range(len(states))}
        self.base_seed = self.main["_base_seed"]
        made_by = self.main["_num_workers"]
        if made_by != workers:
            if self.main.get("_workers_have_states") or any(
                    s is not None and (s["fetcher_state"] is not None or not is_empty(s)) for s in self.states.values()):
                raise AssertionError(f"the state was saved with {made_by} workers that have states, but num_workers is {workers}")
            self.states, self.last = {}, workers - 1
        self.fetcher = self.dataset = None

    def restore_generator(self, loader: torch_arguments.Arguments[Any]) -> None:
        """Restores the loader's own generator to its state at the beginning of the epoch."""
        if loader.generator is not None and self.main.get("_generator") is not None:
            loader.generator.set_state(self.main["_generator"])

    def _of_none(self, state: State, workers: int) -> None:
        if "_num_yielded" not in state:
            raise AssertionError("this is not a state of a DataLoader")
        self.main, self.step, self.since = state, state["_num_yielded"], 0
        self.fetcher, self.dataset = state["fetcher_state"], state["dataset_state"]
        self.states, self.last, self.base_seed = {}, workers - 1, None
        if workers and (self.fetcher is not None or self.dataset is not None):
            raise AssertionError(f"the state was saved without workers and contains a data set's state, but num_workers is "
                                 f"{workers}")
