#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The house checks: what a reader would otherwise have to notice by hand.

Usage: house.py [ROOT [REPORT]]

Checks ROOT, by default the tree of this file. Appends what it found to REPORT, by default standard output, prints "PASSED
FAILED", ends with 1 if anything failed. Each function below is one check: it yields a line for each thing that is wrong.
"""

import ast
import contextlib
import glob
import os
import re
import sys

import class_sizes

MAX_LINES = 500

# The direction of includes: each room, lowest first, with the rooms below it whose headers it may include. A room may include
# its own headers, and every room the public C headers, which are the vocabulary of the inside too.
INCLUDES = {
    "C headers": (),  # feedlane.h, feedlane/*.h
    "C++ headers": (),  # feedlane/*.hpp: for programs, none for the library
    "base": (),
    "os": ("base",),
    "shm": ("base", "os"),
    "ring": ("base", "os"),
    "tensors": ("base", "os", "shm"),
    "pinned": ("base", "os"),
    "greeting": ("base", "os", "shm", "ring"),  # ring: the ends of a standalone ring agree who issues barriers
    "channel": ("base", "os", "shm", "ring", "greeting"),  # standalone rings are made of rings
    "sampler": ("base",),
    "dataset": ("base", "os", "shm", "tensors"),
    # The worker's process runs the data set's callbacks, as inline mode does: the data set is below both.
    "worker": ("base", "os", "shm", "ring", "tensors", "dataset", "greeting"),
    "checkpoint": ("base", "shm"),  # shm: the limits that a saved number is checked against
    "monitor": ("base", "os", "shm"),
    # What a loader, a consumer or an arena lends to its host: references, and the streams of the pool's device.
    "lending": ("base", "os", "shm", "tensors", "pinned", "monitor"),
    "arena": ("base", "os", "shm", "ring", "tensors", "pinned", "monitor", "greeting", "lending"),
    # The crew reports deaths and starts as events. The queue of events is the monitor's.
    "supervisor": ("base", "os", "shm", "ring", "greeting", "monitor"),
    # All but the worker's process and standalone rings.
    "loader": ("base", "os", "shm", "ring", "tensors", "pinned", "greeting", "sampler", "dataset",
               "checkpoint", "monitor", "lending", "supervisor"),
    # A feeder owns a loader, a consumer stands in the place of one.
    "sharing": ("base", "os", "shm", "ring", "greeting", "tensors", "pinned", "monitor", "checkpoint", "lending", "loader"),
    "capi": ("base", "os", "shm", "tensors", "pinned", "channel", "arena", "worker", "sampler", "monitor", "lending", "loader", "sharing"),
    # Programs stand on the public headers alone. Tests may look into any room.
    "tools": ("C++ headers",),
    "examples": ("C++ headers",),
}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.M)

# At most so many methods and data members a class. A struct of values, which no method of its own changes, may have more
# members: configuration, and what lies in shared memory.
MOST = (40, 25)
OTHERWISE = {
    # A facade composes: what Source asks of every kind of loader, and 17 of its own.
    "lib/loader/loader.hpp: Loader": (36, 20),
    # Source and Lender are half of these.
    "lib/sharing/consumer.hpp: Consumer": (46, 25),
    # What the crew asks of its owner is a third of these.
    "lib/loader/dispatcher.hpp: Dispatcher": (41, 25),
}

# What differs between the kinds of data sets and the start modes is a type (MapOrder and ShardOrder, a launcher each). These
# words belong to those types and to the configuration, and are rare elsewhere.
FLAGS = re.compile(r"\biterable\b|\bFEEDLANE_START_")
FLAGS_LIVE_IN = ("config", "settings", "map_order", "shard_order", "order", "launcher", "memory")
MAX_FLAGS = 10

# Rooms in which every file says after its licence what lives there.
DESCRIBED = ("lib", "include", "capi", "tests", "tools")
ROOMS = ("lib", "include", "capi", "tools", "examples", "tests")
SOURCES = (".hpp", ".h", ".cpp", ".c", ".py", ".rs", ".sh")
COMMANDS = (
    "tools/quickstart", "tools/check", "tools/try-bare", "tools/deb", "tools/get-julia", "tools/reference", "tools/abi-dump", "tools/fuzz",
    "tools/gpu", "tools/try-frameworks",
    ".ci/run",
)

# Pages that explain the source, and so name classes and files.
PAGES = ("docs/architecture.md", "docs/memory-ordering.md", "CONTRIBUTING.md")

# What opens descriptors, and what trusts the variables of a setuid program's user.
DESCRIPTORS = re.compile(
    r"(?<!\w)::(open|openat|creat|pipe2?|socket|socketpair|accept4?|memfd_create|eventfd|epoll_create1?|timerfd_create|dup[23]?|recvmsg)\("
    r"|\b(SYS_pidfd_open|F_DUPFD\w*)\b|\b(getenv)\("
)

ATOMIC_ACCESS = re.compile(
    r"(?:\.|->)(load|store|exchange|compare_exchange_(?:weak|strong)|fetch_(?:add|sub|or|and|xor)|test_and_set)\("
)


def sources(root, *rooms):
    """(path, text) of every source file of these rooms, scripts without a suffix included."""
    for room in rooms:
        for folder, folders, names in os.walk(os.path.join(root, room)):
            folders[:] = sorted(name for name in folders if not name.startswith((".", "__")) and name != "target")
            for name in sorted(names):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8", errors="replace") as file:
                    if name.endswith(SOURCES) or ("." not in name and file.read(2) == "#!"):
                        file.seek(0)
                        yield os.path.relpath(path, root), file.read()


def files_fit_in_the_head(root):
    for path, text in sources(root, *ROOMS):
        lines = text.count("\n") - text.count("\n// promise: ")  # which tools/promises.py reads
        if lines > MAX_LINES:
            yield f"{path}: {lines} lines, more than {MAX_LINES}"


def sources_name_their_licence(root):
    for path, text in sources(root, *ROOMS):
        if "SPDX-License-Identifier: Apache-2.0" not in text[:300]:
            yield f"{path}: no 'SPDX-License-Identifier: Apache-2.0' in its first lines"


def files_say_what_lives_there(root):
    for path, text in sources(root, *DESCRIBED):
        after_licence = re.split(r"SPDX-License-Identifier: Apache-2.0[ \t]*(?:\*/)?", text, maxsplit=1)[-1].lstrip()
        if not re.match(r'//|/?\*|#[^\w]|"""', after_licence):
            yield f"{path}: no comment after the licence says what lives there"


