#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Completes and checks the files of a release: what tools/release has built becomes what users fetch.

Usage: release_files.py library ARCH GLIBC STAGE WORK FILES     STAGE: an installed tree
       release_files.py wheel ARCH GLIBC WHEEL WORK FILES
       release_files.py describe WORK FILES
WORK has source/, dependencies/ and tools/, FILES gets the files. Needs auditwheel, wheel and spdx-tools.
"""

import glob
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap

from elftools.elf.elffile import ELFFile

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])


def text_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def boost_license():
    """The Boost Software License, out of Debian's list of all that is in the package."""
    text = text_of(glob.glob("/usr/share/doc/libboost1.*-dev/copyright")[0])
    found = textwrap.dedent(re.search(r"^License: BSL-1.0\n((?: .*\n)+)", text, re.M)[1])
    return re.sub(r"^\.$", "", found, flags=re.M)  # an empty line


def license_files(work):
    """What is linked in, by its name: (SPDX expression, its license's text). The last three are in wheels only, in
    feedlane-image-folder."""
    zig = next(os.scandir(f"{work}/tools/lib")).path + "/site-packages/ziglang/lib"
    return {
        "libc++": ("Apache-2.0 WITH LLVM-exception", text_of(f"{zig}/libcxx/LICENSE.TXT")),
        "libunwind": ("Apache-2.0 WITH LLVM-exception", text_of(f"{zig}/libunwind/LICENSE.TXT")),
        "mimalloc": ("MIT", text_of(f"{work}/dependencies/mimalloc/LICENSE")),
        "Boost": ("BSL-1.0", boost_license()),
        "libjpeg-turbo": ("IJG AND BSD-3-Clause AND Zlib", text_of(f"{work}/dependencies/libjpeg-turbo/LICENSE.md")),
        "libpng": ("libpng-2.0", text_of(f"{work}/dependencies/libpng1.6/LICENSE")),
        "zlib": ("Zlib", text_of(f"{work}/dependencies/zlib/README")),
    }


IN_WHEELS = ("libjpeg-turbo", "libpng", "zlib")


def copy_licenses(work, folder, without=()):
    os.makedirs(folder, exist_ok=True)
    for name, (_, text) in license_files(work).items():
        if name not in without:
            with open(f"{folder}/LICENSE.{name}", "w", encoding="utf-8") as file:
                file.write(text)


