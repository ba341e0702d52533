#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Feedlane beside torch's DataLoader, by turns in one run: handing over batches, start-up, and a folder of JPEGs.

torch's at its best: persistent forked workers, no collating, and a worker makes its batch by one copy straight into torch's
shared memory, as its default collate does. Feedlane is measured by `feedlane bench`, through the C API. Either trainer reads
a byte of every page. The pictures are decoded, cropped at random to 224, flipped and normalised to float32, by torchvision
and by the example image_folder, with two workers each, epoch after epoch of the same folder; left out without torchvision or
the example. Skips (77) without torch.

Usage: bench_torch.py [--quick] [--json] [--rounds N] [--only PART] [--feedlane PATH]"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import torch.utils.data
except ImportError:
    print("skipped: there is no torch for", sys.executable)
    sys.exit(77)

KIB, MIB = 1 << 10, 1 << 20
SIZES = {4 * KIB: 4000, 64 * KIB: 4000, MIB: 1500, 16 * MIB: 120, 147 * MIB: 16}  # bytes of a batch: torch's batches a round
QUICK = {4 * KIB: 400, MIB: 200}
PAGE = 4096


class Copies(torch.utils.data.Dataset):
    """Batches of `size` bytes, each copied from memory of the worker's own into torch's shared memory."""

    def __init__(self, size, batches):
        self.size, self.batches, self.source = size, batches, None

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        if self.source is None:
            self.source = torch.ones(self.size, dtype=torch.uint8)
        out = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(self.size))
        return out.copy_(self.source)


def torch_loader(size, batches, workers):
    return torch.utils.data.DataLoader(Copies(size, batches), batch_size=None, num_workers=workers, prefetch_factor=2,
                                       persistent_workers=True, multiprocessing_context="fork")


def touch(batch):
    return batch[::PAGE].sum()


def torch_rate(loader, look=touch, count_of=lambda batch: 1):
    """Batches a second, or what `count_of` counts in each, from the first one on."""
    batches = iter(loader)
    look(next(batches))
    began, count = time.perf_counter(), 0
    for batch in batches:
        look(batch)
        count += count_of(batch)
    return count / (time.perf_counter() - began)


def torch_start(workers):
    """Milliseconds to the first batch, for a new epoch's first batch, and to the end."""
    clock = time.perf_counter
    times = []
    loader = None
    for _ in range(2):
        began = clock()
        loader = loader or torch_loader(PAGE, 8, workers)
        batches = iter(loader)
        touch(next(batches))
        times.append(clock() - began)
        for _ in batches:
            pass
    began = clock()
    del batches, loader  # its iterator's destructor ends the workers
    times.append(clock() - began)
    return [1e3 * seconds for seconds in times]


