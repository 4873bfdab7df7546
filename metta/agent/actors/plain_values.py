"""What networks and losses keep outside of tensors: constants of whatever is derived from them."""

import functools
import logging
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from metta.agent.evaluation_mode import parts_of

__all__ = ["has_gradient_hooks", "has_own_code", "plain_values", "values_of"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, Enum)
_MAX_DEPTH = 6
_MAX_DEPTH_OF_CLASSES = 2
"""So that a class which lists its own objects is not walked once for each of them."""
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_NUM_OF_EVERY_MODULE = len(_OF_EVERY_MODULE)
_FIXED = (
    "torch.nn.modules.linear", "torch.nn.modules.container", "torch.nn.modules.conv",
    "torch.nn.modules.flatten", "metta.agent.",
)  # fmt: skip
"""Where layers come from whose plain attributes nobody changes."""
_KNOWN = (*_FIXED, "torch.nn.modules.activation")
_LIBRARIES = frozenset({"torch", "numpy", "gymnasium", "metta", *sys.stdlib_module_names})
_CODE = (FunctionType, property, staticmethod, classmethod, functools.cached_property)


def has_own_code(root: nn.Module) -> bool:
    """Whether a part of the network is neither metta's nor one of torch's plain layers."""
    return any(not type(module).__module__.startswith(_KNOWN) for module in parts_of(root))


def plain_values(root: nn.Module, depth: int = _MAX_DEPTH) -> Iterator[tuple[Any, ...]]:
    """Every value of a network that is not in its tensors, and which tensors, parts and hooks it has.

    Equal before and after means that what was traced before is what Python would do now. Tensors
    count as the same as long as they keep their memory: what changes in place is read anew.
    """
    kinds: dict[type, None] = {}
    for number, module in enumerate(parts_of(root)):
        yield number, id(module), module.training
        for hooks in _hooks_of(module):
            yield number, *values_of(tuple(hooks.values()), depth - 1)
        for part in _own_tensors(module):
            yield number, *part
        kind: Any = type(module)
        if _is_fixed(kind):
            continue
        for name, value in _own_attributes(module):
            yield number, name, *values_of(value, depth - 1)
        if _own_classes(kind):
            kinds[kind] = None
    if kinds:
        yield from _of_classes(kinds, "forward", depth - 1)


def values_of(value: Any, depth: int = _MAX_DEPTH) -> Iterator[Any]:
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
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from (tuple(values_of(entry, depth - 1)) for entry in value)
    else:
        yield from _of_object(value, depth - 1)


def _own_tensors(module: nn.Module) -> list[tuple[Any, ...]]:
    """Buffers and what is frozen by their memory; of parameters only whether hooks hang on them."""
    found: list[tuple[Any, ...]] = []
    for name, buffer in module._buffers.items():
        found.append((name, *_memory_of(buffer)))
    for name, parameter in module._parameters.items():
        if parameter is None or not parameter.requires_grad:
            found.append((name, *_memory_of(parameter)))
        elif has_gradient_hooks(parameter):
            found.append((name, "has hooks on its gradient"))
    return found


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Whether something looks at, or changes, the parameter's gradient on its way."""
    return bool(parameter._backward_hooks) or bool(
        getattr(parameter, "_post_accumulate_grad_hooks", None)
    )


def _hooks_of(module: nn.Module) -> list[Mapping[int, Any]]:
    """Hooks of a module by their kinds, of which most have none."""
    kinds = (
        module._forward_pre_hooks, module._forward_hooks,
        module._backward_pre_hooks, module._backward_hooks,
    )  # fmt: skip
    return [hooks for hooks in kinds if hooks]


def _own_attributes(module: nn.Module) -> list[tuple[str, Any]]:
    attributes = vars(module)
    if len(attributes) == _NUM_OF_EVERY_MODULE:
        return []
    return [item for item in attributes.items() if item[0] not in _OF_EVERY_MODULE]


def _memory_of(tensor: Tensor | None) -> tuple[Any, ...]:
    if tensor is None:
        return (None,)
    return id(tensor), tensor.data_ptr(), tuple(tensor.shape), tensor.requires_grad


