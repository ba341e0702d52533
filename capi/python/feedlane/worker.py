# SPDX-License-Identifier: Apache-2.0
"""A worker process: attaches to the trainer that started it and makes batches until there is nothing more to do."""
import ctypes as c
import multiprocessing.process
import multiprocessing.spawn
import multiprocessing.util
import os
import pickle
import sys
import traceback

from . import _abi, collate, errors, maker, tree

_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from feedlane import worker; worker.main()"


def command():
    """What starts a worker: this interpreter with this package, before anything of the user's is known."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    flags = multiprocessing.util._args_from_interpreter_flags()
    return [multiprocessing.spawn.get_executable(), *flags, "-c", _CODE, folder]


def configuration(job):
    """The bytes that the library hands to every worker. The data set must be picklable."""
    main = sys.modules["__main__"]
    preparation = {"name": "feedlane worker", "sys_path": list(sys.path), "sys_argv": sys.argv, "dir": os.getcwd(),
                   "authkey": bytes(multiprocessing.process.current_process().authkey)}  # for a manager's proxies
    # As multiprocessing's spawn does it: the main module is imported under another name, so that what it defines can be
    # unpickled while what is under `if __name__ == "__main__"` doesn't run.
    module_name = getattr(getattr(main, "__spec__", None), "name", None)
    if module_name is not None:
        preparation["init_main_from_name"] = module_name
    elif getattr(main, "__file__", None):
        preparation["init_main_from_path"] = os.path.abspath(main.__file__)
    return pickle.dumps((preparation, pickle.dumps(job)))


def _job(blob):
    preparation, job = pickle.loads(blob)
    process = multiprocessing.process.current_process()
    process._inheriting = True  # code that starts processes while the main module is imported is told so
    try:
        multiprocessing.spawn.prepare(preparation)
        return pickle.loads(job)
    finally:
        process._inheriting = False


def _one_line(reason):
    where = traceback.extract_tb(reason.__traceback__)
    place = f" ({where[-1].filename}:{where[-1].lineno} in {where[-1].name})" if where else ""
    return errors.one_line(reason) + place.encode(errors="backslashreplace")


def _open(worker):
    """The maker, ready for tasks, or None: the trainer has been told why."""
    info = _abi.WorkerInfo()
    errors.check(_abi.library.feedlane_worker_get_info(worker, info))
    try:
        batches = maker.Maker(_job(c.string_at(info.config, info.config_bytes)))
        batches.open_worker(info)
    except (Exception, SystemExit) as reason:
        traceback.print_exc()  # the trainer's error has room for one line
        _abi.library.feedlane_worker_ready(worker, _abi.E_INIT, _one_line(reason), None)
        return None
    errors.check(_abi.library.feedlane_worker_ready(worker, _abi.OK, None, None))
    return batches


def _fail(task, reason, text_of=errors.one_line):
    position = -1
    if isinstance(reason, maker.SampleFailed):
        position, reason = reason.position, reason.__cause__
    text, story, room = text_of(reason), errors.story(reason), errors.ErrorRoom.shared()
    return _done(_abi.library.feedlane_task_fail(task, position, 0, text, story, room.struct), room)


def _done(status, room):
    """What a task that nobody wants any more comes to is nobody's business."""
    return _abi.OK if status == _abi.E_STALE else errors.check(status, room)


def _work(task, batches, text_of=errors.one_line):
    try:
        if task.contents.first:
            batches.restart()
            batches.skip(task.contents.delivered, task.contents.worker)
        rows = batches.make(task.contents)
    except Exception as reason:
        return _fail(task, reason, text_of)
    room = errors.ErrorRoom.shared()
    if rows == 0 and batches.job.iterable:
        return _done(_abi.library.feedlane_task_exhausted(task, room.struct), room)
    status = _abi.library.feedlane_task_commit(task, rows, room.struct)
    if status == _abi.E_ARGUMENT:  # the task is still there: the batch's error
        return _fail(task, room.exception(status), text_of)
    return _done(status, room)


class Glue:
    """What the compiled loop calls: see core/work.cpp. Tasks come as addresses."""

    def __init__(self, batches, text_of):
        job = batches.job
        self._batches, self._text_of = batches, text_of
        self.ordinary = not job.iterable and job.policy is None and not batches.by_python
        self.batched = job.batched
        self.dataset, self.collate_fn = job.dataset, job.collate_fn
        self.get_all = getattr(job.dataset, "__getitems__", None) if job.batched else None
        self.leaves, self.batch, self.single, self.whole = batches.leaves, collate.batch, collate.single, collate.whole
        self.compare = batches.compare if job.fields is not None else None
        self.names = [batches.name_of(i) for i in range(len(job.fields) if job.fields else _abi.MAX_TENSORS)]

    def dump(self, plan):
        return tree.dump(plan, self._batches.job.allow_pickle)

    def slow(self, task):
        """Any task."""
        _work(c.cast(task, c.POINTER(_abi.Task)), self._batches, self._text_of)

    def write(self, task, number, leaf):
        """A collate.Leaf, which is not of the compiled kind."""
        self._batches.write_leaf(_abi.Task.from_address(task), number, leaf)

    def refused(self, status):
        room = errors.ErrorRoom.shared()
        maker.check_room(status, room)

    def failed(self, task, reason, position, index):
        if position >= 0:
            failure = maker.SampleFailed(position, index)
            failure.__cause__ = reason
            reason = failure
        _fail(c.cast(task, c.POINTER(_abi.Task)), reason, self._text_of)

    def committed(self, task, status):
        """A commit that the library refused: the task is still there, and fails by it."""
        room = errors.ErrorRoom.shared()
        if status == _abi.E_ARGUMENT:
            _fail(c.cast(task, c.POINTER(_abi.Task)), room.exception(status), self._text_of)
        else:
            _done(status, room)


def main():
    descriptor = _abi.library.feedlane_worker_fd()
    if descriptor < 0:
        sys.exit("to be started by a trainer")
    worker, room = c.c_void_p(), errors.ErrorRoom.shared()
    errors.check(_abi.library.feedlane_worker_attach(descriptor, _abi.FOREVER, worker, room.struct), room)
    batches = _open(worker)
    if batches is not None:
        run(worker, batches, room)
    _abi.library.feedlane_worker_detach(worker)


def run(worker, batches, room, text_of=errors.one_line):
    """Makes batches until the trainer wants no more. text_of: an exception in one line, for the trainer."""
    if _abi.core is not None:
        errors.check(_abi.core.work(worker.value, c.addressof(room.struct), Glue(batches, text_of)), room)
        return
    task, status = c.POINTER(_abi.Task)(), _abi.OK
    while status in (_abi.OK, _abi.INTERRUPTED):
        status = _abi.library.feedlane_worker_next(worker, _abi.FOREVER, task, room.struct)
        if errors.check(status, room) == _abi.OK:
            status = _work(task, batches, text_of)
