# SPDX-License-Identifier: Apache-2.0
"""A worker process: attaches to the trainer that started it and makes batches until there is nothing more to do."""
from __future__ import annotations

import multiprocessing.process
import multiprocessing.spawn
import multiprocessing.util
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from . import _core, collate, errors, maker, tree

if TYPE_CHECKING:
    from .records import Plan

_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from feedlane import worker; worker.main()"


def command() -> list[str]:
    """The command that starts a worker: this interpreter with this package, before anything of the user's is known."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    flags = multiprocessing.util._args_from_interpreter_flags()  # type: ignore[attr-defined]  # a name that typeshed lacks
    return [os.fsdecode(multiprocessing.spawn.get_executable()), *flags, "-c", _CODE, folder]


def configuration(job: maker.Job) -> bytes:
    """The bytes that the library hands to every worker. What pickle raises of a data set or a function that it can't pickle."""
    main = sys.modules["__main__"]
    preparation = {"name": "feedlane worker", "sys_path": list(sys.path), "sys_argv": sys.argv, "dir": os.getcwd(),
                   "authkey": bytes(multiprocessing.process.current_process().authkey)}  # for a manager's proxies
    # As multiprocessing's spawn does it: the main module is imported under another name, so that what it defines can be
    # unpickled while what is under `if __name__ == "__main__"` doesn't run.
    module_name = getattr(getattr(main, "__spec__", None), "name", None)
    if module_name is not None:
        preparation["init_main_from_name"] = module_name
    elif getattr(main, "__file__", None):
        preparation["init_main_from_path"] = os.path.abspath(str(main.__file__))
    return pickle.dumps((preparation, pickle.dumps(job)))


def _job(blob: bytes) -> maker.Job:
    preparation, job = pickle.loads(blob)
    process: Any = multiprocessing.process.current_process()
    process._inheriting = True  # code that starts processes while the main module is imported is told so
    try:
        multiprocessing.spawn.prepare(preparation)
        received: maker.Job = pickle.loads(job)
        return received
    finally:
        process._inheriting = False


def _one_line(reason: BaseException) -> bytes:
    where = traceback.extract_tb(reason.__traceback__)
    place = f" ({where[-1].filename}:{where[-1].lineno} in {where[-1].name})" if where else ""
    return errors.one_line(reason) + place.encode(errors="backslashreplace")


def _open(worker: _core.Worker) -> maker.Maker | None:
    """The maker, ready for tasks, or None: the trainer has been told why."""
    try:
        info = worker.info()
        batches = maker.Maker(_job(info["config"]))
        batches.open_worker(info)
    except (Exception, SystemExit) as reason:
        traceback.print_exc()  # the trainer's error has room for one line
        worker.ready(_core.E_INIT, _one_line(reason))
        return None
    worker.ready(_core.OK, b"")
    return batches


class Glue:
    """What the compiled loop calls: see core/work.cpp. text_of: an exception in one line, for the trainer."""

    def __init__(self, batches: maker.Maker, text_of: Callable[[BaseException], bytes] = errors.one_line,
                 tells_epochs: bool = False) -> None:
        """tells_epochs: a data set with set_epoch(epoch) is told each epoch that begins."""
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
        self.write = batches.write_leaf  # a collate.Leaf, which is not of the compiled kind

    def dump(self, plan: Plan) -> bytes:
        """The metadata of a batch. Raises what tree.dump does."""
        return tree.dump(plan, self._batches.job.allow_pickle)

    def slow(self, task: _core.Task) -> None:
        """Makes any batch. What goes wrong is told as the batch's error."""
        batches = self._batches
        try:
            if self.begins is not None and task.epoch != self._epoch:
                self.begins(task.epoch)
                self._epoch = task.epoch
            if task.first:
                batches.restart()
                batches.skip(task)
            rows = batches.make(task)
        except Exception as reason:
            self._fail(task, reason)
            return
        if rows == 0 and batches.job.iterable:
            task.exhausted()
            return
        try:
            task.commit(rows)
        except errors.ArgumentError as reason:  # the task is still there: the batch's error
            self._fail(task, reason)

    def refused(self, exception: errors.FeedlaneError) -> NoReturn:
        """Raises what the library says of a batch that is being written, in the words of the loader."""
        raise self._batches.too_large(exception) if isinstance(exception, errors.LimitError) else exception

    def failed(self, task: _core.Task, reason: BaseException, position: int, index: int | None) -> None:
        """Tells the trainer why the batch couldn't be made. position: the row whose sample has failed; -1: none."""
        reason = self._batches.in_words(reason)
        if position >= 0:
            failure = maker.SampleFailed(position, index)
            failure.__cause__ = reason
            reason = failure
        self._fail(task, reason)

    def _fail(self, task: _core.Task, reason: BaseException) -> None:
        position = -1
        if isinstance(reason, maker.SampleFailed):
            position, reason = reason.position, reason.__cause__ or reason
        task.fail(position, self._text_of(reason), errors.story(reason))


def main() -> None:
    """A worker's life, from the command line of `command`. SystemExit: no trainer has started this process."""
    descriptor = _core.Worker.descriptor()
    if descriptor < 0:
        sys.exit("to be started by a trainer")
    worker = _core.Worker(descriptor)
    batches = _open(worker)
    if batches is not None:
        try:
            worker.run(Glue(batches, tells_epochs=True))
        finally:
            batches.close_worker()
    worker.detach()
