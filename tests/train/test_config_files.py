"""The example files, loaded and built as users would."""

from pathlib import Path

import pytest

from metta.rl.ppo_trainer import PPOTrainer
from metta.train.layers import resolve

FILES = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


# Box2D's wrapper warns while it loads, and crashes where that warning is an error
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_trainer_can_be_built_when_an_example_file_is_read(path: Path) -> None:
    resolved = resolve(None, [path], ["num_workers=0"])
    config = resolved.config
    assert config.trainer.rollout.num_envs > 1
    assert str(resolved.origins["trainer.rollout.num_envs"]).startswith(f"{path}:")
    with PPOTrainer(None, config.env, config=config) as trainer:
        assert trainer.env.num_rows == config.trainer.rollout.num_envs


def test_there_is_a_file_for_every_kind_when_examples_are_listed() -> None:
    names = {path.stem for path in FILES}
    assert {"cartpole", "lunar_lander", "pendulum", "recurrent", "fast"} <= names


def test_only_what_it_names_changes_when_the_fast_file_lies_over_a_preset() -> None:
    (fast,) = [path for path in FILES if path.stem == "fast"]
    config = resolve("lunar_lander", [fast]).config
    assert config.env == "LunarLander-v3"
    assert config.trainer.total_timesteps == 4096
