#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the methods and data members of the classes of a C++ header.

Usage: class_sizes.py FILE...

Prints a line for each class: methods, data members, name, file; the largest first. house.py holds the numbers to its limits.

A method is a declaration of a member function in the body of the class, private ones and static ones included; constructors,
destructors, operators, friends and nested types are not. A data member is a variable of each object: static ones are not.
This is no parser of C++: it reads declarations as this project writes them, laid out by clang-format.
"""

import dataclasses
import re
import sys

NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)
ATTRIBUTE = re.compile(r"\[\[.*?\]\]|\balignas\s*\([^()]*(?:\([^()]*\)[^()]*)*\)", re.S)
ACCESS = re.compile(r"^\s*(?:public|protected|private)\s*:(?!:)")
# `enum class` is an enumeration; what has a name and a body is a definition.
CLASS = re.compile(r"^(class|struct|union)\s+((?:\w+::)*\w+)\s*(?:final\s*)?(?::[^:].*)?$", re.S)
ENUM = re.compile(r"^enum\b")
IGNORED = re.compile(r"^(?:(?:using|typedef|friend|static_assert)\b|(?:class|struct|union|enum)\s[^(){}]*$)")
FUNCTION_NAME = re.compile(r"(operator\s*(?:\(\)|[^\s\w(]+|\w[\w:\s&*<>]*)|~?\w+)\s*$")


@dataclasses.dataclass
class Class:
    """What was counted for one class. `const_methods`: those of its methods that cannot change an object."""

    name: str
    kind: str
    methods: list = dataclasses.field(default_factory=list)
    const_methods: int = 0
    members: list = dataclasses.field(default_factory=list)
    has_sections: bool = False  # public, protected, private

    def is_plain(self):
        """A struct of values: all public, and no method changes it."""
        return self.kind != "class" and not self.has_sections and self.const_methods == len(self.methods)


def classes_of(text):
    """Every class that is defined in this text, nested ones included as Outer::Inner."""
    text = DIRECTIVE.sub("", NOISE.sub(lambda m: '""' if m[0][0] in "\"'" else "", text))
    found = []
    read_scope(ATTRIBUTE.sub("", text), None, found)
    return found


def without_comments(text):
    """The text with its comments blanked, so that lines keep their numbers."""
    return NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]) if m[0].startswith("/") else m[0], text)


def closing(text, start):
    """The place of the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "({[") - (text[i] in ")}]")
        if depth == 0:
            return i
    raise ValueError("a bracket is not closed: " + text[start : start + 60])


def read_scope(text, owner, found):
    """Reads the declarations of a namespace, or of the class `owner`."""
    head, at = "", 0
    while at < len(text):
        if owner is not None and not head.strip() and (access := ACCESS.match(text, at) or ACCESS.match(text[at:])):
            owner.has_sections = True
            at += len(access[0])
            continue
        c = text[at]
        if c == ";":
            declare(head, owner)
            head = ""
        elif c in "([":
            end = closing(text, at)
            head += text[at : end + 1]
            at = end
        elif c == "{":
            end = closing(text, at)
            head, at = read_braces(head, text, at, end, owner, found)
        else:
            head += c
        at += 1


def read_braces(head, text, start, end, owner, found):
    """What `head {...}` is. Returns the head and the place that reading goes on from."""
    body = text[start + 1 : end]
    words = without_template(head.strip())
    if re.match(r"(inline\s+)?namespace\b|extern\s", words):
        read_scope(body, owner, found)
        return "", end
    if match := CLASS.match(words):
        inner = Class((owner.name + "::" if owner else "") + match[2], match[1])
        found.append(inner)
        read_scope(body, inner, found)
        return "struct_value ", end  # `struct {...} name;` declares a member; `struct Name {...};` none
    if ENUM.match(words):
        return "struct_value ", end
    if not is_function(words):
        return head + "{}", end  # an initialiser
    if re.search(r"\)\s*:[^:]", words) and not words.endswith(")"):  # `: member_{value}` of a constructor
        return head + "{}", end
    declare(head, owner)
    return "", end


def without_template(words):
    """The declaration without `template <...>` in front of it."""
    while match := re.match(r"template\s*<", words):
        at, depth = match.end(), 1
        while depth != 0:
            if words[at] == "(":
                at = closing(words, at)
            depth += (words[at] == "<") - (words[at] == ">")
            at += 1
        words = words[at:].strip()
    return words


def is_function(words):
    """A declaration with parentheses before any initialiser."""
    before = re.split(r"(?<![=!<>])=(?!=)", without_brackets(words, "<", ">"), maxsplit=1)[0]
    return "(" in before or "operator" in words


def without_brackets(text, opening, closer):
    """The text without what is between angle brackets, whose commas and parentheses are types'."""
    kept, depth = "", 0
    for i, c in enumerate(text):
        if c == opening and not text[:i].rstrip().endswith("operator"):
            depth += 1
        if depth == 0:
            kept += c
        if c == closer and depth and text[i - 1] != "-":
            depth -= 1
    return kept


def declare(head, owner):
    """Counts one declaration of the class `owner`."""
    words = without_template(re.sub(r"\s+", " ", head).strip())
    if owner is None or not words or words == "struct_value" or IGNORED.match(words):
        return
    if is_function(words):
        flat = without_brackets(words, "<", ">")
        before = flat.split("(", 1)[0]
        name = FUNCTION_NAME.search(before)
        name = name[1] if name else before
        if "operator" in before or name.startswith("~") or name == owner.name.split("::")[-1]:
            return
        owner.methods.append(name)
        owner.const_methods += bool(re.search(r"\)\s*const\b", flat)) or words.startswith("static ")
        return
    if re.match(r"(?:inline |constexpr )*static\b", words):
        return
    declarators = re.sub(r"\{\}|=.*?(?=,|$)", "", without_brackets(words, "<", ">"))
    owner.members += [re.sub(r"\[.*|(?<!:):(?!:).*", "", part).split()[-1].lstrip("*&") for part in declarators.split(",")]


def main():
    rows = []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            rows += [(len(c.methods), len(c.members), c.name, path) for c in classes_of(file.read())]
    for methods, members, name, path in sorted(rows, reverse=True):
        print(f"{methods:3} methods {members:3} members  {name}  {path}")


if __name__ == "__main__":
    main()
