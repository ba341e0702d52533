# SPDX-License-Identifier: Apache-2.0
"""The trainer's side: a Loader over a data set, with the arguments that torch's DataLoader has for the same things."""
import ctypes as c
import gc
import os
import time
import weakref
from collections import namedtuple

from . import _abi, dtypes, errors, inline, maker, order, policies, tree, worker
from .batch import Batch

# A wait ends this often, so that a signal that came just before it finds Python's handler.
_SLICE_NS = 200_000_000
# Address space of a slot where the samples' sizes aren't declared. Only what is written takes memory.
_SLOT_BYTES = 256 << 20

Event = namedtuple("Event", "kind text worker batch sample")
_EVENTS = ["", "warning", "worker died", "worker started", "worker wanted", "quarantined", "invalid", "sample retried",
           "sample substituted", "sample skipped", "worker hung"]


def _destroy(handle, _keep):
    _abi.library.feedlane_loader_destroy(c.byref(handle))


def _strings(values):
    return (c.c_char_p * (len(values) + 1))(*map(os.fsencode, values), None)


class Loader:
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
      dispatch      "least_loaded" or "round_robin" (batch i from worker i mod num_workers, as torch has it)
      task_timeout  seconds after which a worker that gets nowhere is replaced; 0: never
      deterministic an iterable data set yields the same samples when it is iterated again: a dead worker can be replaced
      max_restarts  of dead workers over the loader's life; 0: 1000, -1: none
    and, of map-style data sets, for samples that fail, in this order (`__getitem__` makes them then):
      retries       more tries of a sample that raised one of `retry_on`, after `retry_backoff` seconds, then twice as many ...
      substitute    substitute(index, seed, tries) says which index to take instead, or None; up to 16 times. A function that
                    can be pickled; what it raises is the batch's error
      skip_budget   samples that an epoch may leave out before that is an error; -1: any number
    """

    def __init__(self, dataset, batch_size=1, *, shuffle=None, sampler=None, batch_sampler=None, num_workers=0,
                 collate_fn=None, drop_last=False, timeout=0, worker_init_fn=None, prefetch_factor=None,
                 persistent_workers=False, in_order=True, generator=None, tensors="numpy", seed=None, held=4, fields=None,
                 slot_bytes=None, dispatch="least_loaded", task_timeout=0, deterministic=False, max_restarts=0,
                 retries=0, retry_on=(OSError,), retry_backoff=0, substitute=None, skip_budget=0):
        if tensors not in ("numpy", "torch"):
            raise ValueError(f'tensors={tensors!r}: must be "numpy" or "torch"')
        if timeout < 0 or task_timeout < 0 or retry_backoff < 0:
            raise ValueError("a time can't be negative")
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError("prefetch_factor needs num_workers above 0")
        self.dataset, self.num_workers, self.timeout = dataset, num_workers, timeout
        self.batch_size, self.drop_last = (None if batch_sampler is not None else batch_size), drop_last
        self._torch = None
        if tensors == "torch":
            import torch
            self._torch = torch
        self._iterable = order.is_iterable(dataset)
        self._order = order.Order(dataset, self._iterable, shuffle, sampler, batch_sampler, batch_size, drop_last,
                                  generator, seed, self._torch, persistent_workers)
        retry_on = retry_on if isinstance(retry_on, type) else tuple(retry_on)
        issubclass(Exception, retry_on)  # TypeError: these are no classes
        policy = None
        if retries or skip_budget or substitute is not None:
            if self._iterable:
                raise ValueError("retries, substitute and skip_budget are for map-style data sets: an iterator that has "
                                 "raised is at its end")
            policy = policies.Policy(retries, retry_on, retry_backoff, skip_budget != 0, substitute)
        self._job = maker.Job(dataset, batch_sampler is not None or batch_size is not None, self._iterable, drop_last,
                              collate_fn, worker_init_fn if num_workers else None,
                              tuple((name, *what) for name, what in fields.items()) if fields else None, policy)
        self._config = dict(
            batch_size=0 if batch_sampler is not None else _abi.UNBATCHED if batch_size is None else batch_size,
            drop_last=drop_last, workers=num_workers, prefetch_factor=prefetch_factor or 0,
            keep_workers=persistent_workers, held=held, iterable=self._iterable, deterministic=deterministic,
            out_of_order=not in_order, slot_bytes=slot_bytes or (0 if fields else _SLOT_BYTES),
            dispatch={"least_loaded": _abi.DISPATCH_LEAST_LOADED, "round_robin": _abi.DISPATCH_ROUND_ROBIN}[dispatch],
            task_timeout_ns=int(task_timeout * 1e9), max_restarts=max_restarts, retries=retries,
            retry_backoff_ns=int(retry_backoff * 1e9), substitute=substitute is not None, skip_budget=skip_budget)
        if batch_size == 0 and batch_sampler is None:
            raise ValueError("batch_size=0: at least 1, or None")
        if self._iterable and hasattr(dataset, "__len__"):
            self._config["iterable_length"] = len(dataset)
        self._next_epoch, self._turn = 0, 0
        self._handle, self._finalizer = None, None
        self._create(self._order.base_seed)

    # ---- life ----

    def _create(self, seed, state=None):
        config = _abi.LoaderConfig(**self._config)
        config.has_seed, config.seed = seed is not None, seed or 0
        if self._order.sampler is not None:
            config.sampler = self._order.sampler.handle
        if self._job.fields:
            config.fields, config.field_count = _declare(self._job.fields), len(self._job.fields)
        self._inline = None
        if self.num_workers == 0:
            self._inline = inline.Inline(maker.Maker(self._job))
            config.dataset = c.pointer(self._inline.table)
        elif self.num_workers > 0:
            blob = worker.configuration(self._job)
            config.worker_config, config.worker_config_bytes = c.cast(c.c_char_p(blob), c.c_void_p), len(blob)
            config.argv = _strings(worker.command())
        if state is not None:
            config.state, config.state_bytes = c.cast(c.c_char_p(state), c.c_void_p), len(state)
        handle, room = c.c_void_p(), errors.ErrorRoom.shared()
        errors.check(_abi.library.feedlane_loader_create(config, c.byref(handle), room.struct), room)
        self.close()
        self._handle = handle
        # At exit too, before modules are taken apart. The callbacks must be there as long as the loader is.
        self._finalizer = weakref.finalize(self, _destroy, handle, (self._inline, self._order.sampler))

    def close(self):
        """Ends the workers. Batches and arrays that are left stay as they are. The loader can't be used any more."""
        if self._finalizer is not None:
            self._finalizer()
        self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _open_handle(self):
        if self._handle is None:
            raise errors.make(_abi.E_STATE, "the loader was closed")
        return self._handle

    # ---- epochs ----

    def set_epoch(self, epoch):
        """The number of the next epoch: it seeds the order. Without it each iteration counts one up."""
        self._next_epoch = epoch

    def __len__(self):
        length = c.c_int64()
        errors.check(_abi.library.feedlane_loader_length(self._open_handle(), length))
        if length.value >= 0:
            return length.value
        return self._order.length(self.batch_size, self.drop_last)

    def __iter__(self):
        """An epoch's batches, as what the data set's samples are made of."""
        return _Epoch(self, whole=False)

    def batches(self):
        """The same as Batch objects, to be released: they say where a batch comes from, and its tensors' addresses."""
        return _Epoch(self, whole=True)

    def _begin(self):
        fresh = self._order.draw_base_seed()
        if fresh is not None:
            self._create(fresh)
        room = errors.ErrorRoom.shared()
        status = _abi.library.feedlane_loader_begin(self._open_handle(), self._next_epoch, room.struct)
        self._check(status, room)
        self._next_epoch += 1
        self._turn += 1
        return self._turn

    def _check(self, status, room):
        """Raises for an error; by what a callback raised, if one did."""
        if status >= 0:
            return status
        reason = self._order.take_failure() or (self._inline and self._inline.take_failure())
        if reason is not None and not isinstance(reason, Exception):
            raise reason  # KeyboardInterrupt, SystemExit
        exception = room.exception(status)
        if isinstance(reason, maker.SampleFailed):
            exception.sample = reason.index if reason.index is not None else -1
            reason = reason.__cause__
        raise exception from reason

    def _next(self, turn):
        if turn != self._turn:
            raise errors.make(_abi.E_STATE, "another iteration over this loader has begun since")
        handle, struct, room = self._open_handle(), _abi.Batch(), errors.ErrorRoom.shared()
        deadline = time.monotonic_ns() + int(self.timeout * 1e9) if self.timeout else None
        collected = False
        while True:
            status = _abi.library.feedlane_loader_next(handle, _SLICE_NS, struct, room.struct)
            if status == _abi.OK:
                return Batch(handle, struct, self._convert)
            if status == _abi.END:
                return None
            if status == _abi.SLOTS_HELD:
                if collected:
                    raise errors.make(status, f"the loop keeps {_stats(handle).slots_held} batches or arrays of them, and "
                                      f"there is no slot for another: drop some, copy them, or Loader(held=...)")
                gc.collect()  # perhaps they are kept by garbage
                collected = True
            elif status == _abi.TIMEOUT and deadline is not None and time.monotonic_ns() >= deadline:
                raise errors.make(status, f"no batch came in {self.timeout} s")
            self._check(status, room)

    def _convert(self, tensor, owner):
        if owner == tree.TORCH or (owner == tree.ANY and self._torch is not None):
            return tensor.torch()
        return tensor.numpy()

    # ---- state and numbers ----

    def state_dict(self):
        """Where the epoch stands after the newest batch: what a checkpoint after that batch must hold."""
        length, room = c.c_uint64(), errors.ErrorRoom.shared()
        status = _abi.library.feedlane_loader_state(self._open_handle(), 0, None, 0, length, room.struct)
        while status == _abi.E_LIMIT:
            buffer = c.create_string_buffer(length.value)
            status = _abi.library.feedlane_loader_state(self._handle, 0, buffer, len(buffer), length, room.struct)
        errors.check(status, room)
        return {"feedlane": buffer.raw[:length.value]}

    def load_state_dict(self, state):
        """The next iteration goes on with exactly the remaining batches, whatever the number of workers."""
        blob, info, room = state["feedlane"], _abi.StateInfo(), errors.ErrorRoom.shared()
        errors.check(_abi.library.feedlane_state_read(blob, len(blob), info, room.struct), room)
        self._order.take_base_seed(info.base_seed)
        self._create(info.base_seed, state=blob)
        self._next_epoch = info.epoch + info.ended

    def stats(self):
        """The library's counters, by name."""
        struct = _stats(self._open_handle())
        return {name: getattr(struct, name) for name, _ in struct._fields_ if name not in ("size", "rank_source")}

    def workers(self):
        """A dict for each worker: pid, state, generation, tasks, samples, bytes, errors, work_ns, wait_ns."""
        rows, struct = [], _abi.WorkerStats()
        while _abi.library.feedlane_loader_worker_stats(self._open_handle(), len(rows), struct) == _abi.OK:
            rows.append({name: getattr(struct, name) for name, _ in struct._fields_[1:]})
        return rows

    def events(self):
        """What has happened since the last call and wasn't asked for: deaths, replacements, warnings."""
        found, struct = [], _abi.Event()
        while _abi.library.feedlane_loader_event(self._open_handle(), struct) == _abi.OK:
            what = struct.what
            kind = _EVENTS[struct.kind] if struct.kind < len(_EVENTS) else str(struct.kind)
            found.append(Event(kind, what.text.decode(errors="replace"), what.worker, what.batch, what.sample))
        return found


class _Epoch:
    """One iteration. Its end, or that of the next one that begins, is the epoch's."""

    def __init__(self, loader, whole):
        self._loader, self._whole, self._turn = loader, whole, loader._begin()

    def __iter__(self):
        return self

    def __len__(self):
        return len(self._loader)

    def __next__(self):
        batch = self._loader._next(self._turn)
        if batch is None:
            raise StopIteration
        if self._whole:
            return batch
        with batch:  # the arrays keep it from here on
            return batch.data


def _stats(handle):
    struct = _abi.Stats()
    errors.check(_abi.library.feedlane_loader_stats(handle, struct))
    return struct


def _declare(fields):
    declared = (_abi.Field * len(fields))()
    for field, (name, dtype, shape) in zip(declared, fields):
        field.__init__(name=name.encode(), dtype=dtypes.of_numpy(dtype)[0], ndim=len(shape),
                       shape=(c.c_int64 * _abi.MAX_NDIM)(*shape))
    return declared
