# SPDX-License-Identifier: Apache-2.0
"""Loaders of the library end before the interpreter does."""
from __future__ import annotations

import atexit
import multiprocessing.util  # noqa: F401  # whose exit handler ends children: it is registered first, and runs after this one
import weakref
from typing import Any, Protocol

from . import _core, errors


class _Iteration(Protocol):
    def _shutdown_workers(self) -> None: ...


_open: weakref.WeakSet[_core.Loader] = weakref.WeakSet()
_iterations: weakref.WeakSet[Any] = weakref.WeakSet()


def create(config: dict[str, Any], **rest: Any) -> _core.Loader:
    """A _core.Loader, which is closed at the interpreter's end. `config`: a dict of feedlane_loader_config; `rest`: see
    core/loader.cpp. Raises what _core.Loader does."""
    return keep(_core.Loader(config, **rest))


def keep(loader: _core.Loader) -> _core.Loader:
    """The same loader, which is closed at the interpreter's end."""
    _open.add(loader)
    return loader


def end_at_exit(iteration: _Iteration) -> None:
    """Its workers end before the interpreter does, and while modules that their end takes are whole."""
    _iterations.add(iteration)


@atexit.register
def _close_all() -> None:
    """Before modules are taken apart."""
    for iteration in list(_iterations):
        try:
            iteration._shutdown_workers()
        except errors.FeedlaneError:
            pass
    for loader in list(_open):
        try:
            loader.close()
        except errors.FeedlaneError:
            pass
    _core.Pool.end_unused()
    _core.end()
