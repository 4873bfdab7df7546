"""Converts text to the type of its setting, and configurations to plain data."""

import dataclasses
import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from metta.errors import ConfigError
from metta.train.parsing.schema import Leaf

__all__ = ["Key", "Text", "is_nothing", "plain_data", "read_value"]

_NOTHING = ("", "~", "null", "none")
_BOOLEANS = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip
_MAX_DIGITS = 30
_MAX_DEPTH = 32
_YAML_FLOATS = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}


class Key(str):
    """A name in a file, with its line."""

    __slots__ = ("line",)
    line: int

    def __new__(cls, text: str, line: int) -> "Key":
        """A key with its line, equal to its text."""
        key = super().__new__(cls, text)
        key.line = line
        return key


class Text(str):
    """A scalar of a file or a command line as it was written, before any type is read into it."""

    __slots__ = ("ordinary", "quoted")
    ordinary: Any
    quoted: bool

    def __new__(cls, text: str, ordinary: Any, quoted: bool) -> "Text":
        """`ordinary` is the value of the scalar if no field gives it a type."""
        made = super().__new__(cls, text)
        made.ordinary, made.quoted = ordinary, quoted
        return made


def is_nothing(value: Any) -> bool:
    """Whether a group of settings was left empty."""
    return value is None or (isinstance(value, Text) and not value.quoted and _says_nothing(value))


def read_value(leaf: Leaf, value: Any) -> Any:
    """`value` converted to the type of this setting; what cannot be converted is returned, to be refused.

    Text from files and command lines is read by the type of the setting: ``1e-3`` is a number if a
    number is wanted, and ``off`` is False for a switch but a word for a choice that has it.
    """
    if leaf.kind is dict:
        return _ordinary(value)
    if leaf.kind is tuple:
        return _texts(value)
    if isinstance(value, str):
        return _read_text(leaf, value)
    if value is False and "off" in leaf.choices:
        return "off"  # other readers of YAML turn the word into a boolean
    return value


def _read_text(leaf: Leaf, text: str) -> Any:
    # a text from Python code stays as it is if a text is wanted
    meant = text.quoted if isinstance(text, Text) else leaf.kind is str
    if leaf.optional and not meant and _says_nothing(text):
        return None
    if leaf.kind is bool:
        return _BOOLEANS.get(text.lower(), str(text))
    if leaf.kind is int:
        return _whole_number(text)
    if leaf.kind is float:
        return _YAML_FLOATS.get(text.lower(), str(text))
    return str(text)


def _says_nothing(text: str) -> bool:
    return text.strip().lower() in _NOTHING


def _whole_number(text: str) -> int | str:
    """``3e8`` and ``1_000`` are whole numbers, ``1.5`` is not."""
    try:
        number = Decimal(text.replace("_", ""))
    except InvalidOperation:
        return str(text)
    fits = number.is_finite() and number.adjusted() <= _MAX_DIGITS
    return int(number) if fits and number == number.to_integral_value() else str(text)


def _texts(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [str(item) if isinstance(item, str) else _ordinary(item) for item in value]
    if isinstance(value, str):
        return [part.strip() for part in _split(value) if part.strip()]
    return _ordinary(value)


def _split(text: str) -> list[str]:
    """The parts between commas, except those inside of brackets: ``a, f(1, 2)`` has two."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _ordinary(value: Any, depth: int = 0) -> Any:
    """The value if no field gives it a type; copies its parts."""
    if isinstance(value, Text):
        return value.ordinary
    if depth > _MAX_DEPTH:  # it may hold itself
        return value
    if type(value) is dict:
        return {
            str(key) if isinstance(key, str) else key: _ordinary(item, depth + 1)
            for key, item in value.items()
        }
    return [_ordinary(item, depth + 1) for item in value] if type(value) is list else value


def plain_data(value: Any, path: str = "", depth: int = 0) -> Any:
    """Dictionaries, lists, texts, numbers, booleans and None; `ConfigError` names what is none of them."""
    below = f"{path}." if path else ""
    if depth > _MAX_DEPTH:
        raise ConfigError(
            f"{path}: nested more than {_MAX_DEPTH} levels deep; it cannot be written"
        )
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain_data(getattr(value, field.name), f"{below}{field.name}", depth + 1)
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {
            str(key): plain_data(item, f"{below}{key}", depth + 1) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain_data(item, f"{below}{i}", depth + 1) for i, item in enumerate(value)]
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise ConfigError(
        f"{path}: found {type(value).__name__} {value!r}, which cannot be written to a file; allowed "
        "are texts, numbers, true, false, null, lists, and mappings whose keys are texts"
    )
