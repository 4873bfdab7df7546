import gymnasium
import pytest

from metta.errors import ConfigError
from metta.train.presets import PRESETS, preset_for
from metta.train.train_config import TrainingConfig


@pytest.mark.parametrize("name", PRESETS)
def test_the_environment_exists_when_a_preset_names_it(name: str) -> None:
    config = PRESETS[name]()
    assert config.env in gymnasium.registry
    assert config.experiment_name == name


@pytest.mark.parametrize("name", PRESETS)
def test_minibatches_are_equal_when_a_preset_splits_its_batch(name: str) -> None:
    trainer = PRESETS[name]().trainer
    batch = trainer.rollout.horizon * trainer.rollout.num_envs
    assert batch % trainer.ppo.num_minibatches == 0
    assert trainer.total_timesteps >= 10 * batch


@pytest.mark.parametrize("name", PRESETS)
def test_the_docstring_names_the_environment_when_a_preset_claims_a_score(name: str) -> None:
    config = PRESETS[name]()
    assert (PRESETS[name].__doc__ or "").startswith(f"{config.env}:")


@pytest.mark.parametrize("name", PRESETS)
def test_the_preset_is_found_when_its_environment_is_asked_for(name: str) -> None:
    config = PRESETS[name]()
    assert preset_for(config.env) == config


def test_defaults_are_used_when_no_preset_fits() -> None:
    assert preset_for("MountainCar-v0") == TrainingConfig(env="MountainCar-v0")


def test_presets_are_independent_when_they_are_built_twice() -> None:
    first, second = PRESETS["cartpole"](), PRESETS["cartpole"]()
    assert first == second
    with pytest.raises(ConfigError):
        type(first.trainer)(total_timesteps=0)
