"""Steps metta's environments with random actions: no policy, no learning."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.speed.jobs.telling import report, told
from metta.envs.factory import make_vec_env, row_seeds

__all__ = ["step_randomly"]

_ROUND = 100
"""Steps of each environment between two reports."""


def step_randomly(details: Mapping[str, Any]) -> None:
    """Step all environments with actions that were drawn before, until ``steps``."""
    num_envs, workers = details["num_envs"], details["num_workers"]
    env = make_vec_env(details["env"], num_envs=num_envs, num_workers=workers)
    obs = env.obs_spec.zeros(env.num_rows)
    env.reset(row_seeds(0, env.num_rows), obs)
    actions = np.random.Generator(np.random.PCG64(0)).integers(0, 2, (_ROUND, env.num_rows))
    steps = 0
    try:
        while steps < details["steps"]:
            for chosen in actions:
                env.send(0, chosen)
                env.recv(0, obs)
            steps += actions.size
            report(steps)
    finally:
        env.close()


if __name__ == "__main__":
    step_randomly(told())
