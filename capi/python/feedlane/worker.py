# SPDX-License-Identifier: Apache-2.0
"""A worker process: attaches to the trainer that started it and makes batches until the trainer no longer needs it."""
from __future__ import annotations

import atexit
import contextlib
import io
import multiprocessing.process
import multiprocessing.spawn
import multiprocessing.util
import os
import pickle
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from . import _core, collate, dtypes, errors, feeding, lifetime, maker, order, policies, shipping, tree

if TYPE_CHECKING:
    import array

    from .records import Indexed, Plan, WorkerSetup

is_forked = False  # this process is a worker that was forked
_LARGE = 64 << 10  # bytes from which an array is pickled out of band
_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from feedlane import worker; worker.main()"


def command(code: str = _CODE) -> list[str]:
    """Returns the command that starts a worker: this interpreter with this package, before any of the user's code is loaded. `code`
    imports the package from sys.argv[1]."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    flags = multiprocessing.util._args_from_interpreter_flags()  # type: ignore[attr-defined]  # a name that typeshed lacks
    return [os.fsdecode(multiprocessing.spawn.get_executable()), *flags, "-c", code, folder]


class _Pickler(pickle.Pickler):
    """Pickles large arrays and tensors out of band."""

    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, 5, buffer_callback=self._is_small)
        self._buffers = buffers

    def _is_small(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        is_small = raw.nbytes < _LARGE or raw.readonly  # which is so in the worker too
        if not is_small:
            self._buffers.append(buffer)
        return is_small

    def reducer_override(self, value: Any) -> Any:
        if (collate.is_tensor(value) and collate.is_plain(value) and value.is_contiguous() and value.dim() > 0 and
                value.numel() * value.element_size() >= _LARGE and not value.is_conj() and not value.is_neg() and
                not getattr(value, "__dict__", None) and not value._backward_hooks):
            return _tensor, (value.reshape(-1).view(sys.modules["torch"].uint8).numpy(), value.dtype, tuple(value.shape))
        return NotImplemented


def _tensor(data: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch
    return torch.from_numpy(data).view(dtype).reshape(shape)


def configuration(job: maker.Job, buffers: list[pickle.PickleBuffer] | None = None) -> bytes:
    """Returns the bytes that the library passes to every worker. If `buffers` is a list, large arrays and tensors are appended to it
    instead. Raises pickle's error for a data set or function that cannot be pickled, with a note on what to do."""
    main = sys.modules["__main__"]
    preparation = {"name": "feedlane worker", "sys_path": list(sys.path), "sys_argv": sys.argv, "dir": os.getcwd(),
                   "authkey": bytes(multiprocessing.process.current_process().authkey)}  # for a manager's proxies
    # As in multiprocessing's spawn: the main module is imported under another name. So its definitions can be unpickled, but
    # code under `if __name__ == "__main__"` does not run.
    module_name = getattr(getattr(main, "__spec__", None), "name", None)
    if module_name is not None:
        preparation["init_main_from_name"] = module_name
    elif getattr(main, "__file__", None):
        preparation["init_main_from_path"] = os.path.abspath(str(main.__file__))
    try:
        file = io.BytesIO()
        (pickle.Pickler(file, 5) if buffers is None else _Pickler(file, buffers)).dump(job)
        return pickle.dumps((preparation, file.getvalue()))
    except shipping.CANNOT as reason:
        reason.add_note('worker processes get the data set and its functions pickled: define them in a module, or use start="thread"')
        raise


_Result = TypeVar("_Result")


def prepare(blob: bytes, then: Callable[[bytes], _Result]) -> _Result:
    """Prepares this process as multiprocessing prepares a spawned one, and returns the result of `then` for the pickled job."""
    preparation, job = pickle.loads(blob)
    process: Any = multiprocessing.process.current_process()
    process._inheriting = True  # lets code that starts processes detect that the main module is being imported
    try:
        multiprocessing.spawn.prepare(preparation)
        return then(job)
    finally:
        process._inheriting = False


def job_in(blob: bytes, buffers: Iterable[memoryview] | None = None) -> maker.Job:
    """Returns the job of `configuration`, in a prepared process."""

    def load(job: bytes) -> maker.Job:
        received: maker.Job = pickle.loads(job, buffers=buffers)
        return received
    return prepare(blob, load)


