# SPDX-License-Identifier: Apache-2.0
"""fastai: its Learner over DataLoaders made of torch's. (The loader that fastai brings calls the insides of torch's loader and has
no DataLoader that another could replace.)"""
import pytest
import torch
from fastai.callback.core import Callback
from fastai.callback import progress as _, schedule as _  # learners get no_bar and fit_one_cycle by these imports
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return torch.full((3,), i / 10) + torch.rand(3) / 100, torch.tensor([float(i)])


class Look(Callback):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def before_batch(self):
        self.seen.step(self.learn.xb, self.learn.yb)

    def after_loss(self):
        self.seen.value(self.learn.loss.item())


@pytest.mark.parametrize("settings", ({"num_workers": 0}, {}, {"persistent_workers": True}, {"drop_last": True, "prefetch_factor": 4}))
def test_learner(seen, tmp_path, settings):
    given = {"batch_size": 4, "num_workers": 2, **settings}
    loaders = DataLoaders(DataLoader(Rows(22), shuffle=True, **given), DataLoader(Rows(9), **given), path=tmp_path, device=torch.device("cpu"))
    learner = Learner(loaders, torch.nn.Linear(3, 1), loss_func=torch.nn.MSELoss(), cbs=[Look(seen)])
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(2)
        seen.value(learner.validate())
    seen.weights(learner.model)
