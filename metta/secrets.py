"""Secrets: settings name them, environments get them, and what is written or shown has ``***`` instead."""

import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from metta.errors import ConfigError

__all__ = ["exposure", "looks_secret", "resolve", "resolve_all", "scrub", "scrub_all"]

_MASK = "***"
_REFERENCE = re.compile(r"env:([A-Za-z_]\w*)")
_SHORTEST = 6
"""Shorter values are in too many texts by chance."""
_COMMON = {"anonymous", "default", "disabled", "enabled", "localhost", "passwd", "password",
           "private", "public", "secret"}  # fmt: skip

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_WORDS = {"apikey", "auth", "authorization", "bearer", "credential", "credentials", "jwt", "oauth",
                 "passphrase", "passwd", "password", "passwords", "pwd", "secret", "secrets",
                 "token"}  # fmt: skip
_KINDS = {"access", "api", "auth", "encryption", "private", "secret", "service", "signing", "ssh"}
_KEYS = {"key", "keys", "token", "tokens"}
_QUALIFIERS = {"dev", "live", "new", "old", "prod", "staging", "test", "v", "value"}
_STEMS = ("auth", "bearer", "credential", "jwt", "key", "pass", "pwd", "secret", "sig",
          "token")  # fmt: skip
"""Every secret name has one of these in it."""
_PROSE = {"auth", "authorization", "bearer", "secret", "token"}
"""Names after which a colon may begin a sentence: ``unexpected token: ...``."""

_USER_INFO = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]{1,20}://)([^/?#\s\"'<>\\]+)@")
_QUERY = re.compile(r"([?&;](?:key|sig|signature)=)[^\s&#;\"'\\]+", re.IGNORECASE)
_SAYS = re.compile(  # name='value', "name": "value", name=value, name: value, --name value
    r"(?<![\w.-])(?P<name>[\w.-]++)(?:\\?[\"']?\s*[=:]\s*(?P<quote>\\?[\"'])|=|(?P<colon>: +))"
    r"|(?<!\S)(?P<option>--[\w.-]++) +"
)
"""A name, up to where its value begins."""
_BARE_VALUE = re.compile(r"[^\s&,;#\"'\\<>()\[\]{}]*")
_ARGUMENT = re.compile(r"(-{0,2}([\w.-]+)=)(?!env:).+", re.DOTALL)
_HEADER = re.compile(
    r"(\bauthorization\\?[\"']?\s*[:=]\s*\\?[\"']?(?:[a-z]+ )?+|\bbearer )[\w.~+/=-]{6,}",
    re.IGNORECASE,
)

_resolved: dict[str, None] = {}
"""Values that references stood for in this process."""
_forms: tuple[str, ...] = ()
_forms_are_of: tuple[int, dict[Any, Any]] = (0, {})


