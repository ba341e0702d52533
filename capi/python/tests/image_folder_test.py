# SPDX-License-Identifier: Apache-2.0
"""feedlane.ImageFolder and its workers, the program feedlane-image-folder, which PATH must have. Pictures come from Pillow; skipped
(77) without it.
Usage: FEEDLANE_LIBRARY=... PYTHONPATH=capi/python image_folder_test.py [unittest's arguments]"""
import hashlib
import io
import os
import pathlib
import signal
import struct
import sys
import tempfile
import unittest
import zlib
from unittest import mock

from numpy_or_skip import np
import feedlane

try:
    from PIL import Image
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def draw(width, height, seed=1):
    """A picture of smooth colours, which differs for each seed."""
    x, y = np.meshgrid(np.linspace(0, 3, width), np.linspace(0, 2, height))
    return Image.fromarray(np.stack([128 + 100 * np.sin(x * a + y * b + seed) for a, b in ((1, 2), (2, -1), (-3, 1))], -1).astype(np.uint8))


def encoded(picture, form, **saved):
    out = io.BytesIO()
    picture.save(out, form, **saved)
    return out.getvalue()


def digest(batch):
    return hashlib.sha256(batch["image"].tobytes() + batch["label"].tobytes()).hexdigest()


def planes(picture):
    return np.asarray(picture.convert("RGB")).transpose(2, 0, 1).astype(int)


def with_jpeg_size(content, width, height):
    """A JPEG whose header has another size."""
    at = content.index(b"\xff\xc0") + 5
    return content[:at] + struct.pack(">HH", height, width) + content[at + 4:]


def with_scans(content, count):
    """A progressive JPEG whose last scan comes so often again."""
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * count + content[-2:]


def with_png_size(content, width, height):
    header = b"IHDR" + struct.pack(">II", width, height) + content[24:29]
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


class Folder(unittest.TestCase):
    def setUp(self):
        parent = tempfile.TemporaryDirectory()
        self.addCleanup(parent.cleanup)
        self.folder = pathlib.Path(parent.name) / "photos"

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return str(path)

    def fill(self, count=24):
        for number in range(count):
            form, end = ("PNG", "png") if number % 3 == 0 else ("JPEG", "jpg")
            self.write(f"{'cat dog owl'.split()[number % 3]}/{number:02}.{end}", encoded(draw(60 + number, 50, number), form))

    def loader(self, crop=32, batch_size=4, **options):
        made = feedlane.ImageFolder(self.folder, crop, batch_size, **{"workers": 1, "seed": 1, **options})
        self.addCleanup(made.close)
        return made

    def digests(self, *arguments, epochs=2, **options):
        loader = self.loader(*arguments, **options)
        return [digest(batch) for _ in range(epochs) for batch in loader]


