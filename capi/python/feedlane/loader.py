# SPDX-License-Identifier: Apache-2.0
"""The trainer's side: a Loader over a data set, with the arguments that torch's DataLoader has for the same things."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO

from . import _core, batch_dataset, dtypes, errors, feeding, inline, iteration, lifetime, maker, order, pinned, policies, samplers, shipping, worker

if TYPE_CHECKING:
    import numpy.typing as npt

    from .batch import Batch
    from .records import DType, Indexed

# Address space of a slot where the samples' sizes aren't declared. Only what is written takes memory.
_SLOT_BYTES = 256 << 20


class Loader(feeding.Feeder):
    """Batches of `dataset`, made by worker processes in shared memory and used where they lie.

    Named as torch's DataLoader has them, with the same meaning: batch_size (None: no batches), shuffle, sampler,
    batch_sampler, num_workers, collate_fn, drop_last, timeout, worker_init_fn, prefetch_factor, persistent_workers,
    in_order, generator. Its own:
      tensors       "numpy" or "torch": what the arrays of a batch are
      seed          of order and workers. shuffle=True gives the order that DataLoader has after torch.manual_seed(seed).
                    None: with tensors="torch" what torch's generator says, as DataLoader draws it; else from the system
      held          batches that the loop means to keep at once
      fields        {name: (dtype, shape)} of the samples' arrays in order: memory is reserved from the start, and samples
                    of another type are an error
      slot_bytes    the largest batch, without `fields`
      arena_bytes   a limit for the memory that is reserved for batches, by `fields`; 0: none. With prefetch_factor="auto" as many
                    batches are in flight, within this limit, as shorten the loop's waits; without `fields` each counts as
                    `slot_bytes`. `info()` tells the number of the moment
      worker_cpus   processors that workers run on: "0-15", or a list for each worker, "0-7;8-15", begun anew when there are more
      memory_nodes  memory nodes that the batches' memory comes from: "1", or several in turn, "0-1"
      dispatch      "least_loaded" or "round_robin" (batch i from worker i mod num_workers, as torch has it)
      pin_memory    a Pool with which the batches' memory is registered, which needs `fields`; True: CUDA's, of torch's current
                    device. Copies may be enqueued (`.to(device, non_blocking=True)`) and the arrays be dropped: the memory is
                    kept for them on the stream that was torch's current one when the batch came, see Batch.record_stream
      task_timeout  seconds after which a worker that gets nowhere is replaced; 0: never
      deterministic an iterable data set yields the same samples when it is iterated again: a dead worker can be replaced
      max_restarts  of dead workers over the loader's life; 0: 1000, -1: none
      allow_pickle  values that are neither arrays, tensors, numbers, strings, bytes nor lists, tuples, dicts, sets and named
                    tuples of such travel pickled: a worker, and whatever it reads, can then run any code in the trainer
      name          what monitors of other processes show of it, at most 63 bytes
      trace         the number of batches whose records are kept, the newest ones, for `trace()` and for monitors; 0: as many as
                    the environment's FEEDLANE_TRACE says, or none
      progress      True: each epoch shows its progress on stderr, by tqdm where it is installed; or a text stream to show it on.
                    If that is no terminal, in one line at the epoch's end
      world, rank   of an iterable data set: the number of ranks that share it, and which one this is, as `rank_detect()` says.
                    See `get_shard()`. world=0: one rank, whatever the launcher says
      max_batches   batches of an epoch, after which it ends; 0: no limit
      share         "every" or "deal": the batches are for consumers in other processes, see feeding.Feeder for what such a loader
                    does. "every": each consumer gets every batch; "deal": batch k is for consumer k mod `consumers`
      consumers     with "every" at the same time, at most; with "deal" exactly
      share_path    a Unix socket to make, by which consumers of this user may join
      share_tail    with "deal", True: the last batches go to the first consumers when they are fewer than `consumers`; False:
                    they are left out, so that all get equally many
    and, of map-style data sets, for samples that fail, in this order (`__getitem__` makes them then):
      retries       more tries of a sample that raised one of `retry_on`, after `retry_backoff` seconds, then twice as many ...
      substitute    substitute(index, seed, tries) says which index to take instead, or None; up to 16 times. A function that
                    can be pickled; what it raises is the batch's error
      skip_budget   samples that an epoch may leave out before that is an error; -1: any number
    """

    def __init__(self, dataset: Indexed | Iterable[Any], batch_size: int | None = 1, *, shuffle: bool | None = None,
                 sampler: samplers.Sampler | Iterable[int] | None = None,
                 batch_sampler: samplers.Sampler | Iterable[Sequence[int]] | None = None, num_workers: int = 0,
                 collate_fn: Callable[[Any], Any] | None = None, drop_last: bool = False, timeout: float = 0,
                 worker_init_fn: Callable[[int], Any] | None = None, prefetch_factor: int | Literal["auto"] | None = None,
                 persistent_workers: bool = False, in_order: bool = True, generator: Any = None,
                 tensors: Literal["numpy", "torch"] = "numpy", seed: int | None = None, held: int = 4,
                 fields: Mapping[str, tuple[npt.DTypeLike, Sequence[int]]] | None = None, slot_bytes: int | None = None,
                 dispatch: Literal["least_loaded", "round_robin"] = "least_loaded", task_timeout: float = 0,
                 deterministic: bool = False, max_restarts: int = 0, pin_memory: pinned.Pool | bool = False, retries: int = 0,
                 retry_on: type[BaseException] | Iterable[type[BaseException]] = (OSError,), retry_backoff: float = 0,
                 substitute: Callable[[int, int, int], int | None] | None = None, skip_budget: int = 0,
                 allow_pickle: bool = False, name: str | None = None, trace: int = 0, progress: bool | TextIO = False,
                 world: int = 0, rank: int = 0, max_batches: int = 0,
                 share: Literal["every", "deal"] | None = None, consumers: int | None = None,
                 share_path: str | os.PathLike[str] | None = None, share_tail: bool = False,
                 arena_bytes: int = 0, worker_cpus: str | None = None, memory_nodes: str | None = None) -> None:
        """ValueError: an argument out of its domain, or arguments that exclude each other. ImportError: torch is asked for and
        isn't there. What pickle raises of a data set or a function that workers can't get. ArgumentError, LimitError,
        OutOfMemory, SystemCallError: the library says so. Workers begin with the first iteration."""
        if tensors not in ("numpy", "torch"):
            raise ValueError(f'tensors={tensors!r}: must be "numpy" or "torch"')
        self.share = share
        shared = feeding.configuration(share, consumers, share_path, share_tail, tensors, progress)
        # Which of these numbers make sense the library says.
        num_workers, held, max_restarts, retries, world, rank = (
            errors.whole(name, number, -2**31, 2**31 - 1)
            for name, number in (("num_workers", num_workers), ("held", held), ("max_restarts", max_restarts),
                                 ("retries", retries), ("world", world), ("rank", rank)))
        skip_budget = errors.whole("skip_budget", skip_budget, -2**63, 2**63 - 1)
        max_batches = errors.whole("max_batches", max_batches, -2**63, 2**63 - 1)
        if batch_size is not None:
            batch_size = errors.whole("batch_size", batch_size, 1, 2**63 - 1)
        if prefetch_factor is not None and prefetch_factor != "auto":
            prefetch_factor = errors.whole("prefetch_factor", prefetch_factor, 1, 2**31 - 1)
        if seed is not None:
            seed = errors.whole("seed", seed, -2**63, 2**64 - 1) % 2**64  # negative ones are torch's too
        if timeout < 0 or task_timeout < 0 or retry_backoff < 0:
            raise ValueError("a time can't be negative")
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError("prefetch_factor needs num_workers above 0")
        self.dataset, self.num_workers, self.timeout = dataset, num_workers, timeout
        self.batch_size, self.drop_last = (None if batch_sampler is not None else batch_size), drop_last
        # As they were passed, for those who read them off torch's loader.
        self.sampler, self.batch_sampler, self.collate_fn, self.generator = sampler, batch_sampler, collate_fn, generator
        self.worker_init_fn, self.prefetch_factor, self.in_order = worker_init_fn, prefetch_factor, in_order
        self.persistent_workers, self.allow_pickle = persistent_workers, bool(allow_pickle)
        self.name, self.progress = name, progress
        self._torch: ModuleType | None = None
        if tensors == "torch":
            import torch
            self._torch = torch
        self.pin_memory, self._pool = pin_memory, pinned.pool_for(pin_memory, self._torch)
        if self._pool is not None and not fields:
            raise ValueError("with pin_memory, memory is registered when the Loader is made: give fields")
        # Torch's copies can't say which memory they read; nor can its streams be told from others' but by the device.
        self._streams = self._pool is not None and self._torch is not None and self._pool.device is not None
        self._iterable = order.is_iterable(dataset)
        self._order = order.Order(dataset, self._iterable, shuffle, sampler, batch_sampler, batch_size, drop_last,
                                  generator, seed, self._torch, persistent_workers, num_workers)
        retry_on = retry_on if isinstance(retry_on, type) else tuple(retry_on)
        issubclass(Exception, retry_on)  # TypeError: these are no classes
        policy = None
        if retries or skip_budget or substitute is not None:
            if self._iterable:
                raise ValueError("retries, substitute and skip_budget are for map-style data sets: an iterator that has "
                                 "raised is at its end")
            policy = policies.Policy(retries, retry_on, retry_backoff, skip_budget != 0, substitute)
        batch_dataset.check(dataset, fields=bool(fields), batched=batch_sampler is not None or batch_size is not None,
                            iterable=self._iterable, collate_fn=collate_fn is not None, policy=policy is not None)
        self._job = maker.Job(dataset, batch_sampler is not None or batch_size is not None, self._iterable, drop_last,
                              collate_fn, worker_init_fn if num_workers else None,
                              tuple((name, *what) for name, what in fields.items()) if fields else None, policy,
                              self.allow_pickle, 0 if world else self._order.rank, (rank, max(world, 1)))
        self._config = dict(
            batch_size=0 if batch_sampler is not None else _core.UNBATCHED if batch_size is None else batch_size,
            drop_last=drop_last, workers=num_workers,
            prefetch_factor=_core.PREFETCH_AUTO if prefetch_factor == "auto" else prefetch_factor or 0,
            keep_workers=persistent_workers, held=held, iterable=self._iterable, deterministic=deterministic,
            out_of_order=not in_order, slot_bytes=slot_bytes or (0 if fields else _SLOT_BYTES),
            arena_bytes=errors.whole("arena_bytes", arena_bytes, 0, 2**64 - 1),
            dispatch=errors.choice("dispatch", dispatch, {"least_loaded": _core.DISPATCH_LEAST_LOADED,
                                                          "round_robin": _core.DISPATCH_ROUND_ROBIN}),
            task_timeout_ns=int(task_timeout * 1e9), max_restarts=max_restarts, retries=retries,
            retry_backoff_ns=int(retry_backoff * 1e9), substitute=substitute is not None, skip_budget=skip_budget,
            trace=errors.whole("trace", trace, 0, 2**64 - 1), world=world, rank=rank, max_batches=max_batches, **shared)
        self._share_path = None if share_path is None else os.fsencode(share_path)
        self._placement = {"worker_cpus": worker_cpus, "memory_nodes": memory_nodes}
        if fields and self._order.says_no_batch_size():
            raise ValueError("with fields, memory is reserved for the largest batch: give the batch sampler an attribute "
                             "batch_size")
        if self._iterable:
            self._config["iterable_length"] = order.length_of(dataset) or 0
        # Whatever becomes of the data set here: workers get what it was, for another seed and after a resume too.
        self._blob = worker.configuration(self._job) if num_workers > 0 else b""
        self._next_epoch, self._is_numbered = 0, False
        self._told_epoch = order.epoch_of(dataset)
        self._inline: inline.Inline | None = None
        self._core: _core.Loader = None  # type: ignore[assignment]  # _create makes the first one
        self._create(self._order.base_seed)

    # ---- life ----

    def _create(self, seed: int | None, state: bytes | None = None) -> None:
        if self.num_workers > 0:
            shipping.check_main()
        config = {**self._config, "has_seed": seed is not None, "seed": seed or 0}
        sampler, how = self._order.sampler, {}
        data: inline.Inline | None = None
        if self.num_workers == 0:
            data = inline.Inline(maker.Maker(self._job))
        elif self.num_workers > 0:
            how = {"worker_config": self._blob, "argv": list(map(os.fsencode, worker.command()))}
        core = lifetime.create(
            config, fields=_declare(self._job.fields) if self._job.fields else None, data=data,
            sampler=sampler.handle if sampler is not None else None, pool=self._pool.handle if self._pool is not None else None,
            state=state, name=self.name, share_path=self._share_path, **self._placement, **how)
        self.close()
        self._core, self._inline = core, data

    # ---- epochs ----

    def set_epoch(self, epoch: int) -> None:
        """The number of the next epoch: it seeds the order. Without it each iteration counts one up, or takes the number that the
        data set's own set_epoch was told. Such a data set is told each epoch that begins, in every worker too."""
        self._next_epoch, self._is_numbered = epoch, True

    def __len__(self) -> int:
        """Batches in an epoch. TypeError: nobody knows."""
        length = self._core.length()
        if length >= 0:
            return length
        length = self._order.length(self.batch_size, self.drop_last)
        return min(length, self._config["max_batches"] or length)

    def _begin(self) -> _core.Loader:
        self._raise_interruption()
        if self._core.is_closed:
            raise iteration.closed()
        fresh = self._order.start()
        if fresh is not None:
            self.close()  # it was never used, and there need not be memory for two
            self._create(fresh)
        self._tell_epoch()
        if self._inline is not None:
            self._inline.take_failure()  # of an epoch that is over
        try:
            self._core.begin(self._next_epoch)
        except errors.FeedlaneError as exception:
            self._raise(exception)
        self._next_epoch += 1
        return self._core

    def _tell_epoch(self) -> None:
        """The data set's set_epoch: here, while workers tell their copies. Told another epoch since, it says which one begins."""
        tell = getattr(self.dataset, "set_epoch", None)
        if tell is None:
            return
        told = order.epoch_of(self.dataset)
        if told is not None and told != self._told_epoch and not self._is_numbered:
            self._next_epoch = told
        tell(self._next_epoch)
        self._told_epoch, self._is_numbered = order.epoch_of(self.dataset), False

    def _raise(self, exception: errors.FeedlaneError) -> NoReturn:
        """What the library says, or what a callback raised, if it says that one did."""
        reason: BaseException | None = None
        try:
            if exception.argument.startswith("callbacks.") and self._order.sampler is not None:
                raise self._order.sampler.failure(exception)
            if exception.status == _core.E_SAMPLE and self._inline is not None:
                reason = self._inline.take_failure()
            if isinstance(reason, maker.SampleFailed):
                exception.sample = reason.index if reason.index is not None else -1
                reason = reason.__cause__
            if reason is not None and not isinstance(reason, Exception):
                raise reason  # KeyboardInterrupt, SystemExit
            raise exception from reason
        finally:
            del exception, reason  # their tracebacks hold this frame

    def _raise_interruption(self) -> None:
        """Ctrl-C in a sampler isn't kept until the batches before it are used up."""
        interruption = self._order.take_interruption()
        try:
            if interruption is not None:
                raise interruption
        finally:
            del interruption  # its traceback holds this frame, and those of an earlier `next` with its batch

    def _stop(self, core: _core.Loader, turn: int) -> None:
        """Nobody goes on with this epoch: workers that aren't kept end now, and not when the next one begins."""
        if turn == core.turn and self.num_workers > 0 and not self.persistent_workers and not core.is_closed:
            core.stop()

    # ---- state and numbers ----

    def state_dict(self, batch: Batch | None = None) -> dict[str, bytes]:
        """As for Batches. Unsupported: the order comes from a Python sampler."""
        try:
            return super().state_dict(batch)
        except errors.Unsupported:
            if self._order.sampler is None or self._order.sampler.python is None:
                raise
        raise errors.make(_core.E_UNSUPPORTED, "the order comes from a Python sampler (torch's generator is one), which can't be "
                          "set to where it stands: say Loader(seed=...), or take one of feedlane.samplers")

    def load_state_dict(self, state: Mapping[str, bytes]) -> None:
        """The next iteration goes on with exactly the remaining batches, whatever the number of workers; of an iterable data set
        with as many as there were. CorruptError, AbiError: this is no state, or another version's. ArgumentError: it is of
        another order. StateError: a shared loader that has consumers."""
        blob = state["feedlane"]
        info = _core.Loader.read_state(blob)
        self._leave_consumers()
        try:
            self._create(info["base_seed"], state=blob)
        except (errors.LimitError, errors.OutOfMemory):  # not enough for two
            self.close()
            self._create(info["base_seed"], state=blob)
        self._order.take_base_seed(info["base_seed"])
        self.set_epoch(info["epoch"] + info["ended"])


def _declare(fields: Iterable[tuple[Any, ...]]) -> tuple[tuple[bytes, DType, tuple[int, ...]], ...]:
    """As _core.Loader takes them."""
    return tuple((name.encode(), dtypes.of_numpy(dtype)[0], tuple(shape)) for name, dtype, shape in fields)
