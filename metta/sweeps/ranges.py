"""Ranges of settings as they are written, ``lr=1e-5..1e-2:log``, checked against their settings."""

import contextlib
import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from metta.errors import ConfigError
from metta.train.parsing.problems import shown
from metta.train.parsing.schema import Leaf
from metta.train.parsing.values import Text, plain_data, read_value
from metta.train.parsing.yaml_text import read_inline
from metta.train.settings import Entry, leaf_at, setting_paths, unknown_setting

__all__ = ["Range", "is_range", "num_values", "read_range", "split_at_commas", "values_of"]

Kind = Literal["float", "int", "choice"]

_DOTS = ".."
_FIXED = {
    "experiment_name": "it names the run",
    "trainer.seed": "every trial has the same seeds; --seeds N repeats a trial with N of them",
    "trainer.curriculum.env": "scores of different environments cannot be compared",
    "trainer.verbose": "it changes nothing that is learned",
    "trainer.logging": "it changes nothing that is learned",
    "trainer.checkpoint": "it changes nothing that is learned",
    "trainer.evaluation": "trials are compared by equal evaluations",
    "trainer.system": "processes are given to trials by --workers",
}
"""Settings and groups that must be the same in every trial, and why."""
_TESTS = (
    (Ge, "ge", operator.ge), (Gt, "gt", operator.gt), (Le, "le", operator.le), (Lt, "lt", operator.lt)
)  # fmt: skip
_MOST_CHOICES = 200
_OPEN, _CLOSED = "([{", ")]}"


