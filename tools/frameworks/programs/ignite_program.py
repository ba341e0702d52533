# SPDX-License-Identifier: Apache-2.0
"""ignite: its engines over loaders with workers, and a deterministic engine that continues in the middle of an epoch."""
import pytest
import torch
from ignite.engine import DeterministicEngine, Engine, Events
from torch.utils.data import DataLoader, TensorDataset


def rows():
    return TensorDataset(torch.arange(26.).view(-1, 1))


@pytest.mark.parametrize("kind", (Engine, DeterministicEngine))
@pytest.mark.parametrize("persistent", (False, True))
def test_engine(seen, kind, persistent):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(_, batch):
        optimizer.zero_grad()
        loss = model(batch[0]).square().mean()
        loss.backward()
        optimizer.step()
        seen.step(batch, loss.item())
    engine = kind(step)
    engine.run(DataLoader(rows(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=persistent), max_epochs=3)
    seen.weights(model)


def test_continued(seen):
    loader = DataLoader(rows(), batch_size=4, shuffle=True, num_workers=2)
    first = DeterministicEngine(lambda _, batch: seen.step(batch))
    first.add_event_handler(Events.ITERATION_COMPLETED(once=10), first.terminate)
    first.run(loader, max_epochs=3)
    second = DeterministicEngine(lambda _, batch: seen.step(batch))
    second.load_state_dict({**first.state_dict(), "rng_states": None, "iteration": 10, "epoch_length": 7, "max_epochs": 3})
    second.run(loader)
