"""What networks and losses keep outside of tensors: constants of whatever is derived from them."""

import functools
import logging
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from metta.agent.evaluation_mode import parts_of

__all__ = ["has_gradient_hooks", "has_own_code", "plain_values"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, Enum)
_MAX_DEPTH = 5
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_FIXED = (
    "torch.nn.modules.linear", "torch.nn.modules.container", "torch.nn.modules.conv",
    "torch.nn.modules.flatten", "metta.agent.",
)  # fmt: skip
"""Modules whose layers never change their plain attributes."""
_KNOWN = (*_FIXED, "torch.nn.modules.activation")
_WRAPPED: dict[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
    property: ("fget",),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    MethodType: ("__func__", "__self__"),
}
"""Attributes in which wrappers keep the function that they wrap."""
_LIBRARIES = frozenset({"torch", "numpy", "gymnasium", "metta", *sys.stdlib_module_names})

Named = Iterator[tuple[str, Any]]


def has_own_code(root: nn.Module) -> bool:
    """Whether a part of the network is neither metta's nor one of torch's plain layers."""
    return any(not type(module).__module__.startswith(_KNOWN) for module in parts_of(root))


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Whether a hook reads or changes the parameter's gradient."""
    return bool(parameter._backward_hooks) or bool(
        getattr(parameter, "_post_accumulate_grad_hooks", None)
    )


def plain_values(*roots: Any) -> tuple[tuple[str, Any], ...]:
    """Everything but numbers in tensors that networks and functions compute with, by name.

    Equal before and after means that what was recorded before is what Python would do now. Each object is
    opened once, nearest first, and down to `_MAX_DEPTH` below a module or function; what lies deeper, and
    what belongs to libraries, counts by its identity (containers by their length). Tensors that keep their
    memory are the same.
    """
    found: list[tuple[str, Any]] = []
    opened: dict[
        int, tuple[int, Any]
    ] = {}  # with the object itself, so that no other has its identity
    waiting = deque(("", root, 0) for root in roots)
    while waiting:
        name, value, depth = waiting.popleft()
        if isinstance(value, _PLAIN):
            found.append((name, value))
        elif isinstance(value, Tensor):
            found.append((name, _tensor(value)))
        elif isinstance(value, nn.Module):
            parts = [part for part in parts_of(value) if id(part) not in opened]
            for part in parts:
                opened[id(part)] = len(opened), part
                found.append((name, (id(part), part.training)))
                waiting += ((key, entry, depth + 1) for key, entry in _in_module(part))
        else:
            is_new = id(value) not in opened
            number, _ = opened.setdefault(id(value), (len(opened), value))
            found.append((name, (number, _itself(value))))
            if is_new and depth < _MAX_DEPTH:
                waiting += ((key, entry, depth + 1) for key, entry in _inside(value))
    return tuple(found)


def _tensor(tensor: Tensor) -> tuple[Any, ...]:
    """Trained tensors are read again wherever their memory is; others are the same while theirs stays."""
    if tensor.requires_grad:
        return id(tensor), has_gradient_hooks(tensor)
    return id(tensor), tensor.data_ptr(), tensor.shape


def _itself(value: Any) -> Any:
    """The part of a value that can be compared without opening it: containers are compared by entries."""
    if isinstance(value, np.ndarray):
        return id(value), value.tobytes() if value.dtype != object else None
    if isinstance(value, Mapping | list | tuple | set | frozenset | deque):
        return len(value)
    if isinstance(value, MethodType):  # a new object at each access
        return id(value.__func__)
    return id(value.__code__ if isinstance(value, FunctionType) else value)


def _in_module(module: nn.Module) -> Named:
    """Hooks, tensors and attributes of one module, and its class if the user wrote it."""
    for hooks in (
        module._forward_pre_hooks, module._forward_hooks,
        module._backward_pre_hooks, module._backward_hooks,
    ):  # fmt: skip
        if hooks:  # most modules have none
            yield from (("hook", hook) for hook in hooks.values())
    yield from module._buffers.items()
    yield from module._parameters.items()
    kind: Any = type(module)
    if not _is_fixed(kind):
        yield from (item for item in vars(module).items() if item[0] not in _OF_EVERY_MODULE)
        yield from (("class", owner) for owner in _own_classes(kind))


def _inside(value: Any) -> Named:
    """What a value consists of, or computes with."""
    if isinstance(value, np.ndarray | ModuleType | logging.Logger):
        return
    if isinstance(value, Mapping):
        yield from ((str(key), entry) for key, entry in value.items())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from (("", entry) for entry in value)
    elif isinstance(value, FunctionType):
        yield from _in_function(value)
    elif isinstance(value, type):
        if _own_classes(value):
            yield from (item for item in vars(value).items() if _may_matter(item[0]))
    else:
        yield from ((name, getattr(value, name)) for name in _WRAPPED.get(type(value), ()))
        yield from (getattr(value, "__dict__", None) or {}).items()
        kind: Any = type(value)
        for owner in _own_classes(kind):
            yield "class", owner
            for name, member in vars(owner).items():
                if isinstance(member, MemberDescriptorType):  # of __slots__
                    yield name, getattr(value, name, None)


def _may_matter(name: str) -> bool:
    return name in ("forward", "__call__") or not name.startswith("__")


def _in_function(function: FunctionType) -> Named:
    """Defaults, what it closes over, and the globals that it names; functions of other files are closed."""
    code, known = function.__code__, function.__globals__
    yield "defaults", function.__defaults__
    yield "defaults", function.__kwdefaults__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            yield name, None
    for name in _names_in(code):
        if name in known:
            value = known[name]
            is_elsewhere = isinstance(value, FunctionType) and value.__globals__ is not known
            yield name, id(value) if is_elsewhere else value


@functools.lru_cache(maxsize=4096)
def _names_in(code: CodeType) -> tuple[str, ...]:
    """Globals and attributes that code names, with the lambdas and functions inside of it."""
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return tuple(sorted({*code.co_names, *(name for part in inner for name in _names_in(part))}))


@functools.lru_cache(maxsize=1024)
def _is_fixed(kind: type) -> bool:
    return kind.__module__.startswith(_FIXED)


@functools.lru_cache(maxsize=1024)
def _own_classes(kind: type) -> tuple[type, ...]:
    """A class and its bases, without those of libraries."""
    return tuple(k for k in kind.__mro__ if k.__module__.partition(".")[0] not in _LIBRARIES)
