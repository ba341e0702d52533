# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the compiled module, feedlane._core: in an installed package from its folder, in a source tree from the build
folder. Says why it can't run on this system."""
from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator

_HERE = os.path.dirname(os.path.abspath(__file__))
_FILE = "_core.so" if sysconfig.get_config_var("Py_GIL_DISABLED") else "_core.abi3.so"


def _paths() -> Iterator[str]:
    """Yields the paths where the module may be. $FEEDLANE_LIBRARY names the libfeedlane.so.1 of a build folder, which also
    contains the matching module."""
    named = os.environ.get("FEEDLANE_LIBRARY")
    if named:
        yield os.path.join(os.path.dirname(os.path.abspath(named)), "python", _FILE)
    yield os.path.join(_HERE, _FILE)
    yield os.path.join(os.path.abspath(os.path.join(_HERE, *[os.pardir] * 3)), "build", "capi", "python", _FILE)


def _lacks() -> str:
    """What this system lacks; "" if nothing."""
    if sys.platform != "linux":
        return f"it needs Linux, and this is {sys.platform}"
    try:
        os.close(os.memfd_create("feedlane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as error:  # AttributeError: Python was built for a kernel without them
        return f"it needs Linux 5.3 with memfd_create and pidfd_open, and this system refuses one of them: {error}"
    return ""


def load() -> str:
    """Imports the module under the name feedlane._core. Returns "", or why the module can't be used here. Raises ImportError if
    its binary interface differs from libfeedlane's."""
    if "feedlane._core" in sys.modules:
        return ""
    if os.environ.get("FEEDLANE_DISABLE", "0") not in ("", "0"):
        return "FEEDLANE_DISABLE is set"
    if lacks := _lacks():
        return lacks
    tried = list(_paths())
    for path in tried:
        if os.path.exists(path):
            loader = importlib.machinery.ExtensionFileLoader("feedlane._core", path)
            spec = importlib.util.spec_from_file_location("feedlane._core", path, loader=loader)
            assert spec is not None  # it has a loader
            try:
                module = importlib.util.module_from_spec(spec)
                loader.exec_module(module)
            except ImportError as error:
                if error.path is None:  # by the module itself
                    raise
                return f"its compiled module can't be loaded: {error}"  # by the dynamic linker: an old C library
            sys.modules["feedlane._core"] = module
            setattr(sys.modules["feedlane"], "_core", module)
            return ""
    return (f"its compiled module is missing: no wheel has it for this system, so build it (pip install --no-binary feedlane "
            f"feedlane, or pip install . in the source); looked for {', '.join(tried)}")
