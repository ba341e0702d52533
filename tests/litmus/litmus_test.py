#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every pair of accesses in docs/memory-ordering.md holds in C11's memory model, and needs its orders.

Each NAME.litmus has the accesses of one kind of pair, with the orders of the code, and a condition that must never be true.
herd7 explores all its executions,
  - as C11, with the model rc11;
  - as AArch64, of the code that gcc and clang make of it, with Arm's own model;
  - with each order weakened by one step, one at a time, fences left out too: on AArch64 a fence is the same with acq_rel. Then the condition must be possible, or a data race: otherwise the
    order isn't needed, and the test says why it is there all the same ("survives: N: why", N counting the orders of the file).

A line "code: FILE FUNCTION DIGEST" ties it to the code, see support/code_digests.py.

Usage: litmus_test.py SOURCE_ROOT

Prints a row for each test. herd7 is $HERD7, or the one in PATH; 77: there is none (tools/get-herd brings one).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

from code_digests import stale

HERE = os.path.dirname(os.path.abspath(__file__))
WEAKER = {"seq_cst": ["acq_rel", "relaxed"], "acq_rel": ["acquire", "release"], "acquire": ["relaxed"], "release": ["relaxed"]}
ORDER = re.compile(r"memory_order_(seq_cst|acq_rel|acquire|release|relaxed)")
LABEL = re.compile(r"\bL(BB\w+|END|F[BE]\d+|\d+)\b")
COMPILERS = {"gcc": ["aarch64-linux-gnu-gcc"], "clang": ["clang", "--target=aarch64-linux-gnu"]}
FLAGS = ["-O2", "-march=armv8.1-a", "-ffreestanding", "-fno-asynchronous-unwind-tables", "-S", "-x", "c", "-", "-o", "-"]


class Litmus:
    def __init__(self, path):
        self.name = os.path.splitext(os.path.basename(path))[0]
        with open(path, encoding="utf-8") as f:
            text = f.read()
        comment, self.code = re.fullmatch(r"C \w+\n\(\*(.*?)\*\)\n(.*)", text, re.S).groups()
        self.comment = comment
        self.rows = [row.strip() for row in re.findall(r"^ *row: (.*)$", comment, re.M)]
        self.survivors = {int(n): why for n, why in re.findall(r"^ *survives: (\d+): (.+)$", comment, re.M)}
        self.orders = [m for m in ORDER.finditer(self.code)]

    def variants(self):
        """(number of the order, weaker one, code), from 1."""
        for number, found in enumerate(self.orders, 1):
            for weaker in WEAKER.get(found[1], []):
                yield number, weaker, self.code[: found.start(1)] + weaker + self.code[found.end(1) :]


class Herd:
    def __init__(self, program):
        self.program = program

    def run(self, text, *model):
        """Whether the condition is never true, without undefined behaviour."""
        with tempfile.NamedTemporaryFile("w", suffix=".litmus") as f:
            f.write(text)
            f.flush()
            run = subprocess.run([self.program, *model, f.name], capture_output=True, text=True, check=False)
            out = run.stdout
        found = re.search(r"^Observation \w+ (Never|Sometimes|Always)", out, re.M)
        if not found:
            raise RuntimeError(f"herd7 says nothing of\n{text}\n{out}{run.stderr}")
        return found[1] == "Never" and "Flag *undef*" not in out


def as_c11(name, code):
    return f"C {name}\n{code}"


# ---- as compiled ----


def split(code):
    """The initial values, the threads as (parameters, body), and the condition."""
    start, rest = re.match(r"\{(.*?)\}(.*)", code, re.S).groups()
    body, condition = rest.rsplit("exists", 1)
    threads = re.findall(r"^P\d+\((.*?)\) \{\n(.*?)^\}$", body, re.S | re.M)
    return start, threads, condition


def compile_thread(compiler, parameters, body):
    """Instructions in herd7's form, and the arguments of the thread: shared variables, then its results."""
    names = [p.split("*")[1].strip() for p in parameters.split(",")]
    results = re.findall(r"\bint (r\d+) =", body)
    arguments = ", ".join([parameters] + [f"int* out_{r}" for r in results])
    ends = "".join(f"  *out_{r} = {r};\n" for r in results)
    source = f"#include <stdatomic.h>\nvoid f({arguments}) {{\n{body}{ends}}}\n"
    out = subprocess.run([*compiler, *FLAGS], input=source, capture_output=True, text=True, check=True).stdout
    lines = []
    for line in out[out.index("\nf:") + 3 :].splitlines():
        line = re.split(r"\s*//", line)[0].strip()
        label = re.fullmatch(r"\.(L\w+):", line)
        if label and not label[1].startswith("Lfunc"):
            lines.append(label[1] + ":")
        elif line.startswith(".size") or line.startswith(".Lfunc_end"):
            break
        elif line and not line.startswith("."):
            lines.append(instruction(line))
    if lines and lines[-1] == "RET":
        lines.pop()
    if "RET" in lines:
        lines = ["B LEND" if line == "RET" else line for line in lines] + ["LEND:"]
    return lines, names + [f"out_{r}" for r in results]


