# SPDX-License-Identifier: Apache-2.0
"""What many workers cost a trainer, in instructions: of feedlane_loader_next and release for each batch, of a later epoch's begin,
and of the first one, which starts the workers. Counted by callgrind, so neither the processor nor what else it does matters; the
workers run natively.

Usage: python3 tools/bench/crowd.py [--crowd build/tools/bench/crowd] [--valgrind valgrind] [--workers N...] [--batches N] [--json]
(valgrind 3.21 or newer: tools/get-valgrind)"""
import argparse
import json
import re
import subprocess
import sys
import tempfile

COUNTED = ("counted_batches", "counted_begin", "counted_start")


def instructions(options, workers, counted):
    with tempfile.NamedTemporaryFile() as out:
        command = [options.valgrind, "-q", "--tool=callgrind", "--collect-atstart=no", f"--toggle-collect={counted}",
                   f"--callgrind-out-file={out.name}", options.crowd, str(workers), str(options.batches)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"crowd.py: {' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        with open(out.name, encoding="ascii") as file:
            total = int(re.findall(r"^(?:totals|summary): (\d+)", file.read(), re.M)[-1])
    return total / int(done.stdout) if counted == "counted_batches" else total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--crowd", default="build/tools/bench/crowd")
    parser.add_argument("--valgrind", default="valgrind")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 8, 64, 256, 1024])
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for workers in options.workers:
        rows.append({"workers": workers, **{c: round(instructions(options, workers, c)) for c in COUNTED}})
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'workers':>8} {'a batch':>12} {'begin':>12} {'first begin':>14}   instructions of the trainer")
    for row in rows:
        print(f"{row['workers']:>8} {row['counted_batches']:>12,} {row['counted_begin']:>12,} {row['counted_start']:>14,}")


if __name__ == "__main__":
    main()
