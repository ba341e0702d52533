# SPDX-License-Identifier: Apache-2.0
"""The loaders that peers.py compares, each as its documentation advises for the work, with the settings that are searched. A loader
is a function (work, folder, whole, **settings) -> epochs: epochs() iterates over one epoch's batches, as peer_work.read takes them.
`whole` is false for the short epoch in which a worker is killed; else, where a loader can repeat its data by itself, epochs() never
ends. `prepare` imports what a contender needs, before any time is taken."""
import dataclasses
import importlib
import itertools
import pathlib
from collections.abc import Callable

import numpy as np

import peer_work as work_of

WORKERS, PREFETCH = (2, 3, 4), (2, 8)
WORKERS_OR_NONE = (2, 1, 0, 4)


def pictures_folder(folder, whole):
    return pathlib.Path(folder, "photographs" if whole else "few")


def as_it_is(batch):
    return batch


def order(count):
    return np.random.permutation(count)


def batches_of(count, size, whole):
    """Indices of batch after batch; without an end if `whole`."""
    while True:
        indices = order(count)
        for begin in range(0, count, size):
            yield indices[begin:begin + size]
        if not whole:
            return


def pairs(epoch):
    return ((images, labels) for images, labels in epoch)


# ---- torch, and feedlane.DataLoader in its place ----

def torch_like(dataloader, work, folder, whole, workers, prefetch=2, form="tensors", decode=None, **more):
    if workers:
        more.update(prefetch_factor=prefetch, persistent_workers=True)
    if work == "photographs":
        loader = dataloader(work_of.Photographs(pictures_folder(folder, whole), decode, form), work_of.BATCH[work], shuffle=True,
                            num_workers=workers, **more)
        return lambda: pairs(loader)
    if work == "detection":
        loader = dataloader(work_of.Targets(form, whole), work_of.BATCH[work], shuffle=True, num_workers=workers, collate_fn=list, **more)
        return lambda: iter(loader)
    loader = dataloader(work_of.Batches(work_of.dataset(work, folder), form), work_of.BATCH[work], shuffle=True,
                        num_workers=workers, collate_fn=as_it_is, **more)
    return lambda: map(work_of.unpacked, loader)


def torch_dataloader(*arguments, workers, **settings):
    import torch
    torch.set_num_threads(1)
    if workers:
        settings["multiprocessing_context"] = "fork"
    return torch_like(torch.utils.data.DataLoader, *arguments, workers=workers, **settings)


def feedlane_dataloader(*arguments, workers, **settings):
    import torch

    import feedlane
    torch.set_num_threads(1)
    if workers:
        settings["multiprocessing_context"] = "fork"
    return torch_like(feedlane.DataLoader, *arguments, workers=workers, **settings)


# ---- feedlane.Loader, feedlane.ImageFolder ----

def ours(workers, prefetch):
    more = {"prefetch_factor": prefetch, "persistent_workers": True, "max_restarts": 10} if workers else {}
    return {"shuffle": True, "num_workers": workers, **more}


def feedlane_loader(work, folder, whole, workers, prefetch=2, decode=None):
    import feedlane
    batch = work_of.BATCH[work]
    if work == "photographs":
        data = work_of.Photographs(pictures_folder(folder, whole), decode, "dict")
        loader = feedlane.Loader(data, batch, fields={"image": (np.float32, (3, 224, 224)), "label": (np.int64, ())},
                                 **ours(workers, prefetch))
        return lambda: ((one["image"], one["label"]) for one in loader)
    if work == "detection":
        loader = feedlane.Loader(work_of.Targets("arrays", whole), batch, collate_fn=list, **ours(workers, prefetch))
        return lambda: iter(loader)
    data = work_of.dataset(work, folder)
    if work == "tokens":
        return lambda loader=feedlane.Loader(data, batch, collate_fn=work_of.pad, **ours(workers, prefetch)): iter(loader)

    class Rows(feedlane.BatchDataset):
        def __len__(self):
            return len(data)

        def fetch(self, indices, seeds, out):
            np.take(data.rows, indices, axis=0, out=out["row"], mode="clip")
    loader = feedlane.Loader(Rows(), batch, fields={"row": (np.float32, (work_of.COLUMNS,))}, start="fork", **ours(workers, prefetch))
    return lambda: (one["row"] for one in loader)