def room_of(path):
    """The row of INCLUDES that a path belongs to, within lib/ or as it is included; None: of none."""
    path = path.removeprefix("include/")
    if path.split("/")[0] == "feedlane" or re.fullmatch(r"feedlane\.hp*", path):
        return "C headers" if path.endswith(".h") else "C++ headers"
    first = path.split("/")[0]
    return first if first in INCLUDES else None


def includes_go_one_way(root):
    rows = list(INCLUDES)
    for row, lower in INCLUDES.items():
        for name in lower:
            if rows.index(name) >= rows.index(row):
                yield f"tools/house.py: {row} may include {name}, which is not below it in the table"
    for path, text in sources(root, "lib", "include", "capi", "tools", "examples"):
        room = room_of(path.removeprefix("lib/"))
        if room is None:
            yield f"{path}: its room has no row in the table INCLUDES of tools/house.py"
            continue
        for include in INCLUDE.finditer(text):
            name = include[1]
            in_lib = os.path.exists(os.path.join(root, "lib", name))
            target = room_of(name) if in_lib or name.startswith("feedlane") else None
            if path.startswith("lib/") and name.startswith("capi/"):
                target = "capi"
            if target not in (None, room, "C headers", *INCLUDES[room]):
                line = text.count("\n", 0, include.start()) + 1
                yield f"{path}:{line}: {room} includes {name} of {target}, which the table in tools/house.py does not allow"


