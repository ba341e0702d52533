#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The binary interface on record, in capi/abi/, and whether the present one still is that.

Usage: abi.py dump                 writes the record (by tools/abi-dump, which installs what is needed)
       abi.py interface            compares interface.json with the present header; needs a C compiler alone
       abi.py check [LIBRARY]      compares libfeedlane.abi; ends with 77 without libabigail's tools

libfeedlane.abi   libabigail's dump of a library with the functions of feedlane.h and nothing inside: C, so that neither the
                  compiler nor what lies behind the functions shows in it. Built with -g -O0: optimised, functions that do
                  the same are merged, and libabigail 2.2 then compares only one of them.
interface.json    feedlane.h, with all that it includes, for programs: constants, structs with sizes and offsets, types of callbacks, functions with their
                  arguments, and which of them wait, call back or allow one thread alone, as their comments mark it. It is
                  installed, for bindings to be made or checked from; sizes are those of every 64-bit Linux.

The check compares libfeedlane.abi with such a library of the present header and, if it has debug information, with LIBRARY,
the real one.
"""

import difflib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CAPI = os.path.join(ROOT, "capi")
INCLUDE = os.path.join(ROOT, "include")
RECORD = os.path.join(CAPI, "abi", "libfeedlane.abi")
INTERFACE = os.path.join(CAPI, "abi", "interface.json")
SKIPPED = 77

WHAT_NOW = """
Programs that were compiled against the recorded interface must go on working. What they don't notice: a new function, a new
constant, a new member at the end of a struct that begins with `size` and whose zero means what was done before. Anything
else is another ABI: FEEDLANE_ABI, the soname (`abi` in meson.build) and the node in feedlane.map change with it.
If the change is meant and is of the first kind: run tools/abi-dump and commit capi/abi/ together with it."""


def run(*command):
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if finished.returncode != 0:
        sys.exit(f"{shlex.join(command)}\nended with status {finished.returncode}:\n{finished.stdout}")
    return finished.stdout


def compiler():
    return shlex.split(os.environ.get("CC", "cc"))


# ---- the interface as it is now --------------------------------------------------------------------------------------


def read(name):
    with open(os.path.join(INCLUDE, name), encoding="utf-8") as file:
        return file.read()


def header():
    """feedlane.h with the headers that it includes in their places."""
    return re.sub(r'^#include "(feedlane/\w+\.h)"$', lambda include: read(include[1]), read("feedlane.h"), flags=re.M)


def headers_of():
    """The header that declares each struct, callback and function."""
    found = {}
    for path in re.findall(r'^#include "(feedlane/\w+\.h)"$', read("feedlane.h"), flags=re.M):
        for names in re.findall(r"^typedef struct (\w+) {|^typedef [^;{]*?\(\*(\w+)\)\(|^FEEDLANE_API [^;(]*?(\w+)\(",
                                read(path), flags=re.M):
            found["".join(names)] = path
    return found


def interface():
    """The header without comments and without what is for the preprocessor alone: a declaration, or a member, a line."""
    code = re.sub(r"/\*.*?\*/", " ", header(), flags=re.S).replace("\\\n", " ")
    code = re.sub(r"^static inline .*?^}$", "", code, flags=re.S | re.M)  # compiled into the caller
    lines, unfinished, struct = [], "", ""
    for line in (" ".join(line.split()) for line in code.splitlines()):
        if line.startswith("#"):
            if re.match(r"#define FEEDLANE_\w+ (?!__attribute)", line):
                lines.append(line)
            continue
        unfinished = f"{unfinished} {line}".strip()
        if not unfinished.endswith((";", "{", "}")):
            continue
        if opening := re.fullmatch(r"typedef struct (\w+) {", unfinished):
            struct = opening[1]
        elif unfinished.startswith("}"):
            struct = ""
        elif not unfinished.startswith("extern"):
            lines.append(f"{struct}: {unfinished}" if struct else unfinished)
        unfinished = ""
    return lines


def functions():
    found = [line for line in interface() if line.startswith("FEEDLANE_API ")]
    if len(found) < 30:
        sys.exit(f"only {len(found)} functions of feedlane.h could be read")
    return [line.removeprefix("FEEDLANE_API ").removesuffix(";") for line in found]


def marks():
    """What the comment of each function says of threads, waits and callbacks."""
    found = {}
    for comment, name in re.findall(r"/\*\*((?:(?!\*/).)*)\*/\s*FEEDLANE_API [^;(]*?(\w+)\(", header(), flags=re.S):
        said = re.fullmatch(r".*?Thread safety: (any thread|one thread at a time)\.( Waits\.)?( Async-signal-safe\.)?"
                            r"(?: Calls back: ([a-z ,]+)\.)?", " ".join(comment.replace("\n *", " ").split()))
        if not said or said[0].count("Thread safety:") != 1:
            sys.exit(f"feedlane.h: the comment of {name} must end with 'Thread safety: any thread.' or 'Thread safety: one "
                     "thread at a time.', and behind it, in this order, 'Waits.', 'Async-signal-safe.', 'Calls back: ....'")
        found[name] = {"threads": said[1].split()[0], "waits": bool(said[2]), "signal_safe": bool(said[3]),
                       "calls_back": said[4].split(", ") if said[4] else []}
    return found


def split_type(declaration):
    """`const char *name`, `int64_t shape[8]`: type, name, length of an array or None."""
    kind, name, length = re.fullmatch(r"(.*?)(\w+)(?:\[(\w+)\])?", declaration.strip()).groups()
    return kind.strip(), name, length


def arguments(text):
    return [] if text.strip() in ("", "void") else [dict(zip(("type", "name"), split_type(a))) for a in text.split(",")]


def parse():
    """The header as data, with C expressions where numbers are for the compiler to say."""
    constants, handles, structs, callbacks, functions_ = {}, [], {}, {}, {}
    marked, declared_in = marks(), headers_of()
    aliases = {}  # other names of a handle, which bindings need not know
    for line in interface():
        for alias, handle in aliases.items():
            line = re.sub(rf"\b{alias}\b", handle, line)
        if constant := re.match(r"#define (\w+) ", line):
            constants[constant[1]] = constant[1]
        elif opaque := re.fullmatch(r"typedef struct (\w+) \1;", line):
            handles.append(opaque[1])
        elif alias := re.fullmatch(r"typedef struct (\w+) (\w+);", line):
            aliases[alias[2]] = alias[1]
        elif callback := re.fullmatch(r"typedef (.*?)\(\*(\w+)\)\((.*)\);", line):
            callbacks[callback[2]] = {"header": declared_in[callback[2]], "returns": callback[1].strip(), "arguments": arguments(callback[3])}
        elif function := re.fullmatch(r"FEEDLANE_API (.*?)(\w+)\((.*)\);", line):
            name = function[2]
            functions_[name] = {"header": declared_in[name], "returns": function[1].strip(), "arguments": arguments(function[3]), **marked[name]}
        elif member := re.fullmatch(r"(\w+): (.*);", line):
            struct = structs.setdefault(member[1], {"header": declared_in[member[1]], "bytes": f"sizeof({member[1]})", "fields": []})
            kind, name, length = split_type(member[2])
            field = {"name": name, "type": kind, "offset": f"offsetof({member[1]}, {name})",
                     "bytes": f"sizeof((({member[1]} *)0)->{name})"}
            struct["fields"].append(field | ({"length": length} if length else {}))
        elif not re.match(r"struct \w+;", line):  # of DLPack
            sys.exit(f"feedlane.h: what is {line}?")
    return {"constants": constants, "handles": handles, "callbacks": callbacks, "structs": structs,
            "functions": functions_}


def evaluate(expressions):
    lines = "".join(f'  printf("%lld\\n", (long long)({e}));\n' for e in expressions)
    with tempfile.TemporaryDirectory(prefix="feedlane-abi.") as folder:
        source, program = os.path.join(folder, "numbers.c"), os.path.join(folder, "numbers")
        with open(source, "w", encoding="ascii") as file:
            file.write(f'#include <stddef.h>\n#include <stdio.h>\n#include "feedlane.h"\nint main(void) {{\n{lines}'
                       "  return 0;\n}\n")
        run(*compiler(), "-std=c99", "-w", "-I", INCLUDE, source, "-o", program)
        return [int(number) for number in run(program).split()]


def present_record():
    """interface.json as it should be: an entry a line, so that a difference is a line too."""
    data = parse()
    places = [(data["constants"], name) for name in data["constants"]]
    for struct in data["structs"].values():
        places += [(struct, "bytes")]
        places += [(f, key) for f in struct["fields"] for key in ("offset", "bytes", "length") if key in f]
    for (where, key), number in zip(places, evaluate([where[key] for where, key in places]), strict=True):
        where[key] = number

    def entries(items, indent):
        return ",\n".join(" " * indent + item for item in items)

    def table(name):
        rows = entries([f"{json.dumps(key)}: {json.dumps(value)}" for key, value in data[name].items()], 4)
        return f'  "{name}": {{\n{rows}\n  }}'

    structs = [f'{json.dumps(name)}: {{"header": "{s["header"]}", "bytes": {s["bytes"]}, "fields": [\n'
               + entries([json.dumps(f) for f in s["fields"]], 6) + "\n    ]}" for name, s in data["structs"].items()]
    return "{\n" + ",\n".join([
        table("constants"), f'  "handles": {json.dumps(data["handles"])}', table("callbacks"),
        f'  "structs": {{\n{entries(structs, 4)}\n  }}', table("functions")]) + "\n}\n"


def build_hollow_library(folder):
    """The header's functions with nothing inside, under the soname and the symbol versions of the real library."""
    source, library = os.path.join(folder, "hollow.c"), os.path.join(folder, "libfeedlane.so")
    with open(source, "w", encoding="utf-8") as file:
        file.write('#include "feedlane.h"\n')
        for declaration in functions():
            file.write(declaration + (" {}\n" if re.match(r"void \w", declaration) else " { return 0; }\n"))
    with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as file:
        abi = re.search(r"^abi = '(\d+)'", file.read(), flags=re.M)[1]
    run(*compiler(), "-std=c99", "-g", "-O0", "-w", "-fPIC", "-shared", "-I", INCLUDE, source, "-o", library,
        "-nostdlib", f"-Wl,-soname,libfeedlane.so.{abi}", f"-Wl,--version-script={CAPI}/feedlane.map")
    return library


