# SPDX-License-Identifier: Apache-2.0
"""How a nested batch travels: its leaves are tensors in the slot, what holds them together is a plan in the batch's
metadata. A plan is made of tuples: a kind, what that kind needs, the plans of its children."""
import pickle

# What each needs: number and owner; -; -; keys; keys and the mapping without its values; class; the value.
LEAF, LIST, TUPLE, DICT, MAPPING, NAMED, VALUE = range(7)
# Who the array of a leaf belongs to: the loader says, or what a collate_fn returned is kept.
ANY, NUMPY, TORCH = range(3)

_newest = (b"", None)  # plans rarely change from one batch to the next


def dump(plan):
    return pickle.dumps(plan, protocol=pickle.HIGHEST_PROTOCOL)


def load(blob):
    global _newest
    known, plan = _newest
    if blob == known and plan is not None:
        return plan
    plan = pickle.loads(blob)
    _newest = (blob, plan) if _is_constant(plan) else (b"", None)
    return plan


def _is_constant(plan):
    """Whether two batches may share it: objects in it would be one and the same in both."""
    if plan[0] == VALUE:
        return isinstance(plan[1], (int, float, str, bytes, type(None)))
    if plan[0] == LEAF:
        return True
    if plan[0] == MAPPING:
        return False
    return all(_is_constant(child) for child in plan[-1])


def build(plan, leaf):
    """The nested batch; `leaf(number, owner)` makes each array."""
    kind = plan[0]
    if kind == LEAF:
        return leaf(plan[1], plan[2])
    if kind == VALUE:
        return plan[1]
    children = [build(child, leaf) for child in plan[-1]]
    if kind == LIST:
        return children
    if kind == TUPLE:
        return tuple(children)
    if kind == NAMED:
        return plan[1]._make(children)  # its class may have a __new__ of its own
    mapping = plan[2] if kind == MAPPING else {}
    for key, child in zip(plan[1], children):
        mapping[key] = child
    return mapping
