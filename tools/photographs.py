#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a folder of JPEGs out of photographs that everybody may use, as torchvision's ImageFolder and feedlane.ImageFolder read it.

Usage: tools/photographs.py FOLDER COUNT

The photographs are those that the package scikit-image of PyPI carries (14 MB, downloaded by pip if it isn't installed):
  astronaut  Eileen Collins, by NASA, in the public domain
  chelsea    a cat, by Stefan van der Walt, CC0
  coffee     a cup, by Rachel Michetti, CC0
  rocket     Falcon 9 at its launch, by SpaceX, in the public domain
Each picture is a part of one of them, at most 500 x 375, or its mirror image, chosen by a generator with a fixed seed, and saved
with quality 90 and 4:2:0: as large a JPEG as a photograph of that size makes, without COUNT photographs. Needs Pillow."""

import importlib.util
import io
import pathlib
import random
import subprocess
import sys
import tempfile
import zipfile

NAMES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg")
LARGEST = (500, 375)


def originals():
    """{name: bytes of the file}. OSError, subprocess.CalledProcessError: they can't be had."""
    installed = importlib.util.find_spec("skimage")
    if installed is not None and installed.origin is not None:
        data = pathlib.Path(installed.origin).parent / "data"
        return {name: (data / name).read_bytes() for name in NAMES}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "scikit-image"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        [wheel] = pathlib.Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return {name: archive.read(f"skimage/data/{name}") for name in NAMES}


def make(folder, count):
    """Writes COUNT pictures into a folder for each photograph."""
    from PIL import Image, ImageOps
    photographs = {pathlib.Path(name).stem: Image.open(io.BytesIO(data)).convert("RGB") for name, data in originals().items()}
    draw = random.Random(1)
    for number in range(count):
        name = list(photographs)[number % len(photographs)]
        whole = photographs[name]
        width, height = (min(most, side) for most, side in zip(LARGEST, whole.size))
        width, height = draw.randint(width * 3 // 4, width), draw.randint(height * 3 // 4, height)
        left, top = draw.randint(0, whole.width - width), draw.randint(0, whole.height - height)
        part = whole.crop((left, top, left + width, top + height))
        path = pathlib.Path(folder) / name / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        (ImageOps.mirror(part) if draw.random() < 0.5 else part).save(path, quality=90, subsampling="4:2:0")


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        sys.exit(__doc__.split("\n\n")[1])
    make(sys.argv[1], int(sys.argv[2]))
