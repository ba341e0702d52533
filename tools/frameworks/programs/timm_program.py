# SPDX-License-Identifier: Apache-2.0
"""timm: its loader with augmentation and collating on a synthetic data set, and the training of a small network."""
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_loader


class Pictures(torch.utils.data.Dataset):
    transform = None

    def __len__(self):
        return 18

    def __getitem__(self, i):
        picture = Image.new("RGB", (40 + i, 48), (i, 2 * i, 3 * i))
        return self.transform(picture), i % 3


@pytest.mark.parametrize("settings", ({}, {"use_multi_epochs_loader": True}, {"re_split": True, "re_count": 2}, {"persistent_workers": False},
                                      {"use_prefetcher": False}, {"num_workers": 0}))
def test_loader(seen, settings):
    given = {"num_workers": 2, "is_training": True, "use_prefetcher": True, "auto_augment": "rand-m4-n2", "re_prob": 0.3, **settings}
    loader = create_loader(Pictures(), (3, 32, 32), 4, device=torch.device("cpu"), **given)
    for _ in range(2):
        for pixels, target in loader:
            seen.step(pixels, target)


def test_training(seen):
    loader = create_loader(Pictures(), (3, 32, 32), 6, device=torch.device("cpu"), is_training=True, num_workers=2)
    model = timm.create_model("test_resnet", pretrained=False, num_classes=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(2):
        for pixels, target in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(pixels), target)
            loss.backward()
            optimizer.step()
            seen.step(loss.item())
    seen.weights(model)
