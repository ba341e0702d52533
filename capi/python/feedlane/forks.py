# SPDX-License-Identifier: Apache-2.0
"""Whether this process is a forked child of the one that something was made in: there a loader's memory isn't mapped."""
import os

_count = 0


def _is_child():
    global _count
    _count += 1


os.register_at_fork(after_in_child=_is_child)


def count():
    """Forks between the first process and this one. Keep it, and compare later."""
    return _count
