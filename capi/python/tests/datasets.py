# SPDX-License-Identifier: Apache-2.0
"""Data sets for the tests of capi/python. Nothing of torch's in here: workers import this."""
import collections
import fcntl
import itertools
import os
import random
import signal
import sys
import time

import numpy as np

import feedlane

Point = collections.namedtuple("Point", "x y")
SAMPLES = 1000


class Map:
    """Samples with something of everything."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return {"image": np.full((4, 3), i, np.float32), "label": i, "name": f"sample {i}", "flag": i % 3 == 0,
                "pair": (np.float64(i) / 7, [np.arange(i, i + 5, dtype=np.int16)]),
                "point": Point(i / 2, np.array(i % 256, np.uint8))}


def outcomes(iterator, most=20):
    """First numbers, or what was raised, up to the end."""
    found = []
    for _ in range(most):
        try:
            found.append(int(np.ravel(next(iterator))[0]))
        except StopIteration:
            return found
        except BaseException as error:
            found.append(error)
    return found


class Numbers:
    """Sample i is i, `bytes` long; after `failing` something may happen."""

    def __init__(self, samples=SAMPLES, size=8, failing=()):
        self.samples, self.size, self.failing = samples, size, failing

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        if i in self.failing:
            raise ValueError(f"sample {i} is broken")
        return np.full(self.size, i, np.int64)


class Slow(Numbers):
    """A sample takes `seconds`, of worker `bad` ten times that."""

    def __init__(self, samples, seconds, bad=-1):
        super().__init__(samples)
        self.seconds, self.bad = seconds, bad

    def __getitem__(self, i):
        info = feedlane.get_worker_info()
        time.sleep(self.seconds * (10 if info is not None and info.id == self.bad else 1))
        return super().__getitem__(i)


class Flaky(Numbers):
    """Each time that sample `i` of `failing` is asked for, it raises one more of failing[i]'s exceptions; after them it is
    made. `log`: a file that hears of every try. A sample is its index and the seed that it was made with."""

    def __init__(self, failing, log=None, samples=32):
        super().__init__(samples, 2, failing)
        self.log, self.tries = log, {}

    def __getitem__(self, i):
        if self.log is not None:
            with open(self.log, "a", encoding="ascii") as file:
                file.write(f"{i} {time.monotonic()}\n")
        done = self.tries.get(i, 0)
        self.tries[i] = done + 1
        if i in self.failing and done < len(self.failing[i]):
            raise self.failing[i][done](f"sample {i}, try {done}")
        return np.array([i, feedlane.sample_seed() % 2**62])

    def __getitems__(self, indices):
        raise AssertionError("samples are asked for one by one where a policy looks after them")


class Unprintable(OSError):
    """As of a file whose name isn't UTF-8."""

    def __str__(self):
        return "can't read caf\udce9"


def next_index(index, _seed, _tries):
    return np.int64(index + 1)


def no_index(_index, _seed, _tries):
    return None


def broken_index(index, _seed, _tries):
    raise KeyError(f"nothing instead of {index}")


class Deadly(Numbers):
    """The worker that is to make sample `i` of `failing` is killed, once."""

    def __init__(self, marker, *arguments, **named):
        super().__init__(*arguments, **named)
        self.marker = marker

    def __getitem__(self, i):
        if i in self.failing and not os.path.exists(self.marker):
            with open(self.marker, "x", encoding="ascii"):
                os.kill(os.getpid(), signal.SIGKILL)
        return np.full(self.size, i, np.int64)


class Ending(Numbers):
    """Its worker ends with the first sample, whatever is tried."""

    def __getitem__(self, i):
        os._exit(1)


class Once(Numbers):
    """Sample 1 takes for ever, once."""

    def __init__(self, folder):
        super().__init__(3)
        self.marker = os.path.join(folder, "asked")

    def __getitem__(self, i):
        if i == 1 and not os.path.exists(self.marker):
            open(self.marker, "x").close()
            signal.pause()
        return super().__getitem__(i)


