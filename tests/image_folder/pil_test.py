#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares feedlane-image-folder's pixels with Pillow's, which are those of torchvision's transforms: decoded at full size, then
crop() and resize(BILINEAR), or resize(BILINEAR) and crop(). Skipped (77) where the interpreter has no Pillow or numpy.
Usage: pil_test.py IMAGE_CROP [unittest's arguments]"""
import os
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

try:
    import numpy as np
    from PIL import Image
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

PROGRAM = sys.argv.pop(1)


def draw(width, height, seed):
    """Light, edges and texture, as of a photograph, but no noise, which two JPEG decoders would treat differently."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    random = np.random.default_rng(seed)
    light = 128 + 60 * np.sin(x / random.uniform(40, 90)) * np.cos(y / random.uniform(30, 70)) + 20 * np.sin((x + 2 * y) / 6)
    light -= 40 * ((x // 40 + y // 30) % 3 == 0)
    return Image.fromarray(np.clip(light[..., None] * random.uniform(0.5, 1, 3), 0, 255).astype(np.uint8))


def interlaced(picture):
    """A PNG in Adam7's seven passes, which Pillow reads but does not write."""
    pixels, data = np.asarray(picture), b""
    for x, y, dx, dy in (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2):
        data += b"".join(b"\0" + row.tobytes() for row in pixels[y::dy, x::dx] if row.size)
    header = struct.pack(">IIBBBBB", *picture.size, 8, 2, 0, 0, 1)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
                                           for name, body in chunks)


def cropped(picture, x, y, w, h, width, height):
    return picture.crop((x, y, x + w, y + h)).resize((width, height), Image.BILINEAR)


def centred(picture, resize, width, height):
    """torchvision's Resize and CenterCrop."""
    short = min(picture.size)
    w, h = (int(resize * side / short) for side in picture.size)
    left, top = round((w - width) / 2.0), round((h - height) / 2.0)
    return picture.resize((w, h), Image.BILINEAR).crop((left, top, left + width, top + height))


class Pictures(unittest.TestCase):
    def differences(self, picture, wanted, name="picture.jpg", **saved):
        """(what, mean, largest) difference of a colour's value, of 255, for each (function, its numbers)."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, name)
            if isinstance(picture, bytes):
                with open(path, "wb") as file:
                    file.write(picture)
            else:
                picture.save(path, **({"quality": 90, **saved} if name.endswith("jpg") else saved))
            modes = {cropped: "crop", centred: "centre"}
            lines = "".join(f"{path} {modes[way]} {' '.join(map(str, numbers))}\n" for way, *numbers in wanted)
            run = subprocess.run([PROGRAM], input=lines.encode(), stdout=subprocess.PIPE, check=True)
            with Image.open(path) as file:
                theirs = [np.asarray(way(file.convert("RGB"), *numbers)).transpose(2, 0, 1) for way, *numbers in wanted]
        at = 0
        for what, their in zip(wanted, theirs):
            ours = np.frombuffer(run.stdout, np.uint8, their.size, at).reshape(their.shape)
            at += ours.size
            off = np.abs(ours.astype(int) - their)
            yield what[1:], off.mean(), off.max()
        self.assertEqual(at, len(run.stdout))

    CROPS = [(cropped, 0, 0, 500, 375, 301, 301), (cropped, 37, 53, 300, 260, 224, 224), (cropped, 200, 100, 64, 80, 224, 224),
             (cropped, 1, 1, 498, 373, 224, 192), (cropped, 276, 151, 224, 224, 224, 224)]

    def test_crops_decoded_at_full_size(self):
        for saved in {}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}, {"mode": "L"}, {"mode": "CMYK"}:
            mode = saved.pop("mode", "RGB")
            for crop, mean, most in self.differences(draw(500, 375, 7).convert(mode), self.CROPS, **saved):
                with self.subTest(saved=saved, mode=mode, crop=crop):
                    self.assertLess(mean, 0.25)
                    self.assertLessEqual(most, 2)

    def test_crops_decoded_at_a_fraction(self):
        crops = [(cropped, 60, 32, 520, 460, side, side) for side in (224, 96, 40)]
        for crop, mean, most in self.differences(draw(640, 512, 7), crops):
            with self.subTest(crop=crop):
                self.assertLess(mean, 1.2)
                self.assertLessEqual(most, 8)

    def test_middle_of_the_resized_picture(self):
        for size in (500, 375), (281, 400), (256, 256), (224, 900), (100, 60):
            wanted = [(centred, 256, 224, 224), (centred, 224, 224, 224), (centred, 257, 200, 224)]
            for crop, mean, most in self.differences(draw(*size, 7), wanted):
                with self.subTest(size=size, crop=crop):
                    self.assertLess(mean, 0.25)
                    self.assertLessEqual(most, 2)

    def test_png(self):
        """Grey, palettes, transparency, few bits and interlacing: the values are the file's own."""
        picture = draw(500, 375, 7)
        clear = np.asarray(picture)[..., 0]
        pictures = {mode: picture.convert(mode) for mode in ("RGB", "L", "1")}
        pictures["P"] = picture.quantize(200)
        pictures["P of 4 bits"] = picture.quantize(13)
        pictures["RGBA"] = Image.fromarray(np.dstack([np.asarray(picture), clear]))
        pictures["LA"] = picture.convert("LA")
        for name, made in pictures.items():
            for saved in {}, {"transparency": 3} if name[0] == "P" else {"dpi": (72, 72)}:
                for crop, mean, most in self.differences(made, [*self.CROPS, (centred, 256, 224, 224)], "picture.png", **saved):
                    with self.subTest(name=name, saved=saved, crop=crop):
                        self.assertLess(mean, 0.25)
                        self.assertLessEqual(most, 1)

    def test_interlaced_png(self):
        for crop, mean, most in self.differences(interlaced(draw(501, 375, 7)), self.CROPS, "picture.png"):
            with self.subTest(crop=crop):
                self.assertLess(mean, 0.25)
                self.assertLessEqual(most, 1)

    def test_png_that_shrinks_much(self):
        for width, height in (3000, 2000), (40, 30000), (30000, 40):
            for crop, mean, most in self.differences(draw(width, height, 7), [(cropped, 0, 0, width, height, 32, 20)], "picture.png"):
                with self.subTest(crop=crop):
                    self.assertLess(mean, 0.5)
                    self.assertLessEqual(most, 1)


if __name__ == "__main__":
    unittest.main()
