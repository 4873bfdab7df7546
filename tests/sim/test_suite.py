"""Suites: each simulation in environments of its own."""

import itertools
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.curriculum import Task
from metta.envs.toy import ContinuousTargetEnv, CorridorEnv, CountdownEnv, MemoryEnv
from metta.errors import EnvError, MettaWarning, PolicyError
from metta.sim import Simulation, SuiteResults, run_suite
from metta.train.sim_config import SimulationConfig


def policy_for(env: gymnasium.Env) -> Policy:
    return make_policy(env.observation_space, env.action_space)


def simulation(env: Any, *, num_episodes: int = 3, **config: Any) -> Simulation:
    return Simulation(Task(env), num_episodes, 2, SimulationConfig(**config))


def test_each_simulation_has_its_own_scores_when_a_suite_is_played() -> None:
    policy = policy_for(CountdownEnv())
    suite = {
        "short/five": simulation(CountdownEnv),
        "short/three": simulation(lambda: CountdownEnv(3), num_episodes=4),
        "long/nine": simulation(lambda: CountdownEnv(9)),
    }
    results = run_suite(policy, suite, seed=1)
    scores = {"short/five": 15.0, "short/three": 6.0, "long/nine": 45.0}
    assert results.summary.simulation_scores == scores
    assert results.summary.category_scores == {"short": 10.5, "long": 45.0}
    assert len(results.episodes["short/three"].returns) == 4


def test_episodes_are_the_same_when_other_simulations_are_played_too() -> None:
    policy = policy_for(CorridorEnv())
    alone = run_suite(policy, {"a/b": simulation(CorridorEnv)}, seed=1)
    both = {"c/d": simulation(CorridorEnv, num_episodes=7), "a/b": simulation(CorridorEnv)}
    together = run_suite(policy, both, seed=1)
    assert together.episodes["a/b"].to_dict() == alone.episodes["a/b"].to_dict()


def test_the_likeliest_action_is_taken_when_a_simulation_is_greedy() -> None:
    policy = policy_for(CorridorEnv())
    greedy = {"a/b": simulation(CorridorEnv, greedy=True)}
    lengths = run_suite(policy, greedy, seed=1).episodes["a/b"].lengths
    assert len(set(lengths.tolist())) == 1  # nothing is left to chance


def test_unfit_simulations_are_left_out_when_the_suite_allows_it() -> None:
    policy = policy_for(CorridorEnv())
    suite = {
        "a/box": simulation(ContinuousTargetEnv),
        "a/fits": simulation(CorridorEnv),
        "a/memory": simulation(MemoryEnv),
    }
    results = run_suite(policy, suite, seed=1, skip_unfit=True)
    assert list(results.episodes) == ["a/fits"]
    assert list(results.left_out) == ["a/box", "a/memory"]
    assert "the environment gives" in results.left_out["a/box"]
    with pytest.raises(PolicyError, match="cannot play 'a/box'"):
        run_suite(policy, suite, seed=1)


def test_a_policy_error_is_raised_when_no_simulation_fits() -> None:
    with pytest.raises(PolicyError, match=r"fits no simulation of \['a/box'\]"):
        run_suite(
            policy_for(CorridorEnv()),
            {"a/box": simulation(ContinuousTargetEnv)},
            seed=1,
            skip_unfit=True,
        )


class Closing(CountdownEnv):
    open_envs = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).open_envs += 1

    def close(self) -> None:
        type(self).open_envs -= 1


def test_environments_are_closed_when_a_suite_ends_or_fails() -> None:
    policy = policy_for(CountdownEnv())
    run_suite(policy, {"a/b": simulation(Closing)}, seed=1)
    assert Closing.open_envs == 0
    with pytest.raises(PolicyError, match="cannot play"):
        run_suite(policy_for(MemoryEnv()), {"a/b": simulation(Closing)}, seed=1)
    assert Closing.open_envs == 0


@pytest.fixture
def _clock_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes with each step."""
    clock = SimpleNamespace(monotonic=itertools.count().__next__)
    monkeypatch.setattr("metta.sim.simulation.time", clock)


@pytest.mark.usefixtures("_clock_of_steps")
def test_missing_episodes_are_told_of_when_time_ends_a_simulation() -> None:
    factories = [CountdownEnv, lambda: CountdownEnv(10**9)]
    policy = policy_for(CountdownEnv())
    suite = {"a/b": simulation(factories, num_episodes=5, max_seconds=30)}
    with pytest.warns(MettaWarning, match=r"'a/b' was ended by max_seconds=30\.0: 1 of 5 episodes"):
        results = run_suite(policy, suite, seed=1)
    assert results.episodes["a/b"].num_missing == 1
    assert results.summary.simulation_scores == {"a/b": 15.0}


@pytest.mark.usefixtures("_clock_of_steps")
def test_an_env_error_says_what_to_do_when_no_episode_ended_in_time() -> None:
    endless = simulation(lambda: CountdownEnv(10**9), max_seconds=30)
    with pytest.raises(EnvError, match=r"no episode of 'a/b' ended within max_seconds=30\.0"):
        run_suite(policy_for(CountdownEnv()), {"a/b": endless}, seed=1)


def test_everything_is_there_again_when_results_were_plain_data() -> None:
    suite = {"a/b": simulation(CorridorEnv), "a/c": simulation(MemoryEnv)}
    results = run_suite(policy_for(CorridorEnv()), suite, seed=1, skip_unfit=True)
    again = SuiteResults.from_dict(results.to_dict())
    assert again.to_dict() == results.to_dict()
    assert again.summary == results.summary
    assert list(again.left_out) == ["a/c"]
