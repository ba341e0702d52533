# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on handwritten digits with numpy; worker processes make the batches. See capi/python/README.md.
Usage: PYTHONPATH=capi/python digits.py [--workers N] [--epochs N] [--kill-worker-at-batch N]
       digits.py --digest [--workers N] [--worker COMMAND | --feed PATH [--consumers N] | --join PATH]
COMMAND: workers in another language. --feed: delivers the batches to other programs at a Unix socket. --join: takes them from one."""
import argparse
import os
import signal

import numpy as np

import feedlane

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data", "optdigits-")
HELD_OUT, ORDER = 360, np.random.default_rng(7).permutation(1797)


class Digits:
    """Image and label number i, unchanged from the files."""

    def __init__(self):
        self.images = np.fromfile(FOLDER + "images-idx3-ubyte", np.uint8, offset=16).reshape(-1, 8, 8)
        self.labels = np.fromfile(FOLDER + "labels-idx1-ubyte", np.uint8, offset=8).astype(np.int64)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


class Moved(Digits):
    """The training set: images that are not held out, scaled to [0, 1] and moved by up to a pixel in each direction, as
    determined by the sample's seed."""

    held_out = HELD_OUT

    def __len__(self):
        return len(self.labels) - self.held_out

    def __getitem__(self, i):
        digit, y, x = ORDER[self.held_out + i], feedlane.sample_seed() % 3, feedlane.sample_seed() // 3 % 3
        return np.pad(self.images[digit], 1)[y : y + 8, x : x + 8] / np.float32(16), self.labels[digit]


class Network:
    def __init__(self):
        draw = np.random.default_rng(1)
        shapes = (64, 128), (128,), (128, 10), (10,)
        self.weights = [draw.uniform(-1, 1, s).astype(np.float32) * (6 / s[0]) ** 0.5 * (len(s) > 1) for s in shapes]
        self.speeds = [np.zeros_like(w) for w in self.weights]

    def forward(self, images):
        w1, b1, w2, b2 = self.weights
        hidden = np.maximum(images @ w1 + b1, 0)
        scores = np.exp(hidden @ w2 + b2 - (hidden @ w2 + b2).max(1, keepdims=True))
        return hidden, scores / scores.sum(1, keepdims=True)

    def learn(self, images, labels, rate):
        images, rows = images.reshape(-1, 64), np.arange(len(labels))
        hidden, chances = self.forward(images)
        loss = -np.log(chances[rows, labels] + 1e-30).mean()
        upper = (chances - np.eye(10, dtype=np.float32)[labels]) / len(labels)
        lower = upper @ self.weights[2].T * (hidden > 0)
        gradients = images.T @ lower, lower.sum(0), hidden.T @ upper, upper.sum(0)
        for weight, speed, gradient in zip(self.weights, self.speeds, gradients):
            speed *= 0.9
            speed -= rate * gradient
            weight += speed
        return loss


def train(workers, epochs, kill_at):
    network, images, labels = Network(), Digits().images[ORDER[:HELD_OUT]], Digits().labels[ORDER[:HELD_OUT]]
    loader = feedlane.Loader(Moved(), 32, shuffle=True, seed=1, num_workers=workers, persistent_workers=workers > 0)
    for epoch in range(epochs):
        losses = []
        for batch in loader:
            losses.append(network.learn(*batch, 0.2 * 0.96**epoch))
            if epoch * len(loader) + len(losses) == kill_at:
                os.kill(max(worker["pid"] for worker in loader.workers()), signal.SIGKILL)  # the batches are still the same
        accuracy = (network.forward(images.reshape(-1, 64) / np.float32(16))[1].argmax(1) == labels).mean()
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}, test accuracy {accuracy:.3f}")
    print(f"restarts: {loader.stats()['restarts']}\ntest accuracy: {accuracy:.3f}")


def digest_loader(o):
    """The Loader, or the Consumer, of the digest: see ../README.md."""
    if o.join:
        return feedlane.join(o.join)
    made_by = {"worker": o.worker.split(), "worker_config": os.path.dirname(FOLDER).encode()} if o.worker else {"dataset": Digits()}
    shared = {"share": "every", "consumers": o.consumers, "share_path": o.feed} if o.feed else {}
    return feedlane.Loader(batch_size=64, sampler=feedlane.samplers.random(1797, seed=1), num_workers=o.workers,
                           persistent_workers=o.workers > 0, fields={"image": (np.uint8, (8, 8)), "label": (np.int64, ())},
                           **made_by, **shared)


def feed(loader):
    print("listening", flush=True)
    loader.wait_for_consumers()
    for _ in range(10):
        loader.serve()
    loader.finish()


def digest(loader):
    """Prints a digest of ten epochs' bytes."""
    value = 0xCBF29CE484222325
    for _ in range(10):
        for batch in loader:  # a dict, if its worker is not in Python
            for byte in b"".join(tensor.tobytes() for tensor in (batch.values() if isinstance(batch, dict) else batch)):
                value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    print(f"digest: {value:016x}")


if __name__ == "__main__":
    feedlane.worker_main(lambda _: Digits())  # a worker of another language's digest goes no further
    parser = argparse.ArgumentParser()
    for name, default in ("workers", 2), ("epochs", 40), ("kill-worker-at-batch", 0):
        parser.add_argument("--" + name, type=int, default=default)
    for name in "worker", "feed", "join":
        parser.add_argument("--" + name)
    parser.add_argument("--consumers", type=int, default=1)
    parser.add_argument("--digest", action="store_true")
    o = parser.parse_args()
    if o.digest:
        (feed if o.feed else digest)(digest_loader(o))
    else:
        train(o.workers, o.epochs, o.kill_worker_at_batch)
