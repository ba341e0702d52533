#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/layout.md says what the code does: every struct, field, constant and region.

Usage: layout_doc_test.py LAYOUT_DUMP DOCUMENT HEADER...

LAYOUT_DUMP prints what the compiler made of it. The headers are read too, so that a field which nobody told LAYOUT_DUMP
of is missed.
"""

import re
import subprocess
import sys
import unittest

GEOMETRY = ("workers", "slots", "max_rows", "field_count", "ring_capacity", "config_bytes", "slot_bytes", "list_bytes",
            "record_rows", "trace_records")
GEOMETRIES = [
    (0, 1, 1, 1, 1, 0, 1, 8, 0, 0),
    (1, 2, 3, 1, 2, 1, 4096, 65536, 3, 1),
    (2, 5, 9, 3, 8, 10, 4097, 72, 0, 0),
    (3, 64, 128, 64, 64, 4096, 1 << 20, 65536, 128, 4096),
    (7, 100, 40960, 17, 1024, 12345, 1234567, 327680, 0, 1000),
    (4096, 64, 1, 2, 64, 64, 100, 65536, 1, 1 << 24),
]


RING_GEOMETRY = ("message_bytes", "capacity", "lanes")
RING_GEOMETRIES = [(1, 1, 1), (56, 2, 3), (57, 64, 7), (1 << 20, 8, 2), (8, 1 << 24, 4), (100, 16, 31), (100, 16, 4096)]

ARENA_GEOMETRY = ("entries", "buckets", "members", "leases")
ARENA_GEOMETRIES = [(1, 1, 1, 1), (3, 4, 2, 5), (1024, 1024, 17, 1024), (1 << 20, 1 << 20, 256, 1 << 16), (5000, 8192, 3, 7)]

SHARE_GEOMETRY = ("slots", "capacity")
SHARE_GEOMETRIES = [(1, 64), (2, 1), (3, 64), (31, 64), (100, 256), (1 << 20, 1 << 21)]


def up(number, multiple):
    return (number + multiple - 1) // multiple * multiple

WRITERS = ("trainer", "worker", "receiver", "sender", "feeder", "consumer", "guest", "host",
           "owner", "member")


class Dump:
    """What the compiler says."""

    def __init__(self, program):
        requests = [("loader", *g) for g in GEOMETRIES] + [("ring", *g) for g in RING_GEOMETRIES]
        requests += [("share", *g) for g in SHARE_GEOMETRIES] + [("arena", *g) for g in ARENA_GEOMETRIES]
        lines = "\n".join(" ".join(map(str, request)) for request in requests)
        text = subprocess.run([program], input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout
        self.sizes, self.fields, self.constants, self.descriptors = {}, {}, {}, []
        self.plans = {}
        for line in text.splitlines():
            kind, rest = line.split(" ", 1)
            if kind == "struct":
                name, size = rest.split()
                self.sizes[name], self.fields[name] = int(size), []
            elif kind == "field":
                struct, offset, size, name, type_ = rest.split(" ", 4)
                self.fields[struct].append((int(offset), int(size), type_, name))
            elif kind == "constant":
                name, value = rest.split()
                self.constants[name] = int(value)
            elif kind == "descriptor":
                number, name = rest.split()
                self.descriptors.append((int(number), name))
            elif kind == "plan":
                segment, *regions = rest.split()
                places = {name: int(at) for name, at in (r.split("=") for r in regions)}
                self.plans.setdefault(segment, []).append(places)


class Document:
    """The tables of the document, by the heading that they stand under."""

    def __init__(self, path):
        self.tables, self.headings = {}, []
        with open(path, encoding="utf-8") as file:
            heading = None
            for line in file:
                if line.startswith("#"):
                    heading = line.lstrip("#").strip()
                    self.headings.append(heading)
                elif line.startswith("|"):
                    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
                    if not set("".join(cells)) <= set("-: "):
                        self.tables.setdefault(heading, []).append(cells)

    def rows(self, heading, columns):
        """The rows under a heading, as dictionaries; the first row has the names."""
        table = self.tables[heading]
        missing = set(columns) - set(table[0])
        if missing:
            raise AssertionError(f"{heading}: no column {missing}")
        return [dict(zip(table[0], row)) for row in table[1:]]

    def structs(self):
        """name -> (bytes, heading) of the headings "`Name`, N bytes"."""
        found = {}
        for heading in self.headings:
            match = re.fullmatch(r"`([\w:]+)`, (\d+) bytes", heading)
            if match:
                found[match[1]] = (int(match[2]), heading)
        return found


def declared(paths):
    """struct -> names of its members, as the headers declare them. A plan lies in no shared memory. The greeting of a shared
    loader has names of the worker's, so its own are qualified, and so is what all greetings have in common."""
    structs = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"//[^\n]*", "", file.read())
        room = next((f"{name}::" for name in ("sharing", "greeting") if f"namespace feedlane::{name} {{" in text), "")
        for name, body in re.findall(r"\nstruct (\w+) \{(.*?)\n\};", text, re.S):
            if not name.endswith("Plan"):
                structs[room + name] = re.findall(r"(\w+)(?:\[[\w:]+\])?;", body)
    return structs


