"""Adaptive difficulty with the phases apart: collect, evaluate, change the task, learn.

The goal of a hallway is too far away to be found by chance. It starts near and moves away whenever
most episodes reach it; without that, nothing is ever learned.

python examples/curriculum_learning.py [--steps N]
"""

import argparse
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from metta import PPOTrainer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20_480, help="agent steps of each run")
LENGTH, TIME_LIMIT = 24, 40


class Hallway(gymnasium.Env):
    """Walk from cell 0 to the goal: 1 on arrival, nothing else. Left is action 0, right is 1."""

    goal = LENGTH - 1  # of the class: every environment of this process plays the same difficulty

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (LENGTH,), np.float32)
        self.action_space = spaces.Discrete(2)

    def _observe(self) -> np.ndarray:
        return np.eye(LENGTH, dtype=np.float32)[self.position]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:  # noqa: ARG002  # gymnasium passes it
        super().reset(seed=seed)
        self.position = self.age = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.age += 1
        self.position = max(0, self.position + (1 if action == 1 else -1))
        arrived = self.position >= Hallway.goal
        return self._observe(), float(arrived), arrived, self.age >= TIME_LIMIT, {}


def train(steps: int, *, adaptive: bool) -> None:
    Hallway.goal = 4 if adaptive else LENGTH - 1
    with PPOTrainer(None, Hallway, seed=1, learning_rate=3e-3, ent_coef=0.01) as trainer:
        for epoch in range(max(1, steps // 1024)):
            data = trainer.collect_rollouts(128)  # 128 steps of 8 environments
            # evaluated before anything is learned: `terminated` is arrival, `truncated` the time limit
            arrived, late = int(data["terminated"].sum()), int(data["truncated"].sum())
            share = arrived / max(1, arrived + late)
            trainer.learn(data)
            if epoch % 4 == 0:
                print(
                    f"  epoch {epoch:>2}: goal at {Hallway.goal:>2}, {share:4.0%} of episodes arrive"
                )
            if adaptive and share > 0.6:
                Hallway.goal = min(LENGTH - 1, Hallway.goal + 3)
    print(f"  {'adaptive' if adaptive else 'fixed'}: goal at {Hallway.goal}, {share:.0%} arrive")


budget = parser.parse_args().steps
print("the goal moves away as it is reached:")
train(budget, adaptive=True)
print("the goal is far away from the beginning:")
train(budget, adaptive=False)