def image_folder(work, folder, whole, workers, prefetch=2):
    import feedlane
    loader = feedlane.ImageFolder(pictures_folder(folder, whole), 224, work_of.BATCH[work], workers=workers, prefetch_factor=prefetch,
                                  max_restarts=10)
    return lambda: ((one["image"], one["label"]) for one in loader)


# ---- no loader ----

def plain_loop(work, folder, whole, decode=None):
    size = work_of.BATCH[work]
    if work == "photographs":
        import torch
        data = work_of.Photographs(pictures_folder(folder, whole), decode)
        batch = lambda indices: torch.utils.data.default_collate([data[i] for i in indices])  # noqa: E731
    else:
        data = work_of.Targets("arrays", whole) if work == "detection" else work_of.dataset(work, folder)
        batch = data.batch

    def epoch():
        for indices in batches_of(len(data), size, whole):
            made = batch(indices)
            yield tuple(made) if work == "photographs" else made
    return epoch


# ---- SPDL ----

def spdl(work, folder, whole, workers, sink=4, decode=None):
    """Threads. For photographs `native` has its decoder by FFmpeg, which crops and resizes, to crops as torchvision draws them."""
    if decode == "native":
        return spdl_native(folder, whole, workers, sink)
    import spdl.pipeline
    size = work_of.BATCH[work]
    if work == "photographs":
        import torch
        data = work_of.Photographs(pictures_folder(folder, whole), decode)
    else:
        data = work_of.Targets("arrays", whole) if work == "detection" else work_of.dataset(work, folder)

    def epoch():
        builder = spdl.pipeline.PipelineBuilder()
        indices = batches_of(len(data), size, whole)
        if work == "photographs":
            builder = builder.add_source(itertools.chain.from_iterable(indices)).pipe(data.__getitem__, concurrency=workers).aggregate(size)
            builder = builder.pipe(torch.utils.data.default_collate)
        else:
            builder = builder.add_source(indices)
            builder = builder.pipe(data.batch, concurrency=workers)
        pipeline = builder.add_sink(sink).build(num_threads=workers + (work == "photographs"))
        with pipeline.auto_stop():
            yield from pairs(pipeline.get_iterator()) if work == "photographs" else pipeline.get_iterator()
    return epoch


def spdl_native(folder, whole, workers, sink):
    import spdl.io
    import spdl.pipeline
    import torch
    from PIL import Image
    from torchvision.transforms import RandomResizedCrop
    torch.set_num_threads(1)
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (work_of.MEAN, work_of.DEVIATION))
    paths, labels = work_of.pictures(pictures_folder(folder, whole))

    def drawn():
        for number in itertools.chain.from_iterable(batches_of(len(paths), len(paths), whole)):
            with Image.open(paths[number]) as picture:
                width, height = picture.size
            y, x, h, w = RandomResizedCrop.get_params(torch.empty(1, height, width), (0.08, 1), (3 / 4, 4 / 3))
            flip = ",hflip" if torch.rand(()) < 0.5 else ""
            yield number, f"crop={w}:{h}:{x}:{y}:exact=1,scale=224:224:flags=bilinear{flip},format=pix_fmts=rgb24"

    def decode(picture):
        number, filters = picture
        return labels[number], spdl.io.decode_packets(spdl.io.demux_image(paths[number]), filter_desc=filters)

    def batch(decoded):
        pixels = spdl.io.to_torch(spdl.io.convert_frames([frames for _, frames in decoded])).permute(0, 3, 1, 2)
        images = pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(255).sub_(mean).div_(deviation)
        return images, torch.tensor([label for label, _ in decoded])

    def epoch():
        builder = spdl.pipeline.PipelineBuilder().add_source(drawn()).pipe(decode, concurrency=workers)
        pipeline = builder.aggregate(work_of.BATCH["photographs"]).pipe(batch).add_sink(sink).build(num_threads=workers + 1)
        with pipeline.auto_stop():
            yield from pairs(pipeline.get_iterator())
    decode(next(drawn()))  # it is imported without FFmpeg's libraries, and fails with the first picture
    return epoch


# ---- grain ----