def reason_of(reason: BaseException) -> bytes:
    """Returns an exception in one line, with the place where it was raised."""
    where = traceback.extract_tb(reason.__traceback__)
    place = f" ({where[-1].filename}:{where[-1].lineno} in {where[-1].name})" if where else ""
    return errors.one_line(reason) + place.encode(errors="backslashreplace")


def open_maker(worker: _core.Worker, job_of: Callable[[WorkerSetup], maker.Job],
               kind: type[maker.Maker] = maker.Maker) -> maker.Maker | None:
    """Returns the maker, ready for tasks. None: it failed, and the reason was sent to the trainer."""
    try:
        info = worker.info()
        batches = kind(job_of(info))
        batches.open_worker(info)
    except (Exception, SystemExit) as reason:
        traceback.print_exc()  # the trainer's error holds only one line
        worker.ready(_core.E_INIT, reason_of(reason))
        return None
    worker.ready(_core.OK, b"")
    return batches


class Glue:
    """Called by the compiled loop, see core/work.cpp. text_of: describes an exception in one line for the trainer."""

    # What becomes the batch's error. Other exceptions, KeyboardInterrupt and SystemExit, end this worker.
    caught: type[BaseException] = Exception

    def __init__(self, batches: maker.Maker, text_of: Callable[[BaseException], bytes] = errors.one_line,
                 tells_epochs: bool = False) -> None:
        """tells_epochs: calls the data set's set_epoch(epoch), if it has one, for each epoch that begins."""
        job = batches.job
        self.begins, self._epoch = getattr(job.dataset, "set_epoch", None) if tells_epochs else None, -1
        self._batches, self._text_of = batches, text_of
        self.ordinary = not job.iterable and job.policy is None and not batches.by_python
        self.batched = job.batched
        self.dataset, self.collate_fn = job.dataset, job.collate_fn
        self.get_all, self.counts = (job.batched and getattr(job.dataset, "__getitems__", None)) or None, batches.counts
        self.leaves, self.batch, self.single, self.whole = batches.leaves, batches.batch, collate.single, collate.whole
        self.compare = batches.compare if job.fields is not None else None
        self.names = [batches.name_of(i) for i in range(len(job.fields) if job.fields else _core.MAX_TENSORS)]
        self.rows = batches.rows
        self.write = batches.write_leaf  # for a collate.Leaf, which is not a compiled Leaf

    def dump(self, plan: Plan, numbers: array.array[int] | None = None) -> bytes:
        """Returns the metadata of a batch. Raises the errors of tree.dump."""
        return tree.dump(plan, numbers, self._batches.job.allow_pickle)

    def slow(self, task: _core.Task) -> None:
        """Makes a batch of any kind. Exceptions become the batch's error."""
        batches = self._batches
        try:
            if self.begins is not None and task.epoch != self._epoch:
                self.begins(task.epoch)
                self._epoch = task.epoch
            if task.first:
                batches.restart()
                batches.skip(task)
            rows = batches.make(task)
        except self.caught as reason:
            self.fail(task, reason)
            return
        if rows == 0 and batches.job.iterable:
            task.exhausted()
            return
        try:
            task.commit(rows)
        except errors.ArgumentError as reason:  # the task is still open: the batch fails with this error
            self.fail(task, reason)

    def refused(self, exception: errors.FeedlaneError) -> NoReturn:
        """Raises the library's error for a batch that is being written, with a text that names the loader's argument."""
        raise self._batches.too_large(exception) if isinstance(exception, errors.LimitError) else exception

    def failed(self, task: _core.Task, reason: BaseException, position: int, index: int | None) -> None:
        """Reports to the trainer why the batch could not be made. position: the row whose sample has failed; -1: none."""
        reason = self._batches.in_words(reason)
        if position >= 0:
            failure = maker.SampleFailed(position, index)
            failure.__cause__ = reason
            reason = failure
        self.fail(task, reason)

    def fail(self, task: _core.Task, reason: BaseException) -> None:
        """Fails the task with this exception. Of a SampleFailed, the row and its cause."""
        position = -1
        if isinstance(reason, maker.SampleFailed):
            position, reason = reason.position, reason.__cause__ or reason
        elif (sample := errors.named_sample(reason)) >= 0 and not self._batches.job.iterable and sample in task.indices:
            position = task.indices.index(sample)
        task.fail(position, self._text_of(reason), errors.story(reason))


