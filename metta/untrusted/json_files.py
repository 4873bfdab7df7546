"""JSON of untrusted files: its size is checked before anything is built from it."""

import json
import os
import re
from typing import Any

from metta.errors import UnsafeFileError
from metta.untrusted.files import open_regular, refuse_code

__all__ = ["brief", "parse_json", "read_json"]

MAX_JSON_BYTES = 8 * 2**20
MAX_JSON_VALUES = 500_000
MAX_DEPTH = 32
_MAX_DIGITS = 100
_MAX_SHOWN = 200
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*+"|[^\[\]{}"]++', re.DOTALL)
"""Strings, and everything else that does not affect how a JSON text is nested."""


def read_json(
    path: str | os.PathLike[str],
    *,
    max_bytes: int = MAX_JSON_BYTES,
    max_depth: int = MAX_DEPTH,
    max_values: int = MAX_JSON_VALUES,
    follow_symlink: bool = True,
) -> Any:
    """The data in a JSON file; `UnsafeFileError` if it is not JSON, or larger than the limits."""
    with open_regular(path, follow_symlink=follow_symlink) as (stream, size):
        refuse_code(path, stream, size)
        if size > max_bytes:
            raise UnsafeFileError(
                f"{os.fspath(path)!r} has {size} bytes; JSON files of up to {max_bytes} bytes are read"
            )
        content = stream.read(size)
    try:
        return parse_json(content, max_depth=max_depth, max_values=max_values)
    except ValueError as error:
        raise UnsafeFileError(f"{os.fspath(path)!r} is damaged or unsafe: {error}") from error


def parse_json(
    content: bytes | str,
    *,
    max_depth: int = MAX_DEPTH,
    max_values: int = MAX_JSON_VALUES,
    allow_nan: bool = False,
) -> Any:
    """The data of a JSON text; ValueError if it is not JSON, is too deep or large, or has a key twice.

    Its size is checked before anything is built from it. NaN and infinity are errors, unless allowed.
    """
    text = content if isinstance(content, str) else content.decode("utf-8")
    _measure_json(text, max_depth, max_values)
    return json.loads(
        text,
        object_pairs_hook=_without_duplicates,
        parse_int=_short_integer,
        parse_constant=float if allow_nan else _no_constant,
    )


def _measure_json(text: str, max_depth: int, max_values: int) -> None:
    # those within strings count too: excluding them would take the memory that this saves
    marks = text.count(",") + text.count("[") + text.count("{")
    if marks > max_values or text.count('"') > 4 * max_values:
        raise ValueError(f"it holds more than {max_values} values")
    _measure_depth(_STRUCTURE.sub("", text), max_depth)


def _measure_depth(brackets: str, max_depth: int) -> None:
    depth = 0
    for bracket in brackets:  # and quotes, if a string has no end
        depth += 1 if bracket in "[{" else -1
        if depth > max_depth:
            raise ValueError(f"it is nested deeper than {max_depth} levels")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # add gives None, so the key counts as new
        raise ValueError(f"the key {brief(twice)} occurs twice")
    return found


def _short_integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"it holds a whole number of {len(digits)} digits")
    return int(digits)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def brief(value: Any) -> str:
    """A value from a file, for a message: its `repr`, shortened."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
