# SPDX-License-Identifier: Apache-2.0
"""Single changes of C++ sources, all compiled into one program, which makes the one that the environment chooses: see mutants.hpp.

  check   `if (c)` is never taken
  bound   < becomes <=, <= becomes <, and so on
  one     + 1 and - 1 become + 0 and - 0
  fence   a full fence is left out
  store   a store into shared memory is left out
  swap    two stores that follow each other change places

This is no parser of C++: it reads code as this project writes it, laid out by clang-format."""

import collections
import dataclasses
import pathlib
import re
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
from class_sizes import DIRECTIVE, NOISE  # noqa: E402

BOUNDS = {"<": "less<>, std::less_equal<>", "<=": "less_equal<>, std::less<>", ">": "greater<>, std::greater_equal<>",
          ">=": "greater_equal<>, std::greater<>"}
BOUND = re.compile(r"(?<=[\w)\]}]) (<=|>=|<|>)(?=\s)")
ONE = re.compile(r"(?<=[\w)\]}]) ([+-]) 1(?![\w.'])")
FENCE = re.compile(r"^[ ]*(?:else )?((?:std::atomic_thread_fence|(?:ring::)?doorbell_fence)\(.*\);)(?=[ ]*$)", re.M)
BARRIER = re.compile(r"\bos::pass_barrier\(\)")
STORE = re.compile(r"^[ ]*(?:else )?((?!if\b|for\b|return\b)[\w:.>()\[\] +-]+(?:\.|->)store\([^;]*\);)(?=[ ]*$)", re.M)
# Statements that may follow each other in either order, as far as one processor sees.
STORING = re.compile(r"(?:\.|->)store\(")
WRITE = re.compile(r"^[ ]*(?!if\b|for\b|return\b|else\b)(?:[\w:.>()\[\] +-]+(?:\.|->)store\([^;\n]*\)|[\w.>()\[\]-]+ = [^;\n]*);[ ]*$")
IF = re.compile(r"\bif \(")
FUNCTION = re.compile(r"(?:^|[\s*&])((?:\w+::)*~?\w+)\(")


@dataclasses.dataclass
class Mutant:
    number: int
    kind: str
    file: str
    line: int
    function: str
    text: str  # what is changed
    which: int = 1  # of those in this function that read the same

    def name(self):
        """For the list of equivalent ones: no line number, which changes with every edit above it."""
        return f"{self.file} {self.function} {self.kind} {self.text}" + (f" #{self.which}" if self.which > 1 else "")


def blank(source):
    """The source with spaces for comments, strings and lines of the preprocessor, so that places are the same."""
    for pattern in NOISE, DIRECTIVE:
        source = pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), source)
    return source


def closing(text, at):
    """The place of the parenthesis that closes the one before `at`."""
    depth = 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at - 1


def top_level(text, pattern):
    """Matches outside parentheses, brackets and braces."""
    depths, depth = [], 0
    for c in text:
        depth += {"(": 1, "[": 1, "{": 1}.get(c, 0)
        depths.append(depth)
        depth -= {")": 1, "]": 1, "}": 1}.get(c, 0)
    return [m for m in re.finditer(pattern, text) if depths[m.start()] == 0]


def functions(text):
    """(start, end, name) of every body in braces whose head looks like a function's; inner ones after outer ones."""
    found, stack = [], []
    for at, c in enumerate(text):
        if c == "{":
            head_at = max(text.rfind(sign, 0, at) for sign in ";{}") + 1
            # A head may have braces of its own, in initialisers: those are taken for it, and the name is not found.
            heads = FUNCTION.findall(" " + text[head_at:at].strip())
            name = next((h for h in heads if h.split("::")[-1] not in ("if", "for", "while", "switch", "catch", "alignas")), None)
            stack.append((at, name if heads and heads[0] == name else None))
        elif c == "}" and stack:
            start, name = stack.pop()
            if name:
                found.append((start, at, name))
    return sorted(found)


def runs_of_writes(text):
    """(start, end) of lines that are nothing but writes, one after the other, with at least two stores among them."""
    runs, at, start, before = [], 0, None, ""
    for line in text.split("\n"):
        if WRITE.match(line) and (start is not None or before.endswith((";", "{", "}")) or not before):
            start = at if start is None else start
        elif start is not None:
            runs.append((start, at - 1))
            start = None
        before = line.rstrip() or before  # comments are blank
        at += len(line) + 1
    return [(a, b) for a, b in runs if len(STORING.findall(text, a, b)) > 1]


