#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A folder of JPEGs: feedlane.ImageFolder compared with torchvision and SPDL, in alternating rounds.

Pictures are decoded, cropped at random to 224, flipped and normalised to float32, by two workers, epoch after epoch of the same
folder. The ways: torchvision's transforms over PIL; its decode_jpeg and v2 transforms; SPDL where it is installed (PyPI: spdl, with
FFmpeg's libraries), whose workers are threads and which crops and resizes by FFmpeg's filters, to the crops that torchvision would
draw. feedlane's single worker is measured too.

Each measurement is a process, which iterates two epochs. Of the second it reports images/s from the first batch on, processor time
per image of the process and its workers, and their memory (PSS, in which shared pages count once) when it ends. The trainer reads
a byte of every page. The pictures are parts of photographs (photographs.py), or, where these can't be had, drawn. Skips (77) without
torch, torchvision or feedlane-image-folder.

Usage: peer_images.py [--quick] [--json] [--rounds N] [--feedlane PATH]"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

TOOLS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(1, str(TOOLS))

import goals
import photographs
from peer_torch import Group, find_feedlane, touch
from processes import memory_mib, processor_seconds
from rounds import alternate, cell, ratios, spread
import torch  # peer_torch skips without it

WORKERS, BATCH = 2, 64
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


# ---- one measurement ----

def measure(epochs):
    """epochs(): an iterator of the images of each batch of an epoch."""
    for _ in epochs():
        pass
    batches = epochs()
    touch(next(batches).view(-1).view(torch.uint8))
    began, busy, count = time.perf_counter(), processor_seconds(), 0
    for images in batches:
        touch(images.view(-1).view(torch.uint8))
        count += len(images)
    seconds, busy = time.perf_counter() - began, processor_seconds() - busy
    return {"images_s": count / seconds, "cpu_us": 1e6 * busy / count, "memory_mib": memory_mib()}


def feedlane_epochs(folder, workers=WORKERS):
    import feedlane
    loader = feedlane.ImageFolder(folder, 224, BATCH, workers=workers, tensors="torch")
    return lambda: (batch["image"] for batch in loader)


def torch_epochs(folder, recipe, read=None):
    import torchvision
    data = torchvision.datasets.ImageFolder(folder, recipe, **({"loader": read} if read else {}))
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True,
                                         multiprocessing_context="fork")
    return lambda: (images for images, _ in loader)


def pil_epochs(folder):
    from torchvision import transforms
    return torch_epochs(folder, transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize(MEAN, DEVIATION)]))


def v2_epochs(folder):
    from torchvision import io
    from torchvision.transforms import v2
    return torch_epochs(folder, v2.Compose([
        v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, DEVIATION)]), lambda path: io.decode_jpeg(io.read_file(path), io.ImageReadMode.RGB))


def spdl_epochs(folder):
    """A pipeline of threads, which make a batch of their pictures; one more normalises it."""
    import spdl.io
    import spdl.pipeline
    from PIL import Image
    from torchvision.transforms import RandomResizedCrop
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    pictures = []
    for path in sorted(pathlib.Path(folder).glob("*/*.jpg")):
        with Image.open(path) as picture:
            pictures.append((str(path), picture.size))

    def drawn():
        for number in torch.randperm(len(pictures)).tolist():
            path, (width, height) = pictures[number]
            y, x, h, w = RandomResizedCrop.get_params(torch.empty(1, height, width), (0.08, 1), (3 / 4, 4 / 3))
            flip = ",hflip" if torch.rand(()) < 0.5 else ""
            yield path, f"crop={w}:{h}:{x}:{y}:exact=1,scale=224:224:flags=bilinear{flip},format=pix_fmts=rgb24"

    def decode(picture):
        path, filters = picture
        return spdl.io.decode_packets(spdl.io.demux_image(path), filter_desc=filters)

    def batch(frames):
        pixels = spdl.io.to_torch(spdl.io.convert_frames(frames))
        return pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).div_(255).sub_(mean).div_(deviation)

    def epoch():
        builder = spdl.pipeline.PipelineBuilder().add_source(drawn()).pipe(decode, concurrency=WORKERS)
        pipeline = builder.aggregate(BATCH).pipe(batch).add_sink(2).build(num_threads=WORKERS + 1)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    decode(next(drawn()))  # it is imported without FFmpeg's libraries, and fails with the first picture
    return epoch


WAYS = {"feedlane": feedlane_epochs, "alone": lambda folder: feedlane_epochs(folder, 1), "pil": pil_epochs, "v2": v2_epochs,
        "spdl": spdl_epochs}


# ---- all ----

def run(way, folder, environment):
    """What a process for this way measures; None, with the reason on standard error: it can't run here."""
    done = subprocess.run([sys.executable, __file__, "--one", way, folder], stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout) if done.returncode == 0 else None