def _of_object(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, functools.partial):
        yield from values_of((value.func, value.args, value.keywords), depth)
    elif isinstance(value, MethodType):
        function: Any = value.__func__
        owner: Any = type(value.__self__)
        yield from _of_functions([function], _own_classes(owner), depth)
        yield from values_of(value.__self__, depth)
    elif isinstance(value, FunctionType):
        yield from _of_functions([value], (), depth)
    else:
        yield id(value)
        if isinstance(value, type):
            yield from _of_classes([value], "__call__", depth)
        elif not isinstance(value, logging.Logger):  # which keeps what it was asked
            yield from values_of(getattr(value, "__dict__", None) or None, depth)
            kind: Any = type(value)
            for name in _slots_of(kind):
                yield name, *values_of(getattr(value, name, None), depth)
            yield from _of_classes([kind], "__call__", depth)


def _of_classes(kinds: Iterable[type], entry: str, depth: int) -> Iterator[Any]:
    """What users' classes keep for all of their objects, and what their methods `entry` use."""
    owners = tuple(dict.fromkeys(owner for kind in kinds for owner in _own_classes(kind)))
    for owner in owners:
        for name, value in vars(owner).items():
            if not name.startswith("__") and not isinstance(value, _CODE):
                yield owner.__name__, name, *values_of(value, min(depth, _MAX_DEPTH_OF_CLASSES))
    yield from _of_functions(_methods(owners, (entry,)), owners, depth)


def _of_functions(
    functions: Iterable[FunctionType], owners: tuple[type, ...], depth: int
) -> Iterator[Any]:
    """What functions and their helpers close over, their defaults, and the globals that they name."""
    for function in _reached(functions, owners):
        code, known = function.__code__, function.__globals__
        yield function.__qualname__, id(code)
        if function.__defaults__ or function.__kwdefaults__:
            yield from values_of((function.__defaults__, function.__kwdefaults__), depth)
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        yield from ((name, *values_of(_content(cell), depth)) for name, cell in cells)
        for name in _names_in(code):
            # modules stay what they are; functions of this file are reached
            if name in known and not isinstance(known[name], FunctionType | ModuleType):
                yield name, *values_of(known[name], depth)


def _reached(
    functions: Iterable[FunctionType], owners: tuple[type, ...]
) -> dict[FunctionType, None]:
    """Functions, and what they call of their files and of the methods of `owners`.

    A library's functions are left out: they have no state of the user's.
    """
    waiting, found = list(functions), dict[FunctionType, None]()
    while waiting:
        function = waiting.pop()
        if function not in found:
            found[function] = None
            names, known = _names_in(function.__code__), function.__globals__
            helpers = (known.get(name) for name in names)
            waiting += [
                helper
                for helper in helpers
                if isinstance(helper, FunctionType) and helper.__globals__ is known
            ]
            waiting += _methods(owners, names)
    return found


def _methods(owners: tuple[type, ...], names: Iterable[str]) -> list[FunctionType]:
    """The functions behind names of classes, those that others override too."""
    attributes = (vars(owner).get(name) for owner in owners for name in names)
    functions = (_function_of(attribute) for attribute in attributes if attribute is not None)
    return [function for function in functions if isinstance(function, FunctionType)]


def _function_of(attribute: Any) -> Any:
    if isinstance(attribute, property):
        return attribute.fget
    if isinstance(attribute, functools.cached_property):
        return attribute.func
    return getattr(attribute, "__func__", attribute)


@functools.lru_cache(maxsize=4096)
def _names_in(code: CodeType) -> tuple[str, ...]:
    """Globals and attributes that code names, with the lambdas and functions inside of it.

    An attribute that is called like a global of the file lets that global count too, which does no harm.
    """
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return tuple(sorted({*code.co_names, *(name for part in inner for name in _names_in(part))}))


@functools.lru_cache(maxsize=1024)
def _is_fixed(kind: type) -> bool:
    return kind.__module__.startswith(_FIXED)


@functools.lru_cache(maxsize=1024)
def _slots_of(kind: type) -> tuple[str, ...]:
    """Attributes that objects of a user's class keep outside of their dictionary."""
    members = (item for owner in _own_classes(kind) for item in vars(owner).items())
    return tuple(name for name, member in members if isinstance(member, MemberDescriptorType))


@functools.lru_cache(maxsize=1024)
def _own_classes(kind: type) -> tuple[type, ...]:
    """A class and its bases, as far as they are no library's."""
    return tuple(k for k in kind.__mro__ if k.__module__.partition(".")[0] not in _LIBRARIES)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
