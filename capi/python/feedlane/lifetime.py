# SPDX-License-Identifier: Apache-2.0
"""Closes the library's loaders before the interpreter ends."""
from __future__ import annotations

import atexit
import multiprocessing.util  # noqa: F401  # its exit handler ends children: registered before ours, it runs after ours
import weakref
from typing import Any, Protocol, TypeVar

from . import _core, errors


class _Iteration(Protocol):
    def _shutdown_workers(self) -> None: ...


class _Closed(Protocol):
    def close(self) -> None: ...


_Object = TypeVar("_Object", bound=_Closed)
_open: weakref.WeakSet[Any] = weakref.WeakSet()
_open_last: weakref.WeakSet[Any] = weakref.WeakSet()
_iterations: weakref.WeakSet[Any] = weakref.WeakSet()


def create(config: dict[str, Any], **rest: Any) -> _core.Loader:
    """Creates a _core.Loader, which is closed at the interpreter's end. `config`: fields of feedlane_loader_config. `rest`: see
    core/loader.cpp. Raises the errors of _core.Loader."""
    return keep(_core.Loader(config, **rest))


def keep(loader: _Object) -> _Object:
    """Returns the same loader or arena, which will be closed at the interpreter's end."""
    _open.add(loader)
    return loader


def keep_last(thing: _Closed) -> None:
    """As keep, for what loaders need until their end."""
    _open_last.add(thing)


def end_at_exit(iteration: _Iteration) -> None:
    """Ends the iteration's workers before the interpreter ends, while the modules that this needs still work."""
    _iterations.add(iteration)


def _close_all() -> None:
    """Runs before the interpreter dismantles modules."""
    for iteration in list(_iterations):
        try:
            iteration._shutdown_workers()
        except errors.FeedlaneError:
            pass
    for loader in [*_open, *_open_last]:
        try:
            loader.close()
        except (errors.FeedlaneError, OSError):
            pass
    _core.Pool.end_unused()
    _core.end()


def register() -> None:
    """Lets atexit close what is open, after what is registered later."""
    atexit.register(_close_all)


register()
