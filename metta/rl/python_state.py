"""Numbers that networks and losses keep outside of tensors: constants of whatever is compiled from them."""

from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from metta.agent.plain_values import PLAIN, plain_values
from metta.rl.update import UpdateRules

__all__ = ["python_state"]


def python_state(rules: UpdateRules) -> tuple[Any, ...]:
    """Every plain attribute of the networks, what functions close over, and which buffers there are.

    Equal before and after means that a graph that was traced before still says what Python would do.
    """
    parts = [*plain_values(rules.policy)]
    for loss in rules.custom:
        parts.append(("loss", loss.label, id(loss.fn)))
        parts += _of_callable(loss.fn)
    return tuple(parts)


def _of_callable(function: Any) -> Iterator[tuple[Any, ...]]:
    if isinstance(function, nn.Module):
        yield from plain_values(function)
    elif isinstance(function, MethodType):
        yield from _of_callable(function.__func__)
        yield from _plain_items("self", vars(function.__self__))
    elif isinstance(function, FunctionType):
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        yield from _plain_items("closure", {name: _content(cell) for name, cell in cells})
        known = function.__globals__
        used = {name: known[name] for name in function.__code__.co_names if name in known}
        yield from _plain_items("global", used)
    elif hasattr(function, "__dict__"):
        yield from _plain_items("self", vars(function))


def _plain_items(where: str, values: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for name, value in values.items():
        if isinstance(value, PLAIN):
            yield where, name, value
        elif isinstance(value, nn.Module):
            yield from plain_values(value)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
