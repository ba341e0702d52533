#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the bare worker and the bare member have typed in is what docs/layout.md says.

Usage: format_test.py LAYOUT_DOC_TEST DOCUMENT FORMAT_H ATTACH_C ARENA_FORMAT_H MEMBER_C

A change of the page makes this fail until they are changed likewise. LAYOUT_DOC_TEST is the test that reads the page's
tables for the library; how they are read comes from there.
"""

import importlib.util
import re
import sys
import unittest

TYPES = {"char": ("char", 1), "uint8_t": ("u8", 1), "uint16_t": ("u16", 2), "uint32_t": ("u32", 4), "uint64_t": ("u64", 8),
         "int32_t": ("i32", 4), "int64_t": ("i64", 8)}
NOT_A_WORKERS = re.compile(r"ring_|max_ring_|max_message_bytes|format_minor|histogram_buckets|error_text_words|share_|sharing::|greeting::|"
                           r"SegmentKind::|max_arena_|arena_|arena::|Arena|DeliveryKind::|delivery_cell_bytes|returned_unread")
NO_WORKERS_STRUCT = re.compile("Arena|SegmentRe|Ring|Receiver|Sender|sharing::|greeting::|Share|Catalogue|Delivery|Consumer|Feeder")
A_MEMBERS = re.compile(r"SegmentKind::arena_|(max_)?arena_|arena::(?!welcome_fds)|Arena|greeting::")
A_MEMBERS_STRUCT = re.compile("Arena|SegmentRe")
A_MONITORS = {"LoaderCounters", "LoaderFacts", "TimingRow", "Histogram", "ErrorRow", "BatchRecord", "TraceHead"}


def up(number, multiple):
    return (number + multiple - 1) // multiple * multiple


class Format:
    """The constants and structs of format.h, laid out by the rules of C on the platforms that Feedlane supports."""

    def __init__(self, path, base=None):
        self.base = base
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"//[^\n]*", "", file.read())
        self.constants = {name if name.startswith("FEEDLANE") else name.lower(): int(value.rstrip("u"), 0)
                          for name, value in re.findall(r"#define (\w+) (\w+)", text)}
        self.enums = [re.findall(r"(\w+)(?: = (-?\d+))?", body) for body in re.findall(r"enum \{(.*?)\}", text, re.S)]
        self.structs = {}
        for name, body in re.findall(r"struct (\w+) \{(.*?)\n\};", text, re.S):
            self.structs[name] = self.lay_out([line.strip() for line in body.split(";") if line.strip()])

    def lay_out(self, members):
        """[(offset, bytes, type, name)], and the size."""
        fields, end, largest = [], 0, 1
        for member in members:
            match = re.fullmatch(r"(alignas\(WRITER_DISTANCE\) )?(_Atomic |struct )?(\w+) (\w+)(?:\[(\w+)\])?", member)
            kind, name, count = match[3], match[4], match[5]
            if match[2] == "struct ":
                size, alignment, shown = self.structs[kind][1], 8, kind
            else:
                shown, size = TYPES[kind]
                alignment = size
            if match[1]:
                alignment = self.number("WRITER_DISTANCE")
            if match[2] == "_Atomic ":
                shown = f"atomic {shown}"
            if count:
                number = int(count) if count.isdigit() else self.number(count)
                shown, size = f"{shown}[{number}]", size * number
            end = up(end, alignment)
            fields.append((end, size, shown, name))
            end, largest = end + size, max(largest, alignment)
        return fields, up(end, largest)

    def number(self, name):
        key = name if name.startswith("FEEDLANE") else name.lower()
        return self.constants[key] if key in self.constants or not self.base else self.base.number(name)


class BareFormat(unittest.TestCase):
    maxDiff = None

    def test_constants(self):
        rows = document.rows("Constants", ("Name", "Value", "Meaning"))
        page = {plain(row["Name"]): int(plain(row["Value"]).replace(",", ""), 0) for row in rows}
        self.assertEqual({name: value for name, value in page.items()
                          if not NOT_A_WORKERS.match(name) and name != "welcome_fds"}, format_h.constants)
        self.assertEqual({as_macro(name): value for name, value in page.items() if A_MEMBERS.match(name)},
                         arena_format_h.constants)

    def check_structs(self, typed, names):
        described = document.structs()
        self.assertEqual({name for name in described if names(name)}, set(typed.structs))
        for name, (fields, size) in typed.structs.items():
            expected, heading = described[name]
            rows = document.rows(heading, ("Offset", "Size", "Type", "Field", "Meaning"))
            self.assertEqual([(int(r["Offset"]), int(r["Size"]), plain(r["Type"]), plain(r["Field"])) for r in rows],
                             fields, name)
            self.assertEqual(expected, size, name)

    def test_structs(self):
        self.check_structs(format_h, lambda name: name not in A_MONITORS and not NO_WORKERS_STRUCT.match(name))
        self.check_structs(arena_format_h, A_MEMBERS_STRUCT.match)

    def test_descriptors(self):
        for typed, heading in ((format_h, "Descriptors of the welcome"), (arena_format_h, "Descriptors of an arena's welcome")):
            rows = document.rows(heading, ("Number", "Name", "What"))
            names = next(names for names in typed.enums if names[0][0].endswith("welcome_control"))
            self.assertEqual([(int(r["Number"]), plain(r["Name"]).replace("::", "_")) for r in rows],
                             [(number, name) for number, (name, _) in enumerate(names[:-1])])

    def test_statuses(self):
        with open(path_of_document, encoding="utf-8") as file:
            page = {int(value) for value in re.findall(r"^\| (-?\d+) \(\w+\) \|", file.read(), re.M)}
        typed = next(names for names in format_h.enums if names[0][0] == "status_ok")
        self.assertEqual(page, {int(value) for _, value in typed})

    def test_order_and_alignment_of_regions(self):
        for source, headings, region in ((attach_c, ("Control", "Data"), r"p\.(\w+) = region\(&end, (\d+),"),
                                         (member_c, ("Control of an arena", "Answers", "Member"), r"()region\(&end, (\d+),")):
            page = [(plain(r["Region"]), int(r["Alignment"])) for heading in headings
                    for r in document.rows(heading, ("Region", "Alignment", "Bytes"))]
            typed = [(name, int(alignment)) for name, alignment in re.findall(region, source)]
            page = [(name if typed[0][0] else "", alignment) for name, alignment in page if name not in ("header", "geometry")]
            self.assertEqual(page, typed)


def plain(cell):
    return cell.strip("`")


def as_macro(name):
    """arena_entry_state_free of ArenaEntryState::free."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace("::", "_").lower()


if __name__ == "__main__":
    path_of_reader, path_of_document, path_of_format, path_of_attach, path_of_arena_format, path_of_member = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("layout_doc_test", path_of_reader)
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    document, format_h = reader.Document(path_of_document), Format(path_of_format)
    arena_format_h = Format(path_of_arena_format, format_h)
    with open(path_of_attach, encoding="utf-8") as source, open(path_of_member, encoding="utf-8") as another:
        attach_c, member_c = source.read(), another.read()
    unittest.main(argv=sys.argv[:1])