PYTHON_CORE = "capi/python/core"


def python_core_sees_the_c_headers(root):
    """As every package, the compiled half of Python's has the public C headers and its own, and nothing of the library."""
    for path, text in sources(root, PYTHON_CORE):
        for found in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', text, re.M):
            room, is_own = room_of(found[2]), os.path.dirname(found[2]) == "" and os.path.exists(
                os.path.join(root, PYTHON_CORE, found[2]))
            is_system = found[1] == "<" and room is None
            if room != "C headers" and not is_own and not is_system:
                yield f"{path}: includes {found[2]}, which is neither a public C header nor in {PYTHON_CORE}"


def python_imports(node):
    """The modules of the same package that code imports when it runs, in functions too."""
    if isinstance(node, ast.ImportFrom) and node.level == 1:
        yield from [node.module] if node.module else [name.name for name in node.names]
    is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for child in node.orelse if is_for_types else ast.iter_child_nodes(node):
        yield from python_imports(child)


def rust_uses(text):
    return re.findall(r"\bcrate::(\w+)", re.sub(r"//.*", "", text))


def modules_have_no_circles(root):
    """Modules of a package that use each other are one module in several files."""
    for folder, uses in (("capi/python/feedlane", lambda text: python_imports(ast.parse(text))),
                         ("capi/rust/feedlane/src", rust_uses), ("capi/rust/feedlane-sys/src", rust_uses)):
        used = {}
        for path, text in sources(root, folder):
            module = os.path.splitext(os.path.basename(path))[0]
            used[module] = set(uses(text)) - {module}
        # Takes away what uses nothing that is left, and what nothing left uses.
        while ends := [module for module in used if not used[module] & used.keys()
                       or not any(module in others for others in used.values())]:
            for module in ends:
                del used[module]
        if used:
            yield f"{folder}: modules that use each other: {', '.join(sorted(used))}"


def classes_are_small(root):
    for path, text in sources(root, "lib", "include"):
        for found in class_sizes.classes_of(text) if path.endswith((".hpp", ".cpp")) else ():
            methods, members = OTHERWISE.get(f"{path}: {found.name}", MOST)
            if len(found.methods) > methods:
                yield f"{path}: {found.name} has {len(found.methods)} methods, more than {methods}"
            if len(found.members) > members and not found.is_plain():
                yield f"{path}: {found.name} has {len(found.members)} data members, more than {members}"


def differences_are_types(root):
    found = []
    for path, text in sources(root, "lib/loader", "lib/supervisor"):
        if os.path.basename(path).split(".")[0] in FLAGS_LIVE_IN:
            continue
        for number, line in enumerate(class_sizes.without_comments(text).splitlines(), 1):
            found += [f"{path}:{number}: {line.strip()}" for _ in FLAGS.findall(line)]
    if len(found) > MAX_FLAGS:
        yield f"{len(found)} of these words, more than {MAX_FLAGS}:"
        yield from found


def pages_name_what_exists(root):
    """`Class::member` and paths of the library, on the pages that explain it."""
    code = "\n".join(class_sizes.without_comments(text) for path, text in sources(root, "lib", "include", "capi")
                     if path.endswith((".hpp", ".h", ".cpp", ".c")))
    members = {}
    for found in class_sizes.classes_of(code):
        members.setdefault(found.name.split("::")[-1], set()).update(found.methods, found.members)
    for name, values in re.findall(r"\benum (?:class |struct )?(\w+)[^{};]*\{([^}]*)\}", code):
        members.setdefault(name, set()).update(re.findall(r"\w+", values))
    for page in PAGES:
        with open(os.path.join(root, page), encoding="utf-8") as file:
            lines = list(enumerate(file, 1))
        for number, line in lines:
            for name, member in re.findall(r"\b([A-Z]\w+)::(\w+)", line):
                if member not in members.get(name, ()):
                    yield f"{page}:{number}: there is no {name}::{member}"
            for path in re.findall(r"`((?:lib|include|capi|tests|tools|examples|docs)/[\w./-]*)`", line):
                if not os.path.exists(os.path.join(root, path)) and not re.search("[A-Z]{3}", path):  # a placeholder
                    yield f"{page}:{number}: there is no {path}"


