# SPDX-License-Identifier: Apache-2.0
"""The feeder's side of a shared loader: places for consumers, and the loop that delivers batches to them."""
from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Self

from . import _core, errors, iteration

Lag = Literal["block", "evict", "observe"]
State = Literal["none", "offered", "attached", "evicted", "left"]

_SHARES = {"every": _core.SHARE_EVERY, "deal": _core.SHARE_DEAL}
_LAGS: dict[str, int] = {"block": _core.LAG_BLOCK, "evict": _core.LAG_EVICT, "observe": _core.LAG_OBSERVE}
_LAG_WORDS: dict[int, Lag] = {_core.LAG_BLOCK: "block", _core.LAG_EVICT: "evict", _core.LAG_OBSERVE: "observe"}
_STATE_WORDS: dict[int, State] = {_core.CONSUMER_NONE: "none", _core.CONSUMER_OFFERED: "offered",
                                  _core.CONSUMER_ATTACHED: "attached", _core.CONSUMER_EVICTED: "evicted",
                                  _core.CONSUMER_LEFT: "left"}


class Place:
    """A consumer's place that a feeder has opened: `id`, and a descriptor by which one process joins. To be passed to that
    process, and closed here: it inherits `fd` (subprocess's pass_fds), or gets this object as an argument of
    multiprocessing's Process, and calls feedlane.join with it."""

    def __init__(self, id: int, fd: int) -> None:
        """Owns the descriptor."""
        self.id, self._fd = id, fd

    @property
    def fd(self) -> int:
        """The descriptor, which this object owns. ValueError: it was closed or detached."""
        if self._fd < 0:
            raise ValueError("the place's descriptor was closed or detached")
        return self._fd

    def detach(self) -> int:
        """The descriptor, which is the caller's from here on. ValueError: it was closed or detached."""
        fd = self.fd
        self._fd = -1
        return fd

    def close(self) -> None:
        """Nobody can join by it any more, but by a copy of the descriptor."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """For multiprocessing, which passes descriptors on to processes that it spawns."""
        from multiprocessing import reduction
        return _received, (self.id, reduction.DupFd(self.fd))

    def __repr__(self) -> str:
        return f"Place(id={self.id}, fd={self._fd})"


def _received(id: int, fd: Any) -> Place:
    return Place(id, fd.detach())


class ConsumerStats(NamedTuple):
    """A consumer, as its feeder sees it. state "none": a dealt place that has none, whose batches wait for a replacement; "evicted"
    and "left": it still holds batches. pid: 0: unknown. `delivered`, and of those `taken_back` (it hadn't taken them when the feeder
    needed their slots), `waiting` (not taken yet) and `held` (taken and not returned) are numbers of batches."""

    id: int
    state: State
    pid: int
    lag: Lag
    delivered: int
    taken_back: int
    waiting: int
    held: int


def consumer_config(id: int | None, lag: Lag, evict_after: float | None) -> tuple[int, int, int]:
    """As the compiled module takes them. ValueError: out of their domain."""
    number = -1 if id is None else errors.whole("id", id, 0, 2**31 - 1)
    if evict_after is not None and (lag != "evict" or not 0 < evict_after < 2**33):
        raise ValueError(f'evict_after={evict_after!r}: must be above 0 seconds, and goes with lag="evict"')
    return number, errors.choice("lag", lag, _LAGS), max(1, int(evict_after * 1e9)) if evict_after is not None else 0


def nanoseconds(timeout: float | None) -> int:
    """Of seconds; None: for ever. ValueError: a negative time."""
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout={timeout!r}: a time can't be negative")
    return _core.FOREVER if timeout is None else int(min(timeout, 2**33) * 1e9)


def configuration(share: str | None, consumers: int | None, path: str | os.PathLike[str] | None, tail: bool, tensors: str,
                  progress: object) -> dict[str, int]:
    """Fields of feedlane_loader_config from Loader's arguments. ValueError: they exclude each other."""
    if share is None:
        if consumers is not None or path is not None or tail:
            raise ValueError("consumers, share_path and share_tail go with share")
        return {}
    found = errors.choice("share", share, _SHARES)
    if tensors != "numpy":
        raise ValueError(f"tensors={tensors!r}: a shared loader yields nothing here, say it to feedlane.join")
    if progress:
        raise ValueError("progress is of a loop, which a shared loader doesn't have")
    if path is not None and (not os.fspath(path) or b"\0" in os.fsencode(path)):
        raise ValueError(f"share_path={path!r}: a socket's path is not empty and has no zero byte; None: no socket")
    return {"share": found, "consumers": errors.whole("consumers", 1 if consumers is None else consumers, 1, 2**31 - 1),
            "share_tail": bool(tail)}