class Source:
    """What grain reads from: samples, or whole batches of an order."""

    def __init__(self, data, size=0, shuffled=None):
        self.data, self.size, self.shuffled = data, size, shuffled

    def __len__(self):
        return len(self.data) if not self.size else -(-len(self.data) // self.size)

    def __getitem__(self, index):
        if not self.size:
            return self.data[index]
        return self.data.batch(self.shuffled[index * self.size:(index + 1) * self.size])


def grain(work, folder, whole, by, workers, prefetch=2, decode=None):
    """A batch of tokens or of rows is a sample to grain, so that it neither splits nor stacks it."""
    import grain as library
    from absl import flags
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["grain"])
    size = work_of.BATCH[work]

    data = work_of.Photographs(pictures_folder(folder, whole), decode, "arrays") if work == "photographs" else work_of.dataset(work, folder)

    def epoch():
        if work == "photographs":
            made = library.MapDataset.source(Source(data)).seed(1).shuffle().repeat(None if whole else 1).batch(size)
        else:
            made = library.MapDataset.source(Source(data, size, order(len(data)))).repeat(None if whole else 1)
        if by == "threads":
            return iter(made.to_iter_dataset(library.ReadOptions(num_threads=workers, prefetch_buffer_size=workers * prefetch)))
        batches = made.to_iter_dataset(library.ReadOptions(num_threads=1, prefetch_buffer_size=prefetch))
        return iter(batches.mp_prefetch(library.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=prefetch)))
    return (lambda: pairs(epoch())) if work == "photographs" else epoch


# ---- tf.data ----

def tensorflow(work, folder, whole, parallel, prefetch):
    """-1: tf.data.AUTOTUNE. All of it is TensorFlow's own operations: there is no Python in a pipeline."""
    import tensorflow as tf
    size = work_of.BATCH[work]
    if work == "photographs":
        paths, labels = work_of.pictures(pictures_folder(folder, whole))

        def load(path, label):
            data = tf.io.read_file(path)
            begin, extent, _ = tf.image.sample_distorted_bounding_box(
                tf.image.extract_jpeg_shape(data), tf.zeros([1, 0, 4]), min_object_covered=0.0, aspect_ratio_range=(3 / 4, 4 / 3),
                area_range=(0.08, 1.0), use_image_if_no_bounding_boxes=True)
            window = tf.concat([begin[:2], extent[:2]], 0)
            image = tf.image.resize(tf.image.decode_and_crop_jpeg(data, window, channels=3), [224, 224]) / 255.0
            return (tf.image.random_flip_left_right(image) - work_of.MEAN) / work_of.DEVIATION, label
        made = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths)).repeat(None if whole else 1)
        batches = made.map(load, num_parallel_calls=parallel).batch(size).prefetch(prefetch)
    elif work == "tokens":
        data = work_of.dataset(work, folder)
        sequences = tf.RaggedTensor.from_row_splits(tf.constant(data.tokens), tf.constant(data.places))
        made = tf.data.Dataset.range(len(data)).shuffle(len(data)).repeat(None if whole else 1).batch(size)
        batches = made.map(lambda indices: tf.cast(tf.gather(sequences, indices).to_tensor(), tf.int64),
                           num_parallel_calls=parallel).prefetch(prefetch)
    else:
        data = work_of.dataset(work, folder)
        rows = tf.constant(data.rows)
        made = tf.data.Dataset.range(len(data)).shuffle(len(data)).repeat(None if whole else 1).batch(size)
        batches = made.map(lambda indices: tf.gather(rows, indices), num_parallel_calls=parallel).prefetch(prefetch)
    return batches.as_numpy_iterator


# ---- webdataset ----

def sequence_of(data):
    return np.frombuffer(data, np.uint16)


def pad_samples(samples):
    return work_of.pad([sequence for sequence, in samples])


