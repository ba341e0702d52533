# SPDX-License-Identifier: Apache-2.0
"""What the programs share: equal seeds for each case, and the record of what a case saw, which tools/try-frameworks compares."""
import hashlib
import random
import warnings

import numpy as np
import pytest
import torch


def digest(*parts):
    """A short digest of tensors, arrays and plain values, with their types, shapes, strides and dtypes."""
    found = hashlib.md5()

    def add(part):
        if isinstance(part, dict):
            found.update(b"dict")
            for key, value in part.items():
                add(key)
                add(value)
        elif isinstance(part, (list, tuple)):
            found.update(type(part).__name__.encode())
            for value in part:
                add(value)
        elif isinstance(part, torch.Tensor):
            found.update(f"{type(part).__name__}{part.dtype}{tuple(part.shape)}{part.stride()}{part.requires_grad}".encode())
            plain = torch.empty(part.numel(), dtype=part.dtype).copy_(part.detach().as_subclass(torch.Tensor).reshape(-1))
            found.update(plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
        elif isinstance(part, np.ndarray):
            found.update(f"{part.dtype}{part.shape}".encode() + np.ascontiguousarray(part).tobytes())
        else:
            found.update(f"{type(part).__name__}{part!r}".encode())
    add(parts)
    return found.hexdigest()[:10]


class Seen:
    """What a case records, in order: values that must be equal with either loader."""

    def __init__(self, record_property):
        self._record = record_property

    def value(self, *values):
        self._record("value", repr(values))

    def step(self, *parts):
        """The batch of a step, and the state of each random generator at that moment."""
        self.value(digest(*parts), digest(torch.get_rng_state()), digest(np.random.get_state()[1]), digest(random.getstate()))

    def weights(self, model):
        self.value("weights", digest(*[value for value in model.state_dict().values()]))


@pytest.fixture
def seen(record_property):
    return Seen(record_property)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