class Batches(Folder):
    def test_shapes_classes_and_samples(self):
        self.fill()
        loader = self.loader(train=False, batch_size=10)
        self.assertEqual(len(loader), 3)
        self.assertEqual((loader.classes, loader.class_to_idx), (["cat", "dog", "owl"], {"cat": 0, "dog": 1, "owl": 2}))
        self.assertEqual(len(loader.samples), 24)
        self.assertEqual(loader.samples[8], (str(self.folder / "dog/01.jpg"), 1))
        batches = [{name: array.copy() for name, array in batch.items()} for batch in loader]
        self.assertEqual([(batch["image"].shape, batch["image"].dtype) for batch in batches], [((n, 3, 32, 32), np.float32) for n in (10, 10, 4)])
        self.assertEqual(np.concatenate([batch["label"] for batch in batches]).tolist(), [0] * 8 + [1] * 8 + [2] * 8)
        self.assertEqual(next(iter(self.loader((20, 30), mean=None)))["image"].shape, (4, 3, 20, 30))
        self.assertEqual(next(iter(self.loader(mean=None)))["image"].dtype, np.uint8)
        self.assertEqual([batch["label"].tolist() for batch in self.loader(sampler=[23, 0, 9])], [[2, 0, 1]])

    def test_evaluation_equals_torchvisions_transforms_over_pillow(self):
        self.fill()
        loader = self.loader((28, 32), train=False, resize=40, batch_size=24)
        images = next(iter(loader))["image"]
        for (path, _), image in zip(loader.samples, images):
            with Image.open(path) as file:
                picture = file.convert("RGB")
            w, h = (int(40 * side / min(picture.size)) for side in picture.size)
            left, top = round((w - 32) / 2.0), round((h - 28) / 2.0)
            wanted = planes(picture.resize((w, h), Image.BILINEAR).crop((left, top, left + 32, top + 28)))
            off = np.abs((image * STD[:, None, None] + MEAN[:, None, None]) * 255 - wanted)
            self.assertLess(off.mean(), 0.5, path)
            self.assertLess(off.max(), 3, path)

    # promise: seed-any-workers
    def test_batches_do_not_depend_on_workers(self):
        self.fill()
        one = self.digests(workers=1)
        self.assertEqual(len(one), 12)
        self.assertEqual(self.digests(workers=3, prefetch_factor=3), one)
        self.assertNotEqual(one[0], self.digests(workers=1, seed=2)[0])

    def test_a_killed_worker_changes_nothing(self):
        self.fill()
        expected = self.digests(epochs=1)
        loader = self.loader()
        batches = []
        for batch in loader:
            batches.append(digest(batch))
            if len(batches) == 1:
                os.kill(loader.workers()[0]["pid"], signal.SIGKILL)
        self.assertEqual(batches, expected)
        self.assertEqual(loader.stats()["restarts_signal"], 1)

    def test_flips_and_crops_differ_between_samples_and_epochs(self):
        half = np.zeros((64, 64, 3), np.uint8)
        half[:, 32:] = 255
        for number in range(64):
            self.write(f"c/{number}.png", encoded(Image.fromarray(half), "PNG"))
        loader = self.loader(16, 64, scale=(1, 1), ratio=(1, 1), shuffle=False, mean=None)
        flips = np.array([next(iter(loader))["image"][:, 0, 0, 0] == 255 for _ in range(8)])
        self.assertTrue(200 < flips.sum() < 312, flips.sum())  # of 512: 5 standard deviations
        self.assertEqual(len({row.tobytes() for row in flips}), 8)
        for flip in 0, 1:
            images = next(iter(self.loader(16, 64, scale=(1, 1), ratio=(1, 1), mean=None, flip=flip)))["image"]
            self.assertEqual(set(images[:, 0, 0, 0].tolist()), {255 * flip})


