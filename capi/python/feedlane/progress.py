# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of an epoch on a stream: with tqdm if it is installed, otherwise as a line of text.

On a terminal and in a notebook, the progress is updated several times a second. Elsewhere, one line is written at the end of
the epoch."""
from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO

from . import errors

if TYPE_CHECKING:
    from .observe import Figures
    from .records import Diagnosis

_EVERY_S = 0.25


class Epoch(NamedTuple):
    """The epoch to show. label: its name, or "". total: its number of batches, or None: unknown. first: number of its batches
    that another loader had already yielded."""

    label: str
    total: int | None
    first: int


class _Display(Protocol):
    def show(self, count: int, said: str) -> None: ...
    def close(self, count: int, said: str) -> None: ...


class Bar(Iterator[Any]):
    """Iterates over `batches` and shows the progress. Ends with them, or when the loop drops it."""

    def __init__(self, batches: Iterator[Any], figures: Callable[[], Figures], epoch: Epoch, progress: bool | TextIO) -> None:
        """progress: True: on sys.stderr."""
        self._batches, self._figures, self._count = batches, figures, epoch.first
        try:
            self._display = _display(epoch, sys.stderr if progress is True else progress)
        except (OSError, ValueError):  # a stream that was closed
            self._display = None
        self._due = time.monotonic() + _EVERY_S

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # the iterators of this package have a length

    def __next__(self) -> Any:
        try:
            data = next(self._batches)
        except StopIteration:
            self.close()
            raise
        self._count += 1
        now = time.monotonic()
        if now >= self._due and self._display is not None:
            self._due = now + _EVERY_S
            self._tell(self._display.show)
        return data

    def close(self) -> None:
        """Shows the final state. A second call has no effect."""
        display, self._display = self._display, None
        if display is not None:
            self._tell(display.close)

    def _tell(self, show: Callable[[int, str], None]) -> None:
        """Updates the display. A closed stream, or one whose reader has ended, does not end the loop."""
        try:
            said = _said(self._figures().diagnose())
        except errors.FeedlaneError:  # the loader was closed
            said = ""
        try:
            show(self._count, said)
        except (OSError, ValueError):
            self._display = None

    def __del__(self) -> None:
        if getattr(self, "_display", None) is not None and not sys.is_finalizing():
            self.close()


def epoch_of(label: str, loader: Any, first: int) -> Epoch:
    """Makes an Epoch with the length of `loader`, if it has one."""
    try:
        total = len(loader)
    except (TypeError, NotImplementedError):
        total = None
    return Epoch(label, total, first)


def _said(d: Diagnosis) -> str:
    """Describes the share of the time that was spent waiting, and the bottleneck. "": nothing is measured, or nothing has
    happened."""
    if d["interval_ns"] == 0:
        return ""
    share = f"waits {100 * min(1.0, d['exposed_ns'] / d['interval_ns']):.0f} %"
    if d["bound"] == "nothing":
        return share
    return f"{share}, bound: {d['bound']}" + (f" {d['worker']}" if d["bound"] == "worker" else "")


def _display(epoch: Epoch, stream: TextIO | bool | None) -> _Display | None:
    if stream is None or isinstance(stream, bool):  # a program without stderr
        return None
    if not stream.isatty() and "ipykernel" not in sys.modules:
        return _Line(epoch, stream, is_live=False)
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return _Line(epoch, stream, is_live=True)
    return _Tqdm(tqdm(total=epoch.total, initial=epoch.first, desc=epoch.label or None, unit="batch", file=stream,
                      mininterval=0, miniters=1, dynamic_ncols=True))


class _Tqdm:
    """tqdm's bar, or its widget in a notebook."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def show(self, count: int, said: str) -> None:
        self._bar.set_postfix_str(said, refresh=False)
        self._bar.update(count - self._bar.n)

    def close(self, count: int, said: str) -> None:
        self._bar.set_postfix_str(said, refresh=False)
        self._bar.update(count - self._bar.n)
        self._bar.refresh()
        self._bar.close()


class _Line:
    """One line, overwritten while it is live."""

    def __init__(self, epoch: Epoch, stream: TextIO, is_live: bool) -> None:
        self._epoch, self._stream, self._is_live = epoch, stream, is_live
        self._began, self._width = time.monotonic(), 0

    def _text(self, count: int, said: str) -> str:
        seconds = time.monotonic() - self._began
        of = "" if self._epoch.total is None else f" of {self._epoch.total}"
        rate = (count - self._epoch.first) / seconds if seconds > 0 else 0.0
        text = f"{count}{of} batches in {seconds:.1f} s, {rate:.4g}/s"
        return (f"{self._epoch.label}: " if self._epoch.label else "") + text + (f", {said}" if said else "")

    def show(self, count: int, said: str) -> None:
        if self._is_live:
            text = self._text(count, said)
            self._stream.write("\r" + text.ljust(self._width))
            self._stream.flush()
            self._width = len(text)

    def close(self, count: int, said: str) -> None:
        text = self._text(count, said)
        self._stream.write(("\r" if self._is_live else "") + text.ljust(self._width) + "\n")
        self._stream.flush()