# ---- recording and comparing -----------------------------------------------------------------------------------------


def dump():
    with tempfile.TemporaryDirectory(prefix="feedlane-abi.") as folder:
        library = build_hollow_library(folder)
        # Nothing of the machine that it was made on, and no line numbers, which change with every comment. The names of
        # files stay: without them libabigail takes the types for private ones.
        run("abidw", "--no-corpus-path", "--no-comp-dir-path", "--short-locs", "--no-architecture", "--no-elf-needed",
            "--no-write-default-sizes", "--out-file", RECORD, library)
    with open(RECORD, encoding="utf-8") as file:
        text = re.sub(r" line='\d+' column='\d+'", " line='1' column='1'", file.read())
    with open(RECORD, "w", encoding="utf-8") as file:
        file.write(text)
    with open(INTERFACE, "w", encoding="utf-8") as file:
        file.write(present_record())
    print(f"on record: {len(functions())} functions, {len(parse()['constants'])} constants")
    return 0


def compare(library, *options):
    """What abidiff says of the record and the library; nothing if they are the same."""
    # Not with --headers-dir: it would also make the system's own types private, and int32_t for int64_t no change. A handle
    # whose struct is known to the library and not to the record is no change anyway.
    command = ["abidiff", "--no-architecture", "--no-show-locs"]
    finished = subprocess.run([*command, *options, RECORD, library], capture_output=True, text=True, check=False)
    return f"{finished.stdout}{finished.stderr}" if finished.returncode else ""


