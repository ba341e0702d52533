# SPDX-License-Identifier: Apache-2.0
"""What peers.py has every loader read: photographs, tokens of varying length, and a table. Each data set is a map-style one, as torch
knows it; loaders that want something else find the files in the same folder.

  photographs/CLASS/NAME.jpg   pictures of photographs.py, at most 500 x 375, under several names each: an epoch is long, and the
                               files stay in the page cache. A sample is float32 3 x 224 x 224 by RandomResizedCrop, flip and
                               normalisation, and its label; 64 are a batch
  few/CLASS/NAME.jpg           the pictures once
  shards/NAME.tar              the pictures once, and the tokens, in shuffled order, for loaders that read in sequence
  tokens.bin, tokens.idx       uint16 tokens of 200,000 sequences of 16 to 1,024 tokens (log-normal, 190 on average), and int64
                               where each begins. A batch is 32 sequences as int64, padded with zeros to the longest
  table.npy                    1,000,000 rows of 64 float32, of which the first is the row's number. A batch is 256 rows

Detection has no files: a sample is a dict of five small tensors, about as many objects as pictures have: boxes (n x 4 float32),
labels (int64), areas (float32), crowds (uint8) and the picture's number. 20 samples are a batch, which is a list of 100 tensors.
"""
import functools
import io
import os
import pathlib
import tarfile

import numpy as np

PICTURES, NAMES = 2000, 16
SEQUENCES, ROWS, COLUMNS = 200_000, 1_000_000, 64
TARGETS, FEW_TARGETS = 200_000, 20_000
SHARDS = 8
BATCH = {"photographs": 64, "tokens": 32, "table": 256, "detection": 20}
UNIT = {"photographs": "images", "tokens": "sequences", "table": "rows", "detection": "targets"}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


# ---- files ----

def make(folder, work):
    """Writes the files of this kind of work, if they aren't there. OSError, subprocess.CalledProcessError: no photographs can be had."""
    done = pathlib.Path(folder, f"{work} made")
    if not done.exists():
        {"photographs": make_photographs, "tokens": make_tokens, "table": make_table}.get(work, lambda folder: None)(folder)
        done.touch()


def make_photographs(folder):
    import photographs
    photographs.make(pathlib.Path(folder, "few"), PICTURES)
    paths = sorted(pathlib.Path(folder, "few").glob("*/*.jpg"))
    for picture in paths:
        names = pathlib.Path(folder, "photographs", picture.parent.name)
        names.mkdir(parents=True, exist_ok=True)
        for number in range(NAMES):
            os.link(picture, names / f"{picture.stem}-{number:02}.jpg")
    classes = sorted({picture.parent.name for picture in paths})
    write_shards(folder, "photographs", len(paths), lambda i: {
        "jpg": paths[i].read_bytes(), "cls": str(classes.index(paths[i].parent.name)).encode()})


def make_tokens(folder):
    draw = np.random.default_rng(1)
    lengths = np.clip(draw.lognormal(5, 0.8, SEQUENCES), 16, 1024).astype(np.int64)
    places = np.concatenate([[0], np.cumsum(lengths)])
    places.tofile(pathlib.Path(folder, "tokens.idx"))
    tokens = draw.integers(1, 50_000, places[-1], dtype=np.uint16)
    tokens.tofile(pathlib.Path(folder, "tokens.bin"))
    write_shards(folder, "tokens", SEQUENCES, lambda i: {"u16": tokens[places[i]:places[i + 1]].tobytes()})


def make_table(folder):
    table = np.random.default_rng(1).random((ROWS, COLUMNS), dtype=np.float32)
    table[:, 0] = np.arange(ROWS)
    np.save(pathlib.Path(folder, "table.npy"), table)


def write_shards(folder, name, count, parts_of):
    """Tar files as webdataset reads them: parts of a sample follow each other, with the same name up to the first dot."""
    pathlib.Path(folder, "shards").mkdir(exist_ok=True)
    for number, indices in enumerate(np.array_split(np.random.default_rng(2).permutation(count), SHARDS)):
        with tarfile.open(pathlib.Path(folder, "shards", f"{name}-{number}.tar"), "w") as shard:
            for i in indices:
                for ending, data in parts_of(i).items():
                    entry = tarfile.TarInfo(f"{i:07}.{ending}")
                    entry.size = len(data)
                    shard.addfile(entry, io.BytesIO(data))


def shards(folder, name):
    return [str(path) for path in sorted(pathlib.Path(folder, "shards").glob(f"{name}-*.tar"))]


@functools.lru_cache
def pictures(folder):
    """Paths, and the label of each. Listed once, before any time is taken."""
    paths = sorted(pathlib.Path(folder).glob("*/*.jpg"))
    labels = {name: label for label, name in enumerate(sorted({path.parent.name for path in paths}))}
    return [str(path) for path in paths], [labels[path.parent.name] for path in paths]


# ---- data sets ----

@functools.lru_cache
def transform(kind):
    """From an opened file (`pil`) or its bytes (`v2`) to a tensor."""
    import torch
    torch.set_num_threads(1)
    if kind == "pil":
        from torchvision import transforms
        return transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                                   transforms.Normalize(MEAN, DEVIATION)])
    from torchvision import io as pictures_of
    from torchvision.transforms import v2
    whole = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True),
                        v2.Normalize(MEAN, DEVIATION)])
    return lambda data: whole(pictures_of.decode_jpeg(data, pictures_of.ImageReadMode.RGB))


