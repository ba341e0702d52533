# SPDX-License-Identifier: Apache-2.0
"""The objects that a worker process gets if it is not forked: pickled as by multiprocessing, or by cloudpickle if that fails."""
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
_GUARD = ("processes that aren't forked import the main module: code that starts workers must be under "
          "`if __name__ == \"__main__\":` there")
CANNOT = (pickle.PicklingError, AttributeError, TypeError)  # pickle's errors for a value that cannot be pickled


class ByValue:
    """Pickles its value with cloudpickle. Tensors and descriptors are sent as by multiprocessing's pickler."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Callable[[bytes], ByValue], tuple[bytes]]:
        cloudpickle: Any = importlib.import_module("cloudpickle")  # cloudpickle has no types
        buffer = io.BytesIO()
        pickler = cloudpickle.CloudPickler(buffer)
        theirs = multiprocessing.reduction.ForkingPickler._extra_reducers  # type: ignore[attr-defined]  # typeshed lacks it
        pickler.dispatch_table = collections.ChainMap(theirs, pickler.dispatch_table)
        pickler.dump(self.value)
        return _received, (buffer.getvalue(),)


def _received(blob: bytes) -> ByValue:
    return ByValue(pickle.loads(blob))


def start(make: Callable[[Any], Any], arguments: Any, is_forked: bool) -> Any:
    """Starts and returns the process make(arguments). If the arguments cannot be pickled, or another process cannot import
    __main__, they are sent by value; `opened` undoes this in the process that receives them. Raises pickle's errors, with a note
    on what to do:
    PicklingError, AttributeError, TypeError."""
    if is_forked:
        return _started(make(arguments))
    if is_main_nowhere():
        try:
            return _started(make(ByValue(arguments)))
        except ImportError:
            pass  # no cloudpickle: works if nothing is defined in __main__
    try:
        return _started(make(arguments))
    except CANNOT as reason:
        try:
            importlib.import_module("cloudpickle")
        except ImportError:
            reason.add_note(_HINT)
            raise reason from None
        try:
            return _started(make(ByValue(arguments)))
        except CANNOT as failure:
            raise failure from reason


def _started(process: Any) -> Any:
    with stdio_held():
        process.start()
    return process


@contextlib.contextmanager
def stdio_held() -> Iterator[None]:
    """While it is active, each of the descriptors 0, 1 and 2 that was closed is open on /dev/null, also in child processes. Otherwise
    multiprocessing's pipes would get these numbers, and a worker that prints would wait forever if nobody reads the pipe."""
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
    """Called in the process: returns the arguments that were passed to `start`."""
    return arguments.value if isinstance(arguments, ByValue) else arguments


def is_main_nowhere() -> bool:
    """Whether another process cannot import __main__, as in an interactive session or a notebook."""
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is None and not hasattr(main, "__file__")


def check_main() -> None:
    """Raises RuntimeError in a process that was started by the main module and is still importing it."""
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise RuntimeError(f"workers can't be started while the main module is imported: {_GUARD}")


def hint() -> str:
    """Names the likely mistake if processes that are not forked end as soon as they have started."""
    text = _HINT if is_main_nowhere() else _GUARD
    return f" {text[0].upper()}{text[1:]}."
