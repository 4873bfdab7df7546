"""The arguments of a command: a preset, files and settings. Slow imports wait until they are resolved."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from metta.cli.own_envs import ENV_NAMES, importable_env
from metta.errors import ConfigError

if TYPE_CHECKING:
    from metta.train.layers import Resolved

__all__ = [
    "DEFAULT_PRESET",
    "ARGUMENTS_HELP",
    "Arguments",
    "join_dotted",
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
_SETTING = re.compile(r"[\w.-]+=")
_FILES = (".yaml", ".yml")


class Arguments(NamedTuple):
    """The arguments of a command, sorted."""

    preset: str | None
    files: list[Path]
    settings: list[str]


def join_dotted(arguments: Sequence[str]) -> list[str]:
    """Dotted options as settings, written ``--ppo.clip-coef 0.1`` or ``--ppo.clip-coef=0.1``."""
    return list(_joined(iter(arguments)))


def _joined(arguments: Iterator[str]) -> Iterator[str]:
    for word in arguments:
        if not _DOTTED.match(word):
            yield word
            continue
        name, equals, value = word[2:].partition("=")
        if not equals:
            value = next(arguments, "--")
            if value.startswith("--"):
                raise ConfigError(f"{word} needs a value, e.g. {word} 1 or {word}=1")
        yield f"{name.replace('-', '_')}={value}"


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
    settings = [_with_importable_env(setting) for setting in settings]
    names = setting_paths()
    paths = {names.get(setting.partition("=")[0].replace("-", "_")) for setting in settings}
    if preset is None and not files and "trainer.curriculum.env" not in paths:
        preset = DEFAULT_PRESET
    return resolve(preset, files, [*settings, *extra])


def _with_importable_env(setting: str) -> str:
    name, equals, value = setting.partition("=")
    return f"{name}{equals}{importable_env(value)}" if name in ENV_NAMES else setting
