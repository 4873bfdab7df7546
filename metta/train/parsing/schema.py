"""The settings of a configuration class as data: path, type, range, choices and default."""

import dataclasses
import functools
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any

from annotated_types import Ge, Gt, Le, Lt, MinLen

__all__ = [
    "MAX_INTEGER",
    "Leaf",
    "default_of",
    "given_paths",
    "groups_of",
    "leaves_of",
    "mark_given",
    "setting_values",
]

_GIVEN = "_given_names"
"""Attribute of configurations with the names of the fields that were chosen; no field, never compared."""

MAX_INTEGER = (1 << 63) - 1
"""Largest whole number that a setting may hold."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One setting."""

    path: str
    """Dotted, from the class that was asked about."""
    kind: type
    """One of bool, int, float, str, tuple and dict."""
    default: Any
    choices: tuple[str, ...] = ()
    """The only legal texts; empty: any."""
    optional: bool = False
    """None is legal."""
    bounds: tuple[Ge | Gt | Le | Lt | MinLen, ...] = ()

    @property
    def words(self) -> str:
        """What is allowed, e.g. ``a whole number of at least 1, or null``."""
        if self.choices:
            *others, last = [repr(choice) for choice in self.choices]
            allowed = f"{', '.join(others)} or {last}" if others else last
        else:
            allowed = f"{_KIND_WORDS[self.kind]}{_range_words(self.bounds)}"
        return f"{allowed}, or null" if self.optional else allowed


_KIND_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list of texts",
    dict: "a mapping of names to values",
}


def _range_words(bounds: tuple[Any, ...]) -> str:
    shown = [b for b in bounds if not (isinstance(b, Le) and b.le == MAX_INTEGER)]
    if any(isinstance(bound, MinLen) for bound in shown):
        return " that is not empty"
    words = []
    for bound in shown:
        for kind, name, text in _BOUND_WORDS:
            if isinstance(bound, kind):
                words.append(f"{text} {getattr(bound, name):g}")
    return f" {' and '.join(words)}" if words else ""


_BOUND_WORDS = (
    (Ge, "ge", "of at least"), (Gt, "gt", "above"), (Le, "le", "at most"), (Lt, "lt", "below")
)  # fmt: skip


@functools.cache
def leaves_of(kind: type) -> Mapping[str, Leaf]:
    """Every setting of a configuration class by its path, e.g. ``trainer.ppo.gamma``."""
    return types.MappingProxyType(_walk(kind(), "")[0])


@functools.cache
def groups_of(kind: type) -> Mapping[str, type]:
    """Every nested configuration class by its path, e.g. ``trainer.ppo``."""
    return types.MappingProxyType(_walk(kind(), "")[1])


def setting_values(config: Any, prefix: str = "") -> dict[str, Any]:
    """Every setting's value by its path."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        path, value = f"{prefix}{field.name}", getattr(config, field.name)
        values |= (
            setting_values(value, f"{path}.") if dataclasses.is_dataclass(value) else {path: value}
        )
    return values


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """The value that a field has if none is given."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def mark_given(config: Any, names: Collection[str]) -> None:
    """Remember which of a configuration's own fields were chosen, also where they equal the default."""
    object.__setattr__(config, _GIVEN, frozenset(names))


def given_paths(config: Any, prefix: str = "") -> set[str]:
    """Paths of the settings that were chosen: by keyword, by file, by command line or by a preset."""
    paths: set[str] = set()
    names = vars(config).get(_GIVEN)
    for field in dataclasses.fields(config):
        path, value = f"{prefix}{field.name}", getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            paths |= given_paths(value, f"{path}.")
        elif value != default_of(field) if names is None else field.name in names:
            paths.add(path)
    return paths


def _walk(config: Any, prefix: str) -> tuple[dict[str, Leaf], dict[str, type]]:
    leaves: dict[str, Leaf] = {}
    groups: dict[str, type] = {}
    for field in dataclasses.fields(config):
        path, value = f"{prefix}{field.name}", getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            below_leaves, below_groups = _walk(value, f"{path}.")
            leaves |= below_leaves
            groups |= {path: type(value), **below_groups}
        else:
            leaves[path] = _leaf(path, field.type, value)
    return leaves, groups


def _leaf(path: str, annotation: Any, default: Any) -> Leaf:
    optional, bounds = False, []
    while (origin := typing.get_origin(annotation)) in (
        typing.Annotated, typing.Union, types.UnionType,
    ):  # fmt: skip
        parts = typing.get_args(annotation)
        if origin is typing.Annotated:
            bounds += [part for part in parts[1:] if isinstance(part, Ge | Gt | Le | Lt | MinLen)]
            annotation = parts[0]
        else:
            optional = True
            (annotation,) = [part for part in parts if part is not types.NoneType]
    choices: tuple[str, ...] = ()
    if origin is typing.Literal:
        choices, annotation = typing.get_args(annotation), str
    return Leaf(path, origin if origin in (tuple, dict) else annotation, default, choices,
                optional, tuple(bounds))  # fmt: skip