class Handles(Numbers):
    """What was made is written down in a manager's dict."""

    def __init__(self, seen):
        super().__init__(8)
        self.seen = seen

    def __getitem__(self, i):
        self.seen[i] = i
        return super().__getitem__(i)


def end_worker(_worker):
    sys.exit(3)


class Equals:
    """Values that are equal, one after the other, but not the same."""

    VALUES = [1, 1.0, True, 1 + 0j, 0, False, 0.0, -0.0]

    def __len__(self):
        return len(self.VALUES)

    def __getitem__(self, i):
        return i


def equal_value(samples):
    return {"i": np.array(samples), "value": Equals.VALUES[samples[0]]}


class Endless:
    """A list that contains itself."""

    def __len__(self):
        return 1

    def __getitem__(self, i):
        sample = []
        sample.append(sample)
        return sample


class Stuck(Numbers):
    """From sample 8 on it waits for a file."""

    def __init__(self, go):
        super().__init__(64)
        self.go = go

    def __getitem__(self, i):
        while i >= 8 and not os.path.exists(self.go):
            time.sleep(0.01)
        return np.full(self.size, i, np.int64)


class Gate:
    """Where samples wait until the test opens it, and are heard of: in a folder of the test's. No time passes in vain."""

    def __init__(self, folder):
        self._told, self._lock = os.path.join(folder, "told"), os.path.join(folder, "lock")
        os.mkfifo(self._told)
        self._ear = os.open(self._told, os.O_RDWR)
        self._held = os.open(self._lock, os.O_CREAT | os.O_RDWR)
        fcntl.flock(self._held, fcntl.LOCK_EX)

    def wait_for(self, count=1):
        """Until so many samples wait, or have waited."""
        for _ in range(count):
            os.read(self._ear, 1)

    def open(self):
        fcntl.flock(self._held, fcntl.LOCK_UN)

    def close(self):
        os.close(self._ear)
        os.close(self._held)


class Gated(Numbers):
    """Samples from number `first` on wait at the Gate of `folder`."""

    def __init__(self, folder, samples=64, first=8):
        super().__init__(samples)
        self.folder, self.first = folder, first

    def __getitem__(self, i):
        if i >= self.first:
            with open(os.path.join(self.folder, "told"), "r+b", buffering=0) as told:  # not made: the test may be over
                told.write(b".")
            with open(os.path.join(self.folder, "lock"), "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH)
        return super().__getitem__(i)


class Checksum(Numbers):
    """The samples of examples/c/worker.c."""

    @classmethod
    def of(cls, _):
        """For worker_main."""
        return cls()

    def __getitem__(self, i):
        shift = feedlane.sample_seed() % 5
        return np.array([(i + k + shift) % 17 / 16 for k in range(64)], np.float32), i % 10


class Digits:
    """examples/data as it is in the files."""

    def __init__(self, folder):
        with open(os.path.join(folder, "optdigits-images-idx3-ubyte"), "rb") as file:
            self.images = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 8, 8)
        with open(os.path.join(folder, "optdigits-labels-idx1-ubyte"), "rb") as file:
            self.labels = file.read()[8:]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


class Shards:
    """Iterable: worker w of n yields w, w + n, w + 2n ... below SAMPLES."""

    def __init__(self, samples=SAMPLES):
        self.samples = samples

    def __iter__(self):
        info = feedlane.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in itertools.islice(itertools.count(first, step), len(range(first, self.samples, step))):
            yield {"x": np.full(3, i, np.float32), "i": i}


class Ranked:
    """Iterable: shard s of n yields s, s + n, s + 2n ... below SAMPLES, with s, n and the worker's seed."""

    def __iter__(self):
        shard, shards = feedlane.get_shard()
        info = feedlane.get_worker_info()
        if info is not None and (info.shard, info.shards) != (shard, shards) or shards % (info.world if info else 1):
            raise AssertionError(info)
        for i in range(shard, SAMPLES, shards):
            yield np.array([i, shard, shards, info.seed % 2**62 if info is not None else -1])


class Whoami:
    """A sample says who made it; `worker_init` must have run."""

    tag = -1

    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return np.array([i, Whoami.tag])


