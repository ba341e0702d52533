# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libfeedlane.so.1, and the compiled half of this package, _core."""
import ctypes
import importlib.machinery
import importlib.util
import os

SONAME = "libfeedlane.so.1"
ABI = 1  # FEEDLANE_ABI of the feedlane.h that _abi.py was written for


_HERE = os.path.dirname(os.path.abspath(__file__))
_CORE = os.path.join(_HERE, "_core.abi3.so")


def find():
    """$FEEDLANE_LIBRARY, else the one in this package where it was installed by pip, else that of the tree that this file lies
    in, else the system's."""
    named = os.environ.get("FEEDLANE_LIBRARY")
    if named:
        return named
    if os.path.exists(_CORE):
        return _CORE  # a wheel's has the library in it
    root = os.path.abspath(os.path.join(_HERE, *[os.pardir] * 3))
    built = os.path.join(root, "build", "capi", SONAME)
    return built if os.path.exists(built) else SONAME


def load():
    path = find()
    try:
        library = ctypes.CDLL(path)
    except OSError as reason:
        raise ImportError(f"{path} can't be loaded ({reason}): set FEEDLANE_LIBRARY to a {SONAME}") from None
    library.feedlane_abi_version.restype = ctypes.c_uint32
    found = library.feedlane_abi_version()
    if found != ABI:
        raise ImportError(f"{path} has binary interface {found}, this package is for {ABI}")
    return library, path


def load_core(library_path):
    """_core: of this package where it was installed by pip, in a tree beside the library. None: it was not built."""
    for path in _CORE, os.path.join(os.path.dirname(library_path), "python", "_core.abi3.so"):
        if os.path.exists(path):
            loader = importlib.machinery.ExtensionFileLoader("feedlane._core", path)
            spec = importlib.util.spec_from_file_location("feedlane._core", path, loader=loader)
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            return module
    return None
