# SPDX-License-Identifier: Apache-2.0
"""The trainer's side: a Loader over a data set. Its arguments that match torch's DataLoader have the same names."""
from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO

from . import (_core, batch_dataset, dtypes, errors, feeding, fork_server, forks, inline, iteration, lifetime, maker, order, pinned,
               placement, policies, program, remote, samplers, shipping, threads, worker as worker_process)

if TYPE_CHECKING:
    import numpy.typing as npt

    from .batch import Batch
    from .records import DType, Indexed

# Address space of a slot if the samples' sizes are not declared. Only pages that are written take memory.
_SLOT_BYTES = 256 << 20


class Loader(feeding.Feeder):
    """Batches of `dataset`, made by worker processes in shared memory and used in place. Instead of a data set, `worker` may name a
    program in any language that makes the samples.

    These arguments have the names and meanings of torch's DataLoader: batch_size (None: no batches), shuffle, sampler,
    batch_sampler, num_workers, collate_fn, drop_last, timeout, worker_init_fn, prefetch_factor, persistent_workers, in_order,
    generator. Further arguments:
      tensors       "numpy" or "torch": type of the arrays of a batch
      seed          seed of the order and of the workers. shuffle=True gives the order of a DataLoader after torch.manual_seed(seed).
                    None: with tensors="torch" drawn from torch's generator, as DataLoader does; otherwise from the system
      held          batches that the loop keeps at the same time
      fields        {name: (dtype, shape)} of the samples' arrays, in order: memory is reserved from the start, and samples
                    of another type are an error
      slot_bytes    size of the largest batch, without `fields`
      arena_bytes   limit for the memory that is reserved for batches, according to `fields`; 0: none. prefetch_factor="auto" grows the
                    number of batches in flight, within this limit, as long as that shortens the loop's waits; without `fields`
                    each batch counts as `slot_bytes`. `info()` reports the current number
      worker_cpus   processors for workers: "0-15", or one list per worker, "0-7;8-15", reused from the start if there are more workers
      memory_nodes  memory nodes for the batches' memory: "1", or several in turn, "0-1"
      dispatch      "least_loaded", or "round_robin" as in torch: batch i comes from worker i mod num_workers
      pin_memory    a Pool that registers the batches' memory, which needs `fields`; True: CUDA's, for torch's current device. Arrays may
                    be dropped while copies are enqueued (`.to(device, non_blocking=True)`). Their memory is kept for the stream that
                    was torch's current one when the batch arrived, see Batch.record_stream
      start         how workers start. "forkserver": they are forked from a process that starts with the Loader and imports the
                    program's modules. They share the pages of large arrays that they do not write. "spawn": each worker imports the
                    modules itself; for modules that cannot be used after a fork. "fork": they are forked from this process, with the
                    data set that is there. This is the fastest start, but a lock that another thread holds stays locked in a worker.
                    "thread": workers are threads of this process, which share the data set, so it must allow calls from several
                    threads. Nothing is pickled to start them. They run at the same time on free-threaded Python only. Random generators are the whole process's: use sample_seed(). A thread can't be killed: if one hangs, see task_timeout,
                    the others make the remaining batches, and then `next` raises Hung.
                    A function start(place): it starts a process that calls run_worker(place), for example with multiprocessing or
                    subprocess, before it returns. The loader calls it whenever a worker is missing, in the thread that begins an epoch,
                    waits in `next`, or calls poll() or serve(). The program joins the processes, which end when the loader no longer
                    needs them
      task_timeout  seconds after which a worker without progress is replaced; 0: never
      deterministic an iterable data set yields the same samples when it is iterated again, so a dead worker can be replaced
      max_restarts  most dead workers replaced in the loader's life; 0: 1000, -1: none is replaced
      max_kills_per_batch  deaths of its workers after which a batch is Quarantined; 0: 3
      allow_pickle  values other than arrays, tensors, numbers, strings, bytes and lists, tuples, dicts, sets and named tuples of
                    them are pickled. Then a worker, and whatever it reads, can run any code in the trainer
      name          shown by monitors of other processes, at most 63 bytes
      trace         number of newest batches whose records are kept, for `trace()` and for monitors; 0: the value of the
                    environment variable FEEDLANE_TRACE, or no trace
      progress      True: shows the progress of each epoch on stderr, with tqdm if it is installed. A text stream: shows it there.
                    A stream that is not a terminal gets one line at the epoch's end
      world, rank   of an iterable data set: number of ranks that share it, and this process's rank, as `rank_detect()` returns
                    them. See `get_shard()`. world=0: one rank, whatever the launcher's environment contains
      max_batches   batches in an epoch, after which it ends; 0: no limit
      share         "every" or "deal": the batches are for consumers in other processes, see feeding.Feeder. "every": each consumer
                    gets every batch; "deal": batch k is for consumer k mod `consumers`
      consumers     with "every" the largest number at the same time; with "deal" the exact number
      share_path    a Unix socket to create, where consumers of this user may join
      share_tail    with "deal", if fewer than `consumers` batches remain at the end. True: the first consumers get them; False:
                    they are left out, so that all consumers get the same number
    These arguments take the place of `dataset`, `collate_fn`, `worker_init_fn`, `substitute` and `retry_on`. A batch is then a dict
    of its tensors by name, as `fields` declares them; Batch.metadata has what the program attached:
      worker        the program of a worker, and its arguments: ["./decoder", "photos"]. It runs the library's worker loop, as in C by
                    feedlane_worker_run. A path is relative to the working directory
      worker_config bytes that every worker gets
      length        number of samples, which the program numbers from 0. Without it and without a sampler, the program's data set
                    is iterable
    These arguments of map-style data sets handle samples that fail, in this order; `__getitem__` then makes all samples:
      retries       how often a sample that raised one of `retry_on` is retried. The first retry waits `retry_backoff`
                    seconds, each further one twice as long as the one before
      substitute    substitute(index, seed, tries) returns an index to use instead, or None; called up to 16 times. It must be
                    picklable; its exception is the batch's error
      skip_budget   samples that an epoch may leave out; one more is an error. -1: no limit
    """

    def __init__(self, dataset: Indexed | Iterable[Any] | None = None, batch_size: int | None = 1, *, shuffle: bool | None = None,
                 sampler: samplers.Sampler | Iterable[int] | None = None,
                 batch_sampler: samplers.Sampler | Iterable[Sequence[int]] | None = None, num_workers: int = 0,
                 collate_fn: Callable[[Any], Any] | None = None, drop_last: bool = False, timeout: float = 0,
                 worker_init_fn: Callable[[int], Any] | None = None, prefetch_factor: int | Literal["auto"] | None = None,
                 persistent_workers: bool = False, in_order: bool = True, generator: Any = None,
                 tensors: Literal["numpy", "torch"] = "numpy", seed: int | None = None, held: int = 4,
                 fields: Mapping[str, tuple[npt.DTypeLike, Sequence[int]]] | None = None, slot_bytes: int | None = None,
                 dispatch: Literal["least_loaded", "round_robin"] = "least_loaded", task_timeout: float = 0,
                 deterministic: bool = False, max_restarts: int = 0, max_kills_per_batch: int = 0,
                 pin_memory: pinned.Pool | bool = False, retries: int = 0,
                 retry_on: type[BaseException] | Iterable[type[BaseException]] = (OSError,), retry_backoff: float = 0,
                 substitute: Callable[[int, int, int], int | None] | None = None, skip_budget: int = 0,
                 allow_pickle: bool = False, name: str | None = None, trace: int = 0, progress: bool | TextIO = False,
                 world: int = 0, rank: int = 0, max_batches: int = 0,
                 share: Literal["every", "deal"] | None = None, consumers: int | None = None,
                 share_path: str | os.PathLike[str] | None = None, share_tail: bool = False,
                 arena_bytes: int = 0, worker_cpus: str | None = None, memory_nodes: str | None = None,
                 start: Literal["forkserver", "spawn", "fork", "thread"] | Callable[[feeding.Place], object] | remote.Engine = "forkserver",
                 worker: Sequence[str | os.PathLike[str]] | None = None, worker_config: bytes = b"",
                 length: int | None = None) -> None:
        """Raises ValueError if an argument is out of its domain or excludes another one, FileNotFoundError if there is no program
        `worker`, and ImportError if torch is requested but missing. Raises pickle's error if the data set or a function cannot be sent to workers. Raises ArgumentError,
        LimitError, OutOfMemory or SystemCallError as the library does. Workers start with the first iteration."""
        if tensors not in ("numpy", "torch"):
            raise ValueError(f'tensors={tensors!r}: must be "numpy" or "torch"')
        self.share = share
        shared = feeding.configuration(share, consumers, share_path, share_tail, tensors, progress)
        # The library checks whether these numbers are valid.
        num_workers, held, max_restarts, max_kills_per_batch, retries, world, rank = (
            errors.whole(name, number, -2**31, 2**31 - 1)
            for name, number in (("num_workers", num_workers), ("held", held), ("max_restarts", max_restarts),
                                 ("max_kills_per_batch", max_kills_per_batch),
                                 ("retries", retries), ("world", world), ("rank", rank)))
        skip_budget = errors.whole("skip_budget", skip_budget, -2**63, 2**63 - 1)
        max_batches = errors.whole("max_batches", max_batches, -2**63, 2**63 - 1)
        if batch_size is not None:
            batch_size = errors.whole("batch_size", batch_size, 1, 2**63 - 1)
        if prefetch_factor is not None and prefetch_factor != "auto":
            prefetch_factor = errors.whole("prefetch_factor", prefetch_factor, 1, 2**31 - 1)
        if seed is not None:
            seed = errors.whole("seed", seed, -2**63, 2**64 - 1) % 2**64  # torch accepts negative seeds too
        if timeout < 0 or task_timeout < 0 or retry_backoff < 0:
            raise ValueError("timeouts must not be negative")
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError("prefetch_factor needs num_workers above 0")
        self.dataset, self.num_workers, self.timeout = dataset, num_workers, timeout
        self.batch_size, self.drop_last = (None if batch_sampler is not None else batch_size), drop_last
        # As they were passed, for programs that read these attributes of torch's loader.
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
            raise ValueError("pin_memory needs fields, because memory is registered when the Loader is created")
        # A copy in torch does not report the memory that it reads, so streams are recorded. Only the device identifies torch's streams.
        self._streams = pinned.records_streams(self._pool, self._torch)
        retry_on = retry_on if isinstance(retry_on, type) else tuple(retry_on)
        issubclass(Exception, retry_on)  # raises TypeError if these are not classes
        self._program = program.of(worker, worker_config, length, num_workers,
                                   {"sampler": sampler, "batch_sampler": batch_sampler},
                                   {"dataset": dataset, "collate_fn": collate_fn, "worker_init_fn": worker_init_fn,
                                    "substitute": substitute, "retry_on": None if retry_on == (OSError,) else retry_on,
                                    "start": None if start in ("forkserver", "spawn") else start})
        self._is_ours = self._program is None
        if num_workers > 0 and worker_process.is_forked:  # as the library refuses it in workers that it has started
            shipping.check_main()
            raise errors.make(_core.E_STATE, "a worker process can't create a loader with workers")
        engine = start if isinstance(start, remote.Engine) else None
        self._start = start if callable(start) else None
        if (self._start or engine) is not None and num_workers < 1:
            raise ValueError(f"num_workers={num_workers}: a function `start` needs 1 or more")
        kind = _core.START_EXTERNAL if self._start or engine else errors.choice("start", str(start), {
            "forkserver": _core.START_HOST, "spawn": _core.START_SPAWN, "fork": _core.START_HOST, "thread": _core.START_THREAD})
        if self._program is not None or num_workers == 0 and kind == _core.START_HOST:
            kind = _core.START_SPAWN
        self._forks: fork_server.ForkServer | forks.Forks | None = None
        self._crew: remote.Crew | None = None
        self._worker_cpus = worker_cpus
        self._are_threads = kind == _core.START_THREAD
        data: Any = dataset if self._program is None else self._program.dataset
        self._iterable = order.is_iterable(data)
        self._order = order.Order(data, self._iterable, shuffle, sampler, batch_sampler, batch_size, drop_last,
                                  generator, seed, self._torch, persistent_workers, num_workers)
        if self._program is not None and seed is not None:
            self._order.take_base_seed(seed)  # as in other languages; torch's is for data sets in Python
        policy = None
        if retries or skip_budget or substitute is not None:
            if self._iterable:
                raise ValueError("retries, substitute and skip_budget are for map-style data sets, because an iterator "
                                 "that has raised cannot continue")
            policy = policies.Policy(retry_on, substitute) if self._program is None else None
        batch_dataset.check(dataset, fields=bool(fields), batched=batch_sampler is not None or batch_size is not None,
                            iterable=self._iterable, collate_fn=collate_fn is not None, policy=policy is not None)
        self._job = maker.Job(dataset, batch_sampler is not None or batch_size is not None, self._iterable, drop_last,
                              collate_fn, worker_init_fn if num_workers else None,
                              tuple((name, *what) for name, what in fields.items()) if fields else None, policy,
                              self.allow_pickle, 0 if world else self._order.rank, (rank, max(world, 1)))
        self._config = dict(
            batch_size=0 if batch_sampler is not None else _core.UNBATCHED if batch_size is None else batch_size,
            drop_last=drop_last, workers=num_workers, start=kind,
            prefetch_factor=_core.PREFETCH_AUTO if prefetch_factor == "auto" else prefetch_factor or 0,
            keep_workers=persistent_workers, held=held, iterable=self._iterable, deterministic=deterministic,
            out_of_order=not in_order, slot_bytes=slot_bytes or (0 if fields else _SLOT_BYTES),
            arena_bytes=errors.whole("arena_bytes", arena_bytes, 0, 2**64 - 1),
            dispatch=errors.choice("dispatch", dispatch, {"least_loaded": _core.DISPATCH_LEAST_LOADED,
                                                          "round_robin": _core.DISPATCH_ROUND_ROBIN}),
            task_timeout_ns=int(task_timeout * 1e9), max_restarts=max_restarts, max_kills_per_batch=max_kills_per_batch,
            start_timeout_ns=_core.FOREVER if engine is not None else 0, retries=retries,
            # In the library 0 is 10 ms.
            retry_backoff_ns=max(int(retry_backoff * 1e9), int(retries > 0)), substitute=substitute is not None, skip_budget=skip_budget,
            trace=errors.whole("trace", trace, 0, 2**64 - 1), world=world, rank=rank, max_batches=max_batches, **shared)
        self._share_path = None if share_path is None else os.fsencode(share_path)
        self._placement = {"worker_cpus": None if kind == _core.START_HOST else worker_cpus, "memory_nodes": memory_nodes}
        if fields and self._order.says_no_batch_size():
            raise ValueError("with fields, memory is reserved for the largest batch: give the batch sampler an attribute "
                             "batch_size")
        if self._iterable:
            self._config["iterable_length"] = order.length_of(data) or 0
        # Workers get the data set as it is now, whatever happens to it here later, also for another seed and after a resume.
        self._blob = b""
        if self._are_threads:
            threads.check(self._job, num_workers)
        elif num_workers > 0 and self._program is None:
            if start == "fork":
                self._forks = forks.Forks(self._job, placement.cpu_lists(worker_cpus))
                self._start = self._forks.start
            elif start == "forkserver":
                self._start_server()
            elif engine is not None:
                self._crew = engine.open(self._job)
                self._start = self._crew.start
            else:
                self._blob = worker_process.configuration(self._job)
        self._next_epoch, self._is_numbered = 0, False
        self._told_epoch = order.epoch_of(dataset)
        self._inline: inline.Inline | None = None
        self._core: _core.Loader = None  # type: ignore[assignment]  # _create makes the first one
        self._create(self._order.base_seed)

    # ---- life ----

    def _start_server(self) -> None:
        shipping.check_main()
        buffers: list[pickle.PickleBuffer] = []
        blob = worker_process.configuration(self._job, buffers)
        self._forks = fork_server.ForkServer(blob, buffers, placement.cpu_lists(self._worker_cpus))
        self._start = self._forks.start

    def _create(self, seed: int | None, state: bytes | None = None) -> None:
        if isinstance(self._forks, fork_server.ForkServer) and self._forks.is_closed:
            self._start_server()
        if self.num_workers > 0 and self._program is None and not self._are_threads and (
                self._crew is None and not isinstance(self._forks, forks.Forks)):
            shipping.check_main()
        config = {**self._config, "has_seed": seed is not None, "seed": seed or 0}
        sampler, how = self._order.sampler, {}
        data: inline.Inline | None = None
        if self._program is not None:
            how = {"worker_config": self._program.config, "argv": self._program.argv}
        elif self.num_workers == 0:
            data = inline.Inline(maker.Maker(self._job))
        elif not self._are_threads:
            how = {"worker_config": self._blob}
            if self._start is None:
                how["argv"] = list(map(os.fsencode, worker_process.command()))
        core = lifetime.create(
            config, fields=_declare(self._job.fields) if self._job.fields else None, data=data,
            sampler=sampler.handle if sampler is not None else None, pool=self._pool.handle if self._pool is not None else None,
            state=state, name=self.name, share_path=self._share_path, **self._placement, **how)
        super().close()
        self._core, self._inline = core, data

    def close(self) -> None:
        """As in Batches."""
        super().close()
        for crew in self._forks, self._crew:
            if crew is not None:
                crew.close()

    # ---- epochs ----

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, which seeds the order. Without this call, each iteration adds one, or uses the
        number passed to the data set's own set_epoch. The data set's set_epoch is called for each epoch that begins, also in
        every worker."""
        self._next_epoch, self._is_numbered = epoch, True

    def __len__(self) -> int:
        """The number of batches in an epoch. Raises TypeError if it is unknown."""
        length = self._core.info()["batches"]
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
            super().close()  # it was never used, and memory for two loaders may be missing
            self._create(fresh)
        self._tell_epoch()
        if self._inline is not None:
            self._inline.take_failure()  # from an epoch that is over
        try:
            self._core.begin(self._next_epoch)
        except errors.FeedlaneError as exception:
            self._raise(exception)
        self._next_epoch += 1
        self._was_told_to_stop = False
        if self._are_threads:
            threads.start(self._core, self._job, self.num_workers)
        self._start_missing(self._core)
        return self._core

    def _start_missing(self, core: _core.Loader) -> bool:
        """As in Batches."""
        if self._start is None:
            return False
        count = 0
        for found in itertools.islice(iter(core.open_worker, None), self.num_workers):
            with feeding.Place(*found) as place:
                self._start(place)
            count += 1
        return count > 0

    def _tell_epoch(self) -> None:
        """Calls the data set's set_epoch here; workers call it for their copies. If the program has called it with another
        epoch since, that epoch begins."""
        tell = getattr(self.dataset, "set_epoch", None)
        if tell is None:
            return
        told = order.epoch_of(self.dataset)
        if told is not None and told != self._told_epoch and not self._is_numbered:
            self._next_epoch = told
        tell(self._next_epoch)
        self._told_epoch, self._is_numbered = order.epoch_of(self.dataset), False

    def _raise(self, exception: errors.FeedlaneError) -> NoReturn:
        """Raises the library's error, or the exception of a callback if the error comes from one."""
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
        """Raises Ctrl-C in a sampler now, not after the batches drawn before it."""
        interruption = self._order.take_interruption()
        try:
            if interruption is not None:
                raise interruption
        finally:
            del interruption  # its traceback holds this frame, and those of an earlier `next` with its batch

    def _stop(self, core: _core.Loader, turn: int) -> None:
        """The loop has abandoned this epoch: workers that are not kept end now, not when the next epoch begins."""
        if turn == core.turn and self.num_workers > 0 and not self.persistent_workers and not core.is_closed:
            core.stop()
            if self._forks is not None:
                self._forks.reap()

    def _is_over(self, core: _core.Loader) -> None:
        """Ends forked workers that are not kept: for the library they are external, and it keeps these until stop."""
        if self._forks is not None:
            self._stop(core, core.turn)
            self._was_told_to_stop = not self.persistent_workers

    # ---- state and numbers ----

    def state_dict(self, batch: Batch | None = None) -> dict[str, bytes]:
        """As in Batches. Raises Unsupported if the order comes from a Python sampler."""
        try:
            return super().state_dict(batch)
        except errors.Unsupported:
            if self._order.sampler is None or self._order.sampler.python is None:
                raise
        raise errors.make(_core.E_UNSUPPORTED, "the order comes from a Python sampler or torch's generator, which cannot be "
                          "set to where it stands: say Loader(seed=...), or take one of feedlane.samplers")

    def load_state_dict(self, state: Mapping[str, bytes]) -> None:
        """The next iteration continues with exactly the remaining batches. The number of workers may differ, except for an
        iterable data set. Raises CorruptError or AbiError if this is not a state or is another version's, ArgumentError if it
        is of another order, and StateError if a shared loader has consumers."""
        blob = state["feedlane"]
        info = _core.Loader.read_state(blob)
        self._leave_consumers()
        try:
            self._create(info["base_seed"], state=blob)
        except (errors.LimitError, errors.OutOfMemory):  # too little for two loaders
            super().close()
            self._create(info["base_seed"], state=blob)
        self._order.take_base_seed(info["base_seed"])
        self.set_epoch(info["epoch"] + info["ended"])


def _declare(fields: Iterable[tuple[Any, ...]]) -> tuple[tuple[bytes, DType, tuple[int, ...]], ...]:
    """Converts fields to the form of _core.Loader."""
    return tuple((name.encode(), dtypes.of_numpy(dtype)[0], tuple(shape)) for name, dtype, shape in fields)
