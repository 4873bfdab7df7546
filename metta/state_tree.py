"""Nested state as plain JSON and tensors, and back: no type is lost, and nothing is code."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from metta.errors import StateError
from metta.nested import map_leaves

__all__ = ["bytes_of_state", "copy_state", "pack_state", "state_of_bytes", "unpack_state"]

_TAG = "$"
_MAX_DEPTH = 28
"""Levels of JSON that a packed state may take; readers stop at 32, and the files around it take some."""
_Tensors = dict[str, Tensor]


def copy_state(value: Any) -> Any:
    """A copy of the tree, with tensors on the host."""
    return map_leaves(value, _copy)


def _copy(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return _own(leaf)
    if isinstance(leaf, np.ndarray | np.generic):
        return np.array(leaf, order="C")
    return _plain(leaf, "a state")


def pack_state(value: Any) -> tuple[Any, _Tensors]:
    """A tree as JSON data, and copies of the tensors it refers to by name.

    Trees are mappings (with keys that are strings or integers), lists, tuples, tensors, arrays and
    plain values. Anything else is a `StateError` that names the place, and so are trees too deep to be
    read again.
    """
    tensors: _Tensors = {}
    return _pack(value, "", tensors, 1), tensors


def bytes_of_state(value: Any) -> bytes:
    """The same in one piece: the length of the JSON, the JSON, and the tensors."""
    packed, tensors = pack_state(value)
    text = json.dumps(packed).encode()
    return len(text).to_bytes(8, "big") + text + safetensors.torch.save(tensors)


def state_of_bytes(packed: bytes) -> Any:
    """The tree that `bytes_of_state` was given, for bytes of another process of this run."""
    end = 8 + int.from_bytes(packed[:8], "big")
    return unpack_state(json.loads(packed[8:end]), safetensors.torch.load(packed[end:]))


def unpack_state(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The tree that `pack_state` was given; other data is a KeyError, TypeError or ValueError.

    `packed` comes from `read_json`, which bounds how deep it is.
    """
    if isinstance(packed, list):
        return [unpack_state(item, tensors) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if len(packed) == 1 and next(iter(packed)).startswith(_TAG):
        [(tag, content)] = packed.items()
        return _unpack_tagged(tag, content, tensors)
    return {key: unpack_state(item, tensors) for key, item in packed.items()}


def _unpack_tagged(tag: str, content: Any, tensors: Mapping[str, Tensor]) -> Any:
    if tag in ("$tensor", "$array", "$float") and not isinstance(content, str):
        raise TypeError(f"{tag} is followed by a {type(content).__name__}, not by a text")
    if tag == "$tensor":
        return tensors[content]
    if tag == "$array":
        return tensors[content].numpy()
    if tag == "$items":
        return {key: unpack_state(item, tensors) for key, item in content}
    if tag == "$tuple":
        return tuple(unpack_state(item, tensors) for item in content)
    if tag == "$float":
        return float(content)
    raise KeyError(f"unknown tag {tag!r}")


def _pack(value: Any, path: str, tensors: _Tensors, level: int) -> Any:
    if level > _MAX_DEPTH:
        raise StateError(
            f"{path[:400]} is nested too deep to be saved, or holds itself; flatten the state"
        )
    if isinstance(value, Tensor):
        return {"$tensor": _put(value, path, tensors)}
    if isinstance(value, np.ndarray | np.generic):
        return {"$array": _put(_as_tensor(value, path), path, tensors)}
    if isinstance(value, Mapping):
        return _pack_mapping(value, path, tensors, level)
    if isinstance(value, list | tuple):
        below = level + (1 if isinstance(value, list) else 2)
        items = [_pack(item, f"{path}/{index}", tensors, below) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    return _plain(value, path)


def _pack_mapping(value: Mapping[Any, Any], path: str, tensors: _Tensors, level: int) -> Any:
    for key in value:
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise StateError(f"{path or 'the state'} has the key {key!r}; use strings or integers")
    is_plain = all(isinstance(key, str) and not key.startswith(_TAG) for key in value)
    below = level + (1 if is_plain else 3)
    items = {key: _pack(item, f"{path}/{key}", tensors, below) for key, item in value.items()}
    return items if is_plain else {"$items": [[key, item] for key, item in items.items()]}


def _put(tensor: Tensor, path: str, tensors: _Tensors) -> str:
    if tensor.dtype.is_complex or tensor.is_quantized or tensor.layout is not torch.strided:
        raise StateError(
            f"{path} is a {tensor.layout} tensor of {tensor.dtype}, which cannot be saved; keep dense "
            "tensors of booleans, integers or floats"
        )
    name = f"{len(tensors)}{path}"  # the number keeps names apart whatever the keys are
    tensors[name] = _own(tensor)
    return name


def _as_tensor(value: Any, path: str) -> Tensor:
    try:
        return torch.from_numpy(np.array(value, order="C"))
    except (TypeError, ValueError) as error:
        raise StateError(f"{path} is an array of {value.dtype}, which cannot be saved") from error


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _plain(value: Any, path: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise StateError(
        f"{path or 'the state'} is a {type(value).__name__}, which cannot be saved; state is made of "
        "tensors, arrays, mappings, sequences, numbers, strings, booleans and None"
    )
