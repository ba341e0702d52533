# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the compiled module, feedlane._core: in an installed package from its folder, in a source tree from the build
folder."""
from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator

_HERE = os.path.dirname(os.path.abspath(__file__))
_FILE = "_core.abi3.so"


def _paths() -> Iterator[str]:
    """Yields the paths where the module may be. $FEEDLANE_LIBRARY names the libfeedlane.so.1 of a build folder, which also
    contains the matching module."""
    named = os.environ.get("FEEDLANE_LIBRARY")
    if named:
        yield os.path.join(os.path.dirname(os.path.abspath(named)), "python", _FILE)
    yield os.path.join(_HERE, _FILE)
    yield os.path.join(os.path.abspath(os.path.join(_HERE, *[os.pardir] * 3)), "build", "capi", "python", _FILE)


def load() -> None:
    """Imports the module under the name feedlane._core. Raises ImportError if it is missing, or if its binary interface differs
    from libfeedlane's."""
    if "feedlane._core" in sys.modules:
        return
    tried = list(_paths())
    for path in tried:
        if os.path.exists(path):
            loader = importlib.machinery.ExtensionFileLoader("feedlane._core", path)
            spec = importlib.util.spec_from_file_location("feedlane._core", path, loader=loader)
            assert spec is not None  # it has a loader
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            sys.modules["feedlane._core"] = module
            setattr(sys.modules["feedlane"], "_core", module)
            return
    raise ImportError(f"feedlane's compiled module is missing: install the package (pip install .) or build the tree; looked for "
                      f"{', '.join(tried)}")
