"""The combinations that ranges allow: whether each of them is a configuration that can be trained."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from metta.errors import ConfigError
from metta.loggers.number_text import shown_number
from metta.seeding import numpy_generator
from metta.sweeps.ranges import Range, read_range, values_of
from metta.train.rules import size_rules
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

__all__ = [
    "check_combinations",
    "combinations",
    "read_ranges",
    "shown_value",
    "shown_values",
    "with_values",
    "words_of",
]

_MOST_VALUES = 17
"""Values of a range that are all tried; of more, the ends and their neighbours."""
_MOST_COMBINATIONS = 512

Values = Mapping[str, Any]
"""Path of a setting -> its value."""


def read_ranges(words: Sequence[str], fixed: Mapping[str, str]) -> tuple[Range, ...]:
    """The ranges that words give. `fixed` has paths that words set to one value, with their words."""
    found: dict[str, tuple[Range, str]] = {}
    for word in words:
        one = read_range(word)
        if one.path in found:
            raise ConfigError(
                f"{found[one.path][1]!r} and {word!r} are two ranges of {one.path}; give one of them"
            )
        if one.path in fixed:
            raise ConfigError(
                f"{fixed[one.path]!r} sets {one.path}, and {word!r} varies it; give one of them"
            )
        found[one.path] = one, word
    return tuple(one for one, _ in found.values())


def with_values(config: TrainingConfig, values: Values) -> TrainingConfig:
    """The configuration with these values; `ConfigError` if they cannot be trained together."""
    found = apply_settings(config, values)
    broken = size_rules(found)
    if broken:
        raise ConfigError("; ".join(rule.text for rule in broken))
    return found


def check_combinations(config: TrainingConfig, ranges: Sequence[Range]) -> None:
    """Refuse ranges of which some combination breaks a rule, naming one that does.

    Small ranges are tried whole, of large ones the ends and their neighbours, in up to 512 combinations.
    """
    broken: list[tuple[dict[str, Any], str]] = []
    tried = 0
    for values in combinations(ranges):
        tried += 1
        try:
            with_values(config, values)
        except ConfigError as error:
            broken.append((values, str(error)))
    if broken:
        values, reason = broken[0]
        several = (
            f"{len(broken)} of {tried} combinations" if len(broken) < tried else "every combination"
        )
        raise ConfigError(
            f"{several} of the ranges that were tried cannot be trained, e.g. "
            f"{shown_values(ranges, values)}: {reason}\nchoose ranges so that every combination is valid"
        )


def words_of(ranges: Sequence[Range], values: Values) -> list[str]:
    """Values as they are written in a command: ``lr=0.001``, ``horizon=64``."""
    return [f"{one.name}={_written(values[one.path])}" for one in ranges]


def shown_values(ranges: Sequence[Range], values: Values) -> str:
    """Values for people, with few digits: ``lr=0.00123 horizon=64``."""
    return " ".join(f"{one.name}={shown_value(values[one.path])}" for one in ranges)


def shown_value(value: Any) -> str:
    """A value with few digits."""
    return shown_number(value) if isinstance(value, float) else _written(value)


def _written(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_written(part)}" for key, part in value.items()) + "}"
    return str(value)


def combinations(ranges: Sequence[Range]) -> Iterator[dict[str, Any]]:
    """All combinations, or as many as are tried: those of the ends first, then others at random."""
    paths = [one.path for one in ranges]
    values = [values_of(one, _MOST_VALUES) for one in ranges]
    if math.prod(map(len, values)) <= _MOST_COMBINATIONS:
        yield from (dict(zip(paths, one, strict=True)) for one in itertools.product(*values))
        return
    ends = itertools.product(*[(one[0], one[-1]) for one in values])
    for combination in itertools.islice(ends, _MOST_COMBINATIONS // 2):
        yield dict(zip(paths, combination, strict=True))
    drawn = numpy_generator(0, "combinations")
    for _ in range(_MOST_COMBINATIONS // 2):
        yield {
            path: one[int(drawn.integers(len(one)))]
            for path, one in zip(paths, values, strict=True)
        }
