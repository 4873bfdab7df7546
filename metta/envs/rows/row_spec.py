"""Making environments, and what the environments of all rows have in common."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium import spaces

from metta.envs.call_order import check_action_space
from metta.envs.rows.action_masks import MaskLayout, mask_layout_of
from metta.envs.rows.env_api import checked_reset, require_gym_env
from metta.errors import EnvError
from metta.seeding import derive_seed
from metta.spaces import MASK_KEY, ObsSpec, obs_spec_of, without_texts

__all__ = [
    "EnvFactory",
    "GymEnv",
    "RowSpec",
    "build_env",
    "build_envs",
    "episode_seed",
    "probe_reset",
    "reset_env",
    "row_spec_of",
    "short_seed",
]

GymEnv = gymnasium.Env[Any, Any]
EnvFactory = Callable[[], GymEnv]

_PROBE_SEED = 0
_SEED_BITS = 31
"""Environments hand seeds to C code and to old random generators, which take 31 bits at most."""
_DERIVED_BITS = 63


@dataclass(frozen=True)
class RowSpec:
    """What every row of a vectorised environment has in common."""

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    obs_spec: ObsSpec
    mask_layout: MaskLayout | None
    """None where no masks are given."""
    probed: bool
    """Whether one reset of the first row was needed to find out about masks."""

    @property
    def mask_size(self) -> int:
        """Entries of a mask, 0 without masks."""
        return self.mask_layout.size if self.mask_layout is not None else 0

    def check(self, env: GymEnv, row: int) -> None:
        """Refuse an environment unlike the first row's (bounds of observations may differ)."""
        same_observations = obs_spec_of(env.observation_space) == self.obs_spec
        if same_observations and env.action_space == self.action_space:
            return
        raise EnvError(
            f"row {row} has observations {env.observation_space} and actions {env.action_space}, but "
            f"row 0 has {self.observation_space} and {self.action_space}; all environments of one run "
            "need the same spaces (pad or wrap them)"
        )


def build_env(factory: EnvFactory, row: int) -> GymEnv:
    """The environment of one row."""
    try:
        env = factory()
        return require_gym_env(env)
    except Exception as error:
        kind = "" if isinstance(error, EnvError) else f"{type(error).__name__}: "
        raise EnvError(f"the environment of row {row} could not be made: {kind}{error}") from error


def build_envs(factories: Mapping[int, EnvFactory]) -> dict[int, GymEnv]:
    """The environments of some rows; those already made are closed when one cannot be made."""
    envs: dict[int, GymEnv] = {}
    rows_by_env: dict[int, int] = {}
    with ExitStack() as undo:
        for row, factory in factories.items():
            envs[row] = build_env(factory, row)
            undo.callback(envs[row].close)
            first = rows_by_env.setdefault(id(envs[row]), row)
            if first != row:
                raise EnvError(
                    f"the factories of rows {first} and {row} returned the same object; a factory "
                    "must make a new environment at each call"
                )
        undo.pop_all()
    return envs


def row_spec_of(env: GymEnv) -> RowSpec:
    """Read an environment's spaces; it is reset once if only `info` can show whether it has masks."""
    obs_spec = obs_spec_of(env.observation_space)
    check_action_space(env.action_space)
    layout = mask_layout_of(env.action_space)
    announced, probed = obs_spec.mask_path is not None, False
    if layout is not None and not announced:
        announced, probed = MASK_KEY in probe_reset(env), True
    if announced and layout is None:
        raise EnvError(
            f"the environment gives an action mask, but its action space {env.action_space} cannot be "
            f"masked; drop the observation entry {MASK_KEY!r} or use a discrete action space"
        )
    space = without_texts(env.observation_space)
    return RowSpec(space, env.action_space, obs_spec, layout if announced else None, probed)


def probe_reset(env: GymEnv) -> dict[str, Any]:
    """The info of one reset of row 0, which every backend makes: they agree on reset counts too."""
    return reset_env(env, 0, _PROBE_SEED)[1]


def short_seed(derived: int) -> int:
    """The 31 bits of a derived seed that every random generator accepts."""
    return derived >> (_DERIVED_BITS - _SEED_BITS)


def episode_seed(row_seed: int, episode: int) -> int:
    """The seed of a row's k-th episode: the row's own seed for the first, a derived one for the rest.

    An episode is thus a function of this seed and its actions, whatever was played before it.
    """
    if episode == 0:
        return row_seed
    return short_seed(derive_seed(row_seed, "episode", index=episode))


def reset_env(env: GymEnv, row: int, seed: int) -> tuple[Any, dict[str, Any]]:
    """Observation and info of a reset."""
    try:
        return checked_reset(env, seed)
    except Exception as error:
        kind = "" if isinstance(error, EnvError) else f"{type(error).__name__}: "
        raise EnvError(f"row {row} failed in reset(seed={seed}): {kind}{error}") from error
