"""Simulations and suites as settings."""

from pathlib import Path

import gymnasium
import pytest

from metta.errors import ConfigError
from metta.train.parsing.yaml_text import write_yaml
from metta.train.sim_config import (
    SUITES,
    SimulationConfig,
    SimulationSuiteConfig,
    find_suite,
    read_suite,
)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"policy_agents_pct": 0.5}, "name the policy of the others as npc_policy_uri"),
        ({"npc_policy_uri": "a:best"}, "policy_agents_pct=1 leaves it no agent"),
        ({"policy_agents_pct": 0.0}, "allowed is a number above 0 and at most 1"),
        ({"num_episodes": 0}, "allowed is a whole number of at least 1, or null"),
        ({"max_seconds": 0.0}, "allowed is a number above 0, or null"),
        ({"envv": "x"}, "did you mean 'env'"),
    ],
)
def test_the_error_says_what_is_allowed_when_a_simulation_is_wrong(
    settings: dict, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        SimulationConfig(**settings)


@pytest.mark.parametrize("name", ["cartpole", "/cartpole", "classic/"])
def test_a_name_without_a_category_is_refused_when_a_suite_is_made(name: str) -> None:
    with pytest.raises(ConfigError, match="has no category"):
        SimulationSuiteConfig(simulations={name: SimulationConfig()})


def test_nothing_can_be_changed_when_a_suite_is_made() -> None:
    with pytest.raises(AttributeError):
        SUITES["classic"].name = "other"  # type: ignore[misc]


def test_every_environment_exists_when_a_suite_has_a_name() -> None:
    for name, suite in SUITES.items():
        assert suite.name == name
        assert suite.simulations
    for simulation in SUITES["classic"].simulations.values():
        assert simulation.env in gymnasium.registry


def test_a_file_gives_the_same_suite_when_one_was_written(tmp_path: Path) -> None:
    suite = SimulationSuiteConfig(
        name="mine",
        simulations={
            "nav/a": SimulationConfig(env="CartPole-v1", num_episodes=5, greedy=True),
            "nav/b": SimulationConfig(env_kwargs={"x": 1.5}, max_seconds=2.0),
            "team/c": SimulationConfig(npc_policy_uri="a:best", policy_agents_pct=0.25),
        },
        skip_unfit=True,
    )
    path = write_yaml(tmp_path / "suite.yaml", suite.to_dict())
    assert find_suite(str(path)) == suite


def test_values_are_read_by_their_types_when_a_file_is_short(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "simulations:\n  a/b:\n  a/c: {num_episodes: 1e2, greedy: on, env_kwargs: {g: 9.8, n: 3}}\n"
    )
    suite = read_suite(path)
    assert suite.name == "mine"
    assert suite.simulations["a/b"] == SimulationConfig()
    wanted = SimulationConfig(num_episodes=100, greedy=True, env_kwargs={"g": 9.8, "n": 3})
    assert suite.simulations["a/c"] == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x\n", "found None as simulations"),
        ("simulations: [1]\n", "as simulations"),
        ("simulations:\n  a/b: 3\n", r":2: simulation 'a/b': found '3'; allowed is a mapping"),
        ("simulations:\n  a/b: {env: x, episodes: 3}\n", "unknown setting 'episodes'"),
        ("simulations:\n  a/b: {num_episodes: x}\n", r"simulation 'a/b': num_episodes: found 'x'"),
        ("simulations:\n  ab: {env: x}\n", "has no category"),
        ("suit: 3\nsimulations:\n  a/b: {}\n", "unknown setting 'suit'"),
        ("- 1\n", "a configuration is a mapping"),
    ],
)
def test_the_place_is_named_when_a_file_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        read_suite(path)
    assert str(path) in str(caught.value)


def test_known_suites_are_named_when_there_is_none_of_this_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'classic'\?; suites are classic"):
        find_suite("clasic")
    with pytest.raises(ConfigError, match="cannot be read"):
        find_suite(str(tmp_path / "none.yaml"))