class Pictures:
    """A folder of photographs, as ImageFolder reads it, and both loaders' ways through it."""
    WORKERS, BATCH = 2, 64

    def __init__(self, example, folder, count):
        import torchvision
        from torchvision import transforms
        self.example, self.folder, self.version = example, folder, torchvision.__version__
        subprocess.run([example, "--generate", folder, "--count", str(count), "--quiet"], check=True)
        recipe = transforms.Compose([
            transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
        self.loader = torch.utils.data.DataLoader(
            torchvision.datasets.ImageFolder(folder, recipe), batch_size=self.BATCH, shuffle=True, num_workers=self.WORKERS,
            persistent_workers=True, multiprocessing_context="fork")
        self.torch_rate()  # the first epoch starts the workers

    def torch_rate(self):
        """Images a second."""
        return torch_rate(self.loader, lambda batch: touch(batch[0].view(-1)), lambda batch: len(batch[0]))

    def feedlane_rate(self):
        command = [self.example, "--workers", str(self.WORKERS), "--batch", str(self.BATCH), "--epochs", "1", "--quiet"]
        said = subprocess.run([*command, self.folder], check=True, capture_output=True, text=True).stdout
        return float(said.rpartition("images/s:")[2])


class Feedlane:
    def __init__(self, path):
        self.path = path

    def bench(self, *arguments):
        command = [self.path, "bench", *map(str, arguments), "--rounds", "1", "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


BUILD = pathlib.Path(__file__).resolve().parent.parent / "build"


def find_feedlane(named):
    built = BUILD / "tools/feedlane/feedlane"
    for path in filter(None, (named, os.environ.get("FEEDLANE"), built)):
        if os.access(path, os.X_OK):
            return str(path)
    sys.exit("bench_torch.py: no feedlane command; build it (option `command`) or name it with --feedlane")


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measure_handoff(feedlane, sizes, rounds):
    for size, batches in sizes.items():
        loaders = {workers: torch_loader(size, batches, workers) for workers in (1, 2)}
        for loader in loaders.values():
            torch_rate(loader)  # the first epoch starts the workers
        theirs, ours = {1: [], 2: []}, {1: [], 2: []}
        for _ in range(rounds):
            for workers, loader in loaders.items():
                theirs[workers].append(torch_rate(loader))
                row, = feedlane.bench("handoff", "--bytes", size, "--workers", workers)
                ours[workers].append(row["batches_s"])
        del loader, loaders
        their_best = max(statistics.median(v) for v in theirs.values())
        our_best = max(statistics.median(v) for v in ours.values())
        yield {"bytes": size, "ratio": our_best / their_best,
               "torch_batches_s": {str(w): spread(v) for w, v in theirs.items()},
               "feedlane_batches_s": {str(w): spread(v) for w, v in ours.items()}}


def measure_startup(feedlane, rounds):
    for workers in (1, 2):
        theirs, ours = [], []
        for _ in range(rounds + 1):
            theirs.append(torch_start(workers))
            ours.append(next(row for row in feedlane.bench("startup", "--workers", workers) if row["mode"] == "fork"))
        their = [statistics.median(column) for column in zip(*theirs[1:])]
        names = ("first_batch_ms", "epoch_restart_us", "shutdown_ms")
        our = [statistics.median(row[name] for row in ours[1:]) for name in names]
        our[1] /= 1e3
        columns = ("first_batch_ms", "epoch_restart_ms", "shutdown_ms")
        yield {"workers": workers, "torch": dict(zip(columns, their)), "feedlane": dict(zip(columns, our)),
               "pages_ms": statistics.median(row["pages_ms"] for row in ours[1:])}


def measure_images(example, rounds, count):
    with tempfile.TemporaryDirectory() as folder:
        pictures = Pictures(example, folder, count)
        theirs, ours = [], []
        for _ in range(rounds):
            theirs.append(pictures.torch_rate())
            ours.append(pictures.feedlane_rate())
        return {"torchvision": pictures.version, "workers": pictures.WORKERS, "images": count,
                "ratio": statistics.median(ours) / statistics.median(theirs),
                "torch_images_s": spread(theirs), "feedlane_images_s": spread(ours)}


def name_of(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="two sizes, fewer batches")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=9, help="of which the medians are taken")
    parser.add_argument("--only", choices=("handoff", "startup", "images"), help="this part alone")
    parser.add_argument("--feedlane", help="path of the feedlane command")
    chosen = parser.parse_args()
    say = (lambda *_: None) if chosen.json else print
    say(f"torch {torch.__version__}, {len(os.sched_getaffinity(0))} processors, medians of {chosen.rounds} rounds")
    parts = {"handoff": report_handoff, "startup": report_startup, "images": report_images}
    result = {"torch": torch.__version__}
    for name, report in parts.items():
        if chosen.only in (None, name):
            result[name] = report(chosen, say)
    if chosen.json:
        print(json.dumps(result, indent=2))


def report_handoff(chosen, say):
    feedlane = Feedlane(find_feedlane(chosen.feedlane))
    say(f"\n{'batch':>8} {'torch 1 worker':>16} {'2 workers':>12} {'feedlane 1 worker':>20} {'2 workers':>12}   best over best")
    handoff = []
    for row in measure_handoff(feedlane, QUICK if chosen.quick else SIZES, chosen.rounds):
        handoff.append(row)
        their, our = row["torch_batches_s"], row["feedlane_batches_s"]
        say(f"{name_of(row['bytes']):>8} {their['1']['median']:16.1f} {their['2']['median']:12.1f} {our['1']['median']:20.1f} "
            f"{our['2']['median']:12.1f} {row['ratio']:16.1f}")
    return handoff


def report_startup(chosen, say):
    feedlane = Feedlane(find_feedlane(chosen.feedlane))
    say(f"\n{'workers':>8} {'first batch, ms':>26} {'new epoch, ms':>26} {'end, ms':>26}    (torch, feedlane by fork)")
    startup = []
    for row in measure_startup(feedlane, chosen.rounds):
        startup.append(row)
        cells = (f"{row['torch'][c]:>14.3f} {row['feedlane'][c]:>11.3f}"
                 for c in ("first_batch_ms", "epoch_restart_ms", "shutdown_ms"))
        say(f"{row['workers']:>8}", *cells)
    say("\nfeedlane's arena has 64 MiB, whose pages it fills before the first batch; torch's batches there have a page each")
    return startup


def report_images(chosen, say):
    example = BUILD / "examples/cpp/image_folder"
    if not os.access(example, os.X_OK):
        say("\npictures: left out, image_folder isn't built (libjpeg-turbo)")
        return None
    try:
        row = measure_images(str(example), chosen.rounds, 200 if chosen.quick else 2000)
    except ImportError:
        say(f"\npictures: left out, there is no torchvision for {sys.executable}")
        return None
    their, our = row["torch_images_s"], row["feedlane_images_s"]
    say(f"\n{row['images']} pictures, {row['workers']} workers: torch and torchvision {row['torchvision']} "
        f"{their['median']:.0f} images/s [{their['min']:.0f} .. {their['max']:.0f}], image_folder {our['median']:.0f} "
        f"[{our['min']:.0f} .. {our['max']:.0f}], ratio {row['ratio']:.2f}")
    return row


if __name__ == "__main__":
    main()
