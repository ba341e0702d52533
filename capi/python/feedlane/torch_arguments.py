# SPDX-License-Identifier: Apache-2.0
"""The arguments that a DataLoader has in addition to torch's."""
from __future__ import annotations

import typing
from typing import Any, TextIO

import torch
import torch.utils.data

from . import errors

_T = typing.TypeVar("_T", covariant=True)


class Arguments(torch.utils.data.DataLoader[_T]):
    """torch's DataLoader with these arguments as attributes. They have the arguments' names, because frameworks read them to
    create another loader."""

    # From a loaded state: state of torch's default generator for the next epoch.
    _next_random: torch.Tensor | None = None

    def __init__(self, *args: Any, held: int, slot_bytes: int | None, task_timeout: float, max_restarts: int, allow_pickle: bool,
                 snapshot_every_n_steps: int | None, name: str | None, trace: int, progress: bool | TextIO, **kwargs: Any) -> None:
        self.held = errors.whole("held", held, 1, 4096)
        self.slot_bytes = None if slot_bytes is None else errors.whole("slot_bytes", slot_bytes, 1, 1 << 40)
        self.max_restarts = errors.whole("max_restarts", max_restarts, -1, 2**31 - 1)
        self.task_timeout, self.allow_pickle = task_timeout, bool(allow_pickle)
        self.snapshot_every_n_steps = errors.whole("snapshot_every_n_steps", snapshot_every_n_steps or 0, 0, 2**31 - 1)
        self.name, self.progress, self._trace = name, progress, errors.whole("trace", trace, 0, 2**64 - 1)
        super().__init__(*args, **kwargs)