class Decoded:
    def __init__(self, decode):
        self.decode, self.transform = decode, None

    def __call__(self, data):
        import torch
        self.transform = self.transform or work_of.transform(self.decode)
        return self.transform(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def webdataset(work, folder, whole, workers, prefetch=2, decode=None):
    """Tar files that are read in sequence, each worker its own, through a buffer that shuffles."""
    import torch
    import webdataset as wds
    torch.set_num_threads(1)
    size = work_of.BATCH[work]
    urls = work_of.shards(folder, work)
    samples = wds.WebDataset(urls, shardshuffle=len(urls), repeat=whole).shuffle(1000)
    if work == "photographs":
        batches = samples.to_tuple("jpg", "cls").map_tuple(Decoded(decode), int).batched(size, collation_fn=torch.utils.data.default_collate)
    else:
        batches = samples.to_tuple("u16").map_tuple(sequence_of).batched(size, collation_fn=pad_samples)
    more = {"prefetch_factor": prefetch, "persistent_workers": True, "multiprocessing_context": "fork"} if workers else {}
    loader = wds.WebLoader(batches, batch_size=None, num_workers=workers, **more)
    return (lambda: pairs(loader)) if work == "photographs" else lambda: iter(loader)


# ---- Ray Data ----

class RayBatches:
    """Makes what a trainer wants of a block of indices. A batch of tokens is one row, as its width is its own."""

    def __init__(self, work, folder, whole, decode):
        self.work = work
        self.data = (work_of.Photographs(pictures_folder(folder, whole), decode, "arrays") if work == "photographs"
                     else work_of.dataset(work, folder))

    def __call__(self, block):
        indices = block["item"]
        if self.work == "photographs":
            images, labels = zip(*(self.data[index] for index in indices))
            return {"image": np.stack(images), "label": np.array(labels)}
        if self.work == "table":
            return {"row": self.data.batch(indices)}
        made = np.empty(1, object)
        made[0] = self.data.batch(indices)
        return {"batch": made}


def ray_data(work, folder, whole, workers, prefetch=2, decode=None):
    import logging

    import ray
    import ray.data
    if not ray.is_initialized():
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
                 object_store_memory=2 << 30)
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
    size = work_of.BATCH[work]
    count = len(work_of.Photographs(pictures_folder(folder, whole), decode)) if work == "photographs" else len(work_of.dataset(work, folder))

    def epoch():
        blocks = max(count // size // 16, 4 * workers)
        indices = ray.data.from_items(order(count).tolist(), override_num_blocks=min(blocks, 200))
        made = indices.map_batches(RayBatches, fn_constructor_args=(work, str(folder), whole, decode), batch_size=size,
                                   concurrency=workers)
        if work == "tokens":
            return (one["batch"][0] for one in made.iter_batches(batch_size=1, prefetch_batches=prefetch))
        batches = made.iter_batches(batch_size=size, prefetch_batches=prefetch)
        return ((one["image"], one["label"]) for one in batches) if work == "photographs" else (one["row"] for one in batches)
    return epoch


# ---- dataloader-rs ----

def dataloader_rs(work, folder, whole, workers, prefetch=2):
    """Threads of Rust, for free-threaded Python. A batch is a sample to it, which it does not stack."""
    import dataloader_rs as library
    data = work_of.dataset(work, folder)
    size = work_of.BATCH[work]

    class Whole(library.PyDataset):
        def __len__(self):
            return -(-len(data) // size)

        def __getitem__(self, index):
            return data.batch(self.shuffled[index * size:(index + 1) * size])

    def epoch():
        batches = Whole()
        batches.shuffled = order(len(data))
        return iter(library.PyDataloader(batches, 1, prefetch_depth=workers * prefetch, num_workers=workers, collate_fn=first_of))
    return epoch


def first_of(batches):
    return batches[0]


# ---- all ----

@dataclasses.dataclass(frozen=True)
class Contender:
    name: str
    make: Callable
    works: tuple
    searched: dict  # name of a setting: its values, the first one where the search begins
    fixed: dict = dataclasses.field(default_factory=dict)
    modules: tuple = ()
    worker: str = ""  # what the command line of a worker begins with, if there are other processes than workers


PICTURES, REST, DETECTION = ("photographs",), ("tokens", "table"), ("detection",)
BY_PROCESSES = {"workers": WORKERS, "prefetch": PREFETCH}
# The form first: it decides more with workers than without.
BY_TORCH = {"form": ("tensors", "arrays", "bytes"), "workers": WORKERS_OR_NONE, "prefetch": PREFETCH}
BY_FEEDLANE = {**BY_TORCH, "form": ("tensors", "arrays")}

CONTENDERS = (
    Contender("torch, PIL", torch_dataloader, PICTURES, BY_PROCESSES, {"decode": "pil"}, modules=("torch.utils.data",)),
    Contender("torch, v2", torch_dataloader, PICTURES, BY_PROCESSES, {"decode": "v2"}, modules=("torch.utils.data",)),
    Contender("torch", torch_dataloader, REST, BY_TORCH, modules=("torch.utils.data",)),
    Contender("torch", torch_dataloader, DETECTION, BY_FEEDLANE, modules=("torch.utils.data",)),
    Contender("feedlane.DataLoader, PIL", feedlane_dataloader, PICTURES, BY_PROCESSES, {"decode": "pil"}, modules=("torch.utils.data", "feedlane")),
    Contender("feedlane.DataLoader, v2", feedlane_dataloader, PICTURES, BY_PROCESSES, {"decode": "v2"}, modules=("torch.utils.data", "feedlane")),
    Contender("feedlane.DataLoader", feedlane_dataloader, (*REST, *DETECTION), BY_FEEDLANE, modules=("torch.utils.data", "feedlane")),
    Contender("feedlane.Loader, v2", feedlane_loader, PICTURES, BY_PROCESSES, {"decode": "v2"}, modules=("feedlane",)),
    Contender("feedlane.Loader", feedlane_loader, (*REST, *DETECTION), {"workers": WORKERS_OR_NONE, "prefetch": PREFETCH}, modules=("feedlane",)),
    Contender("feedlane.ImageFolder", image_folder, PICTURES, BY_PROCESSES, modules=("feedlane",)),
    Contender("SPDL, v2", spdl, PICTURES, {"workers": WORKERS, "sink": (4, 16)}, {"decode": "v2"}, modules=("spdl.pipeline",)),
    Contender("SPDL, its own decoder", spdl, PICTURES, {"workers": WORKERS, "sink": (4, 16)}, {"decode": "native"}, modules=("spdl.pipeline", "spdl.io")),
    Contender("SPDL", spdl, (*REST, *DETECTION), {"workers": (2, 1, 4), "sink": (4, 16)}, modules=("spdl.pipeline",)),
    Contender("grain, v2", grain, PICTURES, {"by": ("processes", "threads"), **BY_PROCESSES}, {"decode": "v2"}, modules=("grain",)),
    Contender("grain", grain, REST, {"by": ("processes", "threads"), "workers": (2, 1, 4), "prefetch": PREFETCH}, modules=("grain",)),
    Contender("tf.data", tensorflow, (*PICTURES, *REST), {"parallel": (2, -1, 4), "prefetch": (2, -1, 8)}, modules=("tensorflow",)),
    Contender("webdataset, v2", webdataset, PICTURES, BY_PROCESSES, {"decode": "v2"}, modules=("torch.utils.data", "webdataset")),
    Contender("webdataset", webdataset, ("tokens",), {"workers": WORKERS_OR_NONE, "prefetch": PREFETCH}, modules=("torch.utils.data", "webdataset")),
    Contender("Ray Data, v2", ray_data, PICTURES, {"workers": (2, 4), "prefetch": PREFETCH}, {"decode": "v2"}, worker="ray::", modules=("ray.data",)),
    Contender("Ray Data", ray_data, REST, {"workers": (2, 4), "prefetch": PREFETCH}, worker="ray::", modules=("ray.data",)),
    Contender("dataloader-rs", dataloader_rs, REST, {"workers": (2, 1, 4), "prefetch": PREFETCH}, modules=("dataloader_rs",)),
    Contender("no loader, v2", plain_loop, PICTURES, {}, {"decode": "v2"}),
    Contender("no loader", plain_loop, (*REST, *DETECTION), {}),
)


def prepare(contender, work, folder, whole):
    """Imports what it needs, and lists the pictures: no part of the time to the first batch."""
    for module in contender.modules:
        importlib.import_module(module)
    decode = contender.fixed.get("decode")
    if decode in ("pil", "v2"):
        work_of.transform(decode)
    if work == "photographs":
        work_of.pictures(pictures_folder(folder, whole))


def named(name, work):
    return next(contender for contender in CONTENDERS if contender.name == name and work in contender.works)


def endless(epochs):
    """Batch after batch, epoch after epoch."""
    return itertools.chain.from_iterable(epochs() for _ in itertools.count())
