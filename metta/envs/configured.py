"""The environments that a configuration asks for: as many as memory holds, in as many shards as it says."""

import dataclasses
import tracemalloc
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from metta.curriculum import Task
from metta.envs.backends.clipped_rewards import ClippedRewards
from metta.envs.backends.elsewhere import VecEnvElsewhere
from metta.envs.backends.lost_lives import LostLives
from metta.envs.backends.sharded import ShardedVecEnv
from metta.envs.factory import EnvLike, exists_already, make_vec_env, tasks_of
from metta.envs.families.atari import learns_clipped, learns_lives
from metta.envs.vec_env import VecEnv
from metta.errors import ConfigError, MettaWarning
from metta.train.machine import require_memory
from metta.train.train_config import RolloutConfig

__all__ = ["EnvSource", "configured_vec_env", "row_bytes"]

_ROW_NUMBERS_BYTES = 64
"""Rewards, flags, values and the like of one row and step, rounded up."""
_MANY_ENVS = 4096
_PROBED_ENVS = 8


@dataclass(frozen=True)
class EnvSource:
    """The environments of one shard, which can be made again, here or in another process."""

    env: EnvLike
    rollout: RolloutConfig
    """Of one shard."""
    env_kwargs: dict[str, Any] | None = None
    wrappers: Sequence[Any] = ()

    def make(self) -> VecEnv:
        """Make them."""
        rollout = self.rollout
        made = make_vec_env(
            self.env,
            num_envs=rollout.num_envs,
            num_workers=rollout.num_workers,
            num_groups=rollout.num_groups,
            env_kwargs=self.env_kwargs,
            wrappers=self.wrappers,
            step_timeout_seconds=rollout.step_timeout_seconds,
            start_timeout_seconds=rollout.start_timeout_seconds,
            max_worker_restarts=rollout.max_worker_restarts,
            on_env_error=rollout.on_env_error,
        )
        if made.obs_spec.texts:
            warnings.warn(
                f"{', '.join(map(repr, made.obs_spec.texts))} in the observation is text, which is left "
                "out: the policy does not see it (give its meaning as numbers if it matters)",
                MettaWarning,
                stacklevel=3,
            )
        tasks = tasks_of(self.env, self.env_kwargs or {})
        if tasks and all(learns_clipped(task.env, task.env_kwargs) for task in tasks):
            made = ClippedRewards(made)
        if tasks and all(learns_lives(task.env, task.env_kwargs) for task in tasks):
            made = LostLives(made)
        return made


def configured_vec_env(
    env: EnvLike,
    rollout: RolloutConfig,
    env_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Any] = (),
    *,
    num_local: int = 0,
    is_elsewhere: bool = False,
) -> VecEnv:
    """The environment that a configuration asks for, to learn from; refused if memory is too small.

    With ``num_shards`` above 1 it is a `ShardedVecEnv` of this rank's `num_local` shards (default: all).
    If it `is_elsewhere`, other processes make the environments, and a `VecEnvElsewhere` stands for
    those of each shard.
    """
    _require_room(env, rollout, {"env_kwargs": env_kwargs, "wrappers": wrappers})
    shards = rollout.num_shards
    if shards > 1 or is_elsewhere:
        _require_divisible(env)
    part = dataclasses.replace(
        rollout,
        num_shards=1,
        num_envs=rollout.num_envs // shards,
        num_workers=rollout.num_workers // shards,
    )
    source = EnvSource(env, part, env_kwargs, wrappers)
    made: list[VecEnv] = []
    try:
        if is_elsewhere:
            probe = dataclasses.replace(source, rollout=dataclasses.replace(part, num_workers=0))
            made = [cast("VecEnv", VecEnvElsewhere(probe.make(), source))] * (num_local or shards)
        else:
            made.extend(source.make() for _ in range(num_local or shards))
    except BaseException:
        for shard in made:
            shard.close()
        raise
    return made[0] if shards == 1 else cast("VecEnv", ShardedVecEnv(made, shards))


def _require_divisible(env: Any) -> None:
    """Only what metta makes itself can be made several times."""
    given = env if isinstance(env, list | tuple) else [env]
    for one in given:
        made_of = one.env if isinstance(one, Task) else one
        if isinstance(one, Task | str) and (isinstance(made_of, str) or callable(made_of)):
            continue
        if callable(one) and not isinstance(env, list | tuple) and not exists_already(one):
            continue
        raise ConfigError(
            "several shards, and shards that are collected elsewhere, need environments that can be made "
            f"again, and a {type(made_of).__name__} exists already; give an id or a factory, or set "
            "num_shards=1 and collect.kind=here"
        )


def _require_room(env: Any, rollout: RolloutConfig, options: dict[str, Any]) -> None:
    """Refuse many environments before they are made, by the memory that a few take."""
    count, horizon = rollout.num_envs, rollout.horizon
    first = env[0] if isinstance(env, list | tuple) and env else env
    if count <= _MANY_ENVS or not (isinstance(first, str | Task) or callable(env)):
        return
    taken, row_size = [], 0
    for few in (1, 1, 1 + _PROBED_ENVS):  # the first pays for what is loaded once
        tracemalloc.start()
        try:
            made = make_vec_env(env, num_envs=few, **options)
            taken.append(tracemalloc.get_traced_memory()[0])
            row_size = row_bytes(made) * made.num_rows // few
            made.close()
        finally:
            tracemalloc.stop()
    own = max(0, taken[2] - taken[1]) // _PROBED_ENVS
    require_memory(
        count * (own + horizon * row_size),
        f"num_envs={count:,} ({own:,} bytes for each environment, {horizon * row_size:,} for its "
        f"{horizon} steps of a rollout)",
        "lower num_envs or horizon",
    )


def row_bytes(env: VecEnv) -> int:
    """What one row and step takes in a rollout: observation, mask, action and about ten numbers."""
    actions = int(np.prod(env.action_space.shape or (1,)))
    return env.obs_spec.nbytes + env.mask_size + 8 * actions + _ROW_NUMBERS_BYTES
