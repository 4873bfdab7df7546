"""An environment's state as plain data that every checkpoint can hold, and back."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from metta.envs.restore.generator_state import (
    GENERATOR_TYPES,
    generator_state,
    is_global_generator,
    load_generator_state,
)
from metta.errors import EnvError, StateError
from metta.secrets import scrub

__all__ = ["UnreadableStateError", "from_plain", "name_of_type", "to_plain"]

_GENERATOR, _ARRAY = "metta.generator", "metta.array"
"""Keys of mappings that encode types which plain data does not have."""
_MAX_DEPTH = 12
"""Levels of JSON that a state may take: of the 28 of a checkpoint, a generator takes 5, all else 11."""
_PLAIN_DTYPES = frozenset(
    np.dtype(name) for name in ("?", "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8")
)
"""What every format of a checkpoint can hold; arrays of other numbers are kept as bytes."""
_BYTES_KINDS = "biufcSUMm"


class UnreadableStateError(EnvError):
    """An environment does not give its state, or gives what cannot be saved; names the part."""


def name_of_type(value: Any) -> str:
    """The class of a value as its author wrote it."""
    return type(value).__qualname__


def to_plain(value: Any, path: str, level: int = 1) -> Any:
    """A plain copy of `value`; `path` is its expression in Python, for messages.

    Values are None, booleans, numbers, texts, arrays, tensors, generators, and lists, tuples and mappings
    of them. `UnreadableStateError` names anything else.
    """
    if level > _MAX_DEPTH:
        raise UnreadableStateError(f"{path[:200]} is nested too deep to be saved, or holds itself")
    if value is None or type(value) in (bool, int, float):
        return value
    if type(value) is str:
        return _without_secret(value, path)
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return _plain_array(value, path)
    if isinstance(value, GENERATOR_TYPES):
        return _plain_generator(value, path)
    if type(value) in (list, tuple):
        below = level + (1 if type(value) is list else 2)
        return type(value)(to_plain(x, f"{path}[{i}]", below) for i, x in enumerate(value))
    if type(value) is dict:
        below = level + (1 if all(isinstance(key, str) for key in value) else 3)
        return {
            _plain_key(key, path): to_plain(item, f"{path}[{key!r}]", below)
            for key, item in value.items()
        }
    torch = sys.modules.get("torch")  # workers may do without it
    if torch is not None and type(value) is torch.Tensor:
        return value.detach().cpu().clone()
    raise _unreadable(path, name_of_type(value))


def from_plain(node: Any) -> Any:
    """The value of `to_plain`, made anew."""
    if isinstance(node, list | tuple):
        return type(node)(map(from_plain, node))
    if isinstance(node, np.ndarray):
        return node.copy()
    if not isinstance(node, Mapping):
        return node.clone() if hasattr(node, "clone") else node
    if node.keys() == {_GENERATOR}:
        return load_generator_state(node[_GENERATOR])
    if node.keys() == {_ARRAY}:
        return _load_array(node[_ARRAY])
    return {key: from_plain(item) for key, item in node.items()}


def _unreadable(path: str, what: str) -> UnreadableStateError:
    article = "an" if what[:1].lower() in "aeiou" else "a"
    return UnreadableStateError(f"{path} is {article} {what}, which cannot be saved")


def _without_secret(text: str, path: str) -> str:
    if scrub(text) != text:
        raise _unreadable(path, "text with a secret in it")
    return text


def _plain_key(key: Any, path: str) -> str | int:
    if type(key) is int:
        return key
    if type(key) is not str or key in (_GENERATOR, _ARRAY):
        raise UnreadableStateError(f"{path} has the key {key!r}; use texts or integers")
    return _without_secret(key, f"a key of {path}")


def _plain_generator(generator: Any, path: str) -> dict[str, Any]:
    if is_global_generator(generator):
        raise _unreadable(path, "generator that the whole process shares")
    state = generator_state(generator)
    if state is None:
        raise _unreadable(path, name_of_type(generator))
    return {_GENERATOR: state}


def _plain_array(array: Any, path: str) -> Any:
    """An array with its layout, since sums depend on it in the last bit; or a number of NumPy."""
    by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
    is_scalar = isinstance(array, np.generic)
    if array.dtype in _PLAIN_DTYPES and not by_columns and not is_scalar:
        return np.array(array, order="C")
    if array.dtype.kind not in _BYTES_KINDS:
        raise _unreadable(path, f"{name_of_type(array)} of {array.dtype}")
    kept = {"dtype": array.dtype.str, "shape": list(array.shape), "is_scalar": is_scalar}
    data = np.frombuffer(array.tobytes(), np.uint8)
    return {_ARRAY: kept | {"order": "F" if by_columns else "C", "data": data}}


def _load_array(node: Mapping[str, Any]) -> Any:
    dtype = np.dtype(node["dtype"] if isinstance(node["dtype"], str) else "O")
    if dtype.kind not in _BYTES_KINDS:
        raise StateError(f"an array of {node['dtype']!r} cannot be part of a state")
    data = np.frombuffer(node["data"].tobytes(), dtype).reshape(node["shape"])
    return data[()] if node["is_scalar"] else np.array(data, order=node["order"])