def arguments_at(text, opening):
    """The text between the parenthesis at `opening` and the one that closes it."""
    depth = 0
    for end in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            return text[opening + 1 : end]
    return text[opening + 1 :]


def atomics_name_their_order(root):
    for path, text in sources(root, "lib", "include", "capi"):
        if path.endswith(".py"):
            continue  # no atomics, and methods of these names
        for access in ATOMIC_ACCESS.finditer(text):
            arguments = arguments_at(text, access.end() - 1)
            if access[1] == "load" and arguments:
                continue  # an atomic's has no other argument: this one loads a sampler's state, or names the order
            if "order" not in arguments.lower():  # in Rust it is an Ordering
                line = text.count("\n", 0, access.start()) + 1
                yield f"{path}:{line}: {access[1]} without a memory order"


def descriptors_come_from_one_room(root):
    """lib/os makes every descriptor of the library, as an os::Fd, which keeps it above 2, and reads every variable."""
    for path, text in sources(root, "lib", "capi"):
        if not path.endswith((".hpp", ".cpp")) or path.startswith("capi/python"):
            continue
        for found in DESCRIPTORS.finditer(class_sizes.without_comments(text)):
            name = found[1] or found[2] or found[3]
            if name == "getenv" or not path.startswith("lib/os/"):
                advice = "secure_getenv" if name == "getenv" else "a function of lib/os that returns an os::Fd"
                yield f"{path}: {name}: use {advice}"


# Words that a reader has to read twice, each with a plain one.
PLAIN = {"mend": "fix", "mends": "fixes", "mended": "fixed", "is told": "gets, learns", "are told": "get, learn", "was told": "got, learned",
         "tells": "returns, reports, prints", "go on": "continue", "goes on": "continues", "went on": "continued", "nonsense": "invalid",
         "gone wild": "faulty", "at the door": "at attach", "so many": "the number", "for so long": "the time", "likewise": "also",
         "in words": "in text", "by hand": "the command", "meanwhile": "the event", "by then": "the event", "of the moment": "current",
         "those that": "the noun", "that which": "the noun"}
TWICE = re.compile(r"\b(" + "|".join(PLAIN) + r")\b", re.I)


def words_are_plain(root):
    """Pages, headers and the manual. Names of tests stand in backticks, tables of figures between markers."""
    pages = [os.path.relpath(path, root) for pattern in ("*.md", "docs/*.md", "capi/*/README.md", "examples/README.md", "include/feedlane.h",
                                                         "include/feedlane/*", "tools/feedlane/feedlane.1")
             for path in sorted(glob.glob(os.path.join(root, pattern)))]
    for page in pages:
        with open(os.path.join(root, page), encoding="utf-8") as file:
            text = re.sub(r"<!-- table.*?<!-- end -->|```.*?```|`[^`]*`", lambda found: "\n" * found[0].count("\n"), file.read(), flags=re.S)
        for number, line in enumerate(text.splitlines(), 1):
            for found in TWICE.finditer(line):
                yield f"{page}:{number}: {found[0]}: say {PLAIN[found[0].lower()]}"


def nothing_is_left_over(root):
    # Put together from halves, so that this file doesn't find itself.
    words = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")) + r")\b")
    for path, text in sources(root, *ROOMS):
        for number, line in enumerate(text.splitlines(), 1):
            if words.search(line):
                yield f"{path}:{number}: {line.strip()}"


