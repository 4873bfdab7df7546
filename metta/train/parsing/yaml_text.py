"""YAML files as settings: every key has its line, every scalar stays the text that was written."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from metta.errors import ConfigError, UnsafeFileError
from metta.files import atomic_write
from metta.train.parsing.problems import shown
from metta.train.parsing.values import Key, Text
from metta.untrusted.files import read_bounded

__all__ = [
    "dump_yaml",
    "parse_settings",
    "parse_yaml",
    "read_inline",
    "read_settings",
    "read_yaml",
    "write_yaml",
]

_MAX_BYTES = 1 << 17
_MAX_NODES = 10_000
_MAX_DEPTH = 32
"""What the parser reads within a second; configurations have a hundredth of it."""
_MAX_DIGITS = 400
_EXPONENT_FLOAT = re.compile(r"^[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$")
_STANDARD = "tag:yaml.org,2002:"
_KINDS = {
    yaml.ScalarNode: "a single value",
    yaml.SequenceNode: "a list",
    yaml.MappingNode: "a mapping",
}
_SCALARS = {"null", "bool", "int", "float", "str", "timestamp", "value", "merge"}


class _Bounded(yaml.composer.Composer):
    """Composes nodes; refuses aliases and endless trees. Only scalars are ever constructed."""

    _depth = _nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """One node, counted."""
        parser: Any = self
        mark = parser.peek_event().start_mark
        if parser.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="aliases (*name) are not allowed; write the value again", problem_mark=mark
            )
        self._depth, self._nodes = self._depth + 1, self._nodes + 1
        if self._depth > _MAX_DEPTH or self._nodes > _MAX_NODES:
            limit = f"{_MAX_DEPTH} levels" if self._depth > _MAX_DEPTH else f"{_MAX_NODES} values"
            raise yaml.MarkedYAMLError(
                problem=f"more than {limit}; this is not a configuration", problem_mark=mark
            )
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Reader(_Bounded, yaml.SafeLoader):
    """The parser whose errors are shown."""


_Parser: Any = getattr(yaml.cyaml, "CParser") if yaml.__with_libyaml__ else yaml.SafeLoader  # noqa: B009  # stubs leave it out


class _FastReader(_Bounded, _Parser, yaml.resolver.Resolver):  # type: ignore[misc]  # one of two
    """The C parser, if available: several times as fast, but its errors have fewer details."""

    def __init__(self, text: str) -> None:
        _Parser.__init__(self, text)
        yaml.composer.Composer.__init__(self)
        yaml.resolver.Resolver.__init__(self)


class _Dumper(yaml.SafeDumper):
    """Quotes texts that `_Reader` would take for numbers, or a setting for nothing."""


for _kind in (_Reader, _FastReader, _Dumper):  # YAML 1.1 would read 1e-3 as a text
    _kind.add_implicit_resolver(f"{_STANDARD}float", _EXPONENT_FLOAT, list("-+0123456789"))
_Dumper.add_implicit_resolver(f"{_STANDARD}null", re.compile("^none$", re.IGNORECASE), ["n", "N"])


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a file, as nested dictionaries; `ConfigError` names file and line."""
    return parse_settings(read_settings(path), path)


def read_settings(path: Path) -> bytes:
    """The bytes of a file of settings, which is a regular one and not large; else `ConfigError`."""
    try:
        return read_bounded(path, _MAX_BYTES)
    except UnsafeFileError as error:
        why = error.__cause__.strerror if isinstance(error.__cause__, OSError) else str(error)
        raise ConfigError(f"{path}: cannot be read: {why}") from None


def parse_settings(content: bytes, path: Path) -> dict[str, Any]:
    """The settings in the bytes of a file."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text: {error.reason}") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """The settings in a text; errors call it `name`."""
    node = _compose(text, name)
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(
            f"{name}:{_line(node)}: found {_KINDS[type(node)]}, but a configuration is a mapping "
            "of names to values, e.g. learning_rate: 1e-3"
        )
    settings: dict[str, Any] = _value_of(node, name)
    return settings


def read_inline(text: str) -> Any:
    """A list or mapping on a command line, e.g. ``[a, b]`` or ``{gravity: -9.8}``; else the text itself."""
    if text.lstrip()[:1] not in ("[", "{"):
        return text
    node = _compose(text, "command line")
    return text if node is None else _value_of(node, "command line")


def dump_yaml(data: Mapping[str, Any]) -> str:
    """YAML text of plain data, in its order."""
    # not allow_unicode: its line breaks beyond ASCII would come back as spaces
    text: str = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, default_flow_style=False)
    return text


def write_yaml(path: str | os.PathLike[str], data: Mapping[str, Any]) -> Path:
    """Write plain data to a file, whole or not at all."""
    content = dump_yaml(data).encode()
    return atomic_write(path, lambda target: _write(target, content))


def _write(target: Path, content: bytes) -> None:
    target.write_bytes(content)


def _compose(text: str, name: str) -> yaml.Node | None:
    try:
        return _composed(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}" if mark is not None else ""
        why = " ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{name}{place}: not YAML: {why}") from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise ConfigError(f"{name}:{line}: not YAML: {error.reason}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name}: not YAML: {error}") from None


def _composed(text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_FastReader)
    except (yaml.YAMLError, ValueError):
        return yaml.compose(text, Loader=_Reader)


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _value_of(node: yaml.Node, name: str) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, name)
    if isinstance(node, yaml.SequenceNode):
        _check_tag(node, name, {"seq"})
        return [_value_of(item, name) for item in node.value]
    assert isinstance(node, yaml.ScalarNode)
    _check_tag(node, name, _SCALARS)
    return Text(node.value, _ordinary(node), quoted=bool(node.style))


def _mapping(node: yaml.MappingNode, name: str) -> dict[str, Any]:
    _check_tag(node, name, {"map"})
    settings: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(
                f"{name}:{_line(key)}: found {_KINDS[type(key)]} for a name; names are texts"
            )
        text = str(key.value)
        if text in lines:
            raise ConfigError(
                f"{name}:{_line(key)}: {shown(text)} is already set on line {lines[text]}; keep one of them"
            )
        lines[text] = _line(key)
        settings[Key(text, _line(key))] = _value_of(value, name)
    return settings


def _check_tag(node: yaml.Node, name: str, allowed: set[str]) -> None:
    if node.tag.removeprefix(_STANDARD) not in allowed:
        raise ConfigError(
            f"{name}:{_line(node)}: the tag {shown(node.tag)} is not allowed; leave it out"
        )


def _ordinary(node: yaml.ScalarNode) -> Any:
    """The YAML value of a scalar; dates stay texts, since JSON has no dates."""
    kind = node.tag.removeprefix(_STANDARD)
    if kind not in ("null", "bool", "int", "float") or len(node.value) > _MAX_DIGITS:
        return node.value
    try:
        return getattr(_SCALAR_VALUES, f"construct_yaml_{kind}")(node)
    except (ValueError, KeyError, IndexError):  # e.g. !!int abc, or too many digits
        return node.value


_SCALAR_VALUES = yaml.constructor.SafeConstructor()
