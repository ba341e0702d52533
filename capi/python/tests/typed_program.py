# SPDX-License-Identifier: Apache-2.0
"""A program over the package's own API, with types. types_test.py has mypy check it, then runs it."""
from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import feedlane
from feedlane import records, samplers


class Squares:
    """A map-style data set."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, npt.NDArray[np.float32]]:
        assert_type(feedlane.get_worker_info(), feedlane.WorkerInfo | None)
        assert_type(feedlane.sample_seed(), int | None)
        assert_type(feedlane.get_shard(), tuple[int, int])
        return {"x": np.full(3, index * index, np.float32)}


class Stream:
    """An iterable data set."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def iterate() -> None:
    """Batches as what the samples are made of, and what a loader says of itself."""
    with feedlane.Loader(Squares(), 4, shuffle=True, seed=1, fields={"x": (np.float32, (3,))}) as loader:
        assert_type(loader, feedlane.Loader)
        assert_type(iter(loader), Iterator[Any])
        for batch in loader:
            assert_type(batch, Any)
            assert batch["x"].shape == (4, 3)
        assert_type(len(loader), int)
        assert_type(loader.stats(), records.Stats)
        assert_type(loader.stats()["batches"], int)
        assert_type(loader.stats()["rank_source"], str)
        assert_type(loader.workers(), list[records.WorkerStats])
        assert_type(loader.events(), list[feedlane.Event])
        assert_type(loader.report(), str)
        assert_type(loader.diagnose(), records.Diagnosis)
        assert_type(loader.diagnose()["bound"], records.Bound)
        assert_type(loader.timings(), records.Timings)
        assert_type(loader.timings()["work"]["buckets"], list[int])
        assert_type(loader.info(), records.LoaderInfo)
        assert_type(loader.slots(), list[records.BatchRecord])
        assert_type(loader.errors(), list[records.ErrorRecord])
        loader.load_state_dict(assert_type(loader.state_dict(), dict[str, bytes]))
    assert [len(batch) for batch in feedlane.Loader(Stream(), 2, retry_on=OSError)] == [2, 2, 1]


def send() -> None:
    """A ring."""
    with feedlane.Receiver("f4") as ring, feedlane.Sender(ring.offer(), "f4") as sender:
        assert_type(sender.send(np.ones(3, np.float32)) + sender.send(b"1234"), int)
        with sender.reserve(2) as messages:
            messages[:] = 1
        with ring.peek(1) as messages:
            assert_type(messages.lane, int)
        assert_type(ring.receive(), npt.NDArray[Any])


def hold() -> None:
    """Batches as objects, and their tensors."""
    loader = feedlane.Loader(Squares(), batch_size=2, held=1, name="squares", trace=4, progress=io.StringIO())
    for batch in loader.batches():
        with assert_type(batch, feedlane.Batch) as held:
            assert_type(held, feedlane.Batch)
            assert_type(held.indices, list[int] | None)
            assert_type(held.data, Any)
            assert_type(held.stamps, feedlane.Stamps)
            assert_type(held.stamps.yielded_ns, int)
            for tensor in held.tensors:
                assert_type(tensor, feedlane.BatchTensor)
                assert_type(tensor.shape, tuple[int, ...])
                assert_type(tensor.dtype, str)
                assert_type(tensor.address, int)
                assert_type(tensor.numpy(), npt.NDArray[Any])
                assert tensor.shape == (2, 3)
    assert_type(loader.trace(1), list[records.BatchRecord])
    loader.close()


def share() -> None:
    """A feeder, and a trainer that joins it."""
    with feedlane.Loader(Squares(), 4, num_workers=1, share="deal", consumers=1, share_tail=True) as feeder:
        with assert_type(feeder.open_consumer(0, lag="evict", evict_after=60), feedlane.Place) as place:
            assert_type((place.id, place.fd), tuple[int, int])
            consumer = assert_type(feedlane.join(place, timeout=60), feedlane.Consumer)
        assert_type(feeder.serve(), bool)
        train(consumer)
        for stats in assert_type(feeder.consumers(), list[feedlane.ConsumerStats]):
            assert_type(stats.held, int)
            assert stats.state == "attached"
        consumer.close()
        assert_type(feeder.finish(), bool)


def train(batches: feedlane.Batches) -> None:
    """Of a Loader or a Consumer."""
    for batch in batches.batches():
        assert_type(batch.missed, int)
        batch.release()
    assert_type(len(batches), int)


def sample() -> None:
    """Orders."""
    order = assert_type(samplers.random(8, 3, shuffle="feistel"), feedlane.Sampler)
    batches = samplers.batch(samplers.subset([4, 1, 7]), 2, drop_last=True)
    assert_type(list(order), list[Any])
    assert_type(feedlane.rank_detect().rank, int)
    loader = feedlane.Loader(Squares(), batch_sampler=batches)
    other = feedlane.Loader(Squares(), 2, sampler=[1, 2, 3], in_order=False, dispatch="round_robin")
    assert (len(loader), len(other)) == (1, 2)
    program = feedlane.Loader(worker=["/bin/true", "a"], worker_config=b"b", length=8, num_workers=1)
    assert len(program) == 8
    assert_type(program.poll(), bool)
    assert_type(program.fileno(), int)
    feedlane.worker_main(lambda config: Squares(), retry_on=OSError)


def pool() -> None:
    """Memory that is registered, where there may be such."""
    try:
        registered = feedlane.Pool("mlock", budget_bytes=1 << 16)
    except (feedlane.Unsupported, feedlane.LimitError) as reason:
        assert_type(reason.needed, int)
        return
    assert_type(registered.stats()["in_use"], int)


def fail() -> None:
    """Errors: all are FeedlaneErrors, with where they happened, and of one of Python's own types."""
    try:
        samplers.sequential(-1)
    except feedlane.ArgumentError as reason:
        assert isinstance(reason, feedlane.FeedlaneError) and isinstance(reason, ValueError)
        assert_type(reason.argument, str)
        assert_type(reason.worker, int)
        assert_type(reason.status, int)


if __name__ == "__main__":
    iterate()
    send()
    hold()
    share()
    sample()
    pool()
    fail()
