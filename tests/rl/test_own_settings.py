"""Settings that `PPOTrainer` cannot act on: refused, or warned of in a shared configuration."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from metta.envs.toy import CorridorEnv
from metta.errors import ConfigError, MettaWarning
from metta.rl.own_settings import checked_parts
from metta.rl.ppo_trainer import PPOTrainer
from metta.train.parsing.schema import leaves_of
from metta.train.presets import PRESETS
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

IDLE: list[tuple[str, Any, str]] = [
    ("tensorboard", True, "`metta train` do"),
    ("csv", True, r"Trainer\(config, run_dir="),
    ("evaluate_interval", 5, r"Trainer\(config, run_dir=.*EvaluationHook"),
    ("eval_episodes", 5, "does not evaluate"),
    ("suite", "classic", "does not evaluate"),
    ("wandb.mode", "online", r"Trainer\(config, run_dir="),
    ("wandb_checkpoint_interval", 5, r"Trainer\(config, run_dir="),
    ("checkpoint_interval", 5, "checkpoint_dir=FOLDER"),
    ("experiment_name", "mine", "names the folder of a run"),
    ("env_id", "CartPole-v1", "the environment is the second argument"),
    ("curriculum.kind", "random", "the environment is the second argument"),
]


@pytest.mark.parametrize(("name", "value", "answer"), IDLE)
def test_a_setting_is_refused_when_it_would_have_no_effect(
    name: str, value: Any, answer: str
) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"has no effect in PPOTrainer: .*{answer}"):
        PPOTrainer(None, CorridorEnv, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"tensorboard": False, "csv": False, "eval_episodes": 0, "wandb.mode": "off"},
        {"log_interval": 2, "keep_last": 1, "total_timesteps": 64},
        {"env_kwargs": {"length": 3}, "wrappers": ["TimeLimit(max_episode_steps=9)"]},
    ],
    ids=["switched off", "acting", "of the environment"],
)
def test_a_setting_is_taken_when_it_says_what_happens(settings: dict[str, Any]) -> None:
    with PPOTrainer(None, CorridorEnv, hidden_size=4, recipe="none", **settings) as trainer:
        assert trainer.config == apply_settings(
            TrainingConfig(), {"hidden_size": 4, "recipe": "none", **settings}
        )


def test_intervals_of_checkpoints_are_taken_when_there_is_a_folder(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_interval": 1, "horizon": 8, "num_envs": 1}
    with PPOTrainer(None, CorridorEnv, checkpoint_dir=tmp_path, **settings) as trainer:
        trainer.train(16)
        assert trainer.checkpointer is not None
        assert trainer.checkpointer.has_checkpoints()


def test_a_shared_configuration_warns_when_it_asks_for_what_a_run_does() -> None:
    shared = apply_settings(TrainingConfig(), {"evaluate_interval": 5, "tensorboard": True})
    with pytest.warns(MettaWarning, match="evaluate_interval=5, .*tensorboard=True") as caught:
        PPOTrainer(None, CorridorEnv, config=shared).close()
    assert caught[0].filename == __file__


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_shared_without_a_warning(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checked_parts(None, CorridorEnv, PRESETS[name](), {}, None)


def test_a_configuration_may_be_a_mapping_or_the_trainers_part() -> None:
    whole = TrainingConfig.from_dict({"lr": 1e-3})
    for given in (whole, whole.trainer, {"lr": 1e-3}):
        assert checked_parts(None, CorridorEnv, given, {}, None)[1] == whole


def test_every_setting_of_evaluation_is_refused() -> None:
    """A new one needs a decision here."""
    for path, leaf in leaves_of(TrainingConfig).items():
        if path.startswith("trainer.evaluation.") and leaf.kind in (int, float):
            with pytest.raises(ConfigError, match="has no effect"):
                checked_parts(None, CorridorEnv, None, {path: 7}, None)