def draw(folder, count):
    """Pictures without photographs: smooth colours."""
    import numpy as np
    from PIL import Image
    random = np.random.default_rng(1)
    for number in range(count):
        width, height = random.integers(375, 501), random.integers(281, 376)
        x, y = np.meshgrid(np.linspace(0, 9, width), np.linspace(0, 9, height))
        planes = [128 + 80 * np.sin(x * a + y * b) + random.normal(0, 8, x.shape) for a, b in random.uniform(-3, 3, (3, 2))]
        path = pathlib.Path(folder, str(number % 4), f"{number:05}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)).save(path, quality=90)


def pictures(folder, count):
    """Makes the pictures and returns their kind."""
    try:
        photographs.make(folder, count)
        return "photographs"
    except (ImportError, OSError, subprocess.CalledProcessError) as reason:
        print("drawn pictures, without photographs:", reason, file=sys.stderr)
        draw(folder, count)
        return "drawn"


def environment_of(feedlane):
    """The package and the worker program of the same build."""
    environment = goals.environment(feedlane.path)
    folder = pathlib.Path(feedlane.path).resolve().parents[1] / "image_folder"
    return {**environment, "PATH": os.pathsep.join([str(folder), environment.get("PATH", "")])}


def missing(environment):
    if shutil.which("feedlane-image-folder", path=environment["PATH"]) is None:
        return "feedlane-image-folder isn't built (libjpeg-turbo, libpng)"
    try:
        from torchvision.transforms import v2  # noqa: F401
    except ImportError as reason:
        return str(reason)
    return None


def add_row(group, name, kind, count, ours, theirs, say):
    import torchvision
    row = {"pictures": kind, "torchvision": torchvision.__version__ if name in ("pil", "v2") else "-", "transforms": name,
           "workers": WORKERS, "images": count}
    for measured in "images_s", "cpu_us", "memory_mib":
        for who, rounds in ("torch", theirs), ("feedlane", ours):
            row[f"{who}_{measured}"] = spread([one[measured] for one in rounds])
    factor = WORKERS if name == "alone" else 1
    row["ratio"] = spread(ratios([one["images_s"] for one in ours], [factor * one["images_s"] for one in theirs]))
    group.rows.append(row)
    key = {"alone": "images.scaling", "spdl": "spdl.images"}.get(name, f"images.over_{name}")
    group.ratios[key] = row["ratio"]
    say(f"{name:>8} {cell(row['torch_images_s']['rounds']):>28} {cell(row['torch_cpu_us']['rounds']):>28} "
        f"{cell(row['torch_memory_mib']['rounds']):>28}   {cell(row['ratio']['rounds'])}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer pictures")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5, help="of which the medians are taken")
    parser.add_argument("--feedlane", help="path of the feedlane command")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        way, folder = chosen.one
        try:
            print(json.dumps(measure(WAYS[way](folder))))
        except (ImportError, OSError, RuntimeError) as reason:
            print(f"{way}: {reason}", file=sys.stderr)
            return 1
        return 0
    say = (lambda *_: None) if chosen.json else print
    feedlane = find_feedlane(chosen.feedlane)
    environment = environment_of(feedlane)
    reason = missing(environment)
    if reason is not None:
        print("skipped:", reason)
        return 77
    count = 256 if chosen.quick else 2000
    group = Group()
    with tempfile.TemporaryDirectory() as folder:
        kind = pictures(folder, count)
        usable = {way for way in WAYS if run(way, folder, environment) is not None}
        if {"feedlane", "alone"} - usable:
            print("feedlane.ImageFolder failed", file=sys.stderr)
            return 1
        got = alternate({way: lambda way=way: run(way, folder, environment) for way in WAYS if way in usable}, chosen.rounds)
    say(f"{count} pictures ({kind}), {WORKERS} workers, medians of {chosen.rounds} rounds\n"
        f"{'':>8} {'images/s':>28} {'processor time, us/image':>28} {'memory, MiB':>28}   feedlane's images/s over these")
    ours = got["feedlane"]
    say(f"feedlane {cell([one['images_s'] for one in ours]):>28} {cell([one['cpu_us'] for one in ours]):>28} "
        f"{cell([one['memory_mib'] for one in ours]):>28}")
    for way in got:
        if way != "feedlane":
            add_row(group, way, kind, count, ours, got[way], say)
    say(*(f"{way}: left out, see above" for way in WAYS if way not in usable))
    if chosen.json:
        machine = {**feedlane.bench("floor", "--quick")["machine"], "torch": torch.__version__}
        print(json.dumps({"machine": machine, "groups": {"images": group}}, default=vars, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
