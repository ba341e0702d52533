#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of what `feedlane` shows, as SVG: of a terminal's text, and of a trace.

Usage: pictures.py terminal TEXT OUT [TITLE]
       pictures.py trace TRACE OUT [FROM_MS UNTIL_MS]

TEXT is output with its colours (ANSI escape sequences), as `script -qc COMMAND` records it. TRACE is a file of
`feedlane trace -o FILE.json`; the picture shows every track that has something between the two times, counted from the first
event. Both are drawn from the file alone: nothing is added or left out but what does not fit the times.
"""

import json
import re
import sys
from html import escape

CHAR, LINE, MARGIN = 7.8, 17, 12  # pixels, at a font of 13
INK, PAPER = "#d7dae0", "#1e222a"
COLOURS = {31: "#e06c75", 32: "#98c379", 33: "#e5c07b", 34: "#61afef", 35: "#c678dd", 36: "#56b6c2", 37: INK, 90: "#7f848e"}
COLOURS.update({code + 60: colour for code, colour in COLOURS.items() if code < 38})
ESCAPE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")
PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b")


def header(width, height, paper):
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13">\n'
        f'<rect width="100%" height="100%" rx="6" fill="{paper}"/>\n'
    )


# ---- a terminal ----


def spans(line):
    """(text, colour, is_bold) of each stretch of a line."""
    colour, bold, at = INK, False, 0
    for match in ESCAPE.finditer(line):
        if match.start() > at:
            yield line[at : match.start()], colour, bold
        at = match.end()
        if match[2] != "m":
            continue
        for code in [int(part or 0) for part in match[1].split(";")]:
            if code == 0:
                colour, bold = INK, False
            elif code == 1:
                bold = True
            elif code == 22:
                bold = False
            elif code == 39:
                colour = INK
            else:
                colour = COLOURS.get(code, colour)
    if at < len(line):
        yield line[at:], colour, bold


def draw_terminal(text, title):
    lines = [line.split("\r")[-1] for line in text.replace("\r\n", "\n").rstrip("\n").split("\n")]
    lines = [line for line in lines if not line.startswith(("Script started", "Script done"))]
    while lines and not lines[-1].strip():
        lines.pop()
    lines = ([f"\x1b[90m$ {title}\x1b[0m"] if title else []) + lines
    width = max(len(ESCAPE.sub("", line)) for line in lines) * CHAR + 2 * MARGIN
    out = header(width, len(lines) * LINE + 2 * MARGIN, PAPER)
    for row, line in enumerate(lines):
        column = 0
        for part, colour, bold in spans(line):
            if part.strip():
                weight = ' font-weight="bold"' if bold else ""
                x, y = MARGIN + column * CHAR, MARGIN + row * LINE + 13
                out += (
                    f'<text x="{x:.1f}" y="{y}" fill="{colour}"{weight} xml:space="preserve" '
                    f'textLength="{len(part) * CHAR:.1f}">{escape(part)}</text>\n'
                )
            column += len(part)
    return out + "</svg>\n"


# ---- a trace ----


def tracks_of(events):
    """Name of each track, by (pid, tid), in the order in which a viewer sorts them."""
    processes, threads, order = {}, {}, {}
    for event in events:
        if event.get("ph") != "M":
            continue
        key = (event["pid"], event.get("tid"))
        if event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        elif event["name"] == "thread_name":
            threads[key] = event["args"]["name"]
        elif event["name"] == "thread_sort_index":
            order[key] = event["args"]["sort_index"]
    return {key: threads[key] for key in sorted(threads, key=lambda k: (k[0], order.get(k, 0), k[1]))}


def draw_trace(trace, begin_ms, end_ms):
    events = trace["traceEvents"]
    slices = [event for event in events if event.get("ph") == "X"]
    if not slices:
        sys.exit("pictures.py: the trace has no slices")
    start = min(event["ts"] for event in slices)
    begin = start + 1e3 * begin_ms
    end = max(event["ts"] + event["dur"] for event in slices) if end_ms is None else start + 1e3 * end_ms
    shown = [event for event in slices if event["ts"] < end and event["ts"] + event["dur"] > begin]
    used = {(event["pid"], event["tid"]) for event in shown}
    tracks = {key: name for key, name in tracks_of(events).items() if key in used}
    left = MARGIN + CHAR * max(len(name) for name in tracks.values()) + 10
    wide, high = 860, 24
    width = left + wide + MARGIN
    out = header(width, (len(tracks) + 1) * high + 2 * MARGIN, "#ffffff")
    rows = {key: MARGIN + number * high for number, key in enumerate(tracks)}
    for key, name in tracks.items():
        y = rows[key]
        out += f'<text x="{MARGIN}" y="{y + 16}" fill="#333">{escape(name)}</text>\n'
        out += f'<line x1="{left}" x2="{left + wide}" y1="{y + high - 1}" y2="{y + high - 1}" stroke="#ddd"/>\n'
    for event in shown:
        key = (event["pid"], event["tid"])
        if key not in rows:
            continue
        x = left + wide * (max(event["ts"], begin) - begin) / (end - begin)
        w = wide * (min(event["ts"] + event["dur"], end) - max(event["ts"], begin)) / (end - begin)
        number = re.search(r"\d+", event["name"])
        colour = PALETTE[int(number[0]) % len(PALETTE)] if number else "#bbbbbb"
        out += (
            f'<rect x="{x:.2f}" y="{rows[key] + 2}" width="{max(w, 0.5):.2f}" height="{high - 6}" rx="2" fill="{colour}">'
            f'<title>{escape(event["name"])}: {event["dur"] / 1e3:.3f} ms</title></rect>\n'
        )
        label = number[0] if number else event["name"]
        if w > CHAR * (len(label) + 1):
            out += f'<text x="{x + 4:.2f}" y="{rows[key] + 15}" fill="#fff" font-size="11">{escape(label)}</text>\n'
    y = MARGIN + len(tracks) * high + 16
    for part in range(5):
        x = left + wide * part / 4
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        time = (begin - start) / 1e3 + (end - begin) / 1e3 * part / 4
        out += f'<text x="{x:.1f}" y="{y}" fill="#333" text-anchor="{anchor}" font-size="11">{time:.4g} ms</text>\n'
    return out + "</svg>\n"


def main(arguments):
    if len(arguments) < 3 or arguments[0] not in ("terminal", "trace"):
        sys.exit(__doc__)
    with open(arguments[1], encoding="utf-8") as file:
        text = file.read()
    if arguments[0] == "terminal":
        picture = draw_terminal(text, arguments[3] if len(arguments) > 3 else "")
    else:
        times = [float(argument) for argument in arguments[3:5]]
        picture = draw_trace(json.loads(text), times[0] if times else 0, times[1] if len(times) > 1 else None)
    with open(arguments[2], "w", encoding="utf-8") as file:
        file.write(picture)


main(sys.argv[1:])
