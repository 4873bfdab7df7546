"""Environments of many agents whose returns are known."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from metta.agent.policy import Policy

OBSERVATIONS = spaces.Box(0.0, 100.0, (1,), np.float32)
ACTIONS = spaces.Discrete(2)


class Team:
    """Episodes of 1 or 9 steps. Agent i earns 10 * i + 1 with action 1 and 0 with action 0 in each step.

    The last agent leaves after the first step. At the end each tells the numbers `age` and `name`.
    """

    def __init__(self, num_agents: int = 3, lengths: tuple[int, ...] = (1, 9)) -> None:
        self.possible_agents = [f"agent{index}" for index in range(num_agents)]
        self.agents: list[str] = []
        self.lengths, self.now, self.length = lengths, 0, 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return OBSERVATIONS

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return ACTIONS

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.length = int(np.random.default_rng(seed).choice(self.lengths))
        self.now, self.agents = 0, list(self.possible_agents)
        return self._seen(self.agents), {name: {} for name in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self.now += 1
        acting, index = list(self.agents), self.possible_agents.index
        rewards = {name: float((10 * index(name) + 1) * actions[name]) for name in acting}
        over = {
            name: self.now >= self.length or name == self.possible_agents[-1] for name in acting
        }
        self.agents = [name for name in acting if not over[name]]
        infos = {name: {"age": self.now, "name": index(name)} for name in acting}
        return self._seen(acting), rewards, over, dict.fromkeys(acting, False), infos

    def _seen(self, names: list[str]) -> dict[str, np.ndarray]:
        return {name: np.array([self.now], np.float32) for name in names}

    def render(self) -> None:
        return None

    def close(self) -> None:
        return None


class Always(nn.Module):
    """Takes one action, whatever it sees."""

    def __init__(self, action: int) -> None:
        super().__init__()
        self.register_buffer("logits", torch.eye(2)[action] * 100.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.logits.expand(len(obs), 2), torch.zeros(len(obs))


def always(action: int) -> Policy:
    """A policy for teams."""
    return Policy(Always(action), OBSERVATIONS, ACTIONS)
