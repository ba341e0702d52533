# SPDX-License-Identifier: Apache-2.0
"""One training script with two loaders, torch's DataLoader or Feedlane's Loader, selected by --loader. The losses are the same.
Usage: PYTHONPATH=capi/python train_torch.py [--loader torch|feedlane] [--workers N] [--epochs N]"""
import argparse
import time

import torch

import feedlane
from digits import Digits


class Tensors(Digits):
    def __getitem__(self, i):
        image, label = super().__getitem__(i)
        return torch.from_numpy(image).float() / 16, int(label)


def make_loader(kind, dataset, **arguments):
    if kind == "torch":
        return torch.utils.data.DataLoader(dataset, **arguments)
    return feedlane.Loader(dataset, tensors="torch", **arguments)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", choices=("torch", "feedlane"), default="feedlane")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    chosen = parser.parse_args()
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    loader = make_loader(chosen.loader, Tensors(), batch_size=64, shuffle=True, num_workers=chosen.workers,
                         persistent_workers=chosen.workers > 0)
    for epoch in range(chosen.epochs):
        began, total = time.perf_counter(), 0.0
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {(total / len(loader)):.6f}  ({time.perf_counter() - began:.2f} s)")


if __name__ == "__main__":
    main()
