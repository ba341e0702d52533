#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the bare worker has typed in is what docs/layout.md says.

Usage: format_test.py LAYOUT_DOC_TEST DOCUMENT FORMAT_H ATTACH_C

A change of the page makes this fail until the worker is changed likewise. LAYOUT_DOC_TEST is the test that reads the page's
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
A_MONITORS = {"LoaderCounters", "LoaderFacts", "TimingRow", "Histogram", "ErrorRow", "BatchRecord", "TraceHead"}


def up(number, multiple):
    return (number + multiple - 1) // multiple * multiple


class Format:
    """The constants and structs of format.h, laid out by the rules of C on the platforms that Feedlane supports."""

    def __init__(self, path):
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
                alignment = self.constants["writer_distance"]
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
        return self.constants[name if name.startswith("FEEDLANE") else name.lower()]


class BareFormat(unittest.TestCase):
    maxDiff = None

    def test_constants(self):
        rows = document.rows("Constants", ("Name", "Value", "Meaning"))
        page = {plain(row["Name"]): int(plain(row["Value"]).replace(",", ""), 0) for row in rows}
        self.assertEqual({name: value for name, value in page.items()
                          if not NOT_A_WORKERS.match(name) and name != "welcome_fds"}, format_h.constants)

    def test_structs(self):
        described = document.structs()
        not_a_workers = A_MONITORS | {name for name in described if NO_WORKERS_STRUCT.match(name)}
        self.assertEqual(set(described) - not_a_workers, set(format_h.structs))
        for name, (fields, size) in format_h.structs.items():
            expected, heading = described[name]
            rows = document.rows(heading, ("Offset", "Size", "Type", "Field", "Meaning"))
            self.assertEqual([(int(r["Offset"]), int(r["Size"]), plain(r["Type"]), plain(r["Field"])) for r in rows],
                             fields, name)
            self.assertEqual(expected, size, name)

    def test_descriptors(self):
        rows = document.rows("Descriptors of the welcome", ("Number", "Name", "What"))
        typed = next(names for names in format_h.enums if names[0][0] == "welcome_control")
        self.assertEqual([(int(r["Number"]), plain(r["Name"])) for r in rows],
                         [(number, name) for number, (name, _) in enumerate(typed[:-1])])

    def test_statuses(self):
        with open(path_of_document, encoding="utf-8") as file:
            page = {int(value) for value in re.findall(r"^\| (-?\d+) \(\w+\) \|", file.read(), re.M)}
        typed = next(names for names in format_h.enums if names[0][0] == "status_ok")
        self.assertEqual(page, {int(value) for _, value in typed})

    def test_order_and_alignment_of_regions(self):
        page = [(plain(r["Region"]), int(r["Alignment"])) for heading in ("Control", "Data")
                for r in document.rows(heading, ("Region", "Alignment", "Bytes"))]
        typed = [(name, int(alignment)) for name, alignment in re.findall(r"p\.(\w+) = region\(&end, (\d+),", attach_c)]
        self.assertEqual([region for region in page if region[0] not in ("header", "geometry")], typed)


def plain(cell):
    return cell.strip("`")


if __name__ == "__main__":
    path_of_reader, path_of_document, path_of_format, path_of_attach = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("layout_doc_test", path_of_reader)
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    document, format_h = reader.Document(path_of_document), Format(path_of_format)
    with open(path_of_attach, encoding="utf-8") as source:
        attach_c = source.read()
    unittest.main(argv=sys.argv[:1])
