# SPDX-License-Identifier: Apache-2.0
"""Workers that are a program in any language, whose data set the trainer does not have."""
from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import errors


class Program(NamedTuple):
    """argv: the program and its arguments. config: the bytes that every worker gets. dataset: stands for the program's data set,
    as far as the order needs it."""

    argv: list[bytes]
    config: bytes
    dataset: Any


def of(worker: Sequence[str | os.PathLike[str]] | None, config: bytes, length: int | None, num_workers: int,
       samplers: dict[str, Any], excluded: dict[str, Any]) -> Program | None:
    """Returns the program that Loader's arguments describe; None: the workers are this package's. Without a length and samplers
    the program's data set is iterable. samplers, excluded: arguments that determine the order, or need a data set in Python, by
    name; None: not passed. Raises ValueError, TypeError, and FileNotFoundError if there is no such program."""
    if worker is None:
        if config or length is not None:
            raise ValueError("length and worker_config are allowed only with worker=[program, ...]")
        if excluded["dataset"] is None:
            raise ValueError("dataset=None: a Loader needs a data set, or worker=[program, ...]")
        return None
    if isinstance(worker, (str, bytes, os.PathLike)) or not len(worker):
        raise ValueError(f"worker={worker!r}: must be a list of the program and its arguments, as in worker=['./decoder', '--fast']")
    for name, value in excluded.items():
        if value is not None:
            raise ValueError(f"{name} is not allowed with worker, because the program {worker[0]!r} makes the samples: leave out one "
                             f"of the two")
    if num_workers == 0:
        raise ValueError("num_workers=0: worker needs 1 or more, because only a process can run the program")
    if not isinstance(config, (bytes, bytearray, memoryview)):
        raise TypeError(f"worker_config={config!r}: must be bytes; use .encode() for a str")
    given = [name for name, value in {"length": length, **samplers}.items() if value is not None]
    if length is not None and len(given) > 1:
        raise ValueError(f"length cannot be combined with {given[1]}, which determines the number of samples")
    argv = [os.fsencode(word) for word in worker]
    if any(b"\0" in word for word in argv):
        raise ValueError(f"worker={worker!r}: the words must not contain a zero byte")
    if shutil.which(argv[0]) is None:
        raise FileNotFoundError(errno.ENOENT, "the worker program must be an executable file, named by its path or found in PATH",
                                os.fsdecode(argv[0]))
    return Program(argv, bytes(config), range(errors.whole("length", length or 0, 0, 2**63 - 1)) if given else iter(()))
