# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libfeedlane.so.1."""
import ctypes
import os

SONAME = "libfeedlane.so.1"
ABI = 1  # FEEDLANE_ABI of the feedlane.h that _abi.py was written for


def find():
    """$FEEDLANE_LIBRARY, else the build directory of the tree that this file lies in, else the system's."""
    named = os.environ.get("FEEDLANE_LIBRARY")
    if named:
        return named
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
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