def mutate_run(text, file, line, function, first):
    """Each store may be left out, and each pair that has one may change places."""
    writes = [w.strip() for w in text.split("\n")]
    mutants, swaps, guarded = [], {}, []

    def add(kind, i, shown):
        mutants.append(Mutant(first + len(mutants), kind, file, line + i, function, shown))
        return mutants[-1].number

    for i, write in enumerate(writes):
        guarded.append(f"if (!feedlane_mutants::on({add('store', i, write)})) {{ {write} }}" if STORING.search(write) else write)
    for i, pair in enumerate(zip(writes, writes[1:])):
        if any(map(STORING.search, pair)):
            swaps[i] = add("swap", i, " ".join(pair))
    out = []
    for i, write in enumerate(guarded):
        if i in swaps:
            write = f"if (feedlane_mutants::on({swaps[i]})) {{ {guarded[i + 1]} }} else {{ {write} }}"
        if i - 1 in swaps:
            write = f"if (feedlane_mutants::on({swaps[i - 1]})) {{ {guarded[i - 1]} }} else {{ {write} }}"
        out.append(write)
    return "\n".join(out), mutants


def mutate(source, file, first):
    """(the source with all changes in it, the changes), numbered from `first` on."""
    text = blank(source)
    bodies = functions(text)
    found = []  # kind, start, what is changed, [(place, text to insert or (end, replacement))]

    def in_function(at):
        inside = [name for start, end, name in bodies if start < at < end]
        return inside[0] if inside else None

    for m in IF.finditer(text):
        end = closing(text, m.end())
        head = text[m.end() : end]
        last = top_level(head, ";")
        begin = m.end() + (last[-1].end() if last else 0)
        condition = text[begin:end]
        if top_level(condition, r"(?<![=!<>+\-*/%&|^])=(?!=)"):
            continue  # it declares something
        while text[begin].isspace():
            begin += 1
        shown = re.sub(r"\s+", " ", source[begin:end])
        found.append(("check", begin, f"if ({shown})", lambda n, b=begin, e=end: [(b, b, f"!feedlane_mutants::on({n}) && ("), (e, e, ")")]))
    for m in BOUND.finditer(text):
        line = text[text.rfind("\n", 0, m.start()) + 1 : text.find("\n", m.end())]
        if re.search(r"\boperator\b|\btemplate\b|static_assert|\bdelta\b", line):
            continue
        sign = BOUNDS[m[1]]
        shown = source[max(source.rfind("\n", 0, m.start()) + 1, m.start() - 40) : source.find("\n", m.end())][:90].strip()
        found.append(("bound", m.start(1), shown,
                      lambda n, a=m.start(1), b=m.end(1), s=sign: [(a, b, f"< feedlane_mutants::Bound<{n}, std::{s}>{{}} >")]))
    for m in ONE.finditer(text):
        line = text[text.rfind("\n", 0, m.start()) + 1 : text.find("\n", m.end())]
        if "static_assert" in line:
            continue
        shown = source[source.rfind("\n", 0, m.start()) + 1 : source.find("\n", m.end())].strip()[:90]
        one = m.end() - 1
        found.append(("one", one, shown, lambda n, a=one: [(a, a + 1, f"feedlane_mutants::one<{n}>()")]))
    for m in BARRIER.finditer(text):
        found.append(("fence", m.start(), m[0], lambda n, a=m.start(), b=m.end(): [(a, a, f"(feedlane_mutants::on({n}) || "), (b, b, ")")]))
    runs = runs_of_writes(text)
    for kind, pattern in ("fence", FENCE), ("store", STORE):
        for m in pattern.finditer(text):
            start, end = m.span(1)
            if any(a <= start < b for a, b in runs):
                continue
            shown = re.sub(r"\s+", " ", source[start:end].strip())
            found.append((kind, start, shown, lambda n, a=start, b=end: [(a, a, f"{{ if (!feedlane_mutants::on({n})) "), (b, b, " }")]))
    found = [f for f in found if not any(a <= f[1] < b for a, b in runs)]

    mutants, edits = [], []
    for kind, start, shown, make in sorted(found, key=lambda f: f[1]):
        function = in_function(start)
        if function is None:  # a constant
            continue
        number = first + len(mutants)
        mutants.append(Mutant(number, kind, file, source.count("\n", 0, start) + 1, function or "-", shown))
        edits += make(number)
    for a, b in runs:
        function = in_function(a)
        changed, made = mutate_run(text[a:b], file, source.count("\n", 0, a) + 1, function or "-", first + len(mutants))
        mutants += made
        edits.append((a, b, changed))
    alike = collections.Counter()
    for m in sorted(mutants, key=lambda m: m.line):
        alike[m.name()] += 1
        m.which = alike[m.name()]
    # Insertions at one place: in the order in which they were made; what closes comes before what opens.
    edits = sorted(enumerate(edits), key=lambda e: (e[1][0], e[1][0] != e[1][1], e[0]))
    out, at = [], 0
    for _, (a, b, new) in edits:
        out += [source[at:a], new]
        at = max(at, b)
    return "".join(out) + source[at:], mutants
