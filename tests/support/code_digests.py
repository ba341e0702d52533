# SPDX-License-Identifier: Apache-2.0
"""What ties a model or a litmus test to the code: lines in it that say

  code: FILE FUNCTION DIGEST

with the digest of the function's text, without comments and without the contents of string literals. When the function changes,
look whether the model still fits; then put the digest that is asked for."""
import hashlib
import os
import re


def function_text(path, name):
    """The definition of a function, from its name to the brace that ends it, without comments; None: there is none."""
    with open(path, encoding="utf-8") as f:
        text = re.sub(r"//.*", "", f.read())
    for start in re.finditer(rf"(?<![\w:.>]){re.escape(name)}\(", text):
        head = re.compile(r"[^;{}]*\{").match(text, start.start())
        if not head:
            continue
        depth, at = 1, head.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        return text[start.start() : at]
    return None


def digest_of(path, name):
    text = function_text(path, name)
    if text is None:
        return None
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', '""', text)
    return hashlib.sha256(re.sub(r"\s+", " ", text).encode()).hexdigest()[:8]


def stale(name, text, root):
    """What is to be said of the lines of `text`."""
    wrong = []
    lines = re.findall(r"^[ *]*code: (\S+) (\S+) ?(\w*)$", text, re.M)
    if not lines:
        wrong.append(f"{name}: no line says which code it is of")
    for path, function, digest in lines:
        found = digest_of(os.path.join(root, path), function)
        if found is None:
            wrong.append(f"{name}: {path} has no function {function}")
        elif found != digest:
            wrong.append(f"{name}: {path} {function} has changed: look whether this still fits, then say {found}")
    return wrong
