"""Recipes as data, and how they meet what was chosen."""

import dataclasses

import gymnasium
import numpy as np
import pytest

from metta import PPOTrainer
from metta.envs.toy import CountdownEnv
from metta.train.layers import resolve
from metta.train.presets import PRESETS
from metta.train.recipes import RECIPES, EnvFacts, lacks_choices, recipe_for, with_recipe
from metta.train.settings import apply_settings, given_paths, leaf_at, setting_values
from metta.train.train_config import OptimizerConfig, TrainerConfig, TrainingConfig

CONTROL = EnvFacts("vector", is_continuous=True, rows=8)
LEARNING_RATE = "trainer.optimizer.learning_rate"


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_a_reason_for_every_setting_that_exists(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.name == name
    paths = [choice.path for choice in recipe.choices]
    assert len(set(paths)) == len(paths)
    for choice in recipe.choices:
        assert leaf_at(choice.path)
        assert len(choice.reason) > 10


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (CONTROL, "continuous control"),
        (EnvFacts("vector", is_continuous=False, rows=8), "discrete control"),
        (EnvFacts("states", is_continuous=False, rows=8), "states"),
        (EnvFacts("codes", is_continuous=False, rows=8), "codes"),
        (EnvFacts("image", is_continuous=False, rows=8), "images"),
        (EnvFacts("image", is_continuous=True, rows=8), "images"),
    ],
)
def test_the_recipe_follows_from_what_the_environment_is(facts: EnvFacts, name: str) -> None:
    assert recipe_for(facts).name == name


def test_what_was_chosen_stays_when_it_equals_the_default() -> None:
    rate = OptimizerConfig().learning_rate
    trainer = TrainerConfig(optimizer=OptimizerConfig(learning_rate=rate))
    for config in (
        TrainingConfig(trainer=trainer),
        apply_settings(TrainingConfig(), {"lr": rate}),
        TrainingConfig.from_dict({"lr": rate}),
        resolve(None, (), [f"lr={rate}"]).config,
    ):
        applied = with_recipe(config, CONTROL)
        assert applied is not None
        assert applied.config.trainer.optimizer.learning_rate == rate
        assert LEARNING_RATE not in applied.values
        assert applied.config.agent.normalize_observations


def test_a_recipe_is_applied_once() -> None:
    applied = with_recipe(TrainingConfig(), CONTROL)
    assert applied is not None
    assert applied.values.keys() <= given_paths(applied.config)
    again = with_recipe(applied.config, CONTROL)
    assert again is None


def test_a_whole_configuration_needs_no_recipe() -> None:
    assert lacks_choices(TrainingConfig())
    assert not lacks_choices(TrainingConfig.from_dict(TrainingConfig().to_dict()))
    assert not lacks_choices(apply_settings(TrainingConfig(), {"recipe": "none"}))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_complete(name: str) -> None:
    assert not lacks_choices(PRESETS[name]())


def test_minibatches_follow_the_batch_that_was_chosen() -> None:
    config = apply_settings(TrainingConfig(), {"horizon": 16})
    applied = with_recipe(config, EnvFacts("vector", is_continuous=False, rows=2))
    assert applied is not None
    assert applied.config.trainer.ppo.num_minibatches == 1


@pytest.mark.parametrize(("rows", "horizon"), [(1, 1024), (8, 128), (32, 64), (100, 64)])
def test_a_rollout_has_about_as_many_samples_for_any_number_of_rows(
    rows: int, horizon: int
) -> None:
    applied = with_recipe(TrainingConfig(), EnvFacts("vector", is_continuous=True, rows=rows))
    assert applied is not None
    assert applied.config.trainer.rollout.horizon == horizon


def test_agents_of_one_world_are_collected_for_at_least_256_steps() -> None:
    alone = EnvFacts("states", is_continuous=False, rows=32)
    for facts, horizon in ((alone, 64), (dataclasses.replace(alone, agents=4), 256)):
        applied = with_recipe(TrainingConfig(), facts)
        assert applied is not None
        assert applied.config.trainer.rollout.horizon == horizon


@pytest.mark.parametrize(
    ("rows", "chosen", "horizon", "minibatches"),
    [(1, {}, 1024, 16), (8, {}, 128, 16), (128, {}, 64, 16), (2, {"horizon": 16}, 16, 1)],
)
def test_images_are_learnt_in_small_minibatches(
    rows: int, chosen: dict[str, int], horizon: int, minibatches: int
) -> None:
    config = apply_settings(TrainingConfig(), chosen)
    applied = with_recipe(config, EnvFacts("image", is_continuous=False, rows=rows))
    assert applied is not None
    trainer = applied.config.trainer
    assert (trainer.rollout.horizon, trainer.ppo.num_minibatches) == (horizon, minibatches)
    assert trainer.optimizer.schedule == "linear"


def test_values_of_an_earlier_recipe_stay_when_a_run_has_them() -> None:
    applied = with_recipe(TrainingConfig(), CONTROL, {LEARNING_RATE: 7e-4})
    assert applied is not None
    assert setting_values(applied.config)[LEARNING_RATE] == 7e-4


def test_an_id_means_no_preset() -> None:
    resolved = resolve("CartPole-v1")
    assert given_paths(resolved.config) == {"trainer.curriculum.env"}


@pytest.mark.parametrize(
    ("reach", "log_std"),
    [([1e6], 2.0), ([1e-6], -5.0), ([0.0], -0.69), ([1.0, 1.0, 9.0], -0.69)],
)
def test_first_deviations_are_bounded_when_actions_reach_far_or_nowhere(
    reach: list[float], log_std: float
) -> None:
    class Reaching(CountdownEnv):
        def __init__(self) -> None:
            super().__init__()
            high = np.array(reach, np.float32)
            self.action_space = gymnasium.spaces.Box(-high, high)

    with PPOTrainer(None, Reaching, verbose=False) as trainer:
        assert trainer.config.agent.log_std_init == log_std
