#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `meson install` leaves is all that programs outside of the tree need.

Usage: package_test.py MESON BUILD_FOLDER files|pkg-config|cmake|meson

Installs into a temporary folder, which is not the prefix that was configured: so the tree has been moved. Then, by the last
argument: looks at the files themselves, or builds tests/package/outside by that tool and runs its programs. $CC and $CXX are
the compilers.
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
HEADERS = {"feedlane.h"} | {
    f"feedlane/{name}.hpp"
    for name in (
        "arena", "await", "batch", "callback", "custom_sampler", "dataset", "error", "feedlane", "language", "loader", "loader_options",
        "monitor", "pool", "progress", "ring", "sampler", "share", "state", "task", "tensor", "worker",
    )
} | {
    f"feedlane/{name}.h"
    for name in (
        "arena", "batch", "dataset", "dlpack", "loader", "monitor", "observe", "pool", "ring", "sampler", "share", "status", "tensor",
        "worker",
    )
}


class Failed(Exception):
    pass


def check(holds, text):
    if not holds:
        raise Failed(text)


def run(*command, fails=False, **environment):
    """The output of a command, errors included."""
    finished = subprocess.run(
        [str(part) for part in command],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    story = f"{' '.join(map(str, command))}\nended with status {finished.returncode}:\n{finished.stdout}"
    check((finished.returncode != 0) == fails, story)
    return finished.stdout


class Installed:
    """The tree as it was installed under `destination`."""

    def __init__(self, meson, build, destination):
        run(meson, "install", "-C", build, "--no-rebuild", "--destdir", destination)
        options = {o["name"]: o["value"] for o in json.loads(run(meson, "introspect", "--buildoptions", build))}
        self.version = json.loads(run(meson, "introspect", "--projectinfo", build))["version"]
        self.build = build
        self.destination = destination
        self.prefix = self.place(options["prefix"])
        self.include = self.place(options["prefix"], options["includedir"])
        self.lib = self.place(options["prefix"], options["libdir"])
        self.bin = self.place(options["prefix"], options["bindir"])
        self.man = self.place(options["prefix"], options["mandir"])

    def place(self, *parts):
        return self.destination + os.path.join(*parts)

    def pkg_config(self):
        """The environment in which pkg-config finds this tree and nothing else."""
        return {
            "PKG_CONFIG_LIBDIR": os.path.join(self.lib, "pkgconfig"),
            "PKG_CONFIG_PATH": "",
            "PKG_CONFIG_SYSROOT_DIR": self.destination,
        }

    def check_output(self, output):
        check(output == f"feedlane {self.version}, sum: {SUM}\n", f"the program printed: {output}")


# ---- the parts -------------------------------------------------------------------------------------------------------


def files(tree):
    cmake, pc = os.path.join(tree.lib, "cmake/feedlane"), os.path.join(tree.lib, "pkgconfig/feedlane.pc")
    expected = {os.path.join(tree.include, name) for name in HEADERS} | {pc}
    expected |= {os.path.join(cmake, f"feedlane-config{part}.cmake") for part in ("", "-version")}
    expected |= {os.path.join(tree.lib, "libfeedlane.so" + end) for end in ("", ".1", ".1.0.0")}
    expected |= {os.path.join(os.path.dirname(tree.include), "share/feedlane/interface.json")}
    if os.path.exists(os.path.join(tree.build, "tools/feedlane/feedlane")):  # where its libraries were
        expected |= {os.path.join(tree.bin, "feedlane"), os.path.join(tree.man, "man1/feedlane.1")}
    if os.path.exists(os.path.join(tree.build, "tools/image_folder/feedlane-image-folder")):
        expected |= {os.path.join(tree.bin, "feedlane-image-folder"), os.path.join(tree.man, "man1/feedlane-image-folder.1")}
    found = {os.path.join(folder, name) for folder, _, names in os.walk(tree.destination) for name in names}
    check(found == expected, f"too much: {sorted(found - expected)}; missing: {sorted(expected - found)}")

    dynamic = run("readelf", "-d", os.path.join(tree.lib, "libfeedlane.so"), LC_ALL="C")
    check(re.findall(r"\(SONAME\).*\[(.*)\]", dynamic) == ["libfeedlane.so.1"], f"another soname:\n{dynamic}")
    check("PATH)" not in dynamic, f"a path to look for libraries in was left:\n{dynamic}")

    for path in sorted(p for p in expected if ".so" not in p and not p.startswith(tree.bin)):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for mine in (tree.build, tree.destination):
            check(mine not in text, f"{path} mentions {mine}")

    # Everything that feedlane uses itself is its own business, also for somebody who asks for static linking.
    for question, answer in (
        (["--modversion"], tree.version),
        (["--cflags"], f"-I{tree.include}"),
        (["--libs"], f"-L{tree.lib} -lfeedlane"),
        (["--libs", "--static"], f"-L{tree.lib} -lfeedlane"),
        (["--print-requires"], ""),
        (["--print-requires-private"], ""),
    ):
        found = run("pkg-config", *question, "feedlane", **tree.pkg_config()).strip()
        check(found == answer, f"pkg-config {' '.join(question)} says {found!r}, not {answer!r}")


def by_pkg_config(tree, source):
    def ask(what):
        return run("pkg-config", what, "feedlane", **tree.pkg_config()).split()

    for compiler, standard, name in (("CC", "c99", "c_program.c"), ("CXX", "c++20", "cpp_program.cpp")):
        flags = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", *ask("--cflags")]
        program = os.path.join(source, name + ".out")
        run(*os.environ[compiler].split(), *flags, os.path.join(source, name), "-o", program, *ask("--libs"))
        tree.check_output(run(program, LD_LIBRARY_PATH=tree.lib))


def by_cmake(tree, source):
    out = os.path.join(source, "build")
    # Meson chooses lib64 on a Debian where it can't ask for the right name; there CMake doesn't look for lib64.
    config = os.path.join(tree.lib, "cmake/feedlane")
    where = f"-Dfeedlane_DIR={config}" if tree.lib.endswith("lib64") else f"-DCMAKE_PREFIX_PATH={tree.prefix}"
    configure = ["cmake", "-G", "Ninja", "-S", source, where]
    newer = str(int(tree.version.split(".")[0]) + 1)
    said = run(*configure, "-B", out + "-newer", f"-DWANTED_VERSION={newer}", fails=True)
    check("compatible with requested version" in said, f"CMake on version {newer}:\n{said}")

    wanted = ".".join(tree.version.split(".")[:2])
    said = run(*configure, "-B", out, f"-DWANTED_VERSION={wanted}")
    check(f"found feedlane {tree.version}" in said, f"CMake says nothing of version {tree.version}:\n{said}")
    run("cmake", "--build", out)
    for name in ("c_program", "cpp_program"):  # CMake has told them where the library is
        tree.check_output(run(os.path.join(out, name)))

    os.remove(os.path.join(tree.include, "feedlane.h"))
    said = run(*configure, "-B", out + "-without", fails=True)
    check("feedlane.h is missing" in " ".join(said.split()), f"CMake on a tree without feedlane.h:\n{said}")


def by_meson(tree, source, meson):
    out = os.path.join(source, "build")
    run(meson, "setup", "--wrap-mode=nodownload", "-Dwerror=true", out, source, **tree.pkg_config())
    run(meson, "compile", "-C", out)
    for name in ("c_program", "cpp_program"):
        tree.check_output(run(os.path.join(out, name), LD_LIBRARY_PATH=tree.lib))


# ---- which -----------------------------------------------------------------------------------------------------------


def main():
    meson, build, part = sys.argv[1:]
    os.environ.pop("LD_LIBRARY_PATH", None)  # Meson's, to the library in the build folder
    for tool in {"files": ["pkg-config", "readelf"], "meson": ["pkg-config"]}.get(part, [part]):
        if not shutil.which(tool):
            print(f"skipped: no {tool} here")
            return SKIPPED
    with tempfile.TemporaryDirectory(prefix="feedlane-package.") as scratch:
        source = os.path.join(scratch, "outside")
        shutil.copytree(os.path.join(os.path.dirname(os.path.abspath(__file__)), "outside"), source)
        try:
            tree = Installed(meson, build, os.path.join(os.path.realpath(scratch), "destination"))
            if part == "files":
                files(tree)
            elif part == "pkg-config":
                by_pkg_config(tree, source)
            elif part == "cmake":
                by_cmake(tree, source)
            else:
                by_meson(tree, source, meson)
        except Failed as failure:
            print(failure)
            return 1
    print(f"feedlane {tree.version}: {part}: as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
