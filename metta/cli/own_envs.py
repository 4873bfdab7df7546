"""Environments of your own in commands: ``module:Class``, ``module:Env-v0``, ``path/to/file.py:Class``.

Only an environment that the user names in a command may come from the current folder or from a file. One
that a stored configuration names must be importable already, so a file in a shared folder never runs by
itself. What a user has named stays known for that run: a note in the user's own cache says where its module
was, so the run is later resumed, scored and played without naming it again.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import sys
from pathlib import Path

from metta.errors import ConfigError, MettaError, UnsafeFileError

__all__ = ["ENV_NAMES", "importable_env", "importable_setting", "recall_env", "remember_env"]

ENV_NAMES = ("env", "env_id", "env_name", "env.id", "curriculum.env", "trainer.curriculum.env")
"""Settings that name an environment."""
_RESERVED = ("pettingzoo", "mettagrid", "envpool")
_NOTES = "own_envs"
_named: dict[str, str] = {}
"""Module -> folder, of what was named in this command."""


def importable_env(env_id: str) -> str:
    """The id with its module made importable; ids without a module are returned as they are.

    A module that Python does not find is looked for in the current folder. A file is imported by the name
    of its module, so ``envs/maze.py:Maze`` becomes ``maze:Maze``.
    """
    if env_id.endswith(".py"):
        raise ConfigError(f"{env_id!r} is a file; name the class in it too: {env_id}:CLASS")
    module, colon, name = env_id.rpartition(":")
    if not colon or not module or module in _RESERVED:
        return env_id
    if module.endswith(".py"):
        return f"{_module_of_file(Path(module), env_id)}:{name}"
    top = module.partition(".")[0]
    if _is_module_in(Path.cwd(), top):
        _import_from(top, str(Path.cwd()))
    return env_id


def importable_setting(setting: str) -> str:
    """As `importable_env`, of a setting ``env=...``; other settings are returned as they are."""
    name, equals, value = setting.partition("=")
    return f"{name}{equals}{importable_env(value)}" if name in ENV_NAMES else setting


def remember_env(run: Path, env_id: str) -> None:
    """Note where the environment of a run was found, if the user has named a file or folder for it."""
    module = env_id.rpartition(":")[0].partition(".")[0]
    if module not in _named:
        return
    with contextlib.suppress(UnsafeFileError, OSError):  # then it must be named again
        file = _note_of(run)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"module": module, "folder": _named[module]}))
        draft.replace(file)


def recall_env(run: Path, env_id: str) -> None:
    """Make the environment of a run importable as it was, if the user has named it when the run began."""
    module = env_id.rpartition(":")[0].partition(".")[0]
    if not module or _is_found(module):
        return
    from metta.untrusted.json_files import read_json

    with contextlib.suppress(MettaError, OSError, KeyError, TypeError):
        note = read_json(_note_of(run))
        if note["module"] == module and _is_module_in(Path(note["folder"]), module):
            _import_from(module, note["folder"])


def _note_of(run: Path) -> Path:
    from metta.private_folders import private_folder  # not for --help

    place = hashlib.sha256(os.fsencode(run.resolve())).hexdigest()[:32]
    return private_folder(_NOTES) / f"{place}.json"


def _import_from(module: str, folder: str) -> None:
    if not _is_found(module):
        sys.path.append(folder)
    _named[module] = folder


def _module_of_file(file: Path, env_id: str) -> str:
    if not file.is_file():
        raise ConfigError(
            f"{env_id!r} names a file that does not exist; found nothing at {str(file)!r}"
        )
    if not file.stem.isidentifier():
        raise ConfigError(
            f"{env_id!r}: a file is imported as a module, and {file.stem!r} cannot be the name of one; "
            "rename the file, with letters, digits and underscores only"
        )
    folder = str(file.parent.resolve())
    _import_from(file.stem, folder)
    spec = importlib.util.find_spec(file.stem)
    found = "" if spec is None or spec.origin is None else spec.origin
    if not found or Path(found).resolve() != file.resolve():
        raise ConfigError(
            f"{env_id!r}: Python has another module {file.stem!r} ({found or 'built in'}); rename the file"
        )
    return file.stem


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _is_module_in(folder: Path, module: str) -> bool:
    return (folder / f"{module}.py").is_file() or (folder / module).is_dir()
