#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/performance.md anew from the raw figures in docs/performance/: what stands between
`<!-- table: NAME -->` and `<!-- end -->`. Draws the picture of the README, docs/figures/peers.svg, from the same figures. No figure there
is typed.

Usage: tools/bench/page.py [--check]    --check: fails if the page or the picture isn't what the raw files say"""
import json
import pathlib
import re
import sys

import goals as bench_goals

ROOT = pathlib.Path(__file__).resolve().parents[2]

PAGE, RAW, PICTURE = ROOT / "docs/performance.md", ROOT / "docs/performance", ROOT / "docs/figures/peers.svg"
KIB, MIB = 1 << 10, 1 << 20
MISSING = "Not measured yet: `tools/bench/all`."


def raw(group):
    path = RAW / f"{group}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def number(value):
    """Four digits, without an exponent."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{float(f'{value:.4g}'):,.0f}"
    return f"{value:.4g}"


def cell(spread):
    if spread is None:
        return "-"
    return f"{number(spread['median'])} [{number(spread['min'])} .. {number(spread['max'])}]"


def size(count):
    return f"{count // MIB} MiB" if count >= MIB else f"{count // KIB} KiB" if count >= KIB else f"{count} B"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def group_table(group, head, row_of, wanted=lambda row: True):
    got = raw(group)
    if got is None:
        return MISSING
    return f"`{got['command']}`:\n\n" + table(head, [row_of(row) for row in got["rows"] if wanted(row)])


# ---- the tables ----

def ring():
    return group_table("ring", ["56 bytes between two processes", "there and back, ns", "over the line", "CPU of both sides, ns",
                                "one way, million/s", "CPU of both sides, ns"],
                       lambda r: (r["name"], cell(r["rtt_ns"]), cell(r["rtt_over_line"]), cell(r.get("rtt_cpu_ns")), cell(r["one_way_mmsg_s"]),
                                  cell(r.get("one_way_cpu_ns"))))


def latency():
    return group_table("latency", ["messages/s", "ns from when each was due", "p50", "p99", "p99.9", "most", "receiver's CPU, of its time"],
                       lambda r: (r["rate"], r["name"], cell(r["p50_ns"]), cell(r["p99_ns"]), cell(r["p999_ns"]), cell(r["max_ns"]),
                                  cell(r.get("receiver_cpu_share"))))


def lanes():
    return group_table("lanes", ["producers", "feedlane, million/s", "as many spsc_queues", "over them", "boost::lockfree::queue",
                                 "over it"],
                       lambda r: (r["producers"], cell(r["mmsg_s"]), cell(r["boost_spsc_queues_mmsg_s"]),
                                  cell(r["over_spsc_queues"]), cell(r["boost_queue_mmsg_s"]), cell(r["over_queue"])))


def handoff():
    return group_table("handoff", ["batch", "workers", "prefetch", "batches/s", "GB/s", "as many copiers, GB/s", "ratio",
                                   "over copiers with a reader", "trainer, us", "its CPU, us"],
                       lambda r: (size(r["bytes"]), r["workers"], r["prefetch"], cell(r["batches_s"]), number(r["gb_s"]),
                                  number(r["copiers_gb_s"]), cell(r["ratio"]), cell(r["over_read_copiers"]),
                                  number(r["trainer_wall_us"]),
                                  number(r["trainer_cpu_us"])))


def arena():
    return group_table("arena", ["entry", "members that send", "entries/s", "GB/s", "as many copiers, GB/s", "ratio",
                                 "over copiers with a reader", "put to receive, us, p50", "p99", "get, us, p50", "p99"],
                       lambda r: (size(r["bytes"]), r["senders"], number(r["entries_s"]), number(r["gb_s"]),
                                  number(r["copiers_gb_s"]), cell(r["ratio"]), cell(r["over_read_copiers"]),
                                  *(cell(r[name]) for name in ("put_to_receive_p50_us", "put_to_receive_p99_us", "get_p50_us",
                                                               "get_p99_us"))),
                       lambda r: "senders" in r)


def arena_end():
    return group_table("arena", ["memory of the owner", "its end to a waiting member, us", "end of a process to a poll of its pidfd, us",
                                 "ratio"],
                       lambda r: (size(r["ended_bytes"]), cell(r["owner_end_us"]), cell(r["process_end_us"]), cell(r["ratio"])),
                       lambda r: "ended_bytes" in r)


def loader():
    return group_table("loader", ["sample", "by", "workers", "samples/s, in batches of 64",
                                  "as many loops (0: one, in the trainer)", "ratio"],
                       lambda r: (size(r["sample_bytes"]), r.get("by", "get"), r["workers"], cell(r["samples_s"]), cell(r["loops_samples_s"]),
                                  cell(r["ratio"])), lambda r: "samples_s" in r)


def small():
    return group_table("small", ["out of", "samples a batch", "by", "ns a sample", "the loop, ns", "the loop over it", "beyond it, ns a batch"],
                       lambda r: (size(r["memory_bytes"]), r["batch_size"], r["by"], cell(r["sample_ns"]), cell(r["loop_ns"]),
                                  cell(r["ratio"]), number(r["beyond_ns"])))


def crowd():
    return group_table("loader", ["workers", "us for a batch of 64 bytes", "by bare eventfds", "ratio"],
                       lambda r: (r["workers"], cell(r["batch_us"]), cell(r["eventfd_us"]), cell(r["ratio"])),
                       lambda r: "batch_us" in r)


def work():
    return group_table("work", ["work of a batch, us", "workers", "batches/s", "of as many processes that hand nothing over",
                                "CPU beyond the work, us", "sleeps"],
                       lambda r: (r["work_us"], r["workers"], cell(r["batches_s"]), cell(r["ratio"]), number(r["cpu_beyond_us"]),
                                  number(r["switches"])))


def sharing():
    return group_table("sharing", ["batch", "consumers", "batches/s at the slowest", "feeder's and worker's CPU, us", "a consumer's, us",
                                   "separate loaders, batches/s", "their workers' CPU, us"],
                       lambda r: (size(r["bytes"]), r["consumers"], cell(r["batches_per_s"]), cell(r["feeder_and_worker_us"]),
                                  cell(r["consumer_us"]), cell(r["separate_batches_per_s"]), cell(r["separate_workers_us"])))


def cpp():
    return group_table("cpp", ["the C++ interface", "C, ns of CPU time", "C++, ns", "ratio"],
                       lambda r: (r["what"], cell(r["c_ns"]), cell(r["cpp_ns"]), cell(r["ratio"])))


def startup():
    return group_table("startup", ["workers", "mode", "first batch, ms", "beyond its pages", "new epoch, us", "bare wake, us",
                                   "end, ms", "beyond its pages"],
                       lambda r: (r["workers"], r["mode"], cell(r["first_batch_ms"]), cell(r["first_batch_beyond_pages_ms"]),
                                  cell(r["epoch_restart_us"]), cell(r.get("bare_wake_us")), cell(r["shutdown_ms"]),
                                  cell(r["shutdown_beyond_pages_ms"])))


def torch():
    def row_of(r):
        workers, prefetch, best = r["feedlane_best"]
        return (size(r["bytes"]), r.get("way", "tensors"), r["workers"], r["prefetch"], cell(r["torch_batches_s"]), cell(r["feedlane_batches_s"]),
                cell(r["ratio"]), f"{number(best)} ({workers}, {prefetch})")
    return group_table("torch", ["batch", "torch by", "workers", "prefetch", "torch's best, batches/s", "feedlane with the same", "ratio",
                                 "feedlane's own best (workers, prefetch)"], row_of, lambda r: "bytes" in r)


def torch_search():
    got = raw("torch")
    if got is None:
        return MISSING
    rows = [row for row in got["rows"] if "torch_searched" in row]
    columns = list(dict.fromkeys((t["workers"], t["prefetch"]) for t in rows[0]["torch_searched"]))

    def rates(row, way):
        found = {(t["workers"], t["prefetch"]): t["batches_s"] for t in row["torch_searched"] if t.get("way", "tensors") == way}
        return [number(found.get(column)) for column in columns]
    ways = list(dict.fromkeys(t.get("way", "tensors") for t in rows[0]["torch_searched"]))
    return table(["batch", "by", *(f"{w}, {p}" for w, p in columns)],
                 [(size(row["bytes"]), way, *rates(row, way)) for row in rows for way in ways])


def torch_startup():
    columns = [f"{name}_ms" for name in ("first_batch", "new_epoch", "end")]
    return group_table("torch", ["workers", *(f"{name}, {who}" for name in ("first batch, ms", "new epoch, ms", "end, ms")
                                              for who in ("torch", "feedlane"))],
                       lambda r: (r["workers"], *(cell(r[name][who]) for name in columns for who in ("torch", "feedlane"))),
                       lambda r: "end_ms" in r)


def settings_of(row):
    return ", ".join(f"{name} {'auto' if value == -1 else value}" for name, value in row["settings"].items()) or "-"


def peers(work, unit):
    return group_table(work, ["loader", "settings", f"{unit}/s", "over torch's best", "trainer, CPU us a batch", "all, CPU us a batch",
                                 "memory, MiB", "first batch, ms", "a worker is killed"],
                       lambda r: (r["name"], settings_of(r), cell(r["rate"]), cell(r["over_torch"]),
                                  *(number(r[name]["median"] if name in r else None)
                                    for name in ("trainer_us", "cpu_us", "memory_mib", "first_ms")),
                                  r.get("killed", "-")))


def photographs():
    return peers("photographs", "images")


def tokens():
    return peers("tokens", "sequences")


def table_rows():
    return peers("table", "rows")


def detection():
    return peers("detection", "targets")


def python():
    return group_table("python", ["batch", "samples", "workers", "prefetch", "torch by", "torch's DataLoader, batches/s", "feedlane.DataLoader",
                                  "ratio", "Loader", "ratio"],
                       lambda r: (size(r["bytes"]), "at once" if r["at_once"] else "each", r["workers"], r["prefetch"],
                                  r["torch_way"], cell(r["torch_batches_s"]), cell(r.get("in_place_batches_s")),
                                  cell(r.get("in_place_ratio")), cell(r["feedlane_batches_s"]), cell(r["ratio"])))


def rows():
    return group_table("rows", ["by", "workers", "samples/s", "of as many loops"],
                       lambda r: (r["by"], r["workers"], cell(r["samples_per_second"]), cell(r["over_loops"])))


def taken():
    """Of what the figures are."""
    lines = []
    for group in bench_goals.GROUPS:
        got = raw(group)
        if got is None:
            lines.append(f"- {group}: not measured yet")
            continue
        m = got["machine"]
        lines.append(f"- {group}: {got['date']}, commit {got['commit']}, {m['processors']} x {m['processor']}, {m['kernel']}"
                     + "".join(f", {name} {m[name]}" for name in ("compiler", "torch", "numpy", "python") if name in m)
                     + f"; {got['seconds']} s, in which other programs took {max(got['others_share'], 0):.1%} of the processors")
    return "\n".join(lines)


# ---- goals ----

def row_of(group, **which):
    got = raw(group)
    return next((row for row in got["rows"] if all(row.get(key) == value for key, value in which.items())), None) if got else None


def absolute():
    """(what, relation, goal, unit, what was seen): times and rates of this machine."""
    def seen(row, name):
        value = row[name] if row else None
        return value["median"] if isinstance(value, dict) else value
    yield "one way, one by one", ">=", 30, "million/s", seen(row_of("ring", name="feedlane, single"), "one_way_mmsg_s")
    for count, workers in ((4 * KIB, 1), (4 * KIB, 2), (MIB, 1), (MIB, 2), (147 * MIB, 1), (147 * MIB, 2)):
        yield (f"trainer's CPU time for a batch of {size(count)}, {workers} worker(s)", "<=", 1, "us",
               seen(row_of("handoff", bytes=count, workers=workers), "trainer_cpu_us"))
    for mode, most in (("fork", 4), ("spawn", 8)):
        for workers in 1, 2:
            yield (f"first batch beyond filling the pages, {mode}, {workers} worker(s)", "<=", most, "ms",
                   seen(row_of("startup", mode=mode, workers=workers), "first_batch_beyond_pages_ms"))
            yield (f"end beyond freeing the pages, {mode}, {workers} worker(s)", "<=", 2, "ms",
                   seen(row_of("startup", mode=mode, workers=workers), "shutdown_beyond_pages_ms"))


def verdict(seen, relation, goal):
    return "met" if (seen >= goal if relation == ">=" else seen <= goal) else "**not met**"


def goals():
    rows, listed = [], json.loads(bench_goals.GOALS.read_text(encoding="ascii"))
    for group in bench_goals.GROUPS:
        for name, spread in (raw(group) or {"ratios": {}})["ratios"].items():
            entry = bench_goals.goal_of(listed, name)
            if entry["goal"] is None:
                continue
            relation = ">=" if entry["better"] == "higher" else "<="
            rows.append((entry["what"], f"{relation} {entry['goal']:g}", cell(spread), verdict(spread["median"], relation, entry["goal"])))
    for what, relation, goal, unit, seen in absolute():
        if seen is not None:
            rows.append((what, f"{relation} {goal:g} {unit}", f"{number(seen)} {unit}", verdict(seen, relation, goal)))
    return table(["what", "goal", "seen", ""], rows) if rows else MISSING


TABLES = [taken, ring, latency, lanes, handoff, arena, arena_end, loader, small, crowd, work, sharing, cpp, startup, torch, torch_search,
          torch_startup, photographs, tokens, table_rows, detection, python, rows, goals]


def render(page):
    for make in TABLES:
        pattern = re.compile(rf"(<!-- table: {make.__name__} -->\n).*?(\n?<!-- end -->)", re.DOTALL)
        page, found = pattern.subn(lambda match, make=make: match[1] + make() + "\n<!-- end -->", page)
        if found != 1:
            sys.exit(f"tools/bench/page.py: {PAGE.name} has {found} places for the table {make.__name__}, should have 1")
    return page


# ---- the picture ----

COLOURS = {"torch": "#9aa0a6", "feedlane": "#174ea6"}
OTHERS = "#c8b46a"


def picture():
    """Samples per second relative to torch at its best, a group of bars for each kind of work, the fastest first."""
    left, width, bar, gap, y = 170, 420, 17, 40, 46
    parts = ['<text x="12" y="22" font-size="14" font-weight="bold">Samples per second, each loader with its fastest settings</text>']
    for work, unit in (("photographs", "images"), ("tokens", "sequences"), ("table", "rows"), ("detection", "targets")):
        got = raw(work)
        if got is None:
            continue
        rows = sorted(got["rows"], key=lambda row: -row["over_torch"]["median"])
        scale = width / rows[0]["over_torch"]["median"]
        parts.append(f'<text x="12" y="{y}" font-weight="bold">{work}, {unit}/s</text>')
        y += 8
        for row in rows:
            times = row["over_torch"]["median"]
            colour = next((colour for name, colour in COLOURS.items() if row["name"].startswith(name)), OTHERS)
            parts += [f'<text x="{left - 8}" y="{y + bar - 5}" text-anchor="end">{row["name"]}</text>',
                      f'<rect x="{left}" y="{y}" width="{max(times * scale, 1):.1f}" height="{bar - 2}" fill="{colour}"/>',
                      f'<text x="{left + times * scale + 6:.1f}" y="{y + bar - 5}">{number(row["rate"]["median"])} ({times:.2g} times)</text>']
            y += bar
        y += gap - 8
    got = raw("photographs")
    machine = got["machine"]
    parts.append(f'<text x="12" y="{y}" font-size="10" fill="#5f6368">{got["date"]}, {machine["processors"]} x '
                 f'{machine["processor"].replace("(R)", "")}, torch {machine["torch"].split("+")[0]}; times: over torch\'s best, the median of the rounds</text>')
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {y + 12}" font-family="sans-serif" font-size="12">',
                      f'<rect width="760" height="{y + 12}" fill="#ffffff"/>', *parts, "</svg>", ""])


def main():
    written = {PAGE: render(PAGE.read_text(encoding="utf-8")), PICTURE: picture()}
    if sys.argv[1:] == ["--check"]:
        for path, text in written.items():
            if path.read_text(encoding="utf-8") != text:
                sys.exit(f"{path.name} isn't what docs/performance/ says: run tools/bench/page.py")
    else:
        for path, text in written.items():
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
