# SPDX-License-Identifier: Apache-2.0
"""How a nested batch is sent: its leaves are tensors in the slot, and a plan in the batch's metadata describes its structure.

In Python a plan is a tuple: a kind, the data of that kind, the plans of its children. In the metadata the plan is JSON after MARK,
because any worker can write there, and the trainer must be able to read it without running code. A node is a list that begins with its
kind. A bare string, integer, float, true, false or null stands for itself. values.py describes the other values. What changes from
batch to batch, the places and shapes of arrays in a shared tensor, is not in the plan: a zero byte and 64-bit integers follow the
JSON. So equal plans need to be read only once.

    ["leaf", owner]                      the next tensor of the slot, in the order of the text
    ["part", owner, dtype, dimensions]   an array in the one tensor of bytes that such arrays share; its integers: offset, shape
    ["object"]                           a pickled value in that tensor, see objects.py; its integers: offset, start, length
    ["list", node ...]  ["tuple", node ...]
    ["dict", how, key, node ...]         how: "dict", "OrderedDict", a defaultdict's factory, or a pickled empty mapping
    ["named", "module:Class", node ...]  a named tuple
    ["state", node, node]                the batch and its worker's state; only at the top

Metadata without MARK, or none, comes from a worker that does not use this package: its batch is a dict of its tensors by name.

A violation of the format or of a limit raises Malformed. Pickled parts are read only if the loader has allow_pickle=True."""
from __future__ import annotations

import array
import collections
import collections.abc as abc
import functools
import importlib
import itertools
import json
import math
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import dtypes, objects, values
from .values import Malformed

if TYPE_CHECKING:
    from .records import Plan

# Data of each kind: number and owner; -; -; keys and the empty mapping; class; the value; -; number, owner, dtype and
# dimensions, as read also numpy's type (None: it has none) and its bytes; number; -.
LEAF, LIST, TUPLE, MAPPING, NAMED, VALUE, STATE, PART, OBJECT, FIELDS = range(10)
# Type of a leaf's array. ANY: the loader chooses it. NUMPY, TORCH: kept from the result of a collate_fn.
ANY, NUMPY, TORCH = range(3)

MARK = b"\0feedlane-plan\0"  # begins with a zero byte, as no text does
MAX_BYTES = 16 << 20
MAX_NODES = 1 << 20
MAX_DEPTH = 64
MAX_TYPES = 256  # of parts
_NUMBER_BYTES = 8

_FACTORIES: dict[str, type | None] = {
    "": None, **{kind.__name__: kind for kind in (bool, bytes, dict, float, int, list, set, str, tuple)}}


class WithState(NamedTuple):
    """A batch with its worker's state."""

    data: Any
    state: Any


_DTYPE = re.compile(r"(bool|complex\d+|b?float\d+(_\w+)?|u?int\d+)")

_newest: tuple[Any, Any] = (None, None)  # plans rarely change between batches


# ---- in the worker ----

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, ensure_ascii=False).encode


def dump(plan: Plan, numbers: array.array[int] | None = None, allow_pickle: bool = False) -> bytes:
    """Returns the metadata of a batch. numbers: collate.Leaves.numbers. Raises TypeError for a value that can only be pickled if
    pickling is not allowed, and ValueError beyond a limit."""
    budget = values.Budget(MAX_NODES)
    blob = MARK + _encode(_node_of(plan, allow_pickle, budget, MAX_DEPTH)).encode(errors="surrogatepass")
    if numbers:
        blob += b"\0" + numbers.tobytes()
    if len(blob) > MAX_BYTES:
        raise ValueError(f"the batch without its tensors takes {len(blob)} bytes, but at most {MAX_BYTES} are allowed: put large "
                         f"data into arrays")
    return blob


def _node_of(plan: Plan, allow_pickle: bool, budget: values.Budget, depth: int) -> Any:
    if not depth:
        raise ValueError(f"a batch has more than {MAX_DEPTH} levels of nesting")
    kind = plan[0]
    if kind == VALUE:
        return values.node_of(plan[1], allow_pickle, budget, depth)
    budget.take()
    if kind == LEAF:
        return ["leaf", plan[2]]  # its position gives its number
    if kind == PART:
        return ["part", *plan[2:]]
    if kind == OBJECT:
        return ["object"]
    children = [_node_of(child, allow_pickle, budget, depth - 1) for child in plan[-1]]
    if kind == LIST:
        return ["list", *children]
    if kind == TUPLE:
        return ["tuple", *children]
    if kind == NAMED:
        return ["named", _name_of(plan[1]), *children]
    if kind == STATE:
        return ["state", *children]
    both = ["dict", _how(plan[2], allow_pickle, budget)]
    for key, child in zip(plan[1], children):
        both += values.node_of(key, allow_pickle, budget, depth - 1), child
    return both


