# SPDX-License-Identifier: Apache-2.0
"""Loaders of the library end before the interpreter does."""
import atexit
import weakref

from . import _core, errors

_open = weakref.WeakSet()


def create(config, **rest):
    """A _core.Loader. `config`: a dict of feedlane_loader_config; `rest`: see core/loader.cpp."""
    loader = _core.Loader(config, **rest)
    _open.add(loader)
    return loader


@atexit.register
def _close_all():
    """Before modules are taken apart."""
    for loader in list(_open):
        try:
            loader.close()
        except errors.Busy:
            pass
    _core.Pool.end_unused()
    _core.end()
