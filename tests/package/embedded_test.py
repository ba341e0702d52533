#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Feedlane built as a part of another project's build.

Usage: embedded_test.py MESON SOURCE meson|cmake|static

Builds the programs of tests/package/outside with the library: as a Meson subproject, by CMake's FetchContent, or against a
static library that was installed. $CC and $CXX are the compilers.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
SUM = 4 * sum(range(1000))
FOLDER = os.path.dirname(os.path.abspath(__file__))


class Failed(Exception):
    pass


def check(holds, text):
    if not holds:
        raise Failed(text)


def run(*command, **environment):
    finished = subprocess.run(
        [str(part) for part in command], env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )
    check(finished.returncode == 0, f"{' '.join(map(str, command))}\nended with {finished.returncode}:\n{finished.stdout[-4000:]}")
    return finished.stdout


def check_programs(folder):
    for name in ("c_program", "cpp_program"):
        program = os.path.join(folder, name)
        said = run(program)
        check(re.fullmatch(rf"feedlane [\d.]+, sum: {SUM}\n", said), f"{name} printed: {said}")
        needed = run("readelf", "-d", program, LC_ALL="C")
        check("feedlane" not in needed, f"{name} isn't linked statically:\n{needed}")


def copy_programs(folder):
    for name in ("c_program.c", "cpp_program.cpp"):
        shutil.copy(os.path.join(FOLDER, "outside", name), folder)


def by_meson(meson, source, scratch):
    inside = os.path.join(scratch, "inside")
    shutil.copytree(os.path.join(FOLDER, "inside"), inside)
    copy_programs(inside)
    os.makedirs(os.path.join(inside, "subprojects"))
    os.symlink(source, os.path.join(inside, "subprojects/feedlane"))
    build = os.path.join(scratch, "build")
    # pkg-config must not find one that is installed.
    run(meson, "setup", "--wrap-mode=nodownload", "--force-fallback-for=feedlane", build, inside)
    targets = json.loads(run(meson, "introspect", "--targets", build))
    names = sorted(target["name"] for target in targets)
    check(names == ["c_program", "cpp_program", "feedlane"], f"it builds more than the library: {names}")
    installed = json.loads(run(meson, "introspect", "--installed", build))
    expected = {"c_program", "cpp_program", "libfeedlane.a"}
    check({os.path.basename(path) for path in installed.values()} == expected, f"it installs more: {installed}")
    run(meson, "compile", "-C", build)
    check_programs(build)


def by_cmake(source, scratch):
    build = os.path.join(scratch, "build")
    run("cmake", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-S", os.path.join(FOLDER, "inside"), "-B", build,
        f"-DFEEDLANE_SOURCE={source}", f"-DPROGRAMS={os.path.join(FOLDER, 'outside')}")
    run("cmake", "--build", build)
    check_programs(build)


def by_static(meson, source, scratch):
    build, prefix, programs = (os.path.join(scratch, name) for name in ("build", "prefix", "programs"))
    run(meson, "setup", "--default-library=static", "--buildtype=debug", f"--prefix={prefix}", "--libdir=lib",
        "-Dtests=disabled", "-Dcommand=disabled", "-Dexamples=disabled", build, source)
    run(meson, "install", "-C", build)
    check(sorted(os.listdir(os.path.join(prefix, "lib"))) == ["cmake", "libfeedlane.a", "pkgconfig"], "what is installed")
    os.makedirs(programs)
    flags = run("pkg-config", "--static", "--cflags", "--libs", "feedlane",
                PKG_CONFIG_PATH=os.path.join(prefix, "lib/pkgconfig")).split()
    for compiler, standard, name in (("CC", "c99", "c_program.c"), ("CXX", "c++20", "cpp_program.cpp")):
        run(*os.environ[compiler].split(), f"-std={standard}", os.path.join(FOLDER, "outside", name), "-o",
            os.path.join(programs, name.split(".")[0]), *flags)
    check_programs(programs)
    if shutil.which("cmake"):
        by_find_package = os.path.join(scratch, "by-find-package")
        run("cmake", "-G", "Ninja", "-S", os.path.join(FOLDER, "outside"), "-B", by_find_package,
            f"-Dfeedlane_DIR={os.path.join(prefix, 'lib/cmake/feedlane')}", "-DWANTED_VERSION=0.1")
        run("cmake", "--build", by_find_package)
        check_programs(by_find_package)


def main():
    meson, source, part = sys.argv[1:]
    for tool in {"meson": ["readelf"], "cmake": ["cmake", "ninja", "readelf"], "static": ["pkg-config", "readelf"]}[part]:
        if not shutil.which(tool):
            print(f"skipped: no {tool} here")
            return SKIPPED
    with tempfile.TemporaryDirectory(prefix="feedlane-embedded.") as scratch:
        try:
            if part == "meson":
                by_meson(meson, source, scratch)
            elif part == "cmake":
                by_cmake(source, scratch)
            else:
                by_static(meson, source, scratch)
        except Failed as failure:
            print(failure)
            return 1
    print(f"{part}: as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
