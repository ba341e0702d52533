# SPDX-License-Identifier: Apache-2.0
"""No workers: the library calls back for each batch, in the thread that is in next."""
import ctypes as c

from . import _abi, errors, maker, signals


class Inline:
    """The callbacks over a maker. What they raise is kept for the loader: nothing may be thrown through the library."""

    def __init__(self, batches):
        self._batches, self._failure, self._begins = batches, None, False
        # The maker substitutes by itself; the library wants to see that somebody can.
        self.table = _abi.Dataset(fetch=_abi.DATASET_FETCH(self._fetch), restart=_abi.DATASET_RESTART(self._restart),
                                  substitute=_abi.DATASET_SUBSTITUTE(self._substitute))

    def take_failure(self):
        failure, self._failure = self._failure, None
        return failure

    def _failed(self, reason, error):
        self._failure = reason
        if isinstance(reason, maker.SampleFailed):
            reason = reason.__cause__
        error.contents.text = errors.one_line(reason)[:383]
        story = errors.story(reason)[:error.contents.detail_cap]
        c.memmove(error.contents.detail, story, len(story))
        error.contents.detail_len = len(story)
        return _abi.E_SAMPLE

    def _restart(self, *_):
        def work():
            self._begins = True  # with the first batch, as in a worker: a failure is that batch's
            return _abi.OK
        return signals.called_back(work, lambda _: _abi.E_SAMPLE, _abi.E_SAMPLE)

    def _fetch(self, _self, task, error):
        def work():
            if self._begins:
                self._begins = False
                self._batches.restart()
            rows = self._batches.make(task.contents)
            if rows == 0 and self._batches.job.iterable:
                return _abi.END
            room = errors.ErrorRoom.shared()
            return errors.check(_abi.library.feedlane_task_rows(task, rows, room.struct), room)
        return signals.called_back(work, lambda reason: self._failed(reason, error), _abi.E_SAMPLE)

    def _substitute(self, *_):
        return _abi.E_SAMPLE
