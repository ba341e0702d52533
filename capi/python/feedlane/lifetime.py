# SPDX-License-Identifier: Apache-2.0
"""Loaders of the library end before the interpreter does."""
from __future__ import annotations

import atexit
import weakref
from typing import Any

from . import _core, errors

_open: weakref.WeakSet[_core.Loader] = weakref.WeakSet()


def create(config: dict[str, Any], **rest: Any) -> _core.Loader:
    """A _core.Loader, which is closed at the interpreter's end. `config`: a dict of feedlane_loader_config; `rest`: see
    core/loader.cpp. Raises what _core.Loader does."""
    return keep(_core.Loader(config, **rest))


def keep(loader: _core.Loader) -> _core.Loader:
    """The same loader, which is closed at the interpreter's end."""
    _open.add(loader)
    return loader


@atexit.register
def _close_all() -> None:
    """Before modules are taken apart."""
    for loader in list(_open):
        try:
            loader.close()
        except errors.Busy:
            pass
    _core.Pool.end_unused()
    _core.end()