class Photographs:
    """(image, label) by torchvision; form: what images are."""

    def __init__(self, folder, decode, form="tensors"):
        self.paths, self.labels = pictures(folder)
        self.decode, self.form, self.transform = decode, form, None

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        index = int(index)
        self.transform = self.transform or transform(self.decode)
        if self.decode == "pil":
            from PIL import Image
            with Image.open(self.paths[index]) as picture:
                image = self.transform(picture.convert("RGB"))
        else:
            from torchvision import io as pictures_of
            image = self.transform(pictures_of.read_file(self.paths[index]))
        if self.form == "arrays":
            return image.numpy(), self.labels[index]
        if self.form == "dict":
            return {"image": image, "label": self.labels[index]}
        return image, self.labels[index]

    def __getstate__(self):
        return {**self.__dict__, "transform": None}


class Mapped:
    """A data set over files, which every process maps anew: pickles have the folder alone."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __getstate__(self):
        return self.folder

    def __setstate__(self, folder):
        self.__init__(folder)


class Tokens(Mapped):
    def __init__(self, folder):
        super().__init__(folder)
        self.places = np.fromfile(pathlib.Path(folder, "tokens.idx"), np.int64)
        self.tokens = np.asarray(np.memmap(pathlib.Path(folder, "tokens.bin"), np.uint16, "r"))

    def __len__(self):
        return len(self.places) - 1

    def __getitem__(self, index):
        return self.tokens[self.places[index]:self.places[index + 1]]

    def batch(self, indices):
        return pad([self[index] for index in indices])


def pad(sequences):
    lengths = [len(sequence) for sequence in sequences]
    batch = np.zeros((len(sequences), max(lengths)), np.int64)
    for row, sequence, length in zip(batch, sequences, lengths):
        row[:length] = sequence
    return batch


class Table(Mapped):
    def __init__(self, folder):
        super().__init__(folder)
        self.rows = np.asarray(np.load(pathlib.Path(folder, "table.npy"), mmap_mode="r"))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def batch(self, indices):
        return np.take(self.rows, indices, axis=0)


class Targets:
    """Annotations as detectors take them."""

    def __init__(self, form="tensors", whole=True):
        self.form, self.count = form, TARGETS if whole else FEW_TARGETS
        draw = np.random.default_rng(1)
        self.objects = 1 + draw.poisson(6, 4096)
        self.boxes = draw.random((self.objects.max(), 4), dtype=np.float32)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        n = self.objects[index % len(self.objects)]
        arrays = {"boxes": self.boxes[:n].copy(), "labels": np.full(n, index % 91), "areas": self.boxes[:n, 0] * self.boxes[:n, 1],
                  "crowds": np.zeros(n, np.uint8), "number": np.array([index])}
        if self.form == "arrays":
            return arrays
        import torch
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def batch(self, indices):
        return [self[index] for index in indices]


def dataset(work, folder):
    return {"tokens": Tokens, "table": Table}[work](folder)


class Batches:
    """A data set whose batch is one call: `__getitems__` is torch's protocol for that. form: what a batch is, "tensors", "arrays" or
    "bytes" with its shape."""

    def __init__(self, data, form):
        self.data, self.form = data, form

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.__getitems__([index])

    def __getitems__(self, indices):
        return packed(self.data.batch(indices), self.form)


def packed(array, form):
    if form == "tensors":
        import torch
        return torch.from_numpy(array)
    return array if form == "arrays" else (array.tobytes(), array.dtype.str, array.shape)


def unpacked(batch):
    """An array of what `packed` made."""
    if isinstance(batch, (tuple, list)):
        data, kind, shape = batch
        return np.frombuffer(data, kind).reshape(shape)
    return np.asarray(batch)


# ---- the trainer ----

def read(batch):
    """Reads all of it. batch: the array, (images, labels), or a list of dicts. Returns how many samples it has."""
    if isinstance(batch, list):
        for target in batch:
            for tensor in target.values():
                np.asarray(tensor).sum()
        return len(batch)
    values = np.asarray(batch[0] if isinstance(batch, tuple) else batch)
    values.sum()
    return len(values)


def marks(work, batch):
    """An integer whose sum over an epoch tells whether each sample came once; of photographs, whether each label came as often."""
    if work == "photographs":
        return int(np.asarray(batch[1]).sum())
    if work == "detection":
        return sum(int(target["number"][0]) for target in batch)
    values = np.asarray(batch)
    return int(values.sum()) if work == "tokens" else int(values[:, 0].astype(np.int64).sum())


def expected(work, folder):
    """(samples, sum of marks) of an epoch."""
    if work == "photographs":
        labels = pictures(pathlib.Path(folder, "few"))[1]
        return len(labels), sum(labels)
    if work == "detection":
        return FEW_TARGETS, FEW_TARGETS * (FEW_TARGETS - 1) // 2
    data = dataset(work, folder)
    if work == "tokens":
        return len(data), int(data.tokens.astype(np.int64).sum())
    return len(data), len(data) * (len(data) - 1) // 2