def _how(empty: Any, allow_pickle: bool, budget: values.Budget) -> Any:
    """Describes how to make an empty mapping like this one."""
    if type(empty) is dict:
        return "dict"
    if type(empty) is collections.OrderedDict and not vars(empty):
        return "OrderedDict"
    if type(empty) is collections.defaultdict:
        for name, factory in _FACTORIES.items():
            if empty.default_factory is factory:
                return "defaultdict " + name
    return values.pickled(empty, allow_pickle, budget)


def _name_of(kind: type) -> str:
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _class_named(name) is not kind:
        raise TypeError(f"the named tuple {name.replace(':', '.')} cannot be found under this name in its module: define it there")
    return name


# ---- in the trainer ----

_decode = json.JSONDecoder(parse_int=values.bounded_int).decode


def load(blob: bytes, tensors: int, allow_pickle: bool = False, is_ours: bool = False) -> Plan:
    """Returns the plan in a batch's metadata, for `build`; (FIELDS,): the metadata is not this package's. is_ours: the worker uses
    this package. Raises Malformed if the plan is invalid or has more leaves than `tensors`, and, with is_ours, if there is none."""
    global _newest
    plan: Plan
    if not blob.startswith(MARK):
        if is_ours:
            raise Malformed("it does not begin as this package's structures do")
        return (FIELDS,)
    if len(blob) > MAX_BYTES:
        raise Malformed(f"it has {len(blob)} bytes, but at most {MAX_BYTES} are allowed")
    text = blob[len(MARK):_end_of_plan(blob)]
    known, plan = _newest
    if known == (text, tensors, allow_pickle):
        return plan
    _count_nodes(text)
    try:
        node = _decode(text.decode(errors="surrogatepass"))
    except (ValueError, RecursionError) as reason:
        raise Malformed(f"it is not JSON that this package wrote: {type(reason).__name__}") from None
    plan = _Reader(tensors, allow_pickle).top(node)
    _newest = ((text, tensors, allow_pickle), plan)
    return plan


def _end_of_plan(blob: bytes) -> int:
    end = blob.find(b"\0", len(MARK))
    return end if end >= 0 else len(blob)


def numbers_of(blob: bytes) -> array.array[int]:
    """Returns the integers of the parts and objects in a batch's metadata, in the order of the plan."""
    numbers = blob[_end_of_plan(blob) + 1:]
    if len(numbers) % _NUMBER_BYTES:
        raise Malformed("its integers are incomplete")
    return array.array("q", numbers)


_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


def _count_nodes(blob: bytes) -> None:
    """Called before any node is made, because each takes many times the memory of its text. Raises Malformed if there are too
    many."""
    if len(blob) <= MAX_NODES:
        return
    if sum(map(blob.count, (b",", b"[", b"{"))) > MAX_NODES:
        bare = _TEXT.sub(b"", blob)
        if sum(map(bare.count, (b",", b"[", b"{"))) > 2 * MAX_NODES:  # a node has a comma and a bracket
            raise Malformed(f"more than {MAX_NODES} nodes")


