"""Environments of several tasks, and of several agents; free of torch, so that workers start quickly."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NAMES = ["early", "late", "cut"]


class Party:
    """`early` dies after 2 steps, `late` joins after 2 and dies after 5, `cut` is cut short after `length`.

    An agent sees (its index + 1, step, last action), and earns 10 * index + action.
    """

    def __init__(self, length: int = 4, masked: bool = False, noise: bool = False) -> None:
        self.possible_agents = list(NAMES)
        self.agents: list[str] = []
        self.length, self.masked, self.noise = length, masked, noise
        self.now, self.random = 0, np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        plain = spaces.Box(-100, 100, (3,), np.float32)
        mask = spaces.MultiBinary(3)
        return spaces.Dict({"seen": plain, "action_mask": mask}) if self.masked else plain

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.random = np.random.default_rng(seed)
        self.now, self.agents = 0, ["early", "cut"]
        return {name: self._see(name, 0) for name in self.agents}, {n: {} for n in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert sorted(actions) == sorted(self.agents)
        assert all(type(action) is int for action in actions.values())
        self.now += 1
        acting = list(self.agents)
        rewards = {name: 10.0 * NAMES.index(name) + actions[name] for name in acting}
        ended = {"early": self.now >= 2, "late": self.now >= 5, "cut": False}
        cut = {"early": False, "late": False, "cut": self.now >= self.length}
        self.agents = [name for name in acting if not (ended[name] or cut[name])]
        if self.now == 2:
            self.agents = [*self.agents, "late"]
        seen = {n: self._see(n, actions.get(n, 0)) for n in NAMES if n in (*acting, *self.agents)}
        infos = {name: {"age": self.now, "word": "no number"} for name in acting}
        return seen, rewards, {n: ended[n] for n in acting}, {n: cut[n] for n in acting}, infos

    def _see(self, name: str, action: int) -> Any:
        noise = float(self.random.integers(50)) if self.noise else float(action)
        seen = np.array([NAMES.index(name) + 1, self.now, noise], np.float32)
        mask = np.array([1, self.now % 2, name == "cut"], np.int8)
        return {"seen": seen, "action_mask": mask} if self.masked else seen

    def get_state(self) -> dict[str, Any]:
        return {"now": self.now, "agents": list(self.agents), "random": self.random}

    def set_state(self, state: dict[str, Any]) -> None:
        self.now, self.agents, self.random = state["now"], state["agents"], state["random"]

    def render(self) -> None:
        return None

    def close(self) -> None:
        return None


class CountingEnv(gymnasium.Env[Any, Any]):
    """Observes (task, step, seed's last digits); an episode of task k has k + 2 steps."""

    observation_space = gymnasium.spaces.Box(0, 1000, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    num_closed = 0

    def __init__(self, task: int = 0, has_state: bool = True) -> None:
        self.task, self.now, self.number = task, 0, 0
        self.has_state = has_state

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.now, self.number = 0, int(self.np_random.integers(1000))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.now += 1
        reward = float(self.np_random.integers(100)) + float(action)
        return self._observe(), reward, self.now >= self.task + 2, False, {}

    def get_state(self) -> dict[str, Any]:
        if not self.has_state:
            raise RuntimeError("nobody knows it")
        return {"now": self.now, "number": self.number, "generator": self.np_random}

    def set_state(self, state: dict[str, Any]) -> None:
        self.now, self.number, self.np_random = state["now"], state["number"], state["generator"]

    def close(self) -> None:
        type(self).num_closed += 1

    def _observe(self) -> np.ndarray:
        return np.array([self.task, self.now, self.number], np.float32)