# Who calls the functions of feedlane.h: the packages, and the examples.
PACKAGES = ("capi/python/core/*.[ch]pp", "capi/rust/feedlane/src/**/*.rs", "capi/go/*.[gch]*", "capi/julia/src/*.jl",
            "include/feedlane/*.hpp")
EXAMPLES = ("examples/**/*.c", "examples/**/*.cpp", "examples/**/*.lua")
MOST_FUNCTIONS = 100
# Functions that stay for another reason.
OF_USE_ANYWAY = {
    "feedlane_worker_close": "ends a worker's wait from any thread; Rust's Closer has it, the others end the process",
}


def names_called(root, *patterns):
    names = set()
    for pattern in patterns:
        for path in glob.glob(pattern, root_dir=root, recursive=True):
            if not path.endswith("_test.go"):
                with open(os.path.join(root, path), encoding="utf-8") as file:
                    names.update(re.findall(r"\bfeedlane_\w+", file.read()))
    return names


def functions_have_users(root):
    """An exported function is called by two packages, or by one and an example; and there are not too many."""
    with open(os.path.join(root, "capi/feedlane.map"), encoding="utf-8") as file:
        functions = re.findall(r"^\s*(feedlane_\w+);", file.read(), flags=re.M)
    if len(functions) > MOST_FUNCTIONS:
        yield f"capi/feedlane.map: {len(functions)} functions, more than {MOST_FUNCTIONS}"
    packages = [names_called(root, package) for package in PACKAGES]
    examples = names_called(root, *EXAMPLES)
    for name in functions:
        users = sum(name in package for package in packages)
        is_called = users > 1 or (users == 1 and name in examples)
        if not is_called and name not in OF_USE_ANYWAY:
            yield f"include: {name} is called by {users} packages, and {'an' if name in examples else 'no'} example"
        if is_called and name in OF_USE_ANYWAY:
            yield f"tools/house.py: {name} has callers now, and is in OF_USE_ANYWAY"


def packages_install_every_file(root):
    """A file that its folder's meson.build does not name is in the tree and not in the wheel."""
    folder = os.path.join(root, "capi/python/feedlane")
    with open(os.path.join(root, "capi/python/meson.build"), encoding="utf-8") as file:
        named = set(re.findall(r"'feedlane/([^']+)'", file.read()))
    for name in sorted({name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name))
                        and not name.endswith((".so", ".pyc"))} ^ named):
        yield f"capi/python/meson.build: {name} is {'not installed' if name not in named else 'not there'}"


def commands_can_be_run(root):
    for path in COMMANDS:
        if not os.access(os.path.join(root, path), os.X_OK):
            yield f"{path}: missing, or not executable"


CHECKS = (
    files_fit_in_the_head,
    sources_name_their_licence,
    files_say_what_lives_there,
    includes_go_one_way,
    python_core_sees_the_c_headers,
    modules_have_no_circles,
    classes_are_small,
    differences_are_types,
    atomics_name_their_order,
    descriptors_come_from_one_room,
    words_are_plain,
    nothing_is_left_over,
    functions_have_users,
    packages_install_every_file,
    commands_can_be_run,
    pages_name_what_exists,
)


def main():
    if len(sys.argv) > 3 or any(argument.startswith("-") for argument in sys.argv[1:]):
        print(__doc__, file=sys.stderr)
        return 2
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    failed = 0
    with open(sys.argv[2], "a", encoding="utf-8") if len(sys.argv) > 2 else contextlib.nullcontext(sys.stdout) as report:
        for check in CHECKS:
            found = list(check(root))
            if found:
                failed += 1
                title = check.__name__.replace("_", " ")
                print(f"\nFAILED house: {title}", *("    " + line for line in found), sep="\n", file=report)
    print(len(CHECKS) - failed, failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