class Files(Folder):
    def decoded(self, name, content):
        """The picture, resized to 32 x 32 without a crop."""
        self.write("c/" + name, content)
        loader = self.loader(32, 1, scale=(1, 1), ratio=(1, 1), flip=0, mean=None)
        image = next(iter(loader))["image"][0].astype(int)
        os.unlink(self.folder / "c" / name)
        return image

    def test_kinds_of_files(self):
        picture = draw(60, 60)
        grey, alpha = picture.convert("L"), picture.copy()
        alpha.putalpha(grey)
        exif = Image.Exif()
        exif[0x112] = 6  # rotated
        sixteen = encoded(Image.fromarray(np.asarray(grey).astype(np.uint16) * 257), "PNG")
        kinds = {
            "plain.jpg": encoded(picture, "JPEG"), "PNG with another name.jpg": encoded(picture, "PNG"),
            "grey.jpg": encoded(grey, "JPEG"), "cmyk.jpg": encoded(picture.convert("CMYK"), "JPEG"),
            "rotated by exif.jpg": encoded(picture, "JPEG", exif=exif), "alpha.png": encoded(alpha, "PNG"),
            "palette with alpha.png": encoded(picture.quantize(256), "PNG", transparency=bytes(range(256))),
            "animated.png": encoded(picture, "PNG", save_all=True, append_images=[draw(60, 60, 9)]), "16 bits.png": sixteen}
        for name, content in kinds.items():
            with self.subTest(name):
                theirs = grey if content is sixteen else Image.open(io.BytesIO(content))  # Pillow makes it white
                theirs.info.pop("transparency", None)  # it warns of it
                off = np.abs(self.decoded(name, content) - planes(theirs.convert("RGB").resize((32, 32), Image.BILINEAR)))
                self.assertLess(off.mean(), 0.4)
                self.assertLessEqual(off.max(), 2)

    def test_broken_files_are_errors_of_their_samples(self):
        jpeg, png = encoded(draw(200, 150), "JPEG"), encoded(draw(200, 150), "PNG")
        broken = {
            "text.jpg": (b"this is no picture", "neither a JPEG nor a PNG, it begins with the bytes 74 68 69 73 20 69 73 20"),
            "empty.jpg": (b"", "the file is empty"), "gif.png": (encoded(draw(9, 9), "GIF"), "neither a JPEG nor a PNG"),
            "half.jpg": (jpeg[:len(jpeg) // 3], "Premature end"), "header.jpg": (jpeg[:20], "ended without|no image|Premature"),
            "half.png": (png[:len(png) // 3], "ends too early"), "header.png": (png[:20], "ends too early"),
            "crc.png": (png[:50] + b"!" + png[51:], "CRC|crc|incorrect"),
            "scans.jpg": (with_scans(encoded(draw(200, 150), "JPEG", progressive=True), 600), "more than 500 scans"),
            "bomb.jpg": (with_jpeg_size(jpeg, 65500, 65500), "65500 x 65500 pixels: must be at most 178956970, see --max-pixels"),
            "bomb.png": (with_png_size(png, 100000, 100000), "100000 x 100000 pixels: must be at most 178956970"),
            "wide.png": (with_png_size(png, 2**31 - 1, 1), "exceeds user limit"), "no width.png": (with_png_size(png, 0, 10), "width is zero")}
        paths = {self.write("c/" + name, content): words for name, (content, words) in broken.items()}
        self.write("c/good.jpg", jpeg)
        loader = self.loader(150, 20, scale=(1, 1), flip=0, skip_budget=-1)
        [batch] = list(loader.batches())
        with batch:
            self.assertEqual([loader.samples[index][0] for index in batch.indices], [str(self.folder / "c/good.jpg")])
            self.assertEqual(len(batch.skipped), len(broken))
        skipped = {loader.samples[event.sample][0]: event.text for event in loader.events() if event.kind == "sample skipped"}
        self.assertEqual(skipped.keys(), paths.keys())
        for path, words in paths.items():
            with self.subTest(path):
                self.assertIn(path, skipped[path])
                self.assertRegex(skipped[path], words)

    def test_an_error_names_the_file(self):
        path = self.write("c/text.jpg", b"this is no picture")
        with self.assertRaises(feedlane.SampleError) as caught:
            next(iter(self.loader()))
        self.assertIn(f"{path}: the file is neither a JPEG nor a PNG", str(caught.exception))
        self.assertEqual(caught.exception.sample, 0)

    def test_fifos_are_refused_and_max_pixels_is_a_limit(self):
        self.write("c/1.png", encoded(draw(60, 50), "PNG"))
        with self.assertRaisesRegex(feedlane.SampleError, "60 x 50 pixels: must be at most 2999"):
            next(iter(self.loader(max_pixels=2999)))
        self.assertEqual(next(iter(self.loader(max_pixels=3000)))["label"].tolist(), [0])
        os.unlink(self.folder / "c/1.png")
        os.mkfifo(self.folder / "c/1.png")
        with self.assertRaisesRegex(feedlane.SampleError, "c/1.png: it is not a regular file"):
            next(iter(self.loader()))


class Arguments(Folder):
    def test_refusals(self):
        with self.assertRaisesRegex(FileNotFoundError, "photos: No such file"):
            self.loader()
        self.fill(3)
        for words, options in (("--scale 0.0,1.0: must be two numbers", {"scale": (0, 1)}), ("--flip 2: must be a number", {"flip": 2}),
                               ("--resize 20: must be at least 32", {"train": False, "resize": 20}),
                               ("--std 0.0,1.0,1.0: must be three", {"std": (0, 1, 1)}),
                               ("70000 pixels: must be at most 65536", {"crop": (1, 70000)})):
            with self.subTest(options), self.assertRaisesRegex(feedlane.InitError, words):
                next(iter(self.loader(**options)))
        for name in "num_workers", "fields", "worker":
            with self.assertRaisesRegex(TypeError, f"{name} is not an argument of ImageFolder"):
                self.loader(**{name: 1})
        with self.assertRaisesRegex(ValueError, "num_workers=0"):
            self.loader(workers=0)
        with mock.patch.dict(os.environ, {"PATH": "/nowhere"}), self.assertRaisesRegex(FileNotFoundError, "neither .*bin/.* nor in PATH. Install"):
            self.loader()


if __name__ == "__main__":
    unittest.main()
