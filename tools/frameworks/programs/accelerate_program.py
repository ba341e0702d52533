# SPDX-License-Identifier: Apache-2.0
"""accelerate: a training loop over a prepared loader, two epochs, for its kinds of loaders."""
import accelerate
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

CONFIGURATIONS = {"plain": {}, "seedable": {"use_seedable_sampler": True}, "dispatched": {"dispatch_batches": True, "split_batches": True},
                  "even": {"even_batches": False}}


@pytest.mark.parametrize("persistent", (False, True))
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_training(seen, configuration, persistent):
    given = accelerate.utils.DataLoaderConfiguration(**CONFIGURATIONS[configuration])
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=given)
    rows = TensorDataset(torch.arange(25.).view(-1, 1), torch.arange(25.).view(-1, 1) * 3)
    model = torch.nn.Linear(1, 1)
    loader = DataLoader(rows, batch_size=4, shuffle=True, num_workers=2, persistent_workers=persistent)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4), loader)
    for epoch in range(2):
        loader.set_epoch(epoch)
        for number, (x, y) in enumerate(accelerator.skip_first_batches(loader, 2) if epoch else loader):
            seen.step(x, y, number, loader.end_of_dataloader, loader.remainder)
            with accelerator.accumulate(model):
                accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
    seen.weights(model)
    accelerator.free_memory()
