# SPDX-License-Identifier: Apache-2.0
"""torch_geometric: batches of graphs by its loaders, and the training of a graph network."""
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataListLoader, DataLoader, DenseDataLoader, DynamicBatchSampler, RandomNodeLoader
from torch_geometric.nn import GCNConv, global_mean_pool


def graphs(count=14):
    return [Data(x=torch.full((3 + i % 4, 2), float(i)), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), y=torch.tensor([i % 2]), name=f"{i}")
            for i in range(count)]


def plain(batch):
    return [graph.to_dict() for graph in batch] if isinstance(batch, list) else [type(batch).__name__, batch.to_dict()]


@pytest.mark.parametrize("settings", ({}, {"follow_batch": ["x"]}, {"exclude_keys": ["name"]}, {"persistent_workers": True}, {"num_workers": 0}))
def test_graphs(seen, settings):
    loader = DataLoader(graphs(), **{"batch_size": 4, "shuffle": True, "num_workers": 2, **settings})
    for _ in range(2):
        for batch in loader:
            seen.step(plain(batch), batch.num_graphs, batch.ptr)


def test_hetero(seen):
    rows = []
    for i in range(6):
        rows.append(HeteroData(a={"x": torch.ones(2 + i, 3) * i}, b={"x": torch.ones(1, 2)}, a__to__b={"edge_index": torch.zeros(2, 3).long()}))
    for batch in DataLoader(rows, batch_size=2, num_workers=2):
        seen.step(plain(batch))


@pytest.mark.parametrize("kind", (DataListLoader, DenseDataLoader))
def test_other_loaders(seen, kind):
    rows = [Data(x=torch.ones(4, 2) * i, adj=torch.eye(4)) for i in range(7)]
    for batch in kind(rows, batch_size=3, shuffle=True, num_workers=2):
        seen.step(plain(batch))


def test_dynamic_batches(seen):
    for batch in DataLoader(graphs(), batch_sampler=DynamicBatchSampler(graphs(), max_num=12, shuffle=True), num_workers=2):
        seen.step(plain(batch))


def test_random_nodes(seen):
    graph = Data(x=torch.arange(20.).view(-1, 1), edge_index=torch.randint(20, (2, 60)))
    for part in RandomNodeLoader(graph, num_parts=4, shuffle=True, num_workers=2):
        seen.step(plain(part))


def test_training(seen):
    layers = torch.nn.ModuleList((GCNConv(2, 8), torch.nn.Linear(8, 2)))
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.01)
    loader = DataLoader(graphs(), batch_size=4, shuffle=True, num_workers=2)
    for _ in range(3):
        for batch in loader:
            optimizer.zero_grad()
            found = layers[1](global_mean_pool(layers[0](batch.x, batch.edge_index).relu(), batch.batch))
            loss = torch.nn.functional.cross_entropy(found, batch.y)
            loss.backward()
            optimizer.step()
            seen.step(loss.item())
    seen.weights(layers)
