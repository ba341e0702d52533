# SPDX-License-Identifier: Apache-2.0
"""MONAI: its data sets, collate functions and loaders, large batches of MetaTensors, and the training of a small network."""
import numpy as np
import pytest
import torch
from monai import data, transforms
from monai.networks.nets import UNet
from monai.utils import set_determinism


@pytest.fixture(autouse=True)
def determinism():
    set_determinism(seed=7)
    yield
    set_determinism(seed=None)


def volumes(count=10, side=16):
    return [{"image": np.full((1, side, side, side), i, np.float32), "label": np.full((1, side, side, side), i % 2, np.float32)}
            for i in range(count)]


RECIPE = transforms.Compose([
    transforms.ToTensord(["image", "label"]), transforms.RandGaussianNoised("image", prob=0.5),
    transforms.RandFlipd(["image", "label"], prob=0.5), transforms.RandSpatialCropd(["image", "label"], 8, random_size=False)])


def look(seen, loader):
    for batch in loader:
        seen.step(batch)
        image = batch["image"] if isinstance(batch, dict) else batch
        seen.value(type(image).__name__, sorted(map(str, getattr(image, "meta", ()))), len(getattr(image, "applied_operations", ())))


@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize("kind", ("Dataset", "CacheDataset", "PersistentDataset", "SmartCacheDataset", "ShuffleBuffer"))
def test_data_sets(seen, tmp_path, kind, workers):
    if kind == "PersistentDataset":
        rows = data.PersistentDataset(volumes(), RECIPE, tmp_path)
    elif kind == "SmartCacheDataset":
        rows = data.SmartCacheDataset(volumes(), RECIPE, cache_num=5, num_init_workers=1, num_replace_workers=1, progress=False)
    elif kind == "ShuffleBuffer":
        rows = data.ShuffleBuffer(volumes(), RECIPE, buffer_size=4, seed=2)
    else:
        rows = getattr(data, kind)(volumes(), RECIPE)
    loader = data.DataLoader(rows, batch_size=3, num_workers=workers, shuffle=kind != "ShuffleBuffer")
    look(seen, loader)
    look(seen, loader)


@pytest.mark.parametrize("megabytes", (1, 20))
def test_meta_tensors(seen, megabytes):
    """Batches of tensor subclasses, small and large."""
    rows = [data.MetaTensor(torch.full((megabytes << 18,), float(i)), affine=torch.eye(4) * i, meta={"file": f"{i}.nii"}) for i in range(4)]
    loader = data.DataLoader(data.Dataset(rows), batch_size=2, num_workers=2)
    look(seen, loader)
    seen.value([type(part).__name__ + str(part.meta) for batch in loader for part in data.decollate_batch(batch)])


@pytest.mark.parametrize("collate", (data.list_data_collate, data.pad_list_data_collate, lambda batch: batch))
def test_collate(seen, collate):
    padded = collate is data.pad_list_data_collate
    rows = [[{"x": torch.ones(1, 2 + padded * i) * i, "name": f"{i}.{j}", "at": (i, (j,))} for j in range(2)] for i in range(6)]
    rows = [row[0] for row in rows] if padded else rows
    for batch in data.DataLoader(data.Dataset(rows), batch_size=2, num_workers=2, collate_fn=collate):
        seen.step(batch)


@pytest.mark.parametrize("kind", ("grid", "patches"))
def test_patches(seen, kind):
    if kind == "grid":
        rows = data.GridPatchDataset([np.arange(64.).reshape(1, 8, 8) + i for i in range(4)], data.PatchIter(patch_size=(4, 4)),
                                     with_coordinates=True)
    else:
        rows = data.PatchDataset([np.arange(64.).reshape(1, 8, 8) + i for i in range(4)],
                                 transforms.RandSpatialCropSamples((4, 4), 3, random_size=False), samples_per_image=3)
    for batch in data.DataLoader(rows, batch_size=3, num_workers=2):
        seen.step(batch)


@pytest.mark.parametrize("threads", (False, True))
def test_thread_loader(seen, threads):
    rows = data.CacheDataset(volumes(8), transforms.ToTensord(["image", "label"]), progress=False)
    loader = data.ThreadDataLoader(rows, batch_size=2, num_workers=2, use_thread_workers=threads, persistent_workers=threads)
    look(seen, loader)
    look(seen, loader)
    seen.value(torch.utils.data.get_worker_info())


def test_training(seen):
    rows = data.CacheDataset(volumes(), RECIPE, progress=False)
    loader = data.DataLoader(rows, batch_size=2, shuffle=True, num_workers=2, persistent_workers=True)
    model = UNet(3, 1, 1, (4, 8), (2,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            loss = (model(batch["image"]) - batch["label"]).square().mean()
            loss.backward()
            optimizer.step()
            seen.step(loss.item())
    seen.weights(model)
