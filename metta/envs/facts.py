"""What an environment is, as recipes see it: read from its spaces, and for grids from a short probe."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from metta.curriculum import Task
from metta.envs.factory import make_vec_env, row_seeds
from metta.envs.vec_env import VecEnv, agents_per_env
from metta.spaces import MIN_IMAGE_PIXELS, ObsLeaf
from metta.train.recipes import EnvFacts, ObservationKind

__all__ = ["env_facts"]

_PROBE_STEPS = 128
_PROBE_SEED = 1


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
        rows=vec_env.num_rows,
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
    is_made_here = isinstance(env, str | Task) or (callable(env) and not isinstance(env, VectorEnv))
    if declared < 255 or not is_made_here:
        return declared
    return _seen(env, options, [leaf.key for leaf in images])


def _declared(space: spaces.Space[Any], leaf: ObsLeaf) -> int:
    box: Any = space
    for step in leaf.path:
        box = box[step]
    return int(np.max(box.high))


def _seen(env: Any, options: dict[str, Any], keys: list[str]) -> int:
    probe = make_vec_env(env, **options)
    try:
        obs = probe.obs_spec.zeros(probe.num_rows)
        probe.reset(row_seeds(_PROBE_SEED, probe.num_rows), obs)
        probe.action_space.seed(_PROBE_SEED)
        largest = 1
        for _ in range(_PROBE_STEPS):
            largest = max(largest, *(int(obs[key].max()) for key in keys))
            actions = np.stack([probe.action_space.sample() for _ in range(probe.num_rows)])
            probe.send(0, actions)
            probe.recv(0, obs)
        return largest
    finally:
        probe.close()