class _Reader:
    def __init__(self, tensors: int, allow_pickle: bool) -> None:
        self._leaves, self._tensors, self._allow_pickle = 0, tensors, allow_pickle
        self._pack: int | None = None  # number of the tensor that parts share
        self._budget = values.Budget(MAX_NODES)
        self._types: dict[str, tuple[np.dtype[Any] | None, int]] = {}

    def top(self, node: Any) -> Plan:
        if type(node) is list and len(node) == 3 and node[0] == "state":
            return (STATE, self._children(node[1:], MAX_DEPTH))
        return self.plan(node, MAX_DEPTH)

    def plan(self, node: Any, depth: int) -> Plan:
        if type(node) is list and node and type(node[0]) is str:
            read = _READERS.get(node[0])
            if read is not None:
                if not depth:
                    raise Malformed(f"more than {MAX_DEPTH} levels")
                self._budget.take()
                return read(self, node, depth - 1)
        return (VALUE, values.maker_of(node, self._allow_pickle, self._budget, depth))

    def _leaf(self, node: Any, _depth: int) -> Plan:
        if len(node) != 2 or type(node[1]) is not int or not ANY <= node[1] <= TORCH:
            raise Malformed("a leaf has no owner")
        return (LEAF, self._next_leaf(), node[1])

    def _next_leaf(self) -> int:
        if self._leaves == self._tensors:
            raise Malformed(f"more leaves than the batch's {self._tensors} tensors")
        self._leaves += 1
        return self._leaves - 1

    def _part(self, node: Any, _depth: int) -> Plan:
        if len(node) != 4 or type(node[1]) is not int or not ANY <= node[1] <= TORCH:
            raise Malformed("a part has no owner, type and dimensions")
        if type(node[2]) is not str or not _DTYPE.fullmatch(node[2]):
            raise Malformed("a part has no valid type")
        if type(node[3]) is not int or not 0 <= node[3] <= MAX_DEPTH:
            raise Malformed("a part has an invalid number of dimensions")
        if self._pack is None:
            self._pack = self._next_leaf()
        return (PART, self._pack, *node[1:], *self._numpy_type(node[2]))

    def _numpy_type(self, name: str) -> tuple[np.dtype[Any] | None, int]:
        """Returns numpy's type of this name and its bytes. Looks once for each name: a search for ml_dtypes takes long."""
        if name not in self._types:
            if len(self._types) == MAX_TYPES:
                raise Malformed(f"more than {MAX_TYPES} element types")
            try:
                found = dtypes.numpy_named(name)
            except TypeError:
                self._types[name] = None, 0
            else:
                self._types[name] = found, found.itemsize
        return self._types[name]

    def _object(self, node: Any, _depth: int) -> Plan:
        if not self._allow_pickle:
            raise Malformed("the value is pickled, but the loader was created without allow_pickle=True")
        if len(node) != 1:
            raise Malformed("an object is more than its kind")
        if self._pack is None:
            self._pack = self._next_leaf()
        return (OBJECT, self._pack)

    def _list(self, node: Any, depth: int) -> Plan:
        return (LIST, self._children(node[1:], depth))

    def _tuple(self, node: Any, depth: int) -> Plan:
        return (TUPLE, self._children(node[1:], depth))

    def _children(self, nodes: Any, depth: int) -> tuple[Plan, ...]:
        return tuple([self.plan(child, depth) for child in nodes])

    def _dict(self, node: Any, depth: int) -> Plan:
        if len(node) < 2 or len(node) % 2:
            raise Malformed("a mapping has a key without a value")
        keys = tuple([values.key_of(key, self._allow_pickle, self._budget, depth) for key in node[2::2]])
        values.check_hashes(keys)
        return (MAPPING, keys, self._empty(node[1], depth), self._children(node[3::2], depth))

    def _empty(self, how: Any, depth: int) -> abc.Callable[[], Any]:
        if how == "dict":
            return dict
        if how == "OrderedDict":
            return collections.OrderedDict
        if type(how) is str and how.startswith("defaultdict ") and how[12:] in _FACTORIES:
            return functools.partial(collections.defaultdict, _FACTORIES[how[12:]])
        if type(how) is not list or how[:1] != ["pickle"]:
            raise Malformed("a mapping has an unknown kind")
        return values.maker_of(how, self._allow_pickle, self._budget, depth)

    def _named(self, node: Any, depth: int) -> Plan:
        if len(node) < 2 or type(node[1]) is not str:
            raise Malformed("a named tuple has no class")
        kind = _class_named(node[1])
        if kind is None and self._allow_pickle:
            kind = _imported(node[1])
        if kind is None:
            raise Malformed(f"the trainer has not imported the named tuple {node[1][:100]!r}: import its module there")
        fields = getattr(kind, "_fields", None)
        if type(fields) is not tuple or len(fields) != len(node) - 2:
            raise Malformed(f"{node[1][:100]!r} is not a named tuple of {len(node) - 2} fields")
        return (NAMED, kind, self._children(node[2:], depth))


_READERS = {"leaf": _Reader._leaf, "part": _Reader._part, "list": _Reader._list, "tuple": _Reader._tuple, "dict": _Reader._dict,
            "named": _Reader._named, "object": _Reader._object}


_OF_TYPE: Any = type.__dict__


def _class_named(name: str) -> Any:
    """Returns the tuple class of this name in an imported module, or None. Looks only into dictionaries, because getattr could
    import modules and run properties."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        if isinstance(found, type(sys)):
            members = type(sys).__getattribute__(found, "__dict__")
        elif issubclass(type(found), type):
            members = _OF_TYPE["__dict__"].__get__(found)
        else:
            return None
        found = members.get(part)
    return found if issubclass(type(found), type) and tuple in _OF_TYPE["__mro__"].__get__(found) else None


def _imported(name: str) -> Any:
    """As _class_named, after importing the module, as pickle does."""
    try:
        importlib.import_module(name.partition(":")[0])
    except Exception:
        return None
    return _class_named(name)


def names(plan: Plan) -> dict[int, str]:
    """Returns the names of a plan's leaves, by number: the keys and positions that lead to them, joined by dots."""
    found: dict[int, str] = {}

    def visit(plan: Plan, path: tuple[str, ...]) -> None:
        if plan[0] == LEAF:
            found[plan[1]] = ".".join(path)
        if plan[0] in (LIST, TUPLE, MAPPING, NAMED, STATE):
            steps = plan[1] if plan[0] == MAPPING else plan[1]._fields if plan[0] == NAMED else range(len(plan[-1]))
            for step, child in zip(steps, plan[-1]):
                visit(child, path if plan[0] == STATE else (*path, str(step)))

    visit(plan, ())
    return found