class Feeder(iteration.Batches):
    """What a Loader with `share` does: it isn't iterated, it delivers its batches to consumers in other processes, which get them
    from feedlane.join. It needs workers. A feeder and its trainers:

        with feedlane.Loader(dataset, 64, shuffle=True, seed=1, num_workers=8, share="deal", consumers=2) as feeder:
            for rank in range(2):
                with feeder.open_consumer(rank) as place:
                    subprocess.Popen(["python3", "train.py", str(place.fd)], pass_fds=[place.fd])
            for epoch in range(3):
                feeder.serve()
            feeder.finish()

        consumer = feedlane.join(int(sys.argv[1]))      # train.py
        for epoch in range(3):
            for batch in consumer:
                ...

    With share_path="/run/user/1000/train.sock" the trainers are started by themselves and say feedlane.join of that path;
    `feeder.wait_for_consumers()` takes the place of the loop over the ranks."""

    share: str | None
    _config: dict[str, Any]
    _is_serving = False
    _end_untold = False  # wait_for_consumers has seen the end of the epoch, which is serve's to tell

    def open_consumer(self, id: int | None = None, lag: Lag = "block", evict_after: float | None = None) -> Place:
        """A place for one consumer; from here on batches are kept for it. id: with "deal" the rank; None: any that has none. What
        the feeder does when it has no free slot because of this consumer:
          lag="block"     it waits
          lag="evict"     it waits for `evict_after` seconds (None: 60) without progress of the consumer, whose place ends then
          lag="observe"   it takes back what the consumer has not taken, see Batch.missed; not with "deal"
        With "deal" a place whose consumer has ended is opened again: the replacement gets what the former had not taken.
        StateError: the loader isn't shared. LimitError: all places have a consumer. ArgumentError: there is no such place, or it
        has a consumer."""
        return Place(*self._core.open_consumer(*consumer_config(id, lag, evict_after)))

    def serve(self, timeout: float | None = None) -> bool:
        """Begins the next epoch, or goes on with the one in progress, and delivers batches until the epoch is over: True. False:
        `timeout` seconds have passed, call it again. Errors of single batches are raised in the consumers. PeerDead: there is no
        consumer, or with "deal" a place has none and no slot is free: open_consumer or wait_for_consumers, and call it again.
        Hung: all slots are held by consumers that were evicted. StateError: the loader isn't shared. Others: see __iter__."""
        timeout_ns = nanoseconds(timeout)
        self._check_shared()
        if self._end_untold and not self._core.is_closed:
            self._end_untold = False
            return True
        if not self._is_serving:
            self._begin()
            self._is_serving = True
        try:
            self._is_serving = self._core.serve(timeout_ns) != _core.END
        except errors.FeedlaneError as exception:
            self._raise(exception)
        return not self._is_serving

    def finish(self, timeout: float | None = None) -> bool:
        """After the last epoch: waits until all consumers have left and returned their batches: True. Meanwhile they may ask for
        states. False: `timeout` seconds have passed. StateError: an epoch is in progress, or the loader isn't shared."""
        timeout_ns = nanoseconds(timeout)
        self._check_shared()
        if self._is_serving:
            raise errors.make(_core.E_STATE, "the epoch is not over: serve() until it returns True")
        self._end_untold = False
        return self._core.serve(timeout_ns) == _core.END

    def wait_for_consumers(self, count: int | None = None, timeout: float | None = None) -> bool:
        """Waits until so many consumers have joined (None: as many as the argument `consumers` says): True. False: `timeout`
        seconds have passed. In an epoch those that are there get their batches meanwhile. StateError: the loader isn't shared."""
        wanted = self._config.get("consumers", 1) if count is None else errors.whole("count", count, 0, 2**31 - 1)
        end_ns = time.monotonic_ns() + nanoseconds(timeout) if timeout is not None else None
        while sum(consumer.state == "attached" for consumer in self.consumers()) < wanted:
            left_ns = _core.FOREVER if end_ns is None else max(0, end_ns - time.monotonic_ns())
            if left_ns == 0:
                return False
            self._attend(left_ns)
        return True

    def _attend(self, timeout_ns: int) -> None:
        """Until something may have happened. That no consumer is there, or only evicted ones are, is no error: one is waited for."""
        try:
            if self._core.attend(timeout_ns) == _core.AGAIN and self._is_serving and self._core.serve(0) == _core.END:
                self._is_serving, self._end_untold = False, True
        except errors.FeedlaneError as exception:
            is_of_consumers = exception.argument in ("consumers", "config.consumers", "consumer")
            if not (is_of_consumers and isinstance(exception, (errors.PeerDead, errors.Hung))):
                self._raise(exception)

    def consumers(self) -> list[ConsumerStats]:
        """The consumers, those included that have ended but still hold batches; with "deal" also places that have none.
        StateError: the loader isn't shared."""
        self._check_shared()
        return list(self._consumers())

    def _consumers(self) -> Iterator[ConsumerStats]:
        for stats in itertools.takewhile(lambda found: found is not None, map(self._core.consumer, itertools.count())):
            assert stats is not None
            yield ConsumerStats(stats["id"], _STATE_WORDS[stats["state"]], stats["pid"], _LAG_WORDS[stats["lag"]],
                                stats["delivered"], stats["taken_back"], stats["waiting"], stats["held"])

    def _check_shared(self) -> None:
        if self.share is None:
            raise errors.make(_core.E_STATE, 'the loader isn\'t shared: say Loader(share="every"), or "deal"')

    def _cursor(self, whole: bool) -> Iterator[Any]:
        if self.share is not None:
            raise errors.make(_core.E_STATE, "a shared loader's batches go to its consumers: serve() delivers them, feedlane.join "
                              "in another process yields them")
        return super()._cursor(whole)

    def _leave_consumers(self) -> None:
        """Before the loader is made anew. StateError: somebody has joined this one."""
        if self.share is None:
            return
        if not self._core.is_closed and any(consumer.state != "none" for consumer in self._consumers()):
            raise errors.make(_core.E_STATE, "load the state before consumers come: they have joined the loader as it is")
        self.close()  # two can't have one share_path
        self._is_serving = self._end_untold = False
