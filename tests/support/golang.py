# SPDX-License-Identifier: Apache-2.0
"""The environment in which Go builds programs with the package in capi/go, without a network."""
import hashlib
import os
import pathlib

HEADERS = pathlib.Path(__file__).resolve().parents[2] / "include"


def _cache():
    """The name of a cache for these headers: Go's knows a package's own files only, and takes what it built with others."""
    digest = hashlib.sha256()
    for header in sorted(HEADERS.rglob("*.h")):
        digest.update(header.read_bytes())
    return f"cache-{digest.hexdigest()[:16]}"


def environment(target, library):
    """Variables to add. target: a folder for what Go builds, which is created; library: libfeedlane.so."""
    os.makedirs(target, exist_ok=True)
    folder = os.path.dirname(os.path.realpath(library))
    return {
        "CGO_ENABLED": "1", "GOCACHE": os.path.join(target, _cache()), "GOPATH": os.path.join(target, "path"), "GOPROXY": "off",
        "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOWORK": "off",
        # What is built here finds this library in any process.
        "CGO_LDFLAGS": f"-Wl,-rpath,{folder}",
        "LD_LIBRARY_PATH": ":".join(filter(None, [folder, os.environ.get("LD_LIBRARY_PATH")]))}