def build(plan: Plan, leaf: abc.Callable[[int, int], Any], numbers: abc.Sequence[int] = ()) -> Any:
    """Makes the nested batch; `leaf(number, owner)` makes each array. numbers: as numbers_of. Raises Malformed if the plan does not
    match the arrays and numbers, and ImportError for one of torch's element types if torch is missing."""
    left = iter(numbers)
    built = _built(plan, leaf, left)
    if next(left, None) is not None:
        raise Malformed("it has more integers than its parts and objects need")
    return built


def _take(left: abc.Iterator[int], count: int) -> tuple[int, ...]:
    taken = tuple(itertools.islice(left, count))
    if len(taken) < count or (taken and min(taken) < 0):
        raise Malformed("a part or object has no valid place")
    return taken


def _built(plan: Plan, leaf: abc.Callable[[int, int], Any], left: abc.Iterator[int]) -> Any:
    kind = plan[0]
    if kind == LEAF:
        return leaf(plan[1], plan[2])
    if kind == PART:
        offset, *shape = _take(left, 1 + plan[4])
        return _part_of(leaf(plan[1], plan[2]), plan[3], offset, tuple(shape))
    if kind == OBJECT:
        return _object_of(leaf(plan[1], NUMPY), *_take(left, 3))
    if kind == VALUE:
        return plan[1]()
    if kind == FIELDS:
        raise Malformed("a batch without a structure must be read as a dict of its tensors")
    children = [_built(child, leaf, left) for child in plan[-1]]
    if kind == LIST:
        return children
    if kind == TUPLE:
        return tuple(children)
    if kind == STATE:
        return WithState(*children)
    if kind == NAMED:
        return tuple.__new__(plan[1], children)  # its class may define __new__
    mapping = plan[2]()
    if not isinstance(mapping, abc.MutableMapping):  # only a pickled mapping can be another object
        raise Malformed("a pickled mapping is not a mutable mapping")
    for key, child in zip(plan[1], children):
        mapping[key] = child
    return mapping


def _object_of(memory: Any, offset: int, start: int, size: int) -> Any:
    """Returns the value that is pickled in an array of bytes."""
    if memory.ndim != 1 or memory.dtype != np.uint8 or not start <= size <= len(memory) - offset:
        raise Malformed("an object extends past its tensor")
    memory = memory[offset:offset + size]
    return objects.load(memory if memory.flags.writeable else memory.copy(), start)


def _part_of(whole: Any, dtype: str, offset: int, shape: tuple[int, ...]) -> Any:
    """Returns the array in a tensor of bytes, numpy's or torch's. Raises ImportError for one of torch's types if torch is
    missing."""
    is_array = isinstance(whole, np.ndarray)
    try:
        kind: Any = dtypes.numpy_named(dtype) if is_array else getattr(sys.modules["torch"], dtype)
        item = kind.itemsize if is_array else dtypes.torch_itemsize(kind)
    except (TypeError, AttributeError, RuntimeError):  # torch's NotImplementedError too: a type that no tensor can be of
        raise Malformed(f"a part has the unknown type {dtype!r}" +
                        (', which numpy lacks: use tensors="torch", or install ml_dtypes' if is_array else "")) from None
    is_bytes = whole.dtype.itemsize == 1 if is_array else whole.element_size() == 1
    size = math.prod(shape) * item
    if math.prod(length or 1 for length in shape) * item >= 2**63:  # torch would make an empty tensor of it
        raise Malformed(f"a part has the invalid shape {shape}")
    if whole.ndim != 1 or item == 0 or not is_bytes or offset % item or offset + size > len(whole):
        raise Malformed("a part extends past its tensor")
    try:
        part = whole[offset:offset + size].view(kind)
        return part.reshape(shape) if is_array else part.view(shape)
    except (ValueError, RuntimeError, TypeError, OverflowError) as reason:  # such as a length of 2**62 next to one of 0
        raise Malformed(f"a part has the invalid shape {shape}: {reason}") from None