def worker_init(worker):
    Whoami.tag = 100 + worker


def broken_worker_init(worker):
    raise RuntimeError(f"worker {worker} can't begin")


def as_list(samples):
    """A collate_fn."""
    return {"n": len(samples), "all": np.stack(samples), "first": samples[0], "odd": ({"set": {1, 2}},)}


def plain(value):
    """A batch as Python objects, to be compared: arrays become (type, dtype, list)."""
    if hasattr(value, "tolist"):
        return (str(value.dtype).removeprefix("torch."), tuple(value.shape), value.tolist())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Point):
        return Point(*map(plain, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    return value


class Groups(Numbers):
    """Makes `extra` samples more than it is asked for, if `failing` is among them."""

    def __init__(self, extra, **named):
        super().__init__(**named)
        self.extra = extra

    def __getitems__(self, indices):
        samples = [np.full(self.size, i, np.int64) for i in indices]
        if not set(self.failing) & set(indices):
            return samples
        return samples + samples[:self.extra] if self.extra > 0 else samples[:self.extra]


class Unreadable:
    """Iterable, but only in words."""

    def __iter__(self):
        raise FileNotFoundError("no such shard")


class Shrinking:
    """Yields 40 numbers when it is first iterated, 2 afterwards; the worker that is to make number 20 is killed, once."""

    def __init__(self, marker):
        self.marker = marker

    def __iter__(self):
        killed = os.path.exists(self.marker)
        for i in range(2 if killed else 40):
            if i == 20:
                with open(self.marker, "x", encoding="ascii"):
                    os.kill(os.getpid(), signal.SIGKILL)
            yield i


class Mute(Exception):
    """Has no words."""

    def __str__(self):
        raise ValueError("no words")


class Drawing:
    """A sample: its worker, its worker's seed, as it is told, and a number of each generator."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return np.array([feedlane.get_worker_info().id, feedlane.get_worker_info().seed % 2**62, random.getrandbits(62),
                         np.random.randint(2**62)])


class Scribbler(Numbers):
    """Worker 1 leaves `words` where a batch's structure belongs, as anything wild in its process could."""

    def __init__(self, words):
        super().__init__(16)
        self.words = words

    def __getitem__(self, i):
        info = feedlane.get_worker_info()
        if info is not None and info.id == 1:
            feedlane.tree.dump = lambda *_: self.words
        return super().__getitem__(i)


def small_arrays(number):
    """100 arrays, of which each second one has another shape for another number."""
    return [{"x": np.full((number + i % 3, 2), i, np.float32), "y": np.array(i)} for i in range(50)]


class Small:
    """Four samples."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return small_arrays(i)


class Written(Small):
    """Its worker leaves `words` where a batch's structure and integers belong."""

    def __init__(self, words):
        self.words = words

    def __getitem__(self, i):
        feedlane.tree.dump = lambda *_: self.words
        return super().__getitem__(i)


def by_python(_worker):
    """A worker_init_fn: batches are made by Python code, which writes all that tree.dump returns."""
    feedlane.maker.Maker.by_python = True


def the_first(samples):
    return samples[0]


def everyday(samples):
    """A collate_fn with something of everything that needs no pickle."""
    rows = np.stack(samples)
    default = collections.defaultdict(list)
    default["a"] = [1, 2]
    return {"rows": rows, "point": Point(rows[0], 1), "ordered": collections.OrderedDict(b=1, a="x"), "default": default,
            "names": [f"sample {row[0]}" for row in rows], "mixed": (None, True, 2**70, 0.1, b"\xff", {1, 2}, [np.float32(3)]),
            7: "a number", ("a", 1): "a tuple"}


class Odd:
    """What only pickle can carry."""

    class Dict(dict):
        pass

    def __init__(self, rows):
        self.rows = rows

    def __eq__(self, other):
        return type(other) is Odd and self.rows == other.rows


def odd(samples):
    kept = Odd.Dict(a=1)
    kept.note = "n"
    return {"odd": Odd(len(samples)), "kept": kept}