def newest_symbol(path):
    """The highest version of glibc's symbols that an ELF file needs. Ends the program if it needs what neither glibc nor Python has."""
    with open(path, "rb") as file:
        elf = ELFFile(file)
        needed, numbers, symbols = (elf.get_section_by_name(name) for name in (".gnu.version_r", ".gnu.version", ".dynsym"))
        versions = [aux.name for _, auxes in needed.iter_versions() for aux in auxes if aux.name.startswith("GLIBC_")]
        unknown = [symbol.name for n, symbol in enumerate(symbols.iter_symbols())
                   if symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL"
                   and numbers.get_symbol(n)["ndx"] in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL") and not symbol.name.startswith(("Py", "_Py"))]
    if unknown:
        sys.exit(f"{path} needs symbols of no version: {', '.join(unknown)}")
    return max((v.removeprefix("GLIBC_") for v in versions), key=number)


def number(version):
    return [int(part) for part in version.split(".")]


def check_symbols(path, glibc):
    newest = newest_symbol(path)
    if number(newest) > number(glibc):
        sys.exit(f"{path} needs glibc {newest}, but the release is for {glibc}")
    print(f"{os.path.basename(path)}: needs glibc {newest}")


# ---- the C library ----


def library(arch, glibc, stage, work, files):
    for name in os.listdir(f"{stage}/usr/lib"):
        if ".so." in name:
            check_symbols(f"{stage}/usr/lib/{name}", glibc)
    shutil.copyfile(f"{work}/source/LICENSE", f"{stage}/usr/LICENSE")
    copy_licenses(work, f"{stage}/usr", without=IN_WHEELS)
    top = f"libfeedlane-{version_of(work)}-linux-{arch}"

    def plain(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = EPOCH
        return entry

    with gzip.GzipFile(f"{files}/{top}.tar.gz", "wb", mtime=EPOCH) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(f"{stage}/usr", top, filter=plain)  # in the order of the names


def version_of(work):
    return re.search(r"^  version: '(.*)'", text_of(f"{work}/source/meson.build"), re.M)[1]


# ---- wheels ----


def wheel(arch, glibc, path, work, files):
    tag = f"manylinux_{glibc.replace('.', '_')}_{arch}"
    said = subprocess.run(["auditwheel", "show", "--json", path], check=True, stdout=subprocess.PIPE, text=True).stdout
    if json.loads(said)["overall_tag"] != tag:
        sys.exit(f"auditwheel doesn't find {path} to be {tag}:\n{said}")
    with tempfile.TemporaryDirectory() as folder:
        tree = unpack(path, folder)
        modules = [name for name in os.listdir(f"{tree}/feedlane") if name.endswith(".so")]
        for module in modules:
            check_symbols(f"{tree}/feedlane/{module}", glibc)
        check_symbols(f"{tree}/feedlane/bin/feedlane-image-folder", glibc)
        info = next(entry.path for entry in os.scandir(tree) if entry.name.endswith(".dist-info"))
        copy_licenses(work, f"{info}/licenses")
        expression = " AND ".join(["Apache-2.0"] + sorted({f"({e})" if " " in e else e for e, _ in license_files(work).values()}))
        edit(f"{info}/METADATA", r"^License-Expression: .*$", f"License-Expression: {expression}")
        is_stable = all(module.endswith(".abi3.so") for module in modules)
        edit(f"{info}/WHEEL", r"^Tag: [^-]*-([^-]*)-.*$", rf"Tag: cp311-\1-{tag}" if is_stable else rf"Tag: cp{python_of(path)}-\1-{tag}")
        pack(tree, files)
        if is_stable and arch == "x86_64":
            without_module(tree, info, modules, work, files)


def python_of(path):
    return re.search(r"-cp(\d+)-", path)[1]


def without_module(tree, info, modules, work, files):
    """For systems that no other wheel fits, which pip then prefers."""
    for module in modules:
        os.remove(f"{tree}/feedlane/{module}")
    shutil.rmtree(f"{tree}/feedlane/bin")
    for name in license_files(work):
        os.remove(f"{info}/licenses/LICENSE.{name}")
    edit(f"{info}/METADATA", r"^License-Expression: .*$", "License-Expression: Apache-2.0")
    edit(f"{info}/METADATA", r"^Classifier: Operating System :: .*$", "Classifier: Operating System :: OS Independent")
    edit(f"{info}/WHEEL", r"^Tag: .*$", "Tag: py3-none-any")
    edit(f"{info}/WHEEL", r"^Root-Is-Purelib: .*$", "Root-Is-Purelib: true")
    pack(tree, files)


def unpack(path, folder):
    subprocess.run([sys.executable, "-m", "wheel", "unpack", "-d", folder, path], check=True)
    return next(os.scandir(folder)).path


def pack(tree, files):
    subprocess.run([sys.executable, "-m", "wheel", "pack", "-d", files, tree], check=True)


def edit(path, pattern, replacement):
    text, count = re.subn(pattern, replacement, text_of(path), flags=re.M)
    if count != 1:
        sys.exit(f"{path}: {count} lines fit {pattern!r}, not one")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


# ---- what it is ----


def describe(work, files):
    version = version_of(work)
    described = []
    for name in sorted(os.listdir(files)):
        with open(f"{files}/{name}", "rb") as file:
            data = file.read()
        described.append({"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    write_spdx(f"{files}/feedlane-{version}.spdx.json", version, work, described)
    with open(f"{files}/manifest.json", "w", encoding="utf-8") as file:
        json.dump({"version": version, "commit_time": EPOCH, "files": described}, file, indent=1)
        file.write("\n")
    with open(f"{files}/SHA256SUMS", "w", encoding="utf-8") as file:
        for entry in described:
            file.write(f"{entry['sha256']}  {entry['name']}\n")


def write_spdx(path, version, work, described):
    """Writes an SPDX 2.3 document of the files and of the libraries linked into them. spdx-tools checks it."""
    from datetime import datetime, timezone

    def package(name, license_expression, number=None):
        made = {"SPDXID": f"SPDXRef-{name.replace('+', 'p')}", "name": name, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
                "licenseConcluded": license_expression, "licenseDeclared": license_expression, "copyrightText": "NOASSERTION"}
        return made | ({"versionInfo": number} if number else {})

    files = [{"SPDXID": f"SPDXRef-file-{n}", "fileName": f"./{entry['name']}", "copyrightText": "NOASSERTION",
              "licenseConcluded": "NOASSERTION", "licenseInfoInFiles": ["NOASSERTION"],
              "checksums": [{"algorithm": "SHA256", "checksumValue": entry["sha256"]},
                            {"algorithm": "SHA1", "checksumValue": sha1(f"{os.path.dirname(path)}/{entry['name']}")}]}
             for n, entry in enumerate(described)]
    linked = license_files(work)
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"feedlane-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/feedlane-{version}-{described[0]['sha256'][:16]}",
        "creationInfo": {"created": datetime.fromtimestamp(EPOCH, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "creators": ["Tool: tools/release"]},
        "packages": [package("feedlane", "Apache-2.0", version)] + [package(name, e) for name, (e, _) in linked.items()],
        "files": files,
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-feedlane"}]
        + [{"spdxElementId": "SPDXRef-feedlane", "relationshipType": "STATIC_LINK",
            "relatedSpdxElement": f"SPDXRef-{name.replace('+', 'p')}"} for name in linked]
        + [{"spdxElementId": file["SPDXID"], "relationshipType": "GENERATED_FROM", "relatedSpdxElement": "SPDXRef-feedlane"}
           for file in files],
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    subprocess.run(["pyspdxtools", "-i", path], check=True)


def sha1(path):
    with open(path, "rb") as file:
        return hashlib.sha1(file.read()).hexdigest()


def main():
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    commands = {"library": library, "wheel": wheel, "describe": describe}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
