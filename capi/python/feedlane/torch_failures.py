# SPDX-License-Identifier: Apache-2.0
"""Exceptions of a DataLoader's data set: named in the worker, raised in the trainer as torch raises them."""
from __future__ import annotations

import contextlib
import importlib
import re
import sys
from typing import Any

import torch

from . import errors

_TAG = re.compile(r"\b([\w.]+:[\w.<>]+): ")


def tagged(reason: BaseException) -> bytes:
    """Returns a one-line text for an exception. It begins with the name of its class, by which `reraise` finds the class."""
    kind = type(reason)
    return f"{kind.__module__}:{kind.__qualname__}: ".encode() + errors.one_line(reason)


def reraise(error: errors.FeedlaneError, allow_import: bool) -> None:
    """Raises the exception of a worker's data set, by torch's ExceptionWrapper. error: the library's. allow_import: whether the
    module of the exception's class may be imported."""
    text, story = error.reason, error.traceback
    tag = _TAG.search(text)
    kind = (_exception_named(tag[1], allow_import) if tag else None) or RuntimeError
    told = story or (text[tag.end():] if tag else text)
    if issubclass(kind, StopIteration):  # in `next`, it would end the loop as if all batches had come
        sample = f"sample {error.sample}" if error.sample >= 0 else f"batch {error.batch}"
        kind, told = RuntimeError, f"{stopped(sample)}\n{told}"
    wrapper: Any = torch._utils.ExceptionWrapper.__new__(torch._utils.ExceptionWrapper)
    wrapper.exc_type, wrapper.exc_msg, wrapper.where = kind, told, f"in DataLoader worker process {error.worker}"
    raise _made(wrapper)


def stopped(what: str) -> str:
    """Returns the message for a StopIteration that would end the loop as if all batches had come."""
    return f"StopIteration was raised for {what}: only the iterator of an iterable data set may raise it"


def _made(wrapper: Any) -> BaseException:
    """Returns the exception that torch's ExceptionWrapper raises or, if that loses the worker's traceback, another one that has
    it."""
    text = f"Caught {wrapper.exc_type.__name__} {wrapper.where}.\nOriginal {wrapper.exc_msg}"
    try:
        wrapper.reraise()
    except Exception as made:  # whatever the class's constructor does
        found = made.with_traceback(None)
    if not isinstance(found, wrapper.exc_type) and issubclass(wrapper.exc_type, BaseExceptionGroup):
        found = _attempt(wrapper.exc_type, text, [RuntimeError("the worker's traceback, above, shows what the group consists of")]) or found
    elif not isinstance(found, wrapper.exc_type):
        found = _attempt(wrapper.exc_type, text) or found
    is_said = wrapper.exc_msg in _words(found)
    if not is_said and not isinstance(found, wrapper.exc_type):
        return RuntimeError(text)
    if not is_said:
        found.add_note(text)
    return found


def _attempt(kind: type[Exception], *arguments: Any) -> Exception | None:
    try:
        made = kind(*arguments)
    except Exception:
        return None
    return made if isinstance(made, kind) else None


def _words(reason: BaseException) -> str:
    try:
        return str(reason)
    except Exception:
        return ""


def _exception_named(name: str, allow_import: bool) -> type[Exception] | None:
    """Returns the exception class. None: there is no such class, or its module would have to be imported."""
    module, _, path = name.partition(":")
    if allow_import and module not in sys.modules:
        with contextlib.suppress(Exception):  # whatever the module does
            importlib.import_module(module)
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) and issubclass(found, Exception) else None