def plain(cell):
    return cell.strip("`")


class LayoutDocument(unittest.TestCase):
    maxDiff = None

    def test_every_member_in_the_headers_is_looked_at(self):
        seen = {struct: [field[3] for field in fields] for struct, fields in dump.fields.items()}
        self.assertEqual(declared(headers), seen)

    def test_no_byte_is_unaccounted_for(self):
        """Between two fields, and behind the last, lies only what keeps words of different writers apart."""
        for struct, fields in dump.fields.items():
            end = 0
            for offset, size, _, name in fields + [(dump.sizes[struct], 0, "", "end")]:
                hole = offset - end
                apart = offset % dump.constants["writer_distance"] == 0
                self.assertTrue(hole == 0 or apart, f"{struct}.{name} after {hole} bytes")
                end = offset + size

    def test_structs(self):
        described = document.structs()
        self.assertEqual({name: size for name, (size, _) in described.items()}, dump.sizes)
        for name, (_, heading) in described.items():
            rows = document.rows(heading, ("Offset", "Size", "Type", "Field", "Writer", "Meaning"))
            fields = [(int(r["Offset"]), int(r["Size"]), plain(r["Type"]), plain(r["Field"])) for r in rows]
            self.assertEqual(fields, dump.fields[name], name)
            for row in rows:
                self.assertIn(row["Writer"], WRITERS, f"{name}.{row['Field']}")
                self.assertTrue(row["Meaning"], f"{name}.{row['Field']}")

    def test_constants(self):
        rows = document.rows("Constants", ("Name", "Value", "Meaning"))
        found = {plain(row["Name"]): int(plain(row["Value"]).replace(",", ""), 0) for row in rows}
        self.assertEqual(found, dump.constants)

    def test_descriptors(self):
        described = []
        for heading in ("Descriptors of the welcome", "Descriptors of a ring's welcome",
                        "Descriptors of a shared loader's welcome", "Descriptors of an arena's welcome"):
            rows = document.rows(heading, ("Number", "Name", "What"))
            described += [(int(r["Number"]), plain(r["Name"])) for r in rows]
        self.assertEqual(described, dump.descriptors)

    def check_segment(self, segment, heading, names, geometries):
        rows = document.rows(heading, ("Region", "Alignment", "Bytes", "Written by", "What"))
        self.assertEqual(len(dump.plans[segment]), len(geometries))
        for geometry, plan in zip(geometries, dump.plans[segment]):
            known = dict(zip(names, geometry), up=up, min=min, max=max)
            places, end = {}, 0
            for row in rows:
                formula = plain(row["Bytes"])
                self.assertRegex(formula, r"^[\w\s*+(),]+$")
                at = up(end, int(row["Alignment"]))
                places[plain(row["Region"])] = at
                end = at + eval(formula, {"__builtins__": {}}, known)  # of the document's own numbers and names
            places["end"] = up(end, dump.constants["payload_alignment"])
            self.assertEqual(places.pop("margin" if segment == "data" else "header"), 0)
            self.assertEqual(places.pop("geometry", dump.sizes["SegmentHeader"]), dump.sizes["SegmentHeader"])
            self.assertEqual(list(places.items()), list(plan.items()), f"{segment}, geometry {geometry}")

    def test_regions(self):
        self.check_segment("control", "Control", GEOMETRY, GEOMETRIES)
        self.check_segment("data", "Data", GEOMETRY, GEOMETRIES)

    def test_regions_of_a_standalone_ring(self):
        self.check_segment("ring_control", "Control of a ring", RING_GEOMETRY, RING_GEOMETRIES)
        self.check_segment("ring_data", "Data of a ring's lane", RING_GEOMETRY, RING_GEOMETRIES)

    def test_regions_of_a_shared_loader(self):
        self.check_segment("share_catalogue", "Catalogue", SHARE_GEOMETRY, SHARE_GEOMETRIES)
        self.check_segment("share_delivery", "Delivery", SHARE_GEOMETRY, SHARE_GEOMETRIES)
        self.check_segment("share_returns", "Returns", SHARE_GEOMETRY, SHARE_GEOMETRIES)

    def test_regions_of_an_arena(self):
        self.check_segment("arena_control", "Control of an arena", ARENA_GEOMETRY, ARENA_GEOMETRIES)
        self.check_segment("arena_answers", "Answers", ARENA_GEOMETRY, ARENA_GEOMETRIES)
        self.check_segment("arena_member", "Member", ARENA_GEOMETRY, ARENA_GEOMETRIES)


if __name__ == "__main__":
    program, path, *headers = sys.argv[1:]
    dump, document = Dump(program), Document(path)
    unittest.main(argv=sys.argv[:1])
