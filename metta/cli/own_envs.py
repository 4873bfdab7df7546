"""Environments of your own in commands: ``module:Class``, ``module:Env-v0``, ``path/to/file.py:Class``.

Only an environment that the user names in a command may come from the current folder or from a file. One
that a stored configuration names must be importable already, so a file in a shared folder never runs by
itself.
"""

import importlib.util
import sys
from pathlib import Path

from metta.errors import ConfigError

__all__ = ["ENV_NAMES", "importable_env"]

ENV_NAMES = ("env", "env_id", "env_name", "env.id", "curriculum.env", "trainer.curriculum.env")
"""Settings that name an environment."""
_RESERVED = ("pettingzoo", "mettagrid")


def importable_env(env_id: str) -> str:
    """The id with its module made importable; ids without a module are returned as they are.

    A module that Python does not find is looked for in the current folder. A file is imported by the name
    of its module, so ``envs/maze.py:Maze`` becomes ``maze:Maze``.
    """
    module, colon, name = env_id.rpartition(":")
    if not colon or not module or module in _RESERVED:
        return env_id
    if module.endswith(".py"):
        return f"{_module_of_file(Path(module), env_id)}:{name}"
    top = module.partition(".")[0]
    if not _is_found(top) and _is_module_in(Path.cwd(), top):
        sys.path.append(str(Path.cwd()))
    return env_id


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
    if not _is_found(file.stem):
        sys.path.append(folder)
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
