#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says what has to be done with a Meson build directory before it can be used.

Usage: build_state.py BUILD SOURCE CXX [-Doption=value...]

Prints one word:
  absent       nothing there yet
  foreign      something that isn't a Meson build: not ours to touch
  stale        made by another compiler, another Meson or for another tree, or half made: start afresh
  reconfigure  right, but for some of the options
  ready        nothing to do
"""

import json
import os
import subprocess
import sys


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def compiler_identity(command):
    """What `c++ --version` and `g++ --version` have in common where they are the same compiler."""
    first_line = output(*command, "--version").splitlines()[0]
    return first_line.split(" ", 1)[-1] if "clang" not in first_line else first_line


def compilers_of(targets):
    return {
        tuple(sources["compiler"])
        for target in targets
        for sources in target.get("target_sources", [])
        if sources.get("language") == "cpp"
    }


def as_text(value):
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list) else str(value)


def state(build, source, cxx, wanted):
    if not os.path.isdir(build) or not os.listdir(build):
        return "absent"
    if not os.path.isdir(os.path.join(build, "meson-private")):
        return "foreign"

    def info(name):
        with open(os.path.join(build, "meson-info", name), encoding="utf-8") as file:
            return json.load(file)

    try:
        about = info("meson-info.json")
        options = {option["name"]: as_text(option["value"]) for option in info("intro-buildoptions.json")}
        compilers = compilers_of(info("intro-targets.json"))
        same = (
            about["meson_version"]["full"] == output("meson", "--version").strip()
            and os.path.realpath(about["directories"]["source"]) == os.path.realpath(source)
            and os.path.realpath(about["directories"]["build"]) == os.path.realpath(build)
            and os.path.exists(os.path.join(build, "build.ninja"))
            and not about.get("error")
            and all(compiler_identity(found) == compiler_identity([cxx]) for found in compilers)
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, subprocess.CalledProcessError):
        return "stale"
    if not same:
        return "stale"
    # A value Meson normalises (address,undefined) is compared as written; at worst that costs a reconfiguration.
    return "ready" if all(options.get(name) == value for name, value in wanted) else "reconfigure"


def main():
    build, source, cxx, *options = sys.argv[1:]
    wanted = [option.removeprefix("-D").split("=", 1) for option in options]
    print(state(build, source, cxx, wanted))


if __name__ == "__main__":
    main()
