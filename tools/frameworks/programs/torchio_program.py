# SPDX-License-Identifier: Apache-2.0
"""torchio: subjects with transforms by SubjectsLoader, and patches by its Queue, whose loader runs in the training loop."""
import pytest
import torch
import torchio


def subjects(count=8, side=10):
    return [torchio.Subject(image=torchio.ScalarImage(tensor=torch.full((1, side, side, side), float(i)) + torch.rand(1, side, side, side)),
                            label=torchio.LabelMap(tensor=torch.ones(1, side, side, side)), name=f"{i}", age=i) for i in range(count)]


RECIPE = torchio.Compose([torchio.RandomFlip(axes=(0, 1)), torchio.RandomNoise(p=0.5), torchio.RescaleIntensity((0, 1))])


def plain(batch):
    return {name: value["data"] if isinstance(value, dict) else value for name, value in batch.items()
            if isinstance(value, (torch.Tensor, list)) or isinstance(value, dict) and "data" in value}


@pytest.mark.parametrize("settings", ({"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}))
def test_subjects(seen, settings):
    rows = torchio.SubjectsDataset(subjects(), transform=RECIPE)
    loader = torchio.SubjectsLoader(rows, batch_size=3, shuffle=True, **settings)
    for _ in range(2):
        for batch in loader:
            seen.step(plain(batch))


def test_queue(seen):
    rows = torchio.SubjectsDataset(subjects())
    queue = torchio.Queue(rows, max_length=12, samples_per_volume=3, sampler=torchio.UniformSampler(4), num_workers=2)
    model = torch.nn.Conv3d(1, 1, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for batch in torchio.SubjectsLoader(queue, batch_size=4, num_workers=0):
            optimizer.zero_grad()
            loss = model(batch["image"][torchio.DATA]).square().mean()
            loss.backward()
            optimizer.step()
            seen.step(plain(batch), loss.item())
    seen.weights(model)
