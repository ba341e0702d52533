#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Batches a second in each language, compared with C: the same loop and the same data set, trainer and worker in that language, one
worker, batches of 4 KiB that a worker copies from memory that is there (tools/rates). All languages in each round; the ratio
is that of a round. A language without its tools is left out.

Usage: languages.py [--rounds N] [--batches N] [--json] BUILD_FOLDER"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from rounds import alternate, cell, ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]


def runs(command, env=None):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env).stdout


def programs(build, folder):
    """The command of each language, and its environment; a warm-up run of each has been made."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(build / "capi"), "FEEDLANE_LIBRARY": str(build / "capi/libfeedlane.so.1"),
                   "PKG_CONFIG_PATH": str(build / "meson-uninstalled"), "PYTHONPATH": str(ROOT / "capi/python"),
                   "JULIA_DEPOT_PATH": str(build / "julia")}
    rates = ROOT / "tools/rates"
    c = os.path.join(folder, "rate-c")
    runs([os.environ.get("CC", "cc"), "-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O2", f"-I{ROOT}/include", f"-I{build}/include",
          str(rates / "rate.c"), "-o", c, f"-L{build}/capi", "-lfeedlane"])
    found = {"c": [c]}
    if shutil.which("go"):
        go = os.path.join(folder, "rate-go")
        runs(["env", "-C", str(rates / "go"), "go", "build", "-o", go, "."], environment)  # go has -C itself since 1.20
        found["go"] = [go]
    julia = os.environ.get("JULIA") or shutil.which("julia")
    if julia:
        found["julia"] = [julia, f"--project={ROOT}/capi/julia", str(rates / "rate.jl")]
    found["python"] = [sys.executable, "-B", str(rates / "rate.py")]
    usable = {}
    for language, command in found.items():
        try:
            runs([*command, "100"], environment)
            usable[language] = command
        except subprocess.CalledProcessError:
            print(f"{language}: {' '.join(command)} doesn't run, left out", file=sys.stderr)
    return usable, environment


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path, help="a build folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=200_000)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands, environment = programs(chosen.build.resolve(), folder)
        rates = alternate({language: lambda command=command: float(runs([*command, str(chosen.batches)], environment))
                           for language, command in commands.items()}, chosen.rounds)
    rows = {language: {"batches_s": values, "over_c": ratios(values, rates["c"])} for language, values in rates.items()}
    if chosen.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'':8} {'batches/s':>10}   over C: median, lowest and highest of {chosen.rounds} rounds")
    for language, row in rows.items():
        print(f"{language:8} {statistics.median(row['batches_s']):10.0f}   {cell(row['over_c'], '.2f')}")


if __name__ == "__main__":
    main()
