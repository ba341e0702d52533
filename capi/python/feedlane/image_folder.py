# SPDX-License-Identifier: Apache-2.0
"""A Loader over a folder of pictures. Its workers are the program feedlane-image-folder, which needs no Python."""
from __future__ import annotations

import errno
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from . import loader

_PROGRAM = "feedlane-image-folder"


class ImageFolder(loader.Loader):
    """Batches {"image": float32 [n, 3, height, width], "label": int64 [n]} of the JPEG and PNG files of a folder that has a folder
    for each class. Order, labels and transforms are those of torchvision's ImageFolder, RandomResizedCrop, Resize, CenterCrop,
    RandomHorizontalFlip and Normalize. All random numbers come from `seed`, so batches do not depend on the number of workers.

      path           the folder
      crop           height and width of a sample; one number or two
      train          True: random crops in random order. False: the middle of each picture, in order
      scale, ratio   train: limits of a crop's share of the area, and of its width / height
      resize         otherwise: length of the shorter side before the crop; None: 8 / 7 of the crop's longer side
      flip           probability of a horizontal flip; None: 0.5 for train, otherwise 0
      mean, std      of red, green and blue, from 0 to 1, by default ImageNet's. mean=None: uint8 as decoded
      max_pixels     larger pictures are errors; None: 178956970
      workers        number of worker processes; None: one for each processor that this process may use
    Further arguments are Loader's. A picture that cannot be decoded is a SampleError with its path, unless `skip_budget` allows to
    leave it out. `man feedlane-image-folder` lists the formats.
    """

    def __init__(self, path: str | os.PathLike[str], crop: int | tuple[int, int] = 224, batch_size: int | None = 1, *,
                 train: bool = True, scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3),
                 resize: int | None = None, flip: float | None = None,
                 mean: Sequence[float] | None = (0.485, 0.456, 0.406), std: Sequence[float] = (0.229, 0.224, 0.225),
                 max_pixels: int | None = None, workers: int | None = None, shuffle: bool | None = None,
                 persistent_workers: bool = True, **options: Any) -> None:
        """Raises FileNotFoundError if the program is missing, or if `path` or one of its folders has no picture, and what Loader
        raises. Wrong options of the program raise InitError at the first iteration."""
        excluded = {"dataset", "num_workers", "worker", "worker_config", "length", "fields"} & options.keys()
        if excluded:
            raise TypeError(f"{excluded.pop()} is not an argument of ImageFolder, which sets it (the number of workers is `workers`)")
        height, width = (crop, crop) if isinstance(crop, int) else crop
        root = os.path.abspath(path)  # a worker may have another working directory
        program = _find_program()
        self._list = _list(program, root)
        self.root = root
        command = [program, "--root", root]
        if train:
            command += ["--train", f"--scale={_numbers(scale)}", f"--ratio={_numbers(ratio)}"]
        else:
            command += [f"--resize={round(max(height, width) * 8 / 7) if resize is None else resize}"]
        if flip is not None:
            command += [f"--flip={flip}"]
        if mean is not None:
            command += [f"--mean={_numbers(mean)}", f"--std={_numbers(std)}"]
        if max_pixels is not None:
            command += [f"--max-pixels={max_pixels}"]
        is_ordered = options.get("sampler") is not None or options.get("batch_sampler") is not None
        super().__init__(
            None, batch_size, shuffle=train and not is_ordered if shuffle is None else shuffle, worker=command,
            worker_config=self._list, length=None if is_ordered else self._list.count(b"\n"),
            fields={"image": ("uint8" if mean is None else "float32", (3, height, width)), "label": ("int64", ())},
            num_workers=len(os.sched_getaffinity(0)) if workers is None else workers, persistent_workers=persistent_workers, **options)

    @functools.cached_property
    def classes(self) -> list[str]:
        """Names of the classes. A class's label is its position."""
        return list(_classes(self._list))

    @functools.cached_property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class."""
        return {name: label for label, name in enumerate(self.classes)}

    @functools.cached_property
    def samples(self) -> list[tuple[str, int]]:
        """(path, label) of each sample, in the order of the indices. The list is made when it is first used."""
        lines = (line.partition(b"\t") for line in self._list.splitlines())
        return [(os.path.join(self.root, os.fsdecode(path)), int(label)) for label, _, path in lines]


def _numbers(numbers: Sequence[float]) -> str:
    return ",".join(map(repr, map(float, numbers)))


def _find_program() -> str:
    """The program in this package's folder, as in a wheel, or in PATH."""
    inside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", _PROGRAM)
    found = inside if os.access(inside, os.X_OK) else shutil.which(_PROGRAM)
    if found is None:
        raise FileNotFoundError(
            errno.ENOENT, f"the worker program is neither {inside} nor in PATH. Install libjpeg-turbo and libpng (Debian: "
            "libjpeg62-turbo-dev, libpng-dev), then this package again, or install the Debian package feedlane", _PROGRAM)
    return os.path.abspath(found)


def _list(program: str, root: str) -> bytes:
    made = subprocess.run([program, "--list", root], capture_output=True)
    if made.returncode != 0:
        raise FileNotFoundError(os.fsdecode(made.stderr).strip().removeprefix(f"{_PROGRAM}: "))
    return made.stdout


def _classes(samples: bytes) -> Iterator[str]:
    """The first folder of each label's first path. Labels ascend."""
    label, at = 0, 0
    while at != -1:
        yield os.fsdecode(samples[samples.index(b"\t", at) + 1:samples.index(b"/", at)])
        label += 1
        at = samples.find(b"\n%d\t" % label, at)
