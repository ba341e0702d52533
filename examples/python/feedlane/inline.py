# SPDX-License-Identifier: Apache-2.0
"""No workers: the library calls back for each batch, in the thread that is in next."""
import ctypes as c

from . import _abi, errors, maker


class Inline:
    """The callbacks over a maker. What they raise is kept for the loader: nothing may be thrown through the library."""

    def __init__(self, batches):
        self._batches, self._failure = batches, None
        # The maker substitutes by itself; the library wants to see that somebody can.
        self.table = _abi.Dataset(fetch=_abi.DATASET_FETCH(self._fetch), restart=_abi.DATASET_RESTART(self._restart),
                                  substitute=_abi.DATASET_SUBSTITUTE(lambda *_: _abi.E_SAMPLE))

    def take_failure(self):
        failure, self._failure = self._failure, None
        return failure

    def _guarded(self, call, error):
        try:
            return call()
        except BaseException as reason:
            self._failure = reason
            if isinstance(reason, maker.SampleFailed):
                reason = reason.__cause__
            error.contents.text = errors.one_line(reason)[:383]
            story = errors.story(reason)[:error.contents.detail_cap]
            c.memmove(error.contents.detail, story, len(story))
            error.contents.detail_len = len(story)
            return _abi.E_SAMPLE

    def _restart(self, _self, _epoch, error):
        def call():
            self._batches.restart()
            return _abi.OK
        return self._guarded(call, error)

    def _fetch(self, _self, task, error):
        def call():
            rows = self._batches.make(task.contents)
            if rows == 0 and self._batches.job.iterable:
                return _abi.END
            return _abi.library.feedlane_task_rows(task, rows, None)
        return self._guarded(call, error)
