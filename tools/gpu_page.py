#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tools/gpu asks of Python: the device's name, and the page of figures.

Usage: gpu_page.py --device                prints the name of the first CUDA device; 77 where there is none, with one line on stderr
       gpu_page.py --figures BENCH.json --output PAGE.md [...]    writes the page, and the raw figures beside it as .json"""
import argparse
import ctypes
import datetime
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "bench"))
from page import cell, number, size, table


def device():
    """(name, newest CUDA that the driver serves); a text: why there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as why:
        return f"no CUDA driver here ({why})"
    count, version, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    for result in driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count)):
        if result != 0:
            return f"no CUDA device here (error {result} of the driver)"
    if count.value == 0:
        return "no CUDA device here"
    if driver.cuDeviceGetName(name, len(name), 0) != 0 or driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        sys.exit("the driver does not name its device")
    return name.value.decode(errors="replace"), f"{version.value // 1000}.{version.value % 1000 // 10}"


def kernel_module():
    """The version of the kernel's module, as nvidia-smi says it, or None."""
    try:
        words = pathlib.Path("/proc/driver/nvidia/version").read_text(encoding="ascii", errors="replace").splitlines()[0].split()
    except (OSError, IndexError):
        return None
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def copies(rows):
    return table(["copy", "registered slot, GB/s", "cuMemAllocHost", "pageable", "pin, then copy", "slot over cuMemAllocHost",
                  "over pageable", "over pin, then copy"],
                 [(size(r["bytes"]), *(cell(r[f"{name}_gb_s"]) for name in ("slot", "alloc_host", "pageable", "pin_then_copy")),
                   *(cell(r[f"over_{name}"]) for name in ("alloc_host", "pageable", "pin_then_copy"))) for r in rows])


def overlap(row):
    return table(["", "ms", "over the work alone"],
                 [("work of the device alone", cell(row["work_ms"]), "1"),
                  ("loop, registered slots", cell(row["loop_ms"]), cell(row["loop_over_work"])),
                  ("loop, pin then copy", cell(row["pin_then_copy_loop_ms"]), cell(row["pin_then_copy_loop_over_work"]))])


def beside_torch(rows):
    return table(["batch", "workers", "prefetch_factor", "torch's pin_memory", "device alone, ms", "torch, ms", "feedlane.DataLoader, ms",
                  "torch over it", "feedlane.Loader, ms", "torch over it"],
                 [(size(r["bytes"]), r["workers"], r["prefetch"], r["torch_pin_memory"], *(cell(r[name]) for name in (
                     "alone_ms", "torch_ms", "in_place_ms", "torch_over_in_place", "feedlane_ms", "torch_over_feedlane")))
                  for r in rows])


def page(chosen, said, found):
    name, version = found
    rows, m = said["groups"]["device"]["rows"], said["machine"]
    row, module = rows[-1], kernel_module()
    driver = f"serves CUDA {version}" + (f", kernel module {module}" if module else "")
    notes = pathlib.Path(chosen.notes).read_text(encoding="utf-8").splitlines() if chosen.notes else []
    warning = [f"> Taken with `{chosen.short}`." + (" These figures say nothing." if chosen.short == "--tiny" else ""), ""]
    return "\n".join([
        f"# {name}, {datetime.date.today().isoformat()}", "",
        "Written by `tools/gpu`; the raw figures, with every round, are in the file of the same name with `.json`.", "",
        *(warning if chosen.short else []),
        f"- GPU: {name}", f"- driver: {driver}",
        f"- host: {m['processors']} x {m['processor']}, {m['kernel']}, compiler {m['compiler']}", f"- commit: {chosen.commit}",
        f"- suite gpu: {chosen.suite}", f"- compute-sanitizer: {chosen.sanitizer}", f"- the Python package with torch: {chosen.torch}", "",
        "## Copies to the device", "",
        "A copy out of a slot of a loader whose arena is registered; out of memory of cuMemAllocHost, which cudaMallocHost",
        "returns too; out of pageable memory; and out of a slot of a loader that isn't registered by way of pinned memory,",
        "as torch's `pin_memory` does it, where one buffer is filled while the other is copied. Medians with the least and",
        "the most of the rounds; ratios are taken within each round.", "",
        copies(rows[:-1]), "",
        "## A training loop", "",
        f"{row['batches']} batches of {size(row['bytes'])} from {row['workers']} workers, each copied to the device while it",
        "works on the one before. A loop that hides its copies takes as long as the work alone. Pin then copy: a thread copies",
        f"batches into pinned buffers first. One copy by itself takes {number(row['copy_ms'])} ms, a batch of a loop without",
        f"work {number(row['fed_batch_ms'])} ms.", "",
        overlap(row), "",
        *(["## Beside torch", "",
           "A loop in Python that copies each batch to the device without waiting, and works on it, as",
           "`examples/python/compare_gpu.py` measures it. torch's loader runs with the number of workers, the prefetch factor and",
           "the value of pin_memory that a search found to be its fastest; the other two with the same workers and prefetch",
           "factor and with pin_memory. Device alone: the same loop with a batch that is on the device.", "",
           beside_torch(said["torch"]["rows"]), ""] if "torch" in said else []),
        "## Captured graphs", "",
        "Suite gpu checks that a loader with registered slots continues during a capture in global mode, and that the graph is valid.",
        "Answers of the driver to calls whose result its documentation does not state:", "",
        *([f"- {note}" for note in notes] or ["- nothing was noted"]), ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", action="store_true")
    parser.add_argument("--figures")
    parser.add_argument("--output")
    for name in "commit", "suite", "sanitizer", "torch":
        parser.add_argument(f"--{name}", default="unknown")
    parser.add_argument("--beside", help="what compare_gpu.py printed")
    parser.add_argument("--notes", default="")
    parser.add_argument("--short", default="")
    chosen = parser.parse_args()
    found = device()
    if isinstance(found, str):
        print(found, file=sys.stderr)
        sys.exit(77)
    if chosen.device:
        print(found[0])
        return
    if not chosen.figures or not chosen.output:
        parser.error("--figures and --output go together")
    said = json.loads(pathlib.Path(chosen.figures).read_text(encoding="utf-8"))
    if chosen.beside:
        said["torch"] = json.loads(pathlib.Path(chosen.beside).read_text(encoding="utf-8"))
    output = pathlib.Path(chosen.output)
    output.write_text(page(chosen, said, found), encoding="utf-8")
    output.with_suffix(".json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
