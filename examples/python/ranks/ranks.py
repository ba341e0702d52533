# SPDX-License-Identifier: Apache-2.0
"""One rank of the digits trainer, data-parallel: the network, the step, the checkpoint, the loop. The launchers beside it say which
rank this is; the batches come from the machine's one loader, see feeder.py. Torch's process group is there already."""
import argparse
import json
import os
import signal
import time
import typing
import warnings

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_reduce

import feedlane
from feeder import Feeder, Numbered
from digits import Digits, ORDER


class Place(typing.NamedTuple):
    """Where a rank is. Machines may have different numbers of ranks."""

    local_rank: int
    local_world: int
    machine: int
    machines: int


class BatchNorm(torch.nn.Module):
    """Normalises by the mean and variance of the whole batch: the rows of all ranks, of which a rank may have none."""

    def __init__(self, features):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(features))
        self.bias = torch.nn.Parameter(torch.zeros(features))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("variance", torch.ones(features))

    def forward(self, x, rows):
        mean, variance = self.mean, self.variance
        if self.training:
            mean = all_reduce(x.sum(0)) / rows
            variance = all_reduce((x - mean).square().sum(0)) / rows
            with torch.no_grad():
                self.mean.lerp_(mean, 0.1)
                self.variance.lerp_(variance, 0.1)
        return (x - mean) * (variance + 1e-5).rsqrt() * self.weight + self.bias


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lower, self.norm, self.upper = torch.nn.Linear(64, 128, bias=False), BatchNorm(128), torch.nn.Linear(128, 10)

    def forward(self, images, rows):
        return self.upper(self.norm(self.lower(images.flatten(1)), rows).relu())


class Trainer:
    """Network and optimizer. They are the same on every rank, before and after each step."""

    def __init__(self):
        torch.set_default_dtype(torch.float64)  # sums of another order then differ in the last of 16 digits
        torch.manual_seed(1)
        self.network = Network()
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9)

    def step(self, images, labels):
        """The mean loss over the rows of all ranks, before the step; None: no rank has a row."""
        rows = torch.tensor(len(labels))
        dist.all_reduce(rows)
        if rows == 0:
            return None
        scores = self.network(images.double(), rows)
        loss = torch.nn.functional.cross_entropy(scores, labels, reduction="sum") / rows
        self.optimizer.zero_grad()
        loss.backward()
        parameters = list(self.network.parameters())
        sums = torch.cat([loss.detach().reshape(1), *(p.grad.flatten() for p in parameters)])
        dist.all_reduce(sums)
        total, *gradients = sums.split([1, *(p.numel() for p in parameters)])
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad.copy_(gradient.view_as(parameter))
        self.optimizer.step()
        return total.item()

    @torch.no_grad()
    def accuracy(self):
        """On the samples that are held out."""
        digits, held_out = Digits(), ORDER[:Numbered.held_out]
        images, labels = (torch.from_numpy(array[held_out]) for array in (digits.images, digits.labels))
        self.network.eval()
        found = self.network(images.double() / 16, None).argmax(1)
        self.network.train()
        return (found == labels).double().mean().item()


class Run:
    """What a checkpoint holds: trainer, the loader's state, and how often each sample of the epoch was trained on."""

    def __init__(self, folder):
        """Continues from the checkpoint in `folder`, if there is one. Rank 0 reads it for all."""
        self.trainer, self._path = Trainer(), os.path.join(folder, "checkpoint")
        said = [{"epoch": 0, "step": 0, "loss": 0.0, "steps": 0, "state": None, "run": time.time_ns()}, None]
        if dist.get_rank() == 0 and os.path.exists(self._path):
            said = [said[0] | torch.load(self._path, weights_only=True) | {"run": said[0]["run"]}, True]
        dist.broadcast_object_list(said)
        saved, self.is_resumed = said
        self.epoch, self.step, self.loss, self.steps, self.state, self.name = (
            saved[key] for key in ("epoch", "step", "loss", "steps", "state", "run"))
        self.counts = torch.zeros(len(Numbered()), dtype=torch.int64)  # by this rank; those of the checkpoint are rank 0's
        if self.is_resumed:
            self.trainer.network.load_state_dict(saved["network"])
            self.trainer.optimizer.load_state_dict(saved["optimizer"])
            if dist.get_rank() == 0:
                self.counts.copy_(saved["counts"])

    def all_counts(self):
        """Of all ranks."""
        counts = self.counts.clone()
        dist.all_reduce(counts)
        return counts

    def save(self, consumer):
        """The whole of it, or nothing. Every rank calls it after the same step; rank 0 writes the file."""
        counts = self.all_counts()
        if dist.get_rank() != 0:
            return
        saved = {"epoch": self.epoch, "step": self.step, "loss": self.loss, "steps": self.steps, "counts": counts,
                 "state": consumer.state_dict()["feedlane"], "network": self.trainer.network.state_dict(),
                 "optimizer": self.trainer.optimizer.state_dict()}
        torch.save(saved, self._path + ".new")
        os.replace(self._path + ".new", self._path)

    def end_epoch(self):
        """Says what the epoch was, and begins to count anew."""
        counts = self.all_counts()
        if dist.get_rank() == 0:
            never, once = (int((counts == times).sum()) for times in (0, 1))
            print(f"epoch {self.epoch + 1}: loss {self.loss / self.steps:.12f}, test accuracy {self.trainer.accuracy():.3f}, "
                  f"samples: {once} once, {never} never, {len(counts) - once - never} more often", flush=True)
        self.counts.zero_()
        self.epoch, self.loss, self.steps = self.epoch + 1, 0.0, 0


