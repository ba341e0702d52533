# SPDX-License-Identifier: Apache-2.0
"""What a worker process gets when it isn't forked: pickled as multiprocessing does it, and by cloudpickle what that can't."""
from __future__ import annotations

import collections
import contextlib
import importlib
import io
import multiprocessing.process
import multiprocessing.reduction
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

_HINT = ("a worker that isn't forked gets the data set and its functions pickled: define them in a module, or install "
         "cloudpickle, which pickles lambdas, local classes and what a notebook's cell defines")
_GUARD = ("processes that aren't forked import the main module: what starts workers must be under "
          "`if __name__ == \"__main__\":` there")
_CANNOT = (pickle.PicklingError, AttributeError, TypeError)  # what pickle raises of a value that it can't pickle


class ByValue:
    """Pickles what it holds by cloudpickle. Tensors and descriptors go as multiprocessing's pickler sends them."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Callable[[bytes], ByValue], tuple[bytes]]:
        cloudpickle: Any = importlib.import_module("cloudpickle")  # it has no types
        buffer = io.BytesIO()
        pickler = cloudpickle.CloudPickler(buffer)
        theirs = multiprocessing.reduction.ForkingPickler._extra_reducers  # type: ignore[attr-defined]  # typeshed lacks it
        pickler.dispatch_table = collections.ChainMap(theirs, pickler.dispatch_table)
        pickler.dump(self.value)
        return _received, (buffer.getvalue(),)


def _received(blob: bytes) -> ByValue:
    return ByValue(pickle.loads(blob))


def start(make: Callable[[Any], Any], arguments: Any, is_forked: bool) -> Any:
    """Starts make(arguments), a process, and returns it. If they can't be pickled they go by value; `opened` undoes that in the
    process. Raises what pickle does, with a note on what to do: PicklingError, AttributeError, TypeError."""
    if is_forked:
        return _started(make(arguments))
    if is_main_nowhere():
        try:
            return _started(make(ByValue(arguments)))
        except ImportError:
            pass  # what isn't of __main__ needs no cloudpickle
    try:
        return _started(make(arguments))
    except _CANNOT as reason:
        try:
            importlib.import_module("cloudpickle")
        except ImportError:
            reason.add_note(_HINT)
            raise reason from None
        try:
            return _started(make(ByValue(arguments)))
        except _CANNOT as failure:
            raise failure from reason


def _started(process: Any) -> Any:
    with _stdio_held():
        process.start()
    return process


@contextlib.contextmanager
def _stdio_held() -> Iterator[None]:
    """Closed ones of the descriptors 0, 1 and 2 are /dev/null until its end, and in processes that are started. Otherwise they would be
    multiprocessing's pipes, and a worker that prints would wait for ever when nobody reads it."""
    held: list[int] = []
    try:
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(number, True)
            held.append(number)
        os.close(number)
        yield
    finally:
        for number in held:
            os.close(number)


def opened(arguments: Any) -> Any:
    """The arguments that `start` was given, in the process."""
    return arguments.value if isinstance(arguments, ByValue) else arguments


def is_main_nowhere() -> bool:
    """Whether __main__ can't be imported by another process: an interactive session's, a notebook's."""
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is None and not hasattr(main, "__file__")


def check_main() -> None:
    """RuntimeError: the main module is being imported by a process that it has started."""
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise RuntimeError(f"workers can't be started while the main module is imported: {_GUARD}")


def hint() -> str:
    """What may be wrong when processes that aren't forked end as soon as they have begun."""
    text = _HINT if is_main_nowhere() else _GUARD
    return f" {text[0].upper()}{text[1:]}."
