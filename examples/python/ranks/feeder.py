# SPDX-License-Identifier: Apache-2.0
"""The feeder of one machine: a process that owns the machine's loader and deals its batches to the local ranks. It needs no torch.
Usage: PYTHONPATH=capi/python feeder.py FOLDER CONSUMERS MACHINE MACHINES ROWS EPOCHS WORKERS

FOLDER has the socket by which ranks join, and a saved state in the file "state" if there is one to continue from. Prints "ready"
when ranks can join. Ends when the last rank has left, or with standard input: then the process that started it has ended."""
import os
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import feedlane
from digits import Moved


class Numbered(Moved):
    """The same, with the sample's index: (image, label, index). 1,440 samples: a number of machines that divides it gets equal
    shares, and the distributed sampler repeats none."""

    held_out = 357

    def __getitem__(self, i):
        return *super().__getitem__(i), i


def socket_in(folder):
    """The path by which ranks join."""
    return os.path.join(folder, "feeder")


def serve(folder, consumers, machine, machines, rows, epochs, workers):
    """Deals `epochs` epochs, the first from the saved state on: `rows` samples a batch, batch k to rank k mod `consumers`. The last
    batches of an epoch, when they are fewer than the ranks, go to the first ranks: the others have no rows in that step."""
    dataset = Numbered()
    sampler = feedlane.samplers.distributed(len(dataset), machine, machines, seed=1)
    state = os.path.join(folder, "state")
    with feedlane.Loader(dataset, rows, sampler=sampler, seed=1, num_workers=workers, persistent_workers=True,
                         held=2 * consumers, share="deal", consumers=consumers, share_path=socket_in(folder), share_tail=True,
                         name=f"digits, machine {machine}") as loader:
        if os.path.exists(state):
            with open(state, "rb") as file:
                loader.load_state_dict({"feedlane": file.read()})
        print("ready", flush=True)
        loader.wait_for_consumers()
        for _ in range(epochs):
            loader.serve()
        loader.finish()


class Feeder:
    """This program as a child process, which ends when its parent does."""

    def __init__(self, *, state, consumers, machine, machines, rows, epochs, workers):
        """Starts it, and waits until ranks can join. `state`: a loader's saved state, or None. `epochs`: those that are left."""
        self._folder = tempfile.TemporaryDirectory(prefix="digits-")
        if state is not None:
            with open(os.path.join(self._folder.name, "state"), "wb") as file:
                file.write(state)
        arguments = self._folder.name, consumers, machine, machines, rows, epochs, workers
        self._process = subprocess.Popen([sys.executable, os.path.abspath(__file__), *map(str, arguments)],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the feeder of machine {machine} ended with {self._process.wait()}")

    @property
    def path(self):
        return socket_in(self._folder.name)

    def close(self):
        """Ends it, when all ranks have had their last batch."""
        self._process.stdin.close()
        if self._process.wait() != 0:
            raise RuntimeError(f"the feeder ended with {self._process.returncode}")


def end_with_input():
    while os.read(0, 1):  # not sys.stdin, whose lock Python wants at its end
        pass
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=end_with_input, daemon=True).start()
    serve(sys.argv[1], *map(int, sys.argv[2:]))
