# SPDX-License-Identifier: Apache-2.0
"""Workers that are threads of this process. They use the trainer's own data set, so nothing is pickled. On free-threaded Python they
run at the same time."""
from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from . import _core, async_dataset, errors, maker, worker as worker_process

if TYPE_CHECKING:
    from .records import WorkerSetup


class Maker(maker.Maker):
    """Makes the batches of a worker thread. The random generators are the whole process's, so they are not seeded."""

    def open_worker(self, info: WorkerSetup) -> None:
        """As in maker.Maker."""
        self.enter(info, is_thread=True)

    def close_worker(self) -> None:
        """As in maker.Maker."""
        maker.leave_thread()


class Glue(worker_process.Glue):
    """As worker.Glue, for a thread."""

    caught = BaseException  # a thread that ends would not be replaced


def check(job: maker.Job, num_workers: int) -> None:
    """Raises ValueError if threads can't be this job's workers."""
    if num_workers < 1:
        raise ValueError(f"num_workers={num_workers}: start='thread' needs 1 or more")
    if isinstance(job.dataset, async_dataset.AsyncDataset):
        raise ValueError("start='thread' is not allowed with an AsyncDataset, which has one event loop for each process")


def start(core: _core.Loader, job: maker.Job, count: int) -> None:
    """Starts the threads for an epoch that has begun. Those that find no worker missing end at once, as persistent
    workers are still there."""
    for _ in range(count):
        threading.Thread(target=_work, args=(core, job), name="feedlane worker", daemon=True).start()


def _work(core: _core.Loader, job: maker.Job) -> None:
    """Is a worker as long as one is missing: the last epoch's thread may still leave when this epoch's come."""
    while True:
        try:
            worker = _core.Worker.of_thread(core)
        except errors.FeedlaneError:  # the loader was closed
            return
        if worker is None:
            return
        batches = worker_process.open_maker(worker, lambda _: job, Maker)
        if batches is not None:
            try:
                worker.run(Glue(batches))
            except errors.FeedlaneError:  # the loader's own calls report it
                return
            finally:
                batches.close_worker()
        worker.detach()
