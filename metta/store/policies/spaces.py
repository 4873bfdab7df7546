"""Observation and action spaces as plain data, so that a policy file needs no environment beside it.

A space is an object whose ``kind`` is one of `KINDS`; nothing in it names code. Bounds of a `Box` are kept
once along every axis where they do not change, so that an image has two numbers and not thousands.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.errors import SpaceError
from metta.spaces import without_texts
from metta.untrusted.json_files import brief

__all__ = ["KINDS", "MAX_ELEMENTS", "MAX_NESTING", "MAX_NUMBERS", "describe_space", "space_from"]

MAX_ELEMENTS = 2**24
"""Numbers in one observation or action, over all of its parts; more is neither written nor read."""
MAX_NUMBERS = 2**15
"""Bounds, sizes and starts that the description of one part may list."""
MAX_PARTS = 1024
"""Parts of a `Dict` or `Tuple`, nested ones included."""
MAX_NESTING = 8
"""Levels of `Dict` and `Tuple`."""
_MAX_DIMENSIONS = 8
_MAX_DISCRETE = 2**18  # each element of such a part becomes a Python number
_DTYPES = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
     "float16", "float32", "float64"]
)  # fmt: skip

Data = dict[str, Any]


def describe_space(space: spaces.Space[Any]) -> Data:
    """A space as plain data; `SpaceError` if it is of another kind, or beyond the limits.

    Texts, which policies do not read, are left out.
    """
    space = without_texts(space)
    data = _described(space, 0)
    if space_from(data) != space:
        raise SpaceError(f"{space} cannot be rebuilt from its description as it was")
    return data


def space_from(data: Any) -> spaces.Space[Any]:
    """The space that data describes; `SpaceError` if it describes none, or one beyond the limits.

    Sizes are added up before any array is made.
    """
    try:
        elements, parts = _measured(data, 0)
        if elements > MAX_ELEMENTS or parts > MAX_PARTS:
            raise SpaceError(
                f"a space of {elements} numbers in {parts} parts is described; {MAX_ELEMENTS} in "
                f"{MAX_PARTS} are the limit"
            )
        return _made(data)
    except SpaceError:
        raise
    except (ArithmeticError, AssertionError, KeyError, TypeError, ValueError) as error:
        raise SpaceError(f"{brief(data)} describes no space: {brief(error)}") from error


def _described(space: spaces.Space[Any], level: int) -> Data:
    if level > MAX_NESTING:
        raise SpaceError(f"the space is nested deeper than {MAX_NESTING} levels")
    for kind, (family, describe, _) in KINDS.items():
        if isinstance(space, family):
            return {"kind": kind, **describe(space, level)}
    raise SpaceError(f"a {type(space).__name__} space has no description as data")


def _described_box(space: Any, _: int) -> Data:
    bounds = {"low": _numbers(space.low), "high": _numbers(space.high)}
    return {"shape": list(space.shape), "dtype": str(space.dtype), **bounds}


def _described_discrete(space: Any, _: int) -> Data:
    return {"n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}


def _described_multi_discrete(space: Any, _: int) -> Data:
    starts = np.broadcast_to(space.start, space.nvec.shape)
    lists = {"nvec": _numbers(space.nvec), "start": _numbers(starts)}
    return {"shape": list(space.shape), "dtype": str(space.dtype), **lists}


def _described_multi_binary(space: Any, _: int) -> Data:
    return {"shape": list(space.shape), "flat": isinstance(space.n, int | np.integer)}


def _described_dict(space: Any, level: int) -> Data:
    if not all(isinstance(key, str) for key in space.spaces):
        raise SpaceError(f"{space} has keys that are not texts")
    parts = [_described(part, level + 1) for part in space.spaces.values()]
    return {"keys": list(space.spaces), "spaces": parts}


def _described_tuple(space: Any, level: int) -> Data:
    return {"spaces": [_described(part, level + 1) for part in space.spaces]}


def _numbers(values: np.ndarray) -> Data:
    """An array with every axis along which nothing changes kept once."""
    for axis in range(values.ndim):
        if values.shape[axis] > 1:
            first = values.take([0], axis)
            values = first if bool((values == first).all()) else values
    if values.size > MAX_NUMBERS:
        raise SpaceError(f"{values.size} different bounds are more than {MAX_NUMBERS}")
    return {"shape": list(values.shape), "values": values.ravel().tolist()}


def _measured(data: Any, level: int) -> tuple[int, int]:
    """Numbers and parts of a described space; its fields are known and its sizes are sizes."""
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise SpaceError(f"{brief(data)} describes no space")
    if data["kind"] not in KINDS:
        raise SpaceError(f"the kind of space {brief(data['kind'])} is none of {', '.join(KINDS)}")
    if level > MAX_NESTING:
        raise SpaceError(f"a space is nested deeper than {MAX_NESTING} levels")
    if data.keys() != _FIELDS[data["kind"]]:
        raise SpaceError(f"{brief(data)} should have exactly {sorted(_FIELDS[data['kind']])}")
    if data["kind"] not in ("Dict", "Tuple"):
        elements = math.prod(_shape(data.get("shape", [])))
        if elements > _MAX_DISCRETE and data["kind"] != "Box":
            raise SpaceError(f"a {data['kind']} space of {elements} parts is more than is read")
        return elements, 1
    if not isinstance(data["spaces"], list) or len(data["spaces"]) > MAX_PARTS:
        raise SpaceError(f"{brief(data['spaces'])} is not a list of up to {MAX_PARTS} spaces")
    inside = [_measured(part, level + 1) for part in data["spaces"]]
    return sum(found[0] for found in inside), 1 + sum(found[1] for found in inside)


def _made(data: Data) -> spaces.Space[Any]:
    made: spaces.Space[Any] = KINDS[data["kind"]][2](data)
    return made


def _made_box(data: Data) -> spaces.Box:
    shape, dtype = _shape(data["shape"]), _dtype(data["dtype"], "biuf")
    low, high = (_array(data[bound], shape, dtype) for bound in ("low", "high"))
    if not (low <= high).all():
        raise SpaceError(f"{brief(data)} has bounds with no number between them")
    return spaces.Box(low, high, shape, dtype.type)


def _made_discrete(data: Data) -> spaces.Discrete:
    count, start = _whole(data["n"]), _whole(data["start"])
    dtype = _dtype(data["dtype"], "iu")
    limits = np.iinfo(dtype)
    if count < 1 or not limits.min <= start <= start + count - 1 <= limits.max:
        raise SpaceError(f"{brief(data)} has no values, or values that {dtype} does not hold")
    return spaces.Discrete(count, start=start, dtype=dtype.type)


def _made_multi_discrete(data: Data) -> spaces.MultiDiscrete:
    shape, dtype = _shape(data["shape"]), _dtype(data["dtype"], "iu")
    sizes, starts = (_array(data[name], shape, dtype) for name in ("nvec", "start"))
    if not (sizes > 0).all():
        raise SpaceError(f"{brief(data)} has parts without values")
    return spaces.MultiDiscrete(sizes, dtype=dtype.type, start=starts)


def _made_multi_binary(data: Data) -> spaces.MultiBinary:
    shape = _shape(data["shape"])
    if not isinstance(data["flat"], bool) or (data["flat"] and len(shape) != 1):
        raise SpaceError(f"{brief(data)} describes no binary space")
    return spaces.MultiBinary(shape[0] if data["flat"] else list(shape))


def _made_dict(data: Data) -> spaces.Dict:
    keys = data["keys"]
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise SpaceError(f"{brief(keys)} is not a list of keys")
    if len(set(keys)) < len(keys):
        raise SpaceError(f"{brief(keys)} has a key twice")
    # pairs, not a mapping: gymnasium would sort it, and the order of the parts counts
    return spaces.Dict(list(zip(keys, map(_made, data["spaces"]), strict=True)))


def _made_tuple(data: Data) -> spaces.Space[Any]:
    return spaces.Tuple([_made(part) for part in data["spaces"]])


def _shape(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, list) or len(sizes) > _MAX_DIMENSIONS:
        raise SpaceError(f"{brief(sizes)} is not a shape of up to {_MAX_DIMENSIONS} sizes")
    if not all(type(size) is int and 0 <= size <= MAX_ELEMENTS for size in sizes):
        raise SpaceError(f"{brief(sizes)} is not a shape of sizes up to {MAX_ELEMENTS}")
    return tuple(sizes)


def _dtype(name: Any, kinds: str) -> np.dtype[Any]:
    if not isinstance(name, str) or name not in _DTYPES or np.dtype(name).kind not in kinds:
        raise SpaceError(f"{brief(name)} is not a type of numbers that such a space has")
    return np.dtype(name)


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise SpaceError(f"{brief(number)} is not a whole number")
    return number


def _array(data: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Listed numbers, repeated along the axes that were kept once; each must be one of `dtype`."""
    if not isinstance(data, dict) or data.keys() != {"shape", "values"}:
        raise SpaceError(f"{brief(data)} is not an array")
    kept, values = _shape(data["shape"]), data["values"]
    wanted = [(size, size) if size < 2 else (1, size) for size in shape]
    if len(kept) != len(shape) or any(k not in w for k, w in zip(kept, wanted, strict=True)):
        raise SpaceError(f"bounds of shape {kept} do not fit a space of shape {shape}")
    kinds = {"b": (bool,), "f": (int, float)}.get(dtype.kind, (int,))
    if not isinstance(values, list) or len(values) != math.prod(kept):
        raise SpaceError(f"{brief(values)} is not a list of {math.prod(kept)} numbers")
    if not all(type(value) in kinds for value in values):
        raise SpaceError(f"{brief(values)} are not numbers of the type {dtype}")
    with np.errstate(over="ignore"):  # checked below: the number would change
        array = np.array(values, dtype).reshape(kept)
    if array.ravel().tolist() != values:
        raise SpaceError(f"{brief(values)} are not numbers of the type {dtype}")
    return np.broadcast_to(array, shape).copy()


KINDS: dict[str, tuple[type, Callable[[Any, int], Data], Callable[[Data], Any]]] = {
    "Box": (spaces.Box, _described_box, _made_box),
    "Discrete": (spaces.Discrete, _described_discrete, _made_discrete),
    "MultiDiscrete": (spaces.MultiDiscrete, _described_multi_discrete, _made_multi_discrete),
    "MultiBinary": (spaces.MultiBinary, _described_multi_binary, _made_multi_binary),
    "Dict": (spaces.Dict, _described_dict, _made_dict),
    "Tuple": (spaces.Tuple, _described_tuple, _made_tuple),
}
"""Kinds of spaces: class, conversion to data, and conversion from data."""

_FIELDS = {
    "Box": {"kind", "shape", "dtype", "low", "high"},
    "Discrete": {"kind", "n", "start", "dtype"},
    "MultiDiscrete": {"kind", "shape", "dtype", "nvec", "start"},
    "MultiBinary": {"kind", "shape", "flat"},
    "Dict": {"kind", "keys", "spaces"},
    "Tuple": {"kind", "spaces"},
}
