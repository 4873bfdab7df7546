"""What networks and losses keep outside of tensors: constants of whatever is derived from them."""

import functools
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from torch import Tensor, nn

from metta.agent.evaluation_mode import parts_of

__all__ = ["has_own_code", "plain_values", "values_of"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_DEEPEST = 6
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_KNOWN = (
    "torch.nn.modules.activation", "torch.nn.modules.linear", "torch.nn.modules.container",
    "torch.nn.modules.conv", "torch.nn.modules.flatten", "metta.agent.",
)  # fmt: skip
"""Where layers come from whose plain attributes nobody changes."""


def has_own_code(root: nn.Module) -> bool:
    """Whether a part of the network is neither metta's nor one of torch's plain layers."""
    return any(not type(module).__module__.startswith(_KNOWN) for module in parts_of(root))


def plain_values(root: nn.Module, depth: int = _DEEPEST) -> Iterator[tuple[Any, ...]]:
    """Every value of a network that is not in its tensors, and which tensors, parts and hooks it has.

    Equal before and after means that what was traced before is what Python would do now. Tensors
    count as the same as long as they keep their memory: what changes in place is read anew.
    """
    for number, module in enumerate(parts_of(root)):
        hooks = len(module._forward_hooks) + len(module._forward_pre_hooks)
        yield number, id(module), module.training, hooks
        for name, buffer in module._buffers.items():
            yield number, name, *_memory_of(buffer)
        for name, parameter in module._parameters.items():
            if parameter is None or not parameter.requires_grad:
                yield number, name, *_memory_of(parameter)
        if type(module).__module__.startswith(_KNOWN):
            continue
        for name, value in vars(module).items():
            if name not in _OF_EVERY_MODULE:
                yield number, name, *values_of(value, depth - 1)


def values_of(value: Any, depth: int = _DEEPEST) -> Iterator[Any]:
    """A value of any kind as things that can be compared; what lies too deep counts by identity."""
    if isinstance(value, _PLAIN):
        yield value
    elif isinstance(value, Tensor):
        yield from _memory_of(value)
    elif isinstance(value, np.ndarray):
        yield id(value), value.tobytes() if value.dtype != object else None
    elif depth <= 0:
        yield id(value)
    elif isinstance(value, nn.Module):
        yield tuple(plain_values(value, depth - 1))
    elif isinstance(value, Mapping):
        yield from ((key, *values_of(entry, depth - 1)) for key, entry in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (tuple(values_of(entry, depth - 1)) for entry in value)
    else:
        yield from _of_object(value, depth - 1)


def _memory_of(tensor: Tensor | None) -> tuple[Any, ...]:
    if tensor is None:
        return (None,)
    return id(tensor), tensor.data_ptr(), tuple(tensor.shape), tensor.requires_grad


def _of_object(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, functools.partial):
        yield from values_of((value.func, value.args, value.keywords), depth)
    elif isinstance(value, MethodType):
        yield from values_of((value.__func__, value.__self__), depth)
    elif isinstance(value, FunctionType):
        yield from _of_function(value, depth)
    else:
        yield id(value)
        yield from values_of(getattr(value, "__dict__", None) or None, depth)


def _of_function(function: FunctionType, depth: int) -> Iterator[Any]:
    """What a function closes over, its defaults, and the globals that it and its helpers name."""
    yield id(function.__code__)
    yield from values_of((function.__defaults__, function.__kwdefaults__), depth)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    yield from ((name, *values_of(_content(cell), depth)) for name, cell in cells)
    known = function.__globals__
    for name in function.__code__.co_names:
        value = known.get(name)
        # modules and classes stay what they are; a library's functions have no state of the user's
        if isinstance(value, FunctionType) and value.__globals__ is not known:
            continue
        if not isinstance(value, type) and type(value).__name__ != "module":
            yield name, *values_of(value, depth)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
