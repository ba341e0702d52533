#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Read and extend the corpora of the fuzz targets, tests/fuzz/corpus/TARGET.hex.

Usage: fuzz_corpus.py add CORPUS INPUT...      append each input file that the corpus lacks
       fuzz_corpus.py unpack CORPUS FOLDER     write each input to a file of FOLDER, named after its line; remove other files

A corpus has one input per line, in hexadecimal. Lines that begin with # are comments.
"""

import pathlib
import sys


def inputs_of(corpus):
    """(line number, bytes) of each input."""
    for number, line in enumerate(corpus.read_text(encoding="ascii").splitlines(), 1):
        if not line.startswith("#"):
            try:
                yield number, bytes.fromhex(line)
            except ValueError:
                sys.exit(f"{corpus}:{number}: not hexadecimal")


def add(corpus, *names):
    lines = corpus.read_text(encoding="ascii").splitlines() if corpus.exists() else [
        f"# Inputs of the fuzz target {corpus.stem}, one per line, see tools/fuzz_corpus.py."]
    known = {content for _, content in inputs_of(corpus)} if corpus.exists() else set()
    added = 0
    for name in names:
        content = pathlib.Path(name).read_bytes()
        if content and content not in known:
            known.add(content)
            lines.append(content.hex())
            added += 1
    corpus.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    print(f"{added} of {len(names)} added, {len(known)} inputs")


def unpack(corpus, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for number, content in inputs_of(corpus):
        (folder / f"{number:04}").write_bytes(content)


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] not in ("add", "unpack"):
        sys.exit(__doc__)
    {"add": add, "unpack": unpack}[sys.argv[1]](pathlib.Path(sys.argv[2]), *sys.argv[3:])