def instruction(line):
    mnemonic, _, operands = line.partition("\t") if "\t" in line else line.partition(" ")
    if mnemonic == "ret":
        return "RET"
    mnemonic = re.sub(r"^b(eq|ne|gt|ge|lt|le|hi|ls)$", r"b.\1", mnemonic).upper()
    made = []
    for operand in (o.strip() for o in operands.split(",")):
        if re.fullmatch(r"-?\d+", operand):
            operand = "#" + operand
        made.append(operand[1:] if operand.startswith(".L") else operand.upper())
    return f"{mnemonic} {','.join(made)}".strip()


def as_compiled(name, code, compiler):
    start, threads, condition = split(code)
    init, columns = [v.strip() for v in start.split(";") if v.strip()], []
    for number, (parameters, body) in enumerate(threads):
        lines, arguments = compile_thread(compiler, parameters, body)
        lines = [LABEL.sub(rf"L{number}\1", line) for line in lines]
        columns.append(lines)
        for i, argument in enumerate(arguments):
            where = f"P{number}_{argument}" if argument.startswith("out_") else argument
            init.append(f"{number}:X{i}={where}")
    depth = max(len(c) for c in columns)
    rows = [" | ".join(c[i] if i < len(c) else "" for c in columns) + " ;" for i in range(depth)]
    heads = " | ".join(f"P{i}" for i in range(len(columns))) + " ;"
    condition = re.sub(r"(\d+):(r\d+)=", r"[P\1_out_\2]=", condition)
    return f"AArch64 {name}\n{{ {'; '.join(init)}; }}\n{heads}\n" + "\n".join(rows) + f"\nexists {condition}"


# ---- the test ----


def rows_of(page):
    with open(page, encoding="utf-8") as f:
        table = f.read().split("## Pairs")[1].split("\n\n")[1]
    return [line[2:] for line in table.splitlines()[2:]]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    program, page = os.environ.get("HERD7", "herd7"), os.path.join(sys.argv[1], "docs/memory-ordering.md")
    if not shutil.which(program):
        print(f"{program}: there is no herd7")
        sys.exit(77)
    herd = Herd(program)
    tests = [Litmus(os.path.join(HERE, f)) for f in sorted(os.listdir(HERE)) if f.endswith(".litmus")]
    compilers = {name: c for name, c in COMPILERS.items() if shutil.which(c[0])}
    wrong = []
    for row in rows_of(page):
        if not any(row.startswith(r) for t in tests for r in t.rows):
            wrong.append(f"no test names the row: {row[:80]}")
    for test in tests:
        wrong += stale(test.name, test.comment, sys.argv[1])
        for row in test.rows:
            if not any(r.startswith(row) for r in rows_of(page)):
                wrong.append(f"{test.name}: {page} has no row that begins so: {row}")
    for test in tests:
        if not herd.run(as_c11(test.name, test.code), "-model", "rc11.cat"):
            wrong.append(f"{test.name}: its condition is possible in C11, or there is a data race")
        for name, compiler in compilers.items():
            if not herd.run(as_compiled(test.name, test.code, compiler)):
                wrong.append(f"{test.name}: its condition is possible on AArch64, as compiled by {name}")
        caught, shown = 0, dict.fromkeys(compilers, 0)
        variants = list(test.variants())
        for number, weaker, code in variants:
            holds = herd.run(as_c11(test.name, code), "-model", "rc11.cat")
            caught += not holds
            for name, compiler in compilers.items():
                shown[name] += not herd.run(as_compiled(test.name, code, compiler))
            if holds and number not in test.survivors:
                wrong.append(f"{test.name}: order {number} as {weaker} makes no difference, and nothing says why it is there")
            if not holds and number in test.survivors:
                wrong.append(f"{test.name}: order {number} is needed: as {weaker} the condition is possible")
        on_arm = "".join(f", {count} on AArch64 as compiled by {name}" for name, count in shown.items())
        print(f"{test.name}: weakened {len(variants)} ways: {caught} are possible in C11{on_arm}")
    print(f"{len(tests)} tests, as C11" + "".join(f" and as compiled for AArch64 by {name}" for name in compilers))
    for line in wrong:
        print(f"FAILED {line}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
