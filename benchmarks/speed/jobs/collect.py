"""Collects without learning, from an environment whose step is a given amount of work."""

import time
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from benchmarks.speed.jobs.telling import report, told
from metta.rl.ppo_trainer import PPOTrainer

__all__ = ["WORK_SECONDS", "WorkingEnv", "collect"]

WORK_SECONDS = 1e-3
"""Processor time of one step."""
_EPISODE = 200


class WorkingEnv(gymnasium.Env[np.ndarray, np.int64]):
    """Computes for a millisecond in each step; its episodes last 200 steps."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._steps = 0
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Work, whoever else wants the processor meanwhile."""
        until = time.thread_time() + WORK_SECONDS
        while time.thread_time() < until:
            pass
        self._steps += 1
        obs = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        return obs, float(action), False, self._steps >= _EPISODE, {}


def collect(details: Mapping[str, Any]) -> None:
    """Rollouts of 128 steps per environment until ``steps``."""
    settings = {name: details[name] for name in ("num_envs", "num_workers", "num_groups")}
    settings |= {"horizon": 128, "driver": "eager"}  # nothing learns, so nothing need be compiled
    with PPOTrainer(None, WorkingEnv, **settings) as trainer, trainer.plan.applied():
        steps = 0
        while steps < details["steps"]:
            steps += trainer.collector.collect()[1]
            report(steps)


if __name__ == "__main__":
    collect(told())
