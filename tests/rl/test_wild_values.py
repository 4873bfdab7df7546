"""One absurd but finite number from an environment: bounded, told, and forgotten; through `metta train`."""

import csv
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from metta.cli.main import main
from metta.errors import MettaWarning
from metta.rl.learn.update_log import RareWarning
from metta.store.policy_store import PolicyStore

# the command prints them
pytestmark = pytest.mark.filterwarnings("default::metta.errors.MettaWarning")


class Wild(gymnasium.Env[Any, Any]):
    """Noise, and in the first environment, at one step, the number that was asked for."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self, observation: float = 0.0, reward: float = 0.0, at: int = 0) -> None:
        self.wild = (observation, reward) if Wild.made == 0 else (0.0, 0.0)
        Wild.made += 1
        self.at, self.steps = at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.standard_normal(2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        seen = self.np_random.standard_normal(2).astype(np.float32)
        observation, reward = self.wild if self.steps == self.at else (0.0, 0.0)
        seen[0] += np.float32(observation)
        return seen, float(action) + reward, self.steps % 16 == 0, False, {}


SMALL = [
    "total_timesteps=4096", "num_envs=4", "horizon=64", "num_minibatches=2", "update_epochs=1",
    "hidden_size=8", "eval_episodes=0", "final_replay=false", "checkpoint_interval=4",
    "normalize_observations=true", "normalize_returns=true", "env_restore=boundary", "logging.csv=true",
]  # fmt: skip
UPDATES = 16
Train = Callable[[str], tuple[str, list[dict[str, str]]]]


@pytest.fixture
def train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Train:
    """`metta train` with one wild number: what it says, and its rows of metrics."""
    monkeypatch.setattr(Wild, "made", 0)
    monkeypatch.setitem(gymnasium.registry, "Wild-v0", EnvSpec("Wild-v0", entry_point=Wild))

    def run(given: str) -> tuple[str, list[dict[str, str]]]:
        words = ["env=Wild-v0", *SMALL, f"env_kwargs={given}"]
        assert main(["train", *words, "--run", "wild", "--output", str(tmp_path)]) == 0
        with (tmp_path / "wild" / "metrics.csv").open() as file:
            return capsys.readouterr().err, list(csv.DictReader(file))

    return run


def scales(folder: Path) -> tuple[float, float]:
    """Of the spoilt observation, and of returns, at the end."""
    policy = PolicyStore(folder).load("wild:latest").policy
    assert policy.obs_normalizer is not None
    assert policy.return_normalizer is not None
    return float(policy.obs_normalizer.leaves[0].scale[0]), float(policy.return_normalizer.scale)


@pytest.mark.parametrize("at", [3, 300])  # in the first rollout, and in a later one
def test_normalisers_recover_from_one_wild_observation(
    train: Train, tmp_path: Path, at: int
) -> None:
    said, rows = train(f'{{"observation": 1e20, "at": {at}}}')
    assert said.count("metta: warning: ") == 1
    assert "1 of observations lay more than 100 deviations" in said
    assert sum(float(row["losses/bounded_values"]) for row in rows) == 1.0
    observation, _ = scales(tmp_path)
    assert 0.9 < observation < 2.5  # of one without: 1.0; with 1e20 among them: 1e18


def test_normalisers_recover_from_one_wild_reward(train: Train, tmp_path: Path) -> None:
    said, rows = train('{"reward": 1e12, "at": 300}')
    assert said.count("metta: warning: ") == 1
    assert "of returns lay more than 100 deviations" in said
    assert sum(float(row["losses/bounded_values"]) for row in rows) >= 1.0
    _, returns = scales(tmp_path)
    assert returns < 100.0  # with 1e12 among them: 1e10


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of 1e30, squared
def test_train_warns_of_skipped_steps(train: Train) -> None:
    said, rows = train('{"reward": 1e30, "at": 300}')
    assert said.count("metta: warning: ") == 1, said
    assert "optimizer steps were skipped because" in said
    assert sum(float(row["losses/skipped_steps"]) > 0 for row in rows) == 1
    assert len(rows) == UPDATES


def test_a_warning_that_comes_often_is_given_rarely() -> None:
    warn = RareWarning()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MettaWarning)
        for number in range(1, 101):
            warn(f"skipped {number}")
    assert [str(warning.message).split(";")[0] for warning in caught] == [
        "skipped 1",
        "skipped 10",
        "skipped 100",
    ]
