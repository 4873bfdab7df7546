"""The arguments of a command: a preset, files and settings. Slow imports wait until they are resolved."""

import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from metta.cli.own_envs import importable_env, importable_setting
from metta.errors import ConfigError

if TYPE_CHECKING:
    from metta.train.layers import Resolved

__all__ = [
    "DEFAULT_PRESET",
    "ARGUMENTS_HELP",
    "Arguments",
    "join_settings",
    "resolve_arguments",
    "sort_arguments",
]

DEFAULT_PRESET = "grid"
"""The preset that is trained if no preset, file or environment is given."""

ARGUMENTS_HELP = (
    "a preset, a Gymnasium id or your own environment, e.g. my_module:MyEnv or path/my_env.py:MyEnv "
    "(default: grid, if no file or env is given), YAML files, and settings "
    "such as lr=1e-3 or --trainer.ppo.clip-coef 0.1; later ones win"
)
"""Help of the arguments."""

_DOTTED = re.compile(r"--[A-Za-z_][\w-]*\.[\w.-]+(?:=|$)")
_BOOLEANS = ("true", "false", "yes", "no", "on", "off", "0", "1")
_SETTING = re.compile(r"[\w.-]+=")
_FILES = (".yaml", ".yml")


class Arguments(NamedTuple):
    """The arguments of a command, sorted."""

    preset: str | None
    files: list[Path]
    settings: list[str]


def join_settings(arguments: Sequence[str], options: Container[str] = ()) -> list[str]:
    """Settings that are written as options: ``--lr 1e-3``, ``--ppo.clip-coef=0.1``, ``--no-anneal-lr``.

    `options` are the command's own, which stay as they are. A switch without a value is on.
    """
    return list(_joined(list(arguments), options))


def _joined(words: list[str], options: Container[str]) -> Iterator[str]:
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        name = option[2:].replace("-", "_")
        if option in options or not option.startswith("--") or not _is_setting(option, name):
            yield word
            continue
        following = words[0] if words else "--"
        if equals:
            yield f"{name}={value}"
        elif name.startswith("no_") and _is_switch(name[3:]):
            yield f"{name[3:]}=false"
        elif _is_switch(name) and following.lower() not in _BOOLEANS and not following.isdigit():
            yield f"{name}=true"
        elif following.startswith("--"):
            raise ConfigError(f"{word} needs a value, e.g. {word} 1 or {word}=1")
        else:
            yield f"{name}={words.pop(0)}"


def _is_setting(option: str, name: str) -> bool:
    """Whether an option that the command does not have is a setting, of metta or of another library."""
    from metta.train.foreign_names import FOREIGN_NAMES
    from metta.train.settings import setting_paths

    if _DOTTED.match(option):
        return True
    known = {*setting_paths(), *FOREIGN_NAMES}
    return name in known or (name.startswith("no_") and _is_switch(name[3:]))


def _is_switch(name: str) -> bool:
    from metta.train.foreign_names import SWITCHES
    from metta.train.settings import leaf_at, setting_paths

    path = setting_paths().get(name)
    return name in SWITCHES or (path is not None and leaf_at(path).kind is bool)


def sort_arguments(words: Sequence[str]) -> Arguments:
    """Sort arguments into preset, files and settings by how they are written."""
    preset: str | None = None
    files: list[Path] = []
    settings: list[str] = []
    for word in words:
        if "=" in word and (_SETTING.match(word) or not word.endswith(_FILES)):
            settings.append(word)
        elif word.endswith(_FILES):
            files.append(Path(word))
        elif preset is None and word:
            preset = word
        elif preset is not None and "-" not in word and "." not in word:
            raise ConfigError(
                f"{preset!r} is the preset already, and {word!r} is neither a setting (NAME=VALUE, e.g. "
                "learning_rate=1e-3) nor a YAML file"
            )
        else:
            raise ConfigError(
                f"{word!r} is not a setting; write NAME=VALUE, e.g. learning_rate=1e-3, or the name of a "
                "YAML file"
            )
    return Arguments(preset, files, settings)


def resolve_arguments(words: Sequence[str], extra: Sequence[str] = ()) -> "Resolved":
    """The configuration that the arguments describe; `extra` settings come last."""
    from metta.train.layers import resolve
    from metta.train.settings import setting_paths

    preset, files, settings = sort_arguments(words)
    preset = preset and importable_env(preset)
    settings = [importable_setting(setting) for setting in settings]
    names = setting_paths()
    paths = {names.get(setting.partition("=")[0].replace("-", "_")) for setting in settings}
    if preset is None and not files and "trainer.curriculum.env" not in paths:
        preset = DEFAULT_PRESET
    return resolve(preset, files, [*settings, *extra])
