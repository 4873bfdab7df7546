"""The decorator and the named ranges that all configuration classes use."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, cast, dataclass_transform

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from metta.train.parsing.problems import as_error, explain, raise_broken
from metta.train.parsing.schema import MAX_INTEGER, default_of, mark_given
from metta.train.rules import secret_rules

__all__ = [
    "Count",
    "Decay",
    "Fraction",
    "Interval",
    "Name",
    "NonNegative",
    "Positive",
    "Whole",
    "config_class",
]

STRICT = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)


def _no_switch(value: Any) -> Any:
    """Python takes True for 1; nobody who writes it means the number."""
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")
    return value


_NUMBER = BeforeValidator(_no_switch)

Fraction = Annotated[float, Ge(0), Le(1), _NUMBER]
Decay = Annotated[float, Ge(0), Lt(1), _NUMBER]
Positive = Annotated[float, Gt(0), _NUMBER]
NonNegative = Annotated[float, Ge(0), _NUMBER]
Count = Annotated[int, Ge(1), Le(MAX_INTEGER), _NUMBER]
Interval = Annotated[int, Ge(0), Le(MAX_INTEGER), _NUMBER]
"""An interval in epochs; 0: never."""
Whole = Annotated[int, Ge(0), Le(MAX_INTEGER), _NUMBER]
Name = Annotated[str, MinLen(1)]

Config = TypeVar("Config")


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,)
)
def config_class(cls: type[Config]) -> type[Config]:
    """A frozen, keyword-only, validated dataclass whose problems are a `ConfigError`."""
    cls._holds_no_secret = model_validator(mode="after")(_holds_no_secret)  # type: ignore[attr-defined]  # added here
    built: Any = dataclass(kw_only=True, frozen=True, config=STRICT)(cls)
    construct = built.__init__

    @functools.wraps(construct)
    def checked(self: Any, *positional: Any, **settings: Any) -> None:
        try:
            construct(self, *positional, **settings)
        except ValidationError as error:
            raise as_error(explain(error, type(self))) from None
        mark_given(self, _given_names(self, settings))

    built.__init__ = checked
    return cast(type[Config], built)


def _given_names(config: Any, settings: Mapping[str, Any]) -> set[str]:
    """The fields that a caller chose: those that were named.

    `dataclasses.replace` names all of them; then those that differ from their defaults.
    """
    fields = dataclasses.fields(config)
    if len(settings) < len(fields):
        return set(settings)
    return {field.name for field in fields if getattr(config, field.name) != default_of(field)}


def _holds_no_secret(config: Config) -> Config:
    raise_broken(secret_rules(config))
    return config
