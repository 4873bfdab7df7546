"""What `PPOTrainer`'s methods are given by mistake, and what they answer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from metta.curriculum import Curriculum
from metta.envs.toy import CorridorEnv
from metta.errors import ConfigError, MettaError, RolloutError
from metta.rl.components.trainer import Trainer
from metta.rl.ppo_trainer import PPOTrainer
from metta.store.rollout_file import save_rollout


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (-5, r"total_timesteps=-5\): allowed is a whole number from 1 to 9,223"),
        (0, r"total_timesteps=0\): allowed is a whole number from 1 to 9,223"),
        (1e30, r"total_timesteps=10000.*: allowed is a whole number from 1 to 9,223"),
        (True, "found True; allowed is a whole number of steps"),
        (100.5, r"found 100\.5; allowed is a whole number of steps"),
        ("100", "found '100'; allowed is a whole number of steps"),
    ],
)
def test_training_is_refused_when_its_steps_are_no_count(steps: Any, message: str) -> None:
    with PPOTrainer(None, CorridorEnv, horizon=8) as trainer:
        before = trainer.digest()
        with pytest.raises(ConfigError, match=message):
            trainer.train(steps)
        assert trainer.digest() == before


@pytest.mark.parametrize("steps", [True, False, 2.5, "8"])
def test_collecting_is_refused_when_its_steps_are_no_count(steps: Any) -> None:
    with (
        PPOTrainer(None, CorridorEnv, horizon=8) as trainer,
        pytest.raises(ConfigError, match=rf"n_steps=\.\.\.\): found {steps!r}; allowed is a whole"),
    ):
        trainer.collect_rollouts(n_steps=steps)


def test_a_round_float_or_a_numpy_integer_counts_steps() -> None:
    with PPOTrainer(None, CorridorEnv, horizon=8, num_envs=2) as trainer:
        assert trainer.collect_rollouts(np.int64(4))["rewards"].shape == (4, 2)  # type: ignore[arg-type]  # as users write it
        assert trainer.train(1e1)["agent_step"] == [16]  # type: ignore[arg-type]  # as users write it


OWN_COUNTS: dict[str, tuple[Callable[[], Any], str]] = {
    "VectorEnv": (lambda: SyncVectorEnv([CorridorEnv] * 8), "SyncVectorEnv given has 8"),
    "list": (lambda: [CorridorEnv] * 8, "list of factories given has 8"),
}


@pytest.mark.parametrize("kind", OWN_COUNTS)
@pytest.mark.parametrize("name", ["num_envs", "n_envs", "rollout.num_envs"])
def test_a_trainer_is_refused_when_it_should_have_another_number_of_environments(
    kind: str, name: str
) -> None:
    make, message = OWN_COUNTS[kind]
    settings: dict[str, Any] = {name: 4}
    with pytest.raises(ConfigError, match=f"num_envs=4, but the {message}"):
        PPOTrainer(None, make(), **settings)


def test_a_run_is_refused_when_it_should_have_another_number_of_environments() -> None:
    with pytest.raises(ConfigError, match="num_envs=3, but the list of factories given has 2"):
        Trainer({"num_envs": 3}, env=[CorridorEnv] * 2)


def test_no_number_is_suggested_when_a_list_has_no_environments() -> None:
    with pytest.raises(MettaError) as refused:
        PPOTrainer(None, [], num_envs=4)
    assert "num_envs" not in str(refused.value)


def test_one_of_two_is_asked_for_when_two_curricula_are_given() -> None:
    with pytest.raises(ConfigError, match="env= and curriculum= both say"):
        Trainer({}, Curriculum(env=CorridorEnv), env=Curriculum(env=CorridorEnv))


def test_the_order_is_explained_when_the_environment_comes_first() -> None:
    with pytest.raises(ConfigError, match="the policy comes first and may be None"):
        PPOTrainer(CorridorEnv(), "mlp")


def test_training_is_refused_when_its_arguments_would_have_no_effect() -> None:
    with PPOTrainer(None, CorridorEnv, horizon=8, num_envs=2) as trainer:
        with pytest.raises(ConfigError, match="always adds to the steps before"):
            trainer.train(16, reset_num_timesteps=True)
        with pytest.raises(ConfigError, match="found a str; allowed is a list"):
            trainer.train(16, hooks="progress")  # type: ignore[arg-type]  # as users write it
        assert trainer.train(16, reset_num_timesteps=False)


def test_learning_is_refused_when_a_file_comes_with_other_arguments(tmp_path: Path) -> None:
    with PPOTrainer(None, CorridorEnv, horizon=8, num_envs=2) as trainer:
        save_rollout(tmp_path / "rollout", trainer.collect_rollouts())
        with pytest.raises(ConfigError, match="has no argument 'epochs'"):
            trainer.learn(tmp_path / "rollout", epochs=3)
        assert trainer.learn(tmp_path / "rollout")


@pytest.mark.parametrize("settings", [{}, {"num_envs": 2}], ids=["left out", "equal"])
def test_a_trainer_has_the_environments_it_was_given(settings: dict[str, Any]) -> None:
    with PPOTrainer(None, [CorridorEnv] * 2, horizon=4, **settings) as trainer:
        assert trainer.collect_rollouts()["rewards"].shape == (4, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (100_000, r"use train\(total_timesteps=100000\)"),
        (None, r"got a NoneType; pass what collect_rollouts\(\) returns"),
        ([1.0], r"got a list; pass what collect_rollouts\(\) returns"),
    ],
)
def test_learning_is_refused_when_it_is_given_no_rollout(given: Any, message: str) -> None:
    with PPOTrainer(None, CorridorEnv, horizon=8) as trainer:
        before = trainer.digest()
        with pytest.raises(RolloutError, match=message):
            trainer.learn(given)
        assert trainer.digest() == before