def main() -> None:
    """Runs a worker, started by `command`. Raises SystemExit if no trainer has started this process."""
    descriptor = _core.Worker.descriptor()
    if descriptor < 0:
        sys.exit("to be started by a trainer")
    serve(descriptor, lambda info: job_in(info["config"]))


def worker_main(make: Callable[[bytes], Indexed | Iterable[Any]], *,
                retry_on: type[BaseException] | tuple[type[BaseException], ...] = (OSError,)) -> None:
    """For a script that is the worker program of trainers in other languages. In a process that a trainer has started it makes
    batches until the trainer no longer needs it, then raises SystemExit. In any other process it returns at once. Call it before
    code that only a trainer needs.
      make      called with the trainer's worker_config. Returns a data set, whose samples are collated like a Loader's with `fields`:
                their arrays and numbers are the fields that the trainer declared, in this order. It is map-style if the trainer
                has a length or a sampler, otherwise an iterable, which iterates the shard of get_shard()
      retry_on  map-style: exceptions after which the trainer's `retries` apply
    An exception of `make` is the trainer's E_INIT."""

    def job_of(info: WorkerSetup) -> maker.Job:
        dataset = make(info["config"])
        is_iterable = bool(info["iterable"])
        if not (isinstance(dataset, Iterable) if is_iterable else hasattr(dataset, "__getitem__") and not order.is_iterable(dataset)):
            raise TypeError("the trainer has no length and no sampler, so `make` must return an iterable" if is_iterable else
                            "the trainer has a length or a sampler, so `make` must return a data set with __getitem__")
        fields = tuple((name, dtypes.name_of(dtype), shape) for name, dtype, shape in info["fields"])
        return maker.Job(dataset, True, is_iterable, bool(info["drop_last"]), None, None, fields or None,
                         None if is_iterable else policies.Policy(retry_on, None), False, 0)

    descriptor = _core.Worker.descriptor()
    if descriptor >= 0:
        serve(descriptor, job_of)
        sys.exit()


def run_worker(place: feeding.Place | int) -> None:
    """Runs this process as a worker of a Loader(start=function) until the Loader no longer needs it or has ended. `place`: the Place
    passed to the function, or its descriptor; it is consumed. As multiprocessing does for a spawned process, this sets sys.path, the
    working directory and the main module to the trainer's, unless this process is a forked child. In the main thread SIGINT is
    ignored meanwhile. Raises CorruptError, ArgumentError or SystemCallError if the descriptor does not lead to a Loader, and
    AbiError if the Loader's version differs."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if threading.current_thread() is threading.main_thread() else None
    try:
        run_worker_of(place.detach() if isinstance(place, feeding.Place) else errors.whole("place", place, 0, 2**31 - 1),
                      lambda info: job_in(info["config"]))
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def run_worker_of(descriptor: int, job_of: Callable[[WorkerSetup], maker.Job]) -> None:
    """As run_worker, with another source of the job."""
    with contextlib.suppress(errors.PeerDead):  # the Loader was closed before this process had started
        serve(descriptor, job_of)


def run_forked(descriptor: int, job_of: Callable[[WorkerSetup], maker.Job]) -> None:
    """As run_worker_of, in a forked child. An exception ends the process here: while the worker exists, its end is a death, and
    afterwards the trainer was told that it leaves."""
    global is_forked
    is_forked = True
    try:
        run_worker_of(descriptor, job_of)
    except BaseException as reason:
        code = reason.code if isinstance(reason, SystemExit) else 1
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
        if not isinstance(reason, SystemExit):
            traceback.print_exc()
        leave(code & 0xff if isinstance(code, int) else 0 if code is None else 1)


def leave(code: int) -> NoReturn:
    """Ends this forked child. Runs what it has registered with atexit, and no finalizers of objects that it shares."""
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def forget_exits() -> None:
    """In a forked child: the parent's functions of atexit, and its finalizers, do not run here."""
    atexit._clear()
    multiprocessing.util._finalizer_registry.clear()  # type: ignore[attr-defined]  # a name that typeshed lacks
    for one in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        one.detach()
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    lifetime.register()


def serve(descriptor: int, job_of: Callable[[WorkerSetup], maker.Job]) -> None:
    """Is a worker until the trainer needs it no longer."""
    worker = _core.Worker(descriptor)
    batches = open_maker(worker, job_of)
    if batches is not None:
        try:
            worker.run(Glue(batches, tells_epochs=True))
        finally:
            batches.close_worker()
    worker.detach()