def has_debug_information(library):
    return ".debug_info" in run("readelf", "--wide", "--section-headers", library)


def compare_all(library):
    """What is to be said of each kind of difference."""
    with tempfile.TemporaryDirectory(prefix="feedlane-abi.") as folder:
        report = compare(build_hollow_library(folder), "--leaf-changes-only")
    if not report and library and has_debug_information(library):
        report = compare(library, "--leaf-changes-only")
    if report:
        yield report


def interface_differences():
    with open(INTERFACE, encoding="utf-8") as file:
        recorded = file.read().splitlines()
    return list(difflib.unified_diff(recorded, present_record().splitlines(), "on record", "now", n=0, lineterm=""))


def check_interface():
    problems = interface_differences()
    if problems:
        print("feedlane.h is not as on record, in capi/abi/interface.json:\n", *problems, WHAT_NOW, sep="\n")
        return 1
    print("the interface is the one on record")
    return 0


def check(library):
    for tool in ("abidiff", "readelf"):
        if not shutil.which(tool):
            print(f"skipped: no {tool} here (Debian: abigail-tools, binutils)")
            return SKIPPED
    problems = list(compare_all(library))
    if problems:
        print("The binary interface is not the one on record, in capi/abi/:\n", *interface_differences(),
              "\nabidiff:", *problems, WHAT_NOW, sep="\n")
        return 1
    print("the binary interface is the one on record")
    return 0


def main():
    if sys.argv[1:] == ["dump"]:
        return dump()
    if sys.argv[1:] == ["interface"]:
        return check_interface()
    if sys.argv[1:2] == ["check"] and len(sys.argv) <= 3:
        return check("".join(sys.argv[2:]))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
