"""Problems of settings: one line each, with path, place, what was found and what to do."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from metta.errors import ConfigError, did_you_mean
from metta.secrets import scrub
from metta.train.parsing.origins import Origin
from metta.train.parsing.schema import MAX_INTEGER, Leaf, groups_of, leaves_of

__all__ = ["BrokenRule", "Problem", "as_error", "explain", "raise_broken", "shown"]

_MAX_SHOWN = 80
_MAX_LINES = 50
_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
_BROKEN_RULES = "broken_rules"


@dataclasses.dataclass(frozen=True)
class BrokenRule:
    """Settings that are legal alone but not together."""

    paths: tuple[str, ...]
    text: str


@dataclasses.dataclass(frozen=True)
class Problem:
    """One line of a message, and the settings that it is about."""

    text: str
    paths: tuple[str, ...] = ()


def as_error(problems: Sequence[Problem]) -> ConfigError:
    """One error for all problems."""
    lines = list(dict.fromkeys(problem.text for problem in problems))
    if len(lines) == 1:
        return ConfigError(lines[0])
    left_out = [f"and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else []
    head = f"{len(lines)} problems:"
    return ConfigError("\n  - ".join([head, *lines[:_MAX_LINES], *left_out]))


def raise_broken(rules: Sequence[BrokenRule]) -> None:
    """Report broken rules over several fields to pydantic; does nothing if there are none."""
    if rules:
        text = "; ".join(rule.text for rule in rules)
        raise PydanticCustomError(_BROKEN_RULES, "{text}", {"text": text, "rules": tuple(rules)})


def shown(value: Any) -> str:
    """A value for a message: on one line, never long, and without secrets."""
    try:
        text = repr(str(value) if isinstance(value, str) else value)
    except Exception as error:  # noqa: BLE001 - the value may be of any class, and its repr may do anything
        text = f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    text = scrub(" ".join(text.split()))
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def at(origins: Mapping[str, Origin], *paths: str) -> str:
    """The places of some settings in brackets, or an empty text if no place is known."""
    places = list(dict.fromkeys(str(origins[path]) for path in paths if path in origins))
    return f" ({', '.join(places)})" if places else ""


def explain(
    error: ValidationError, kind: type, origins: Mapping[str, Origin] | None = None
) -> list[Problem]:
    """Everything that pydantic found wrong with a configuration of class `kind`."""
    found = []
    for problem in error.errors():
        if problem["type"] == _BROKEN_RULES:
            prefix = "".join(f"{part}." for part in problem["loc"])
            rules = cast(tuple[BrokenRule, ...], problem["ctx"]["rules"])
            found += [of_rule(rule, origins or {}, prefix) for rule in rules]
        else:
            found.append(_of_field(problem, kind, origins or {}))
    return found


def of_rule(rule: BrokenRule, origins: Mapping[str, Origin], prefix: str = "") -> Problem:
    """A broken rule as a line; `prefix` is put before its paths."""
    paths = tuple(f"{prefix}{path}" for path in rule.paths)
    set_paths = [path for path in paths if str(origins.get(path, "default")) != "default"]
    return Problem(f"{paths[0]}{at(origins, *set_paths)}: {rule.text}", paths)


def _of_field(problem: ErrorDetails, kind: type, origins: Mapping[str, Origin]) -> Problem:
    where, parts = "config", [str(part) for part in problem["loc"]]
    leaves, groups = leaves_of(kind), groups_of(kind)
    leaf = None
    if parts:
        where = ".".join(parts)
        prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        leaf = next((leaves[path] for path in prefixes if path in leaves), None)
    path = leaf.path if leaf is not None else where
    place = at(origins, path)
    if leaf is not None:
        found = shown(problem["input"])
        limit = _limit_of(leaf, problem["input"])
        return Problem(f"{where}{place}: found {found}; allowed is {leaf.words}{limit}", (path,))
    if problem["type"] in _UNKNOWN:
        group = groups.get(".".join(parts[:-1]), kind)
        known = [field.name for field in dataclasses.fields(group)]
        hint = did_you_mean(parts[-1], known)
        return Problem(f"unknown setting {where!r}{place}{hint}", (path,))
    return Problem(f"{where}{place}: {problem['msg']} (found {shown(problem['input'])})", (path,))


def _limit_of(leaf: Leaf, value: Any) -> str:
    """The largest whole number, which is only told to those who went beyond it."""
    try:
        is_beyond = leaf.kind is int and float(value) > MAX_INTEGER
    except (TypeError, ValueError, OverflowError):
        is_beyond = isinstance(value, int)  # too large even for a float
    return f", and at most {MAX_INTEGER:,}" if is_beyond else ""
