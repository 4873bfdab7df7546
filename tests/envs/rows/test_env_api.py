"""Environments of other interfaces: the error names what was found, and what to write."""

import sys
import types
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from metta.envs.factory import make_vec_env
from metta.envs.toy import CorridorEnv
from metta.errors import ConfigError, EnvError
from metta.rl.ppo_trainer import PPOTrainer

SEEN = np.zeros(2, np.float32)


class OldGymEnv:
    """The API of gym before 0.26, without a base class."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def seed(self, seed: int | None = None) -> list[int | None]:
        return [seed]

    def reset(self) -> np.ndarray:
        return SEEN

    def step(self, action: Any) -> Any:
        return SEEN, 0.0, False, {}


class OldReset(gymnasium.Env[Any, Any]):
    """Only the base class was replaced."""

    observation_space = OldGymEnv.observation_space
    action_space: Any = OldGymEnv.action_space

    def seed(self, seed: int | None = None) -> list[int | None]:
        return [seed]

    def reset(self) -> Any:  # type: ignore[override]  # the old one
        return SEEN

    def step(self, action: Any) -> Any:
        return SEEN, 0.0, False, {}


class SeededOldReset(OldReset):
    """Its observation of two numbers could be taken for an observation and an info."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return SEEN


class OldStep(SeededOldReset):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return SEEN, {}


class WithoutSpaces(gymnasium.Env[Any, Any]):
    pass


class DuckEnv:
    observation_space, action_space = OldGymEnv.observation_space, OldGymEnv.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return SEEN, {}

    def step(self, action: Any) -> Any:
        return SEEN, 0.0, False, False, {}


class HalfEnv:
    def reset(self) -> None: ...

    def step(self, action: Any) -> None: ...


class SpecEnv(HalfEnv):
    def observation_spec(self) -> None: ...

    def action_spec(self) -> None: ...


def failing_step(env: Any) -> None:
    """One step through the user's door."""
    settings: dict[str, Any] = {"num_envs": 1, "horizon": 2, "actor": "eager", "verbose": False}
    with PPOTrainer(None, env, **settings) as trainer:
        trainer.collect_rollouts()


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (OldGymEnv, r"OldGymEnv has a method seed\(\), the API of gym before 0.26.*GymV21"),
        (OldReset, r"OldReset has reset\(\) without seed \(it has a method seed\(\).*super\(\).reset"),
        (SeededOldReset, r"returned the observation alone \(ndarray\).*return observation, \{\}"),
        (OldStep, r"step\(\) of OldStep does not return 5 values .*got 4.*terminated"),
        (WithoutSpaces, r"WithoutSpaces has observation_space=None.*self.observation_space ="),
        (DuckEnv, r"DuckEnv is not a gymnasium.Env, though.*class MyEnv\(gymnasium.Env\)"),
        (HalfEnv, "HalfEnv has no observation_space, action_space, and is not a gymnasium.Env"),
        (SpecEnv, "interface of dm_env.*shimmy.DmControlCompatibilityV0"),
        (lambda: None, "it is None"),
        (lambda: 3, "int is not an environment: it has no reset, step"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_made", [False, True])
def test_the_interface_is_named_when_it_is_not_that_of_gymnasium(
    env: Any, says: str, is_made: bool
) -> None:
    given_none = is_made and env() is None
    expected = (ConfigError, "found no environment") if given_none else (EnvError, f"(?s){says}")
    with pytest.raises(expected[0], match=expected[1]):
        failing_step(env() if is_made else env)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (OldReset, r"OldReset has reset\(\) without seed"),
        (SeededOldReset, r"reset\(\) of SeededOldReset .*API of gym before 0.26"),
        (OldStep, r"step\(\) of OldStep does not return 5 values"),
    ],
)
def test_the_inner_environment_is_named_when_gymnasium_wraps_it(env: Any, says: str) -> None:
    gymnasium.register(f"{env.__name__}-v7", env, max_episode_steps=9)
    try:
        with pytest.raises(EnvError, match=f"(?s){says}"):
            failing_step(f"{env.__name__}-v7")
    finally:
        del gymnasium.registry[f"{env.__name__}-v7"]


def test_the_old_package_is_named_when_an_environment_is_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = types.ModuleType("gym.core")
    old.Env = type("Env", (), {"__module__": "gym.core"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gym.core", old)
    env = type("Maze", (OldGymEnv, old.Env), {})
    with pytest.raises(EnvError, match=r"Maze is an environment of the old package gym.*shimmy"):
        failing_step(env)


def test_an_error_of_the_environment_itself_is_not_taken_for_an_old_interface() -> None:
    class Broken(OldStep):
        def step(self, action: Any) -> Any:
            first, second = (1, 2, 3)  # type: ignore[misc]  # the error of its author
            return first + second

    with pytest.raises(EnvError, match=r"ValueError: too many values to unpack") as caught:
        failing_step(Broken)
    assert "API of gym" not in str(caught.value)


class Turns:
    """PettingZoo's AEC interface, of agents that cannot act at the same time."""

    def __init__(self, **metadata: Any) -> None:
        self.metadata = metadata
        self.possible_agents = ["a", "b"]

    def agent_iter(self) -> None: ...

    def last(self) -> None: ...

    def step(self, action: Any) -> None: ...

    def reset(self, seed: int | None = None, options: Any = None) -> None: ...

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)


@pytest.mark.parametrize("env", [Turns, Turns()])
def test_aec_is_named_when_agents_act_in_turn(env: Any) -> None:
    with pytest.raises(EnvError, match=r"Turns has PettingZoo's AEC interface.*ParallelEnv"):
        make_vec_env(env)


@pytest.mark.parametrize("kind", ["env", "parallel_env"])
def test_agents_are_rows_when_an_environment_of_pettingzoo_is_passed(kind: str) -> None:
    spread = pytest.importorskip("mpe2.simple_spread_v3")
    make = getattr(spread, kind)
    by_object, by_factory = make_vec_env(make()), make_vec_env(make, num_envs=2)
    try:
        assert (by_object.num_rows, by_factory.num_rows) == (3, 6)
        for vec_env in (by_object, by_factory):
            obs = vec_env.obs_spec.zeros(vec_env.num_rows)
            vec_env.reset(list(range(vec_env.num_rows)), obs)
            vec_env.send(0, np.zeros(vec_env.num_rows, np.int64))
            assert vec_env.recv(0, obs).valid.all()
    finally:
        by_object.close()
        by_factory.close()


def test_nothing_changes_when_an_environment_is_as_it_should_be() -> None:
    failing_step(CorridorEnv)
