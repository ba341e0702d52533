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
    """A place that a loader has opened for one consumer or worker: its `id`, and a descriptor through which a process takes it.
    Pass it to that process, then close it here. The process inherits `fd` (subprocess's pass_fds), or gets this object as an
    argument of multiprocessing's Process, and calls feedlane.join or feedlane.run_worker with it."""

    def __init__(self, id: int, fd: int) -> None:
        """Takes ownership of the descriptor."""
        self.id, self._fd = id, fd

    @property
    def fd(self) -> int:
        """The descriptor, which this object owns. Raises ValueError if it was closed or detached."""
        if self._fd < 0:
            raise ValueError("the place's descriptor was closed or detached")
        return self._fd

    def detach(self) -> int:
        """Returns the descriptor, which the caller owns from now on. Raises ValueError if it was closed or detached."""
        fd = self.fd
        self._fd = -1
        return fd

    def close(self) -> None:
        """Closes the descriptor. A process can then join only through a copy of it."""
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
        """For multiprocessing, which passes descriptors to processes that it spawns."""
        from multiprocessing import reduction
        return _received, (self.id, reduction.DupFd(self.fd))

    def __repr__(self) -> str:
        return f"Place(id={self.id}, fd={self._fd})"


def _received(id: int, fd: Any) -> Place:
    return Place(id, fd.detach())


class ConsumerStats(NamedTuple):
    """A consumer, as its feeder sees it. state "none": a place with share="deal" that has no consumer, and whose batches wait
    for a replacement; "evicted" and "left": the consumer still holds batches. pid: 0: unknown. `delivered` is the number of
    batches delivered. Of these, `taken_back` were taken back because the consumer had not taken them when the feeder needed
    their slots, `waiting` are not taken yet, and `held` are taken but not returned."""

    id: int
    state: State
    pid: int
    lag: Lag
    delivered: int
    taken_back: int
    waiting: int
    held: int


def consumer_config(id: int | None, lag: Lag, evict_after: float | None) -> tuple[int, int, int]:
    """Returns the arguments as the compiled module takes them. Raises ValueError if one is out of its domain."""
    number = -1 if id is None else errors.whole("id", id, 0, 2**31 - 1)
    if evict_after is not None and (lag != "evict" or not 0 < evict_after < 2**33):
        raise ValueError(f'evict_after={evict_after!r}: must be above 0 seconds, and is allowed only with lag="evict"')
    return number, errors.choice("lag", lag, _LAGS), max(1, int(evict_after * 1e9)) if evict_after is not None else 0


def nanoseconds(timeout: float | None) -> int:
    """Converts a time in seconds; None: no limit. Raises ValueError if the time is negative."""
    if timeout == 0:
        return 0
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout={timeout!r}: must not be negative")
    return _core.FOREVER if timeout is None else int(min(timeout, 2**33) * 1e9)


def configuration(share: str | None, consumers: int | None, path: str | os.PathLike[str] | None, tail: bool, tensors: str,
                  progress: object) -> dict[str, int]:
    """Returns the fields of feedlane_loader_config for Loader's arguments. Raises ValueError if the arguments exclude each
    other."""
    if share is None:
        if consumers is not None or path is not None or tail:
            raise ValueError("consumers, share_path and share_tail are allowed only with share")
        return {}
    found = errors.choice("share", share, _SHARES)
    if tensors != "numpy":
        raise ValueError(f"tensors={tensors!r}: a shared loader yields no batches; pass it to feedlane.join")
    if progress:
        raise ValueError("progress is not available on a shared loader")
    if path is not None and (not os.fspath(path) or b"\0" in os.fsencode(path)):
        raise ValueError(f"share_path={path!r}: must be None or a path that is not empty and has no zero byte")
    return {"share": found, "consumers": errors.whole("consumers", 1 if consumers is None else consumers, 1, 2**31 - 1),
            "share_tail": bool(tail)}