class Log:
    """One line of JSON a step, in a file of this run's and this rank's: what was trained on."""

    def __init__(self, folder, run):
        self._file = open(os.path.join(folder, f"{run.name}-{dist.get_rank()}.jsonl"), "w", encoding="ascii")
        self._write(first=run.step, world=dist.get_world_size())

    def _write(self, **what):
        print(json.dumps(what), file=self._file, flush=True)

    def step(self, run, indices, loss):
        self._write(epoch=run.epoch, step=run.step, indices=indices.tolist(), loss=loss)


def arguments():
    """Of both launchers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True, help="of the checkpoint and the logs; all machines see it")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=48, help="samples a step, of all ranks together")
    parser.add_argument("--workers", type=int, default=2, help="of each machine's loader")
    parser.add_argument("--save-every", type=int, default=5, help="steps")
    parser.add_argument("--halt-at-step", type=int, default=-1,
                        help="the last rank halts there, to be killed; not in a run that continues another")
    parser.add_argument("--halted", help="a file or FIFO, to which it then writes its process id")
    return parser


def join(place, options, run):
    """Rank 0 of a machine starts the feeder. The consumer, and the feeder or None."""
    ranks = place.machines * place.local_world
    if options.batch % ranks != 0:
        raise SystemExit(f"--batch {options.batch}: {place.machines} machines with {place.local_world} ranks each can't share that")
    feeder = None
    if place.local_rank == 0:
        feeder = Feeder(state=run.state, consumers=place.local_world, machine=place.machine, machines=place.machines,
                        rows=options.batch // ranks, epochs=options.epochs - run.epoch, workers=options.workers)
    paths = [None] * dist.get_world_size()
    dist.all_gather_object(paths, (place.machine, feeder.path) if feeder else None)
    return feedlane.join(dict(filter(None, paths))[place.machine], id=place.local_rank, tensors="torch"), feeder


def halt(options):
    with open(options.halted, "w", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    while True:
        signal.pause()


def train(place, options):
    """All epochs that are left. Every rank takes part in every step, with no rows if the loader has no batch left for it."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", feedlane.ReadOnlyWarning)  # nothing here writes to a batch
    run = Run(options.folder)
    log = Log(options.folder, run)
    consumer, feeder = join(place, options, run)
    nothing = torch.empty(0, 8, 8), torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    is_last = dist.get_rank() == dist.get_world_size() - 1
    with consumer:
        while run.epoch < options.epochs:
            consumer.set_epoch(run.epoch)  # the feeder may not have begun that of a checkpoint yet
            batches = iter(consumer)
            while True:
                images, labels, indices = next(batches, nothing)
                if run.step == options.halt_at_step and is_last and not run.is_resumed:
                    halt(options)
                loss = run.trainer.step(images, labels)
                if loss is None:
                    break
                log.step(run, indices, loss)
                run.counts += torch.bincount(indices, minlength=len(run.counts))
                run.loss, run.steps, run.step = run.loss + loss, run.steps + 1, run.step + 1
                if run.step % options.save_every == 0:
                    run.save(consumer)
            run.end_epoch()
    dist.barrier()
    if feeder:
        feeder.close()
