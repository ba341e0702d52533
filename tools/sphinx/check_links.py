#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that each link inside the site leads to a file and an anchor that exist. Links to other sites are not followed.

Usage: check_links.py FOLDER

Prints broken links, then how many were checked. Status 1: a link is broken.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.update(attributes[name] for name in ("id", "name") if attributes.get(name))
        self.links += [attributes[name] for name in ("href", "src") if attributes.get(name)]


def main(folder):
    pages = {path.resolve(): Page(path) for path in folder.rglob("*.html")}
    checked, broken = 0, []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            checked += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            has_anchor = target not in pages or unquote(parts.fragment) in pages[target].anchors
            if not target.is_file() or not has_anchor:
                broken.append(f"{path.relative_to(folder.resolve())}: {link}")
    print(*sorted(set(broken)), sep="\n", end="\n" if broken else "")
    print(f"{checked} links, {len(set(broken))} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])) if len(sys.argv) == 2 else __doc__)
