"""Secrets: settings name them, environments get them, and files and messages have ``***`` instead."""

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from metta.errors import ConfigError
from metta.secret_names import REFERENCE, looks_secret, secret_parts

__all__ = ["exposure", "resolve", "resolve_all", "scrub", "scrub_all"]

_MASK = "***"
_MIN_LENGTH = 6
"""Shorter values of variables occur in too many texts by chance."""
_COMMON = {"anonymous", "bearer", "default", "disabled", "enabled", "localhost", "passwd", "password",
           "postgres", "private", "public", "secret"}  # fmt: skip

_ARGUMENT = re.compile(r"(-{0,2}([\w.-]+)=)(?!env:)(.+)", re.DOTALL)

_resolved: dict[str, None] = {}
"""Values of the references that this process resolved."""
_forms: tuple[str, ...] = ()
_forms_are_of: tuple[int, dict[Any, Any]] = (0, {})


def resolve(value: Any) -> Any:
    """The value of the environment variable that ``env:NAME`` names; everything else as it is.

    A variable that is not set or empty is a `ConfigError`.
    """
    reference = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if reference is None:
        return value
    found = os.environ.get(reference[1])
    if not found:
        raise ConfigError(
            f"a setting is {value!r}, but the environment variable {reference[1]} is "
            f"{'not set' if found is None else 'empty'}; set it where metta is started"
        )
    _resolved[found] = None
    return found


def resolve_all(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with every reference in it resolved, at any depth of mappings and lists."""
    return {name: _resolve_below(value) for name, value in settings.items()}


def _resolve_below(value: Any) -> Any:
    if type(value) is dict:
        return resolve_all(value)
    if type(value) in (list, tuple):
        return type(value)(_resolve_below(item) for item in value)
    return resolve(value)


def exposure(name: str, text: str) -> str | None:
    """Why this text must not be written to a file under this name; None if it may."""
    if _tells_nothing(text):
        return None
    if looks_secret(name, text):
        return "looks like a secret by its name"
    if any(text[begin:end] != _MASK for begin, end in secret_parts(text)):
        return "has credentials in it"
    for variable, value in _secret_variables():
        if any(form in text for form in _forms_of((value,))):
            return f"holds the value of the environment variable {variable}"
    return None


def _tells_nothing(text: str) -> bool:
    return not text or text == _MASK or REFERENCE.fullmatch(text) is not None


def scrub(text: str) -> str:
    """The text without secrets.

    Hidden are values of references that were resolved, values of environment variables with secret names,
    texts of known shapes (tokens, credentials in URLs), and values after a secret name, as in
    ``password=...``.
    """
    for form in _known_forms():
        if form in text:
            text = text.replace(form, _MASK)
    shown, reached = [], 0
    for begin, end in sorted(secret_parts(text)):
        if end > reached:
            if begin >= reached:
                shown += [text[reached:begin], _MASK]
            reached = end
    return "".join([*shown, text[reached:]])


def scrub_all(data: Any) -> Any:
    """Nested mappings, lists and tuples without secrets in their texts; other values are kept."""
    return _scrub_below(data, is_secret=False)


def _scrub_below(data: Any, *, is_secret: bool) -> Any:
    if isinstance(data, str):
        return _MASK if is_secret and not _tells_nothing(data) else scrub(data)
    if isinstance(data, Mapping):
        return {
            scrub(name) if isinstance(name, str) else name: _scrub_below(
                value, is_secret=is_secret or looks_secret(str(name), value)
            )
            for name, value in data.items()
        }
    if isinstance(data, list | tuple):
        items = [_scrub_item(data, index, is_secret) for index in range(len(data))]
        return items if isinstance(data, list) else tuple(items)
    return data


def _scrub_item(items: Sequence[Any], index: int, is_secret: bool) -> Any:
    """An item of a list, which may be a command line: ``["--password=...", "--api-key", "..."]``."""
    item, before = items[index], items[index - 1] if index else None
    if isinstance(item, str):
        argument = _ARGUMENT.fullmatch(item)
        if argument and looks_secret(argument[2], argument[3]):
            return f"{argument[1]}{_MASK}"
        if isinstance(before, str) and before.startswith("--") and looks_secret(before, item):
            is_secret = True
    return _scrub_below(item, is_secret=is_secret)


def _known_forms() -> tuple[str, ...]:
    """What must not be shown; found again whenever the environment or the resolved values change."""
    global _forms, _forms_are_of
    # the bytes of os.environ: decoding all of it would take longer than the search
    state = len(_resolved), dict(getattr(os.environ, "_data", os.environ))
    if state != _forms_are_of:
        values = tuple(value for _, value in _secret_variables())
        parts = (part for value in _resolved for part in _parts_of(value))
        _forms, _forms_are_of = _forms_of((*_resolved, *parts, *values)), state
    return _forms


def _secret_variables() -> list[tuple[str, str]]:
    """Variables with the secret part of their values: all of it, or a part, as in a URL."""
    return _secret_among(tuple(os.environ.items()))


@functools.lru_cache(4)
def _secret_among(variables: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in variables:
        parts = [value] if looks_secret(name, value) else _parts_of(value)
        found += ((name, part) for part in parts)
    return found


def _parts_of(value: str) -> Iterator[str]:
    for begin, end in secret_parts(value):
        part = value[begin:end]
        password = part.partition(":")[2]  # of ``user:password`` in a URL
        yield from (part, password, unquote(password))


@functools.lru_cache(64)
def _forms_of(values: tuple[str, ...]) -> tuple[str, ...]:
    """How secrets look in texts, in URLs, and in the JSON and the `repr` of texts; longest first."""
    forms: set[str] = set()
    for value in values:
        lines = [value, *value.splitlines()]  # of a key with many lines, each is worth hiding
        for line in filter(_is_worth_hiding, lines):
            encoded = line.encode(errors="surrogateescape")
            plain = {line, repr(line)[1:-1], quote(encoded)}
            plain |= {quote(encoded, safe=""), quote_plus(encoded)}
            plain |= {json.dumps(form)[1:-1] for form in plain}
            forms |= plain | {json.dumps(form)[1:-1] for form in plain}
    return tuple(sorted(forms, key=len, reverse=True))


def _is_worth_hiding(value: str) -> bool:
    is_trivial = len(value) < _MIN_LENGTH or len(set(value)) < 3 or value.lower() in _COMMON
    # variables like SSH_AUTH_SOCK name a file, not what is in it
    return not is_trivial and not (value.startswith("/") and _exists(value))


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long, or with a null character
        return False
