"""What recipes are told of an environment."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from metta.curriculum import Task
from metta.envs.factory import make_vec_env
from metta.envs.facts import env_facts
from metta.train.recipes import EnvFacts


class _Shown(gymnasium.Env[Any, Any]):
    """Shows constant observations of a space, `number` at most."""

    def __init__(self, observation_space: Any, action_space: Any = None, number: int = 7) -> None:
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)
        self.number, self.steps = number, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._see(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._see(), 0.0, False, self.steps % 5 == 0, {}

    def _see(self) -> Any:
        space = self.observation_space
        if isinstance(space, spaces.Box):
            return np.full(space.shape, self.number, space.dtype)
        return space.sample()


def _grid(high: int, size: int = 7, dtype: Any = np.uint8) -> spaces.Box:
    return spaces.Box(0, high, (size, size, 3), dtype)


FACTS: dict[str, tuple[Any, EnvFacts]] = {
    "CartPole-v1": ("CartPole-v1", EnvFacts("vector", is_continuous=False, rows=2)),
    "Pendulum-v1": (
        "Pendulum-v1",
        EnvFacts("vector", is_continuous=True, rows=2, action_reach=2.0),
    ),
    "FrozenLake-v1": ("FrozenLake-v1", EnvFacts("states", is_continuous=False, rows=2)),
    "Blackjack-v1": ("Blackjack-v1", EnvFacts("states", is_continuous=False, rows=2)),
    "grid/gather": ("grid/gather", EnvFacts("states", is_continuous=False, rows=8, agents=4)),
    "codes of a byte": (
        lambda: _Shown(_grid(255)),
        EnvFacts("codes", is_continuous=False, rows=2, largest_code=7),
    ),
    "declared codes": (
        lambda: _Shown(_grid(10)),
        EnvFacts("codes", is_continuous=False, rows=2, largest_code=10),
    ),
    "bits": (
        lambda: _Shown(spaces.Box(0, 1, (10, 10, 4), bool), number=1),
        EnvFacts("codes", is_continuous=False, rows=2, largest_code=1),
    ),
    "photographs": (
        lambda: _Shown(_grid(255, size=64)),
        EnvFacts("image", is_continuous=False, rows=2),
    ),
    "endless actions": (
        lambda: _Shown(spaces.Box(-9, 9, (3,)), spaces.Box(-np.inf, np.inf, (2,))),
        EnvFacts("vector", is_continuous=True, rows=2),
    ),
}


@pytest.mark.parametrize("name", FACTS)
def test_facts_follow_from_spaces_when_an_environment_is_made(name: str) -> None:
    env, expected = FACTS[name]
    vec_env = make_vec_env(env, num_envs=2)
    try:
        assert env_facts(vec_env, env) == expected
    finally:
        vec_env.close()


def test_an_environment_that_exists_is_not_played_when_its_facts_are_read() -> None:
    env = _Shown(_grid(255))
    vec_env = make_vec_env(env)
    assert env_facts(vec_env, env).largest_code == 255
    assert env.steps == 0


class _Strict(_Shown):
    """Allows action 1 alone, and fails at any other."""

    mask = np.array([False, True])

    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0], {"action_mask": self.mask}

    def step(self, action: Any) -> Any:
        assert action == 1
        return *super().step(action)[:4], {"action_mask": self.mask}


def test_only_legal_actions_are_taken_when_a_grid_is_probed() -> None:
    def make() -> Any:
        return _Strict(_grid(255))

    for env in (make, [make, make], Task(make)):
        vec_env = make_vec_env(env)
        try:
            assert env_facts(vec_env, env).largest_code == 7
        finally:
            vec_env.close()
