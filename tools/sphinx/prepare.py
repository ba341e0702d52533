#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes Sphinx's sources: the documents, the files that they link to, pages for the headers, and the navigation.

Usage: prepare.py ROOT FOLDER

The documents keep their places below FOLDER, so that their links hold. README.md becomes index.md. The navigation has the groups
of the table under "Documents" in README.md, and in each group the documents that its row links to. Documents that no row names
come after these: packages and the changelog for users, examples and headers for integrators, others for developers.
"""

import os
import re
import shutil
import sys
from pathlib import Path

DOCUMENTS = "*.md", "docs/*.md", "capi/*/README.md", "examples/**/README.md"
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
GROUPS = "users", "integrators", "sceptics", "developers"


def without_code(text):
    return FENCE.sub("", text)


def group_of(document):
    if document.startswith("capi/") or document == "CHANGELOG.md":
        return "users"
    return "integrators" if document.startswith("examples/") else "developers"


def navigation(readme, documents):
    """The documents of each group, in order."""
    groups = {name: [] for name in GROUPS}
    for name in GROUPS:
        row = re.search(rf"^\| {name} \| (.*) \|$", readme, re.MULTILINE)
        if row is None:
            raise SystemExit(f"prepare.py: the table of documents in README.md has no row {name}")
        groups[name] += [target for _, target, _, _ in LINK.findall(row[1]) if target in documents]
    placed = {document for names in groups.values() for document in names}
    for document in documents:
        if document not in placed and document != "README.md":
            groups[group_of(document)].append(document)
    return groups


def toctree(caption, pages):
    lines = "\n".join(re.sub(r"\.\w+$", "", page) for page in pages)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"


def rewritten(text, document, root, folder):
    """The text with links to README.md led to index.md. Copies the other files that it links to."""

    def lead(match):
        opening, target, anchor, closing = match.groups()
        if ":" in target:
            return match[0]
        path = Path(os.path.normpath(root / Path(document).parent / target))
        if path == root / "README.md":
            target = os.path.relpath("index.md", Path(document).parent)
        elif path.is_file() and path.suffix != ".md":
            copy = folder / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        return f"{opening}{target}{anchor or ''}{closing}"

    parts, at = [], 0
    for code in FENCE.finditer(text):
        parts += [LINK.sub(lead, text[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*parts, LINK.sub(lead, text[at:])])


def write_reference(root, folder):
    """A page for each header; returns the index."""
    names = []
    for header in sorted([*root.glob("include/feedlane/*.h"), *root.glob("include/feedlane/*.hpp")]):
        name = f"feedlane/{header.name}"
        page = folder / "reference" / f"{header.name}.rst"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"{name}\n{'=' * len(name)}\n\n.. doxygenfile:: {header.name}\n   :project: feedlane\n", encoding="utf-8")
        names.append(header.name)
    title = "Headers of C and C++"
    entries = "\n".join(f"   {name}" for name in names)
    index = folder / "reference/index.rst"
    index.write_text(f"{title}\n{'=' * len(title)}\n\n.. toctree::\n   :maxdepth: 1\n\n{entries}\n", encoding="utf-8")
    return "reference/index.rst"


def main(root, folder):
    shutil.rmtree(folder, ignore_errors=True)
    documents = [str(path.relative_to(root)) for pattern in DOCUMENTS for path in sorted(root.glob(pattern))]
    readme = (root / "README.md").read_text(encoding="utf-8")
    for document in documents:
        text = rewritten((root / document).read_text(encoding="utf-8"), document, root, folder)
        if document == "README.md":
            groups = navigation(readme, documents)
            groups["integrators"].append(write_reference(root, folder))
            text += "".join(toctree(name.capitalize(), pages) for name, pages in groups.items())
        page = folder / ("index.md" if document == "README.md" else document)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
