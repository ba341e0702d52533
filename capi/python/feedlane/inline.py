# SPDX-License-Identifier: Apache-2.0
"""No workers: the library calls back for each batch, in the thread that is in next. See core/callbacks.cpp."""
from . import errors, maker


class Inline:
    """The data set's side over a maker. What it raises is kept for the loader."""

    interruption = None  # what a signal's handler raised outside of the data set's own code

    def __init__(self, batches):
        self._batches, self._failure, self._begins = batches, None, False

    def take_failure(self):
        failure, self._failure = self._failure, None
        return failure

    def restart(self):
        self._begins = True  # with the first batch, as in a worker: a failure is that batch's

    def fetch(self, task):
        """The number of rows of the batch; None at the end of an iterable data set."""
        if self._begins:
            self._begins = False
            self._batches.restart()
        rows = self._batches.make(task)
        return None if rows == 0 and self._batches.job.iterable else rows

    def failed(self, reason):
        """Text and traceback for the library."""
        self._failure = reason
        if isinstance(reason, maker.SampleFailed):
            reason = reason.__cause__
        return errors.one_line(reason), errors.story(reason)
