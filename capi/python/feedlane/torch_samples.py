# SPDX-License-Identifier: Apache-2.0
"""Collates a DataLoader's samples like torch's default_collate, with the same errors. Tensors, arrays and texts of equal type
and shape are written directly into the batch's slot; torch collates anything else, and the result is then copied there."""
from __future__ import annotations

import collections
import collections.abc as abc
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate

from . import collate, maker, tree

if TYPE_CHECKING:
    from .records import Plan


def batch(samples: abc.Sequence[Any], leaves: collate.Leaves) -> Plan:
    """Called by core/collate.cpp for samples that it does not support. A tuple contains elements of sequences, as torch passes
    them on."""
    first = samples[0]
    kind = type(first)
    if kind is torch.Tensor and _are_stackable(samples):
        return leaves.plan(collate.leaf_of_tensors(samples, first.dtype, tuple(first.shape), True))
    if kind is np.ndarray and collate.is_known(first.dtype) and all(
            type(a) is np.ndarray and a.dtype == first.dtype and a.shape == first.shape for a in samples):
        return leaves.plan(collate.array_leaf(samples, True))
    if isinstance(first, (str, bytes)):
        return collate.texts(samples, leaves)
    if all(type(sample) is kind for sample in samples):
        if kind in (collections.OrderedDict, collections.defaultdict):
            keys = tuple(first)
            return collate.mapping_plan(first, keys, tuple(batch([s[key] for s in samples], leaves) for key in keys))
        if getattr(kind, "__bases__", None) == (tuple,) and hasattr(first, "_fields"):
            return (tree.NAMED, kind, tuple(batch(column, leaves) for column in zip(*samples)))
    default_collate: Any = torch_collate.default_collate  # torch's function has no types
    return collate.whole(default_collate(samples), leaves)


def _are_stackable(tensors: abc.Sequence[Any]) -> bool:
    """Whether they are plain (see collate.is_plain) and have the same type and shape. This check runs for each sample of each
    batch."""
    first = tensors[0]
    if not collate.is_plain(first):
        return False
    kind, strided, dtype, shape = torch.Tensor, torch.strided, first.dtype, first.shape  # equal dtypes: none is quantized
    for tensor in tensors:
        if (type(tensor) is not kind or tensor.dtype is not dtype or tensor.requires_grad or tensor.layout is not strided or
                not tensor.is_cpu or tensor.is_nested or tensor.shape != shape):
            return False
    return True


class Maker(maker.Maker):
    """Makes the batches of a DataLoader's worker."""

    batch = staticmethod(batch)
    loader_class = "DataLoader"
    counts = False
