"""What an environment is, as recipes see it: read from its spaces, and for grids from a short probe."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.curriculum import Task
from metta.envs.factory import exists_already, make_vec_env, row_seeds
from metta.envs.restore.global_generators import global_generators_kept
from metta.envs.rows.action_masks import draw_action
from metta.envs.vec_env import VecEnv, agents_per_env
from metta.spaces import MIN_IMAGE_PIXELS, ObsLeaf
from metta.train.recipes import Applied, EnvFacts, ObservationKind, lacks_choices, with_recipe
from metta.train.train_config import TrainingConfig

__all__ = ["env_facts", "recipe_of"]

_PROBE_STEPS = 128
_PROBE_SEED = 1


def recipe_of(
    config: TrainingConfig,
    vec_env: VecEnv,
    env: Any,
    *,
    num_envs: int = 1,
    frozen: Mapping[str, Any] = MappingProxyType({}),
) -> Applied | None:
    """The recipe of a run on `num_envs` times this environment, which was made of `env`.

    None if nothing is left to set. `frozen` are values of an earlier recipe, which stay.
    """
    if not lacks_choices(config):
        return None
    about = config.trainer.curriculum
    facts = env_facts(vec_env, env, about.env_kwargs, about.wrappers)
    return with_recipe(config, dataclasses.replace(facts, rows=facts.rows * num_envs), frozen)


def env_facts(
    vec_env: VecEnv,
    env: Any = None,
    env_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Any] = (),
) -> EnvFacts:
    """The facts of an environment that was made.

    `env` is what it was made of. Only if a grid declares no range of its own is another one made of it
    and played for a few random steps; `vec_env` itself is never touched.
    """
    leaves, options = vec_env.obs_spec.leaves, {"env_kwargs": env_kwargs, "wrappers": wrappers}
    kind = _observation_kind(leaves)
    return EnvFacts(
        observation=kind,
        is_continuous=isinstance(vec_env.action_space, spaces.Box),
        rows=getattr(vec_env, "num_run_rows", vec_env.num_rows),
        agents=agents_per_env(vec_env),
        largest_code=_largest_code(vec_env, env, options) if kind == "codes" else 255,
        action_reach=_action_reach(vec_env.action_space),
    )


def _observation_kind(leaves: tuple[ObsLeaf, ...]) -> ObservationKind:
    grids = [leaf for leaf in leaves if leaf.is_grid]
    if any(leaf.is_image and sorted(leaf.shape)[1] >= MIN_IMAGE_PIXELS for leaf in grids):
        return "image"
    if grids:
        return "codes"
    return "vector" if any(leaf.kind == "box" for leaf in leaves) else "states"


def _action_reach(space: spaces.Space[Any]) -> float:
    """Half of the usual range of actions; 1 if they have no bounds."""
    if not isinstance(space, spaces.Box):
        return 1.0
    half = (np.asarray(space.high, float) - np.asarray(space.low, float)) / 2
    reach = float(np.median(half)) if half.size else 1.0
    return reach if math.isfinite(reach) and reach > 0 else 1.0


def _largest_code(vec_env: VecEnv, env: Any, options: dict[str, Any]) -> int:
    """The largest number of uint8 grids: as declared, or as seen where 255 only means a byte."""
    images = [leaf for leaf in vec_env.obs_spec.leaves if leaf.is_image]
    declared = max((_declared(vec_env.observation_space, leaf) for leaf in images), default=1)
    env = env[0] if isinstance(env, list | tuple) and env else env
    if declared < 255 or env is None or exists_already(env.env if isinstance(env, Task) else env):
        return declared
    return _seen(env, options, [leaf.key for leaf in images])


def _declared(space: spaces.Space[Any], leaf: ObsLeaf) -> int:
    box: Any = space
    for step in leaf.path:
        box = box[step]
    return int(np.max(box.high))


def _seen(env: Any, options: dict[str, Any], keys: list[str]) -> int:
    generator, largest = np.random.default_rng(_PROBE_SEED), 1
    with global_generators_kept(), closing(make_vec_env(env, **options)) as probe:
        obs = probe.obs_spec.zeros(probe.num_rows)
        result = probe.reset(row_seeds(_PROBE_SEED, probe.num_rows), obs)
        for _ in range(_PROBE_STEPS):
            largest = max(largest, *(int(obs[key].max()) for key in keys))
            masks = [None] * probe.num_rows if result.action_mask is None else result.action_mask
            actions = [draw_action(probe.action_space, mask, generator) for mask in masks]
            probe.send(0, np.stack(actions))
            result = probe.recv(0, obs)
    return largest
