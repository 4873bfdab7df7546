"""One rule everywhere: settings that were not given follow from the environment."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium import spaces

from metta.cli.main import main
from metta.curriculum import Curriculum
from metta.envs.factory import make_vec_env
from metta.envs.toy import ContinuousTargetEnv, CorridorEnv
from metta.rl.components.trainer import Trainer
from metta.rl.functional_trainer import create_training_components
from metta.rl.ppo_trainer import PPOTrainer
from metta.train import recipes
from metta.train.settings import apply_settings, setting_values
from metta.train.train_config import TrainingConfig

SMALL = {"hidden_size": 8, "verbose": False, "horizon": 16}
QUICK = ["hidden_size=8", "horizon=16", "total_timesteps=128", "eval_episodes=0", "final_replay=false",
         "verbose=false"]  # fmt: skip
ENV = "Pendulum-v1"


def _config(**settings: Any) -> TrainingConfig:
    return apply_settings(TrainingConfig(), {"env": ENV, **SMALL, **settings})


def _followed(config: TrainingConfig) -> dict[str, Any]:
    paths = [choice.path for recipe in recipes.RECIPES.values() for choice in recipe.choices]
    values = setting_values(config)
    return {path: values[path] for path in paths}


def test_all_interfaces_take_the_same_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with PPOTrainer(None, ENV, **SMALL) as trainer:  # type: ignore[arg-type]  # settings by name
        expected, weights = _followed(trainer.config), trainer.policy.parameter_hash()
        assert trainer.recipe is not None
    assert expected["agent.normalize_observations"]
    with Trainer(_config()) as run:
        assert _followed(run.training_config) == expected
        assert run.policy.parameter_hash() == weights
    config = _config().trainer
    env = make_vec_env(ENV, num_envs=8)
    parts = create_training_components(
        config, None, None, env, curriculum=Curriculum(config.curriculum)
    )
    assert parts.config == run.config
    env.close()
    for words in ([ENV], [f"env={ENV}"]):
        assert main(["config", *words, "hidden_size=8", "horizon=16"]) == 0
        shown = TrainingConfig.from_dict(yaml.safe_load(capsys.readouterr().out))
        assert _followed(shown) == expected


def test_a_run_says_and_stores_its_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", ENV, *QUICK[:-1], "--output", str(tmp_path), "--run", "one"]) == 0
    shown = capsys.readouterr()
    assert "recipe 'continuous control' (continuous actions, observations of numbers)" in shown.err
    stored = json.loads((tmp_path / "one" / "provenance.json").read_text())["settings"]
    about = stored["trainer.ppo.update_epochs"]
    assert about["origin"].startswith("recipe continuous control: ")
    assert about["overrides"] == [{"value": 4, "origin": "default"}]
    assert stored["trainer.rollout.horizon"]["origin"] == "command line"
    assert main(["config", ENV, "--explain", "update_epochs"]) == 0
    assert "set by: recipe continuous control: " in capsys.readouterr().out


def test_a_named_preset_is_said_and_follows_no_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "pendulum", *QUICK[:-1], "num_minibatches=2", "--output", str(tmp_path)]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "training Pendulum-v1 with the preset pendulum for" in shown.out
    assert "recipe" not in shown.err


def test_a_run_keeps_its_recipe_when_recipes_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", ENV, *QUICK, "checkpoint_interval=1", "--output", str(tmp_path), "--run", "a"]
    assert main(words) == 0
    other = recipes.Recipe(
        "continuous control",
        tuple(
            choice._replace(value=5e-3) if choice.path.endswith("learning_rate") else choice
            for choice in recipes.RECIPES["continuous control"].choices
        ),
    )
    before = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())
    monkeypatch.setitem(recipes.RECIPES, "continuous control", other)
    more = ["total_timesteps=256" if word.startswith("total") else word for word in words]
    assert main(more) == 0
    after = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())
    assert after["trainer"]["total_timesteps"] == 256
    assert after["trainer"]["optimizer"] == before["trainer"]["optimizer"]
    assert after["trainer"]["optimizer"]["learning_rate"] != 5e-3


class _Codes(CorridorEnv):
    """A corridor seen as a grid of bytes that hold small numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (5, 5, 2), np.uint8)

    def reset(self, **options: Any) -> Any:
        _, info = super().reset(**options)
        return np.full((5, 5, 2), 6, np.uint8), info

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return np.full((5, 5, 2), 6, np.uint8), *rest


def test_small_numbers_are_scaled_by_their_range_when_a_grid_holds_codes() -> None:
    with PPOTrainer(None, _Codes, horizon=8, verbose=False) as trainer:
        assert trainer.config.agent.image_scale == 6.0
    with PPOTrainer(None, _Codes, horizon=8, verbose=False, normalize_images=True) as trainer:
        assert trainer.config.agent.image_scale == 255.0


def test_values_stay_in_the_range_of_returns_when_episodes_never_terminate() -> None:
    """Each rollout's scale once moved all values that were learned, which moved the next scale."""
    settings: dict[str, Any] = {"normalize_returns": True, "gamma": 0.99, "update_epochs": 10}
    with PPOTrainer(
        None, ContinuousTargetEnv, recipe="none", num_envs=4, horizon=64, verbose=False, **settings
    ) as trainer:
        for _ in range(12):
            data = trainer.collect_rollouts()
            trainer.learn(data)
    reach = data["rewards"].abs().max() / (1 - 0.99)
    assert data["values"].abs().max() < reach
