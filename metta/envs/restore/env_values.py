"""The values that an environment's attributes can have: how each is told, kept as plain data, and made."""

import functools
import logging
import types
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from metta.errors import EnvError, StateError

__all__ = [
    "UnreadableStateError",
    "array_node",
    "has_only_attributes",
    "has_own_state",
    "is_constant",
    "load_array",
    "load_scalar",
    "may_be_address",
    "name_of_constant",
    "name_of_type",
    "owner_of",
    "parts_of_space",
    "path_inside",
    "scalar_node",
    "unreadable",
]

_CONSTANTS = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    functools.partial,
    np.dtype,
    logging.Logger,
)

_PLAIN_DTYPES = frozenset(
    np.dtype(name) for name in ("?", "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8")
)
"""What every format of a checkpoint can hold; arrays of other numbers are kept as bytes."""
_BYTES_KINDS = "biufcSUMm"
_SCALAR_KINDS = "biufU"
_LARGEST_NUMBER = 8
_ADDRESSES = range(1 << 40, 1 << 48)


class _Plain:
    """As large as an instance of any class that has attributes and nothing else."""


class UnreadableStateError(EnvError):
    """Some part of an environment's state cannot be read, or not be given back faithfully; names it."""


def unreadable(path: str, what: str) -> UnreadableStateError:
    """Says which attribute is in the way."""
    article = "an" if what[:1].lower() in "aeiou" else "a"
    return UnreadableStateError(
        f"attribute {path!r} is {article} {what}, whose state cannot be read"
    )


def name_of_type(value: Any) -> str:
    """The class of a value as its author wrote it."""
    return type(value).__qualname__


def is_constant(value: Any) -> bool:
    """Functions, classes and the like: the environment that takes a state has them already."""
    is_foreign_function = callable(value) and hasattr(value, "__qualname__")
    return isinstance(value, _CONSTANTS) or (is_foreign_function and not has_only_attributes(value))


def name_of_constant(value: Any) -> str:
    """What two constants have in common."""
    return str(getattr(value, "__qualname__", None) or name_of_type(value))


def may_be_address(number: int) -> bool:
    """Whether an integer lies where Linux puts a process's memory: it may be a handle of a C library.

    Given to another environment, such a handle would make two environments out of one, or crash.
    """
    return number in _ADDRESSES


def has_own_state(value: Any) -> bool:
    """Whether a layer of an environment gives and takes its state itself."""
    return isinstance(value, (gymnasium.Env, VectorEnv)) and all(
        callable(getattr(type(value), name, None)) for name in ("get_state", "set_state")
    )


def has_only_attributes(value: Any) -> bool:
    """Whether an object is nothing but its `__dict__`: no slots, and no memory of a C library."""
    return hasattr(value, "__dict__") and type(value).__basicsize__ == _Plain.__basicsize__


def parts_of_space(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    """The spaces that a space is made of, in order."""
    parts: list[spaces.Space[Any]] = []
    for value in vars(space).values():
        members: Iterable[Any] = [value]
        if isinstance(value, dict):
            members = value.values()
        elif isinstance(value, (list, tuple)):
            members = value
        parts += [member for member in members if isinstance(member, spaces.Space)]
    return parts


def owner_of(array: np.ndarray) -> Any:
    """What holds the memory that an array looks at."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


def array_node(array: np.ndarray, path: str) -> dict[str, Any]:
    """An array in memory of its own; its layout is kept, since sums depend on it in the last bit."""
    if array.dtype.kind not in _BYTES_KINDS:
        raise unreadable(path, f"ndarray of {array.dtype}")
    if not isinstance(owner_of(array), (np.ndarray, bytes)):
        raise unreadable(path, "ndarray over memory that is not NumPy's")
    by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
    node: dict[str, Any] = {"kind": "array", "order": "F" if by_columns else "C"}
    if array.dtype in _PLAIN_DTYPES:
        return node | {"data": np.array(array, order="C")}
    data = np.frombuffer(array.tobytes(), np.uint8)
    return node | {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def load_array(node: Mapping[str, Any]) -> np.ndarray:
    """The array of `array_node`."""
    data = np.asarray(node["data"])
    if "dtype" in node:
        dtype = _dtype(node)
        if dtype.kind not in _BYTES_KINDS:
            raise StateError(f"an array of {dtype} cannot be part of a state")
        data = np.frombuffer(data.tobytes(), dtype).reshape(node["shape"])
    return np.array(data, order=node["order"])


def scalar_node(value: np.generic, path: str) -> dict[str, Any]:
    """A number or text of NumPy, which is not the same as Python's: arithmetic keeps its type."""
    is_long = value.dtype.kind == "f" and value.dtype.itemsize > _LARGEST_NUMBER
    if value.dtype.kind not in _SCALAR_KINDS or is_long:
        raise unreadable(path, name_of_type(value))
    return {"kind": "scalar", "dtype": value.dtype.str, "value": value.item()}


def load_scalar(node: Mapping[str, Any]) -> np.generic:
    """The number or text of `scalar_node`."""
    dtype = _dtype(node)
    if dtype.kind not in _SCALAR_KINDS or not isinstance(node["value"], (bool, int, float, str)):
        raise StateError(f"{node['value']!r} of {dtype} is no number")
    number: np.generic = dtype.type(node["value"])
    return number


def _dtype(node: Mapping[str, Any]) -> np.dtype[Any]:
    if not isinstance(node["dtype"], str):
        raise StateError(f"{node['dtype']!r} names no type of numbers")
    return np.dtype(node["dtype"])


def path_inside(value: Any, path: str, name: str) -> str:
    """How one would write an attribute; wrappers are left out."""
    if isinstance(value, gymnasium.Wrapper) and name == "env":
        return path
    return f"{path}.{name}".lstrip(".")