@functools.lru_cache(4096)
def looks_secret(name: str) -> bool:
    """Whether a setting or variable of this name holds a secret: ``api_key``, ``dbPassword``, ``HF_TOKEN``.

    Whole words at the end of the name count, so ``num_tokens``, ``token_dim`` and ``author`` do not.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    while words and words[-1] in _QUALIFIERS:
        words.pop()
    words = ["", *words]
    return words[-1] in _SECRET_WORDS or (words[-1] in _KEYS and words[-2] in _KINDS)


def resolve(value: Any) -> Any:
    """The value of the environment variable that ``env:NAME`` names; everything else as it is.

    A variable that is not set or empty is a `ConfigError`.
    """
    reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if reference is None:
        return value
    found = os.environ.get(reference[1])
    if not found:
        raise ConfigError(
            f"a setting says {value!r}, but the environment variable {reference[1]} is "
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
    """Why this text must not be written to a file under this name; None where it may."""
    if _tells_nothing(text):
        return None
    if looks_secret(name):
        return "looks like a secret by its name"
    if _has_password(text) or _without_names(text) != text:
        return "has credentials in it"
    for variable, value in _secret_variables():
        if any(form in text for form in _forms_of((value,))):
            return f"holds the value of the environment variable {variable}"
    return None


def _tells_nothing(text: str) -> bool:
    return not text or text == _MASK or _REFERENCE.fullmatch(text) is not None


def scrub(text: str) -> str:
    """The text without secrets.

    Hidden are values of references that were resolved, values of environment variables with secret names,
    credentials in URLs, and what stands behind a secret name, as in ``password=...``.
    """
    for form in _known_forms():
        if form in text:
            text = text.replace(form, _MASK)
    if "://" in text:
        text = _USER_INFO.sub(rf"\1{_MASK}@", text)
    return _without_names(text)


def scrub_all(data: Any) -> Any:
    """Nested mappings, lists and tuples without secrets in their texts; other values are kept."""
    return _scrub_below(data, is_secret=False)


def _scrub_below(data: Any, *, is_secret: bool) -> Any:
    if isinstance(data, str):
        return _MASK if is_secret and not _tells_nothing(data) else scrub(data)
    if isinstance(data, Mapping):
        return {
            scrub(name) if isinstance(name, str) else name: _scrub_below(
                value, is_secret=is_secret or looks_secret(str(name))
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
        if argument and looks_secret(argument[2]):
            return f"{argument[1]}{_MASK}"
        if isinstance(before, str) and before.startswith("--") and looks_secret(before):
            is_secret = True
    return _scrub_below(item, is_secret=is_secret)


def _without_names(text: str) -> str:
    """Hide what follows a name that looks like a secret; most texts have none of the stems."""
    lowered = text.lower()
    if not any(stem in lowered for stem in _STEMS):
        return text
    text = _HEADER.sub(rf"\1{_MASK}", text)
    text = _QUERY.sub(rf"\1{_MASK}", text)
    parts, reached = [], 0
    for match in _SAYS.finditer(text):
        if match.start() >= reached and _names_secret(match):
            end = _end_of_value(match)
            parts += [text[reached : match.end()], _MASK if end > match.end() else ""]
            reached = end
    return "".join([*parts, text[reached:]])


def _names_secret(match: re.Match[str]) -> bool:
    name = match["name"] or match["option"]
    is_prose = match["colon"] and name.lower() in _PROSE
    return looks_secret(name) and not is_prose and not _REFERENCE.match(match.string, match.end())


def _end_of_value(match: re.Match[str]) -> int:
    """Where a value ends: at its quote, at that of the whole argument, or at the next separator."""
    text, begin = match.string, match.end()
    before = text[max(match.start() - 1, 0) : match.start()]
    mark = match["quote"] or (before if before in ("'", '"') and text[begin - 1] == "=" else "")
    if not mark:
        return _BARE_VALUE.match(text, begin).end()  # type: ignore[union-attr]  # it matches anything
    end = text.find(mark, begin)
    return len(text) if end < 0 else end


def _has_password(text: str) -> bool:
    """Whether it has a URL with a password; ``ssh://git@host`` has none, ``https://x@host`` is a token."""
    found = _USER_INFO.findall(text)
    return any(":" in user or scheme.lower().startswith("http") for scheme, user in found)


def _known_forms() -> tuple[str, ...]:
    """What must not be shown, found anew whenever the environment or the resolved values change."""
    global _forms, _forms_are_of
    # the bytes behind os.environ: to decode all of it would take longer than the search
    state = len(_resolved), dict(getattr(os.environ, "_data", os.environ))
    if state != _forms_are_of:
        values = tuple(value for _, value in _secret_variables())
        _forms, _forms_are_of = _forms_of((*_resolved, *values)), state
    return _forms


def _secret_variables() -> list[tuple[str, str]]:
    return [(name, os.environ.get(name, "")) for name in list(os.environ) if looks_secret(name)]


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
    is_trivial = len(value) < _SHORTEST or len(set(value)) < 3 or value.lower() in _COMMON
    # variables like SSH_AUTH_SOCK name a file, not what is in it
    return not is_trivial and not (value.startswith("/") and _exists(value))


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long, or with a null character
        return False
