# SPDX-License-Identifier: Apache-2.0
"""The worker processes of a DataLoader: started by multiprocessing, as torch starts its own, and set up as those are."""
import multiprocessing
import multiprocessing.reduction
import os
import random
import re
import sys
import traceback

import torch
import torch.multiprocessing
from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import collate as torch_collate, signal_handling, worker as torch_worker

from . import _core, errors, maker, worker

_PATIENCE_S = 5  # with a process that was told to end


class _Descriptor:
    """A descriptor that goes along when a process is started, whatever the way."""

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return _received, (multiprocessing.reduction.DupFd(self.number),)


def _received(duplicate):
    return _Descriptor(duplicate.detach())


class Crew:
    """The processes of one iterator. The library says when one is missing."""

    def __init__(self, loader, base_seed, allow_pickle, max_restarts, takes_lists):
        self._context = loader.multiprocessing_context or torch.multiprocessing
        self._count, self._base_seed, self._init = loader.num_workers, base_seed, loader.worker_init_fn
        is_iterable = loader._dataset_kind == torch_dataloader._DatasetKind.Iterable
        dataset, collate_fn = loader.dataset, _collate_fn(loader)
        if takes_lists and not loader._auto_collation:
            dataset, collate_fn = _AtOnce(dataset), loader.collate_fn
        self._job = maker.Job(dataset, takes_lists or (is_iterable and loader._auto_collation), is_iterable, loader.drop_last,
                              collate_fn, None, None, None, allow_pickle, 0)
        self._processes, self._pid = {}, os.getpid()  # by worker; whose children they are
        self._restarts, self._max_restarts = 0, max_restarts or 1000

    def fill(self, core):
        """Starts the workers that are missing. RuntimeError: they die too often, or before they begin."""
        for _ in iter(core.event, None):  # dropped
            pass
        for number, descriptor in iter(core.open_worker, None):
            self._start(number, descriptor)

    def _start(self, number, descriptor):
        try:
            self._bury(number)
            process = self._context.Process(
                target=serve, args=(_Descriptor(descriptor), self._job, number, self._count, self._base_seed, self._init))
            process.daemon = True
            process.start()
        finally:
            os.close(descriptor)
        self._processes[number] = process

    def _bury(self, number):
        """The predecessor's end, if there was one."""
        old = self._processes.pop(number, None)
        if old is None:
            return
        old.join()
        self._restarts += 1
        if self._max_restarts >= 0 and self._restarts > self._max_restarts:
            raise RuntimeError(f"DataLoader worker (pid(s) {old.pid}) exited unexpectedly: exit code {old.exitcode}; "
                               f"{self._restarts} restarts are more than max_restarts")

    def processes(self):
        """By worker, those that have ended too."""
        return [process for _, process in sorted(self._processes.items())]

    def join(self):
        if os.getpid() != self._pid:
            return  # a forked child has the iterator's copy
        for process in self._processes.values():
            process.join(_PATIENCE_S)
            if process.is_alive():
                process.terminate()


class _AtOnce:
    """A data set that is asked for a list of indices as if it were one."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getitems__(self, indices):
        return self.dataset[indices]


def _collate_fn(loader):
    """None: what torch's default does is done by this package, into the slot."""
    if loader.collate_fn is torch_collate.default_collate and loader._auto_collation:
        known = getattr(torch_collate, "default_collate_fn_map", None)
        if known is None or len(known) == _KNOWN:
            return None
    if loader.collate_fn is torch_collate.default_convert and not loader._auto_collation:
        return None
    return loader.collate_fn


_KNOWN = len(getattr(torch_collate, "default_collate_fn_map", ()))


# ---- in a worker ----

def serve(descriptor, job, number, count, base_seed, init):
    """A worker's life."""
    code = 1
    try:
        _prepare(job.dataset.dataset if isinstance(job.dataset, _AtOnce) else job.dataset, number, count, base_seed)
        _work(descriptor.number, job, number, init)
        code = 0
    except KeyboardInterrupt:
        pass  # the trainer's to tell
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if multiprocessing.get_start_method(allow_none=True) != "fork":
            os._exit(code)  # taking torch down takes longer than all the rest


def _prepare(dataset, number, count, base_seed):
    signal_handling._set_worker_signal_handlers()
    torch.set_num_threads(1)
    seed = base_seed + number
    random.seed(seed)
    torch.manual_seed(seed)
    if getattr(torch_worker, "HAS_NUMPY", True):
        import numpy as np
        np.random.seed(torch_worker._generate_state(base_seed, number))
    torch_worker._worker_info = torch_worker.WorkerInfo(id=number, num_workers=count, seed=seed, dataset=dataset)
    maker.set_worker_info(number, count, seed, dataset)


def _work(descriptor, job, number, init):
    handle = _core.Worker(descriptor)
    try:
        if init is not None:
            init(number)
    except Exception as reason:
        traceback.print_exc()
        handle.ready(_core.E_INIT, _tagged(reason))
    else:
        handle.ready(_core.OK, b"")
        handle.run(worker.Glue(maker.Maker(job), _tagged))
    handle.detach()


def _tagged(reason):
    """An exception in one line that begins with its class's name, by which `reraise` finds it."""
    kind = type(reason)
    return f"{kind.__module__}:{kind.__qualname__}: ".encode() + errors.one_line(reason)


# ---- in the trainer ----

_TAG = re.compile(r"\b([\w.]+:[\w.<>]+): ")

def reraise(error):
    """Raises what a worker's data set raised, by torch's ExceptionWrapper. error: the library's."""
    text, story = error.reason, error.traceback
    tag = _TAG.search(text)
    wrapper = torch._utils.ExceptionWrapper.__new__(torch._utils.ExceptionWrapper)
    wrapper.exc_type = (_exception_named(tag[1]) if tag else None) or RuntimeError
    wrapper.exc_msg = story or (text[tag.end():] if tag else text)
    wrapper.where = f"in DataLoader worker process {error.worker}"
    wrapper.reraise()


def _exception_named(name):
    """Of a module that is imported already; None: there is no such exception."""
    module, _, path = name.partition(":")
    found = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) and issubclass(found, Exception) else None