@dataclass(frozen=True)
class Range:
    """The values that one setting may have."""

    name: str
    """As it was written."""
    path: str
    kind: Kind
    low: float = 0.0
    """Of numbers, as are `high`, `step` and `is_log`."""
    high: float = 0.0
    step: float | None = None
    is_log: bool = False
    choices: tuple[Any, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "choices": list(self.choices)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Range":
        """The range of which `to_dict` made this."""
        return cls(**{**data, "choices": tuple(data["choices"])})

    def describe(self) -> str:
        """As it could be written."""
        if self.kind == "choice":
            return f"{self.name}={','.join(map(str, self.choices))}"
        how = ":log" if self.is_log else f":{self.step:g}" if self.step not in (None, 1) else ""
        return f"{self.name}={self.low:g}..{self.high:g}{how}"


def is_range(word: str) -> bool:
    """Whether a setting ``name=text`` gives several values."""
    name, _, text = word.partition("=")
    path = setting_paths().get(name.replace("-", "_"))
    kind = str if path is None else leaf_at(path).kind
    if kind in (tuple, dict):  # a list in itself: choices are in brackets
        parts = split_at_commas(text)
        return len(parts) > 1 and all(part[:1] in ("[", "{") for part in parts)
    if len(split_at_commas(text)) > 1:
        return True
    if _DOTS not in text:
        return False
    # a text may have dots in it, as a path does
    return path is None or kind is not str or _reads_as_numbers(text)


def read_range(word: str) -> Range:
    """The range that ``name=low..high``, ``name=low..high:log``, ``:step`` or ``name=a,b,c`` means."""
    written, _, text = word.partition("=")
    name = written.replace("-", "_")
    path = setting_paths().get(name)
    if path is None:
        raise ConfigError(unknown_setting(Entry(name, text, None)).text)
    for fixed, why in _FIXED.items():
        if path == fixed or path.startswith(f"{fixed}."):
            raise ConfigError(f"{word!r}: {path} has one value in a sweep: {why}")
    leaf = leaf_at(path)
    if len(split_at_commas(text)) > 1:
        return _choices(word, name, leaf, split_at_commas(text))
    return _numbers(word, name, leaf, text)


def split_at_commas(text: str) -> list[str]:
    """The parts between commas that are not inside of brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in _OPEN) - (sign in _CLOSED)
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def num_values(found: Range) -> int | None:
    """How many values there are; None if they are not counted."""
    if found.kind == "choice":
        return len(found.choices)
    if found.step is None:
        return None
    return round((found.high - found.low) / found.step) + 1


def values_of(found: Range, most: int) -> list[Any]:
    """All values if there are at most so many of them; else the ends and their neighbours."""
    if found.kind == "choice":
        return list(found.choices)
    count = num_values(found)
    if count is None or found.step is None:
        is_whole = found.kind == "int" and found.low + 1 < found.high
        return [found.low, *([found.low + 1] if is_whole else []), found.high]
    places = range(count) if count <= most else (0, 1, count - 2, count - 1)
    values = [found.low + place * found.step for place in places]
    # 0.15, not 0.15000000000000002
    return (
        [int(one) for one in values]
        if found.kind == "int"
        else [float(f"{one:.12g}") for one in values]
    )


def _reads_as_numbers(text: str) -> bool:
    low, _, high = text.partition(":")[0].partition(_DOTS)
    try:
        float(low), float(high)
    except ValueError:
        return False
    return True


def _choices(word: str, name: str, leaf: Leaf, parts: Sequence[str]) -> Range:
    if not all(parts):
        raise ConfigError(f"{word!r}: a value between its commas is missing; write {name}=A,B")
    if len(parts) > _MOST_CHOICES:
        raise ConfigError(
            f"{name} has {len(parts):,} values; list at most {_MOST_CHOICES}, or write numbers as "
            f"{name}=LOW..HIGH"
        )
    values = [_value(word, leaf, part) for part in parts]
    for first, second in itertools.combinations(range(len(values)), 2):
        if values[first] == values[second]:
            raise ConfigError(f"{word!r} has {parts[second]} twice; give each value once")
    return Range(name, leaf.path, "choice", choices=tuple(values))


def _numbers(word: str, name: str, leaf: Leaf, text: str) -> Range:
    bounds, _, how = text.partition(":")
    first, dots, last = bounds.partition(_DOTS)
    if leaf.kind not in (int, float):
        raise ConfigError(
            f"{word!r}: {leaf.path} is {leaf.words}, and has no numbers between two ends; list its "
            f"values: {name}=A,B"
        )
    if first and last.startswith("."):
        end = last.lstrip(".")
        raise ConfigError(
            f"{word!r} has more than two dots between its ends; write {name}={first}..{end}, or "
            f"{name}={first}..0.{end} if that is meant"
        )
    if not dots or not first or not last:
        raise ConfigError(f"{word!r} is not a range; write {name}=LOW..HIGH, or {name}=A,B,C")
    low, high = (_number(word, leaf, part) for part in (first, last))
    kind: Kind = "int" if leaf.kind is int else "float"
    if low >= high:
        raise ConfigError(
            f"{word!r} is empty: its low end {first} is not below its high end {last}"
            + (f"; write {name}={last}..{first}" if low > high else "")
        )
    if how == "log":
        if low <= 0:
            raise ConfigError(
                f"{word!r}: a logarithmic range begins above 0, and this one at {first}; give another "
                "low end, or leave ':log' out"
            )
        return Range(name, leaf.path, kind, low, high, None, is_log=True)
    if not how and ":" in text:
        raise ConfigError(f"{word!r}: after ':' comes 'log' or a step; leave ':' out for neither")
    step = _step(word, leaf, how, low, high) if how else (1 if kind == "int" else None)
    return Range(name, leaf.path, kind, low, high, step)


def _step(word: str, leaf: Leaf, text: str, low: float, high: float) -> float:
    try:
        step = float(text)
    except ValueError:
        raise ConfigError(f"{word!r}: after ':' comes 'log' or a step; found {text!r}") from None
    if not math.isfinite(step) or step <= 0:
        raise ConfigError(f"{word!r}: a step is a number above 0; found {text}")
    if leaf.kind is int:
        if step != int(step):
            raise ConfigError(
                f"{word!r}: {leaf.path} is a whole number, so its step is one; found {text}"
            )
        step = int(step)
    count = (high - low) / step
    if abs(count - round(count)) > 1e-9 * max(1.0, count) or round(count) < 1:
        whole = max(1, math.floor(count + 1e-9))
        raise ConfigError(
            f"{word!r}: steps of {text} do not lead from {low:g} to {high:g}; try a high end of "
            f"{low + whole * step:g}"
        )
    return step


def _number(word: str, leaf: Leaf, text: str) -> float:
    value = _value(word, leaf, text)
    if value is None:
        raise ConfigError(f"{word!r}: {text} is no number, so it is no end of a range; list values")
    number: float = value
    return number


def _value(word: str, leaf: Leaf, text: str) -> Any:
    """A value of the setting, of its type and inside of its limits."""
    value: Any
    if leaf.kind is tuple and "{" not in text:  # arguments in brackets are not YAML
        value = read_value(leaf, text[1:-1])
    elif leaf.kind in (tuple, dict):
        value = plain_data(read_value(leaf, read_inline(text)))
    else:
        value = read_value(leaf, Text(text, text, quoted=False))
    if leaf.kind is float and isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    if not _is_legal(leaf, value):
        raise ConfigError(f"{word!r}: {leaf.path}: found {shown(text)}; allowed is {leaf.words}")
    return value


def _is_legal(leaf: Leaf, value: Any) -> bool:
    if value is None:
        return leaf.optional
    if leaf.kind in (tuple, dict):
        return isinstance(value, list if leaf.kind is tuple else dict)
    if leaf.choices:
        return value in leaf.choices
    if not isinstance(value, leaf.kind) or isinstance(value, bool) != (leaf.kind is bool):
        return False
    number: Any = value
    if leaf.kind is float and not math.isfinite(number):
        return False
    return all(
        test(number, getattr(bound, name))
        for bound in leaf.bounds
        for kind, name, test in _TESTS
        if isinstance(bound, kind)
    )
