"""Which package an id of gymnasium belongs to: imported where it is installed, named where it is not.

Importing a package registers its environments, so that users need not import it themselves.
"""

import importlib
import importlib.util
import re
import sys
import warnings
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec

from metta.errors import MissingExtraError

__all__ = ["ATARI", "MINIGRID", "find_spec", "is_of", "load_box2d"]


class Family(NamedTuple):
    """Environments of one package."""

    package: str
    extra: str
    """The extra of metta that installs it."""
    ids: str
    """A pattern of the ids that importing it registers; empty if gymnasium knows them anyway."""
    module: str
    """Where their classes are."""


ATARI = Family("ale_py", "atari", r"ALE/|\w+NoFrameskip-v[04]$", "ale_py")
MINIGRID = Family("minigrid", "minigrid", r"(MiniGrid|BabyAI)-", "minigrid.envs")
BOX2D = Family("Box2D", "box2d", "", "gymnasium.envs.box2d")
FAMILIES = (ATARI, MINIGRID, Family("mujoco", "mujoco", "", "gymnasium.envs.mujoco"), BOX2D)


def find_spec(env_id: str) -> EnvSpec:
    """Gymnasium's specification of an id; gymnasium's error if there is none of this name.

    `MissingExtraError` if the environment needs a package that is not installed.
    """
    for family in FAMILIES:
        if family.ids and re.match(family.ids, env_id):
            _require(family, env_id)
            importlib.import_module(family.package)
    spec: EnvSpec = gymnasium.spec(env_id)
    for family in FAMILIES:
        if is_of(spec, family):
            _require(family, env_id)
    return spec


def is_of(spec: EnvSpec, family: Family) -> bool:
    """Whether an environment's class comes from a family."""
    entry: Any = spec.entry_point
    module = entry if isinstance(entry, str) else getattr(entry, "__module__", "")
    return bool(re.match(rf"{re.escape(family.module)}\b", module))


def load_box2d(spec: EnvSpec) -> None:
    """Import Box2D where an environment needs it: it warns while it loads, and crashes if that raises."""
    if is_of(spec, BOX2D) and BOX2D.package not in sys.modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(BOX2D.package)


def _require(family: Family, env_id: str) -> None:
    if importlib.util.find_spec(family.package) is None:
        raise MissingExtraError(family.package, family.extra, f"the environment {env_id}")
