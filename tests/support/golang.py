# SPDX-License-Identifier: Apache-2.0
"""The environment in which Go builds programs with the package in capi/go, without a network."""
import os


def environment(target, library):
    """Variables to add. target: a folder for what Go builds, which is created; library: libfeedlane.so."""
    os.makedirs(target, exist_ok=True)
    folder = os.path.dirname(os.path.realpath(library))
    return {
        "CGO_ENABLED": "1", "GOCACHE": os.path.join(target, "cache"), "GOPATH": os.path.join(target, "path"), "GOPROXY": "off",
        "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOWORK": "off",
        # What is built here finds this library in any process.
        "CGO_LDFLAGS": f"-Wl,-rpath,{folder}",
        "LD_LIBRARY_PATH": ":".join(filter(None, [folder, os.environ.get("LD_LIBRARY_PATH")]))}
