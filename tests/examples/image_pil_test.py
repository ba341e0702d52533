#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/cpp/image_folder's crops beside Pillow's, which are those of torchvision's RandomResizedCrop: decoded at full size,
crop(), resize(BILINEAR). Skipped (77) where the interpreter has no Pillow or numpy.
Usage: image_pil_test.py IMAGE_CROP [unittest's arguments]"""
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
    from PIL import Image
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

PROGRAM = sys.argv.pop(1)


def draw(width, height, seed):
    """Light, edges and texture, as of a photograph; no noise, which no two decoders of JPEG have alike."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    random = np.random.default_rng(seed)
    light = 128 + 60 * np.sin(x / random.uniform(40, 90)) * np.cos(y / random.uniform(30, 70)) + 20 * np.sin((x + 2 * y) / 6)
    light -= 40 * ((x // 40 + y // 30) % 3 == 0)
    return Image.fromarray(np.clip(light[..., None] * random.uniform(0.5, 1, 3), 0, 255).astype(np.uint8))


class Pictures(unittest.TestCase):
    def differences(self, crops, size=(500, 375), mode="RGB", **saved):
        """Mean and largest difference of a colour's value, of 255, for each (x, y, width, height, side)."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "picture.jpg")
            draw(*size, seed=7).convert(mode).save(path, quality=90, **saved)
            lines = "".join(f"{path} {x} {y} {w} {h} {side}\n" for x, y, w, h, side in crops)
            run = subprocess.run([PROGRAM], input=lines.encode(), stdout=subprocess.PIPE, check=True)
            with Image.open(path) as file:
                picture = file.convert("RGB")
        found, at = [], 0
        for x, y, w, h, side in crops:
            theirs = np.asarray(picture.crop((x, y, x + w, y + h)).resize((side, side), Image.BILINEAR)).transpose(2, 0, 1)
            ours = np.frombuffer(run.stdout, np.uint8, 3 * side * side, at).reshape(3, side, side)
            at += ours.size
            off = np.abs(ours.astype(int) - theirs)
            found.append((off.mean(), off.max()))
        self.assertEqual(at, len(run.stdout))
        return found

    def test_crops_decoded_at_full_size(self):
        crops = [(0, 0, 500, 375, 301), (37, 53, 300, 260, 224), (200, 100, 64, 80, 224), (1, 1, 498, 373, 224),
                 (276, 151, 224, 224, 224)]
        for saved in {}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}, {"mode": "L"}:
            for crop, (mean, most) in zip(crops, self.differences(crops, **saved)):
                with self.subTest(saved=saved, crop=crop):
                    self.assertLess(mean, 0.25)
                    self.assertLessEqual(most, 2)

    def test_crops_decoded_at_a_fraction(self):
        crops = [(60, 32, 520, 460, side) for side in (224, 96, 40)]
        for crop, (mean, most) in zip(crops, self.differences(crops, (640, 512))):
            with self.subTest(crop=crop):
                self.assertLess(mean, 1.2)
                self.assertLessEqual(most, 8)


if __name__ == "__main__":
    unittest.main()
