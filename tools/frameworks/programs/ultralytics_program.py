# SPDX-License-Identifier: Apache-2.0
"""ultralytics: batches of its InfiniteDataLoader over pictures with labels, and two epochs of training."""
import pathlib

import numpy as np
import pytest
import torch
from PIL import Image
from ultralytics.cfg import get_cfg
from ultralytics.data.build import build_dataloader, build_yolo_dataset
from ultralytics.nn.tasks import DetectionModel
from ultralytics.utils import DEFAULT_CFG


@pytest.fixture
def pictures(tmp_path):
    drawn = np.random.default_rng(3)
    for name in "images", "labels":
        pathlib.Path(tmp_path, name).mkdir()
    for i in range(12):
        Image.fromarray(drawn.integers(0, 255, (64, 48 + 4 * i, 3), np.uint8)).save(tmp_path / f"images/{i}.png")
        (tmp_path / f"labels/{i}.txt").write_text("".join(f"{k % 2} 0.5 0.5 0.{k + 2} 0.3\n" for k in range(1 + i % 3)))
    return tmp_path


def loader(folder, mode, workers, batch=4):
    settings = get_cfg(DEFAULT_CFG, {"imgsz": 64, "task": "detect", "cache": False, "mosaic": 1.0})
    rows = build_yolo_dataset(settings, str(folder / "images"), batch, {"names": {0: "a", 1: "b"}, "channels": 3}, mode=mode, rect=False, stride=32)
    return build_dataloader(rows, batch, workers, shuffle=mode == "train", rank=-1)


@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize("mode", ("train", "val"))
def test_batches(seen, pictures, mode, workers):
    batches = loader(pictures, mode, workers)
    for _ in range(3):
        seen.value(len(batches))
        for batch in batches:
            seen.step({**batch, "im_file": [pathlib.Path(name).name for name in batch["im_file"]]})
    batches.reset()
    seen.value([len(batch["im_file"]) for batch in batches])


def test_training(seen, pictures):
    batches = loader(pictures, "train", 2)
    model = DetectionModel("yolo11n.yaml", nc=2, verbose=False)
    model.args = get_cfg(DEFAULT_CFG)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        for batch in batches:
            batch["img"] = batch["img"].float() / 255
            optimizer.zero_grad()
            loss, _ = model(batch)
            loss.sum().backward()
            optimizer.step()
            seen.step(loss.sum().item())
    seen.weights(model)
