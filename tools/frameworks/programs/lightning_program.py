# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer: order, random generators and weights with a data module, several loaders at once, and a second run that
continues from a checkpoint."""
import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.utilities import CombinedLoader
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, count=26):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return {"x": torch.full((3,), float(i)) + torch.rand(3), "name": f"row {i}", "pair": (i, [i, -i])}


class Model(lightning.LightningModule):
    def __init__(self, seen):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(3, 1), seen

    def _loss(self, batch):
        self.seen.step(batch)
        first = batch if "x" in batch else next(value for value in batch.values() if value is not None)
        return self.layer(first["x"]).square().mean()

    def training_step(self, batch, _):
        return self._loss(batch)

    def validation_step(self, batch, _, dataloader_idx=0):
        self.seen.value(dataloader_idx, self._loss(batch).item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class Module(lightning.LightningDataModule):
    def __init__(self, **settings):
        super().__init__()
        self.settings = {"batch_size": 4, "num_workers": 2, **settings}

    def train_dataloader(self):
        return DataLoader(Rows(), shuffle=True, **self.settings)

    def val_dataloader(self):
        return [DataLoader(Rows(7), **self.settings), DataLoader(Rows(5), **self.settings)]


def make(folder, **settings):
    return lightning.Trainer(accelerator="cpu", devices=1, default_root_dir=folder, logger=False, enable_progress_bar=False,
                             enable_model_summary=False, **{"max_epochs": 2, "enable_checkpointing": False, **settings})


@pytest.mark.parametrize("settings", ({}, {"persistent_workers": True}, {"num_workers": 0}, {"drop_last": True, "prefetch_factor": 4}))
def test_data_module(seen, tmp_path, settings):
    model = Model(seen)
    lightning.seed_everything(3, workers=True)
    make(tmp_path).fit(model, Module(**settings))
    seen.weights(model)


@pytest.mark.parametrize("mode", ("min_size", "max_size_cycle", "sequential"))
def test_several_loaders(seen, tmp_path, mode):
    loaders = {"a": DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=2), "b": DataLoader(Rows(9), batch_size=2, num_workers=1)}
    model = Model(seen)
    if mode == "sequential":
        combined = list(CombinedLoader(loaders, mode))
        seen.value([(index, which) for _, index, which in combined])
        for batch, _, _ in combined:
            seen.step(batch)
    else:
        make(tmp_path).fit(model, CombinedLoader(loaders, mode))
        seen.weights(model)


def test_limits_and_sanity_check(seen, tmp_path):
    model = Model(seen)
    make(tmp_path, limit_train_batches=3, limit_val_batches=1, num_sanity_val_steps=2, val_check_interval=2).fit(
        model, Module(persistent_workers=True))
    seen.weights(model)


def test_continued(seen, tmp_path):
    first = make(tmp_path, max_steps=4)
    first.fit(Model(seen), Module())
    first.save_checkpoint(tmp_path / "at 4")
    model = Model(seen)
    make(tmp_path).fit(model, Module(), ckpt_path=tmp_path / "at 4", weights_only=False)
    seen.weights(model)
