"""Gymnasium's AsyncVectorEnv stepped with random actions: a process for each environment."""

import gymnasium
import numpy as np
from job_settings import read_settings, report

ROUND = 100


def main() -> None:
    """Step to the end."""
    s = read_settings()
    envs = gymnasium.make_vec(s.env, num_envs=s.num_envs, vectorization_mode="async")
    envs.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 2, (ROUND, s.num_envs))
    steps = 0
    while steps < s.steps:
        for chosen in actions:
            envs.step(chosen)
        steps += actions.size
        report(steps)
    envs.close()


if __name__ == "__main__":
    main()
