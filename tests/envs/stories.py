"""What a vectorised environment tells when it is played with chosen actions; free of pytest."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from metta.envs.vec_env import StepResult, VecEnv

Nothing = lambda step, group: None  # noqa: E731


def told_by(
    vec_env: VecEnv,
    num_steps: int,
    *,
    before_recv: Callable[[int, int], Any] = Nothing,
    resets: bool = True,
) -> list[str]:
    """A digest of everything seen in each step of each group, with every group under way at once."""
    groups, size = vec_env.num_groups, vec_env.num_rows // vec_env.num_groups
    obs, told = vec_env.obs_spec.zeros(vec_env.num_rows), []
    if resets:
        told.append(digest(vec_env.reset(range(10, 10 + vec_env.num_rows), obs), obs))
    generator = np.random.default_rng(5)
    for step in range(num_steps):
        for group in range(groups):
            vec_env.send(group, draw(vec_env, generator, size))
        for group in range(groups):
            before_recv(step, group)
            # memory of its own for each step, as in a rollout
            part = vec_env.obs_spec.zeros(size)
            told.append(digest(vec_env.recv(group, part), part))
    return told


def draw(vec_env: VecEnv, generator: np.random.Generator, size: int) -> np.ndarray:
    low, high = (0, 2) if vec_env.action_space.dtype == np.int64 else (-1, 1)
    shape = (size, *(vec_env.action_space.shape or ()))
    if vec_env.action_space.dtype == np.int64:
        return generator.integers(low, high, shape)
    return generator.uniform(low, high, shape).astype(vec_env.action_space.dtype)


def digest(result: StepResult, obs: Any) -> str:
    arrays = [*obs.values(), result.rewards, result.terminated, result.truncated, result.valid]
    arrays += [result.starts] + ([] if result.action_mask is None else [result.action_mask])
    arrays += [] if result.final is None else [result.final.rows, *result.final.obs.values()]
    seen = b"|".join(array.tobytes() for array in arrays)
    return hashlib.sha256(seen + repr((result.infos, result.lost)).encode()).hexdigest()