class Feeder(iteration.Batches):
    """The methods of a Loader with `share`. Such a loader is not iterated: it delivers its batches to consumers in other
    processes, which get them from feedlane.join. It needs workers. A feeder and its trainers:

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

    With share_path="/run/user/1000/train.sock" the trainers are started separately and call feedlane.join with that path. Then
    `feeder.wait_for_consumers()` replaces the loop over the ranks."""

    share: str | None
    _config: dict[str, Any]
    _is_serving = False
    _end_untold = False  # wait_for_consumers has seen the end of the epoch; the next serve returns it

    def open_consumer(self, id: int | None = None, lag: Lag = "block", evict_after: float | None = None) -> Place:
        """Opens a place for one consumer; from now on batches are kept for it. id: the place, with "deal" the rank; None: any
        place without a consumer. `lag` determines how the feeder acts when it has no free slot because of this consumer:
          lag="block"     it waits
          lag="evict"     it waits for `evict_after` seconds (None: 60) without progress of the consumer, then ends its place
          lag="observe"   it takes back batches that the consumer has not taken, see Batch.missed; not with "deal"
        With "deal", a place whose consumer has ended can be opened again: the replacement gets the batches that its predecessor
        had not taken. Raises StateError if the loader is not shared, LimitError if all places have a consumer, and
        ArgumentError if there is no such place or it has a consumer."""
        return Place(*self._core.open_consumer(*consumer_config(id, lag, evict_after)))

    def serve(self, timeout: float | None = None) -> bool:
        """Begins the next epoch, or continues the one in progress, and delivers batches. Returns True when the epoch is over,
        and False after `timeout` seconds; then call it again. Errors of single batches are raised in the consumers. Raises
        PeerDead if there is no consumer, or if with "deal" a place has no consumer and no slot is free: call open_consumer or
        wait_for_consumers, then serve again. Raises Hung if evicted consumers hold all slots, StateError if the loader is not
        shared, and other errors as __iter__ does."""
        timeout_ns = nanoseconds(timeout)
        self._check_shared()
        if self._end_untold and not self._core.is_closed:
            self._end_untold = False
            return True
        if not self._is_serving:
            self._begin()
            self._is_serving = True
        try:
            self._is_serving = self._serve(timeout_ns) != _core.END
            if not self._is_serving:
                self._is_over(self._core)
        except errors.FeedlaneError as exception:
            self._raise(exception)
        return not self._is_serving

    def _serve(self, timeout_ns: int) -> int:
        """_core.Loader.serve, which looks for missing workers where the program starts them."""
        if self._start is None:
            return self._core.serve(timeout_ns)
        end_ns = time.monotonic_ns() + timeout_ns
        while True:
            self._start_missing(self._core)
            left_ns = max(0, end_ns - time.monotonic_ns())
            try:
                status = self._core.serve(min(left_ns, iteration.LOOK_EVERY_NS))
            except errors.PeerDead as exception:  # with a worker: its shard is lost
                if exception.worker >= 0 or not self._start_missing(self._core):
                    raise
                continue
            if status != _core.TIMEOUT or left_ns <= iteration.LOOK_EVERY_NS:
                return status

    def finish(self, timeout: float | None = None) -> bool:
        """Called after the last epoch: waits until all consumers have left and returned their batches, then returns True. While
        it waits, consumers may request states. Returns False after `timeout` seconds. Raises StateError if an epoch is in
        progress or the loader is not shared."""
        timeout_ns = nanoseconds(timeout)
        self._check_shared()
        if self._is_serving:
            raise errors.make(_core.E_STATE, "the epoch is not over: call serve() until it returns True")
        self._end_untold = False
        return self._core.serve(timeout_ns) == _core.END

    def wait_for_consumers(self, count: int | None = None, timeout: float | None = None) -> bool:
        """Waits until `count` consumers have joined (None: the loader's `consumers`), then returns True. Returns False after
        `timeout` seconds. During an epoch, consumers that have joined get their batches while this waits. Raises StateError if
        the loader is not shared."""
        wanted = self._config.get("consumers", 1) if count is None else errors.whole("count", count, 0, 2**31 - 1)
        end_ns = time.monotonic_ns() + nanoseconds(timeout) if timeout is not None else None
        while sum(consumer.state == "attached" for consumer in self.consumers()) < wanted:
            left_ns = _core.FOREVER if end_ns is None else max(0, end_ns - time.monotonic_ns())
            if left_ns == 0:
                return False
            self._attend(left_ns)
        return True

    def _attend(self, timeout_ns: int) -> None:
        """Waits until something may have happened. Having no consumers, or only evicted ones, is not an error here, because the
        caller waits for a consumer."""
        try:
            if self._start is not None and self._is_serving:
                self._start_missing(self._core)
                timeout_ns = min(timeout_ns, iteration.LOOK_EVERY_NS)
            if self._core.attend(timeout_ns) == _core.AGAIN and self._is_serving and self._core.serve(0) == _core.END:
                self._is_serving, self._end_untold = False, True
                self._is_over(self._core)
        except errors.FeedlaneError as exception:
            if isinstance(exception, errors.PeerDead) and exception.worker < 0 and self._start_missing(self._core):
                return
            is_of_consumers = exception.argument in ("consumers", "config.consumers", "consumer")
            if not (is_of_consumers and isinstance(exception, (errors.PeerDead, errors.Hung))):
                self._raise(exception)

    def consumers(self) -> list[ConsumerStats]:
        """Returns the consumers, including those that have ended but still hold batches, and with "deal" places without a
        consumer. Raises StateError if the loader is not shared."""
        self._check_shared()
        return list(self._consumers())

    def _consumers(self) -> Iterator[ConsumerStats]:
        for stats in itertools.takewhile(lambda found: found is not None, map(self._core.consumer, itertools.count())):
            assert stats is not None
            yield ConsumerStats(stats["id"], _STATE_WORDS[stats["state"]], stats["pid"], _LAG_WORDS[stats["lag"]],
                                stats["delivered"], stats["taken_back"], stats["waiting"], stats["held"])

    def _check_shared(self) -> None:
        if self.share is None:
            raise errors.make(_core.E_STATE, 'the loader is not shared: use Loader(share="every") or "deal"')

    def _cursor(self, whole: bool, waits: bool = True) -> Iterator[Any]:
        if self.share is not None:
            raise errors.make(_core.E_STATE, "a shared loader yields no batches: call serve() here, and iterate over feedlane.join() "
                              "in other processes")
        return super()._cursor(whole, waits)

    def _leave_consumers(self) -> None:
        """Called before the loader is created again. Raises StateError if a consumer has joined this one."""
        if self.share is None:
            return
        if not self._core.is_closed and any(consumer.state != "none" for consumer in self._consumers()):
            raise errors.make(_core.E_STATE, "load the state before consumers join")
        super().close()  # two loaders cannot have the same share_path
        self._is_serving = self._end_untold = False
