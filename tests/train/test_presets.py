import json
from pathlib import Path

import pytest

from metta.envs.env_ids import check_env_id
from metta.errors import ConfigError
from metta.train.layers import resolve
from metta.train.presets import (
    PRESETS,
    find_preset,
    like_cleanrl,
    like_sb3,
    small_fast_config,
)
from metta.train.train_config import CurriculumConfig, TrainerConfig, TrainingConfig


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_names_itself_and_an_environment_that_exists(name: str) -> None:
    config = PRESETS[name]()
    check_env_id(config.env)
    assert config.experiment_name == name
    assert (PRESETS[name].__doc__ or "").startswith(f"{config.env}:")
    rollout, ppo = config.trainer.rollout, config.trainer.ppo
    batch = rollout.horizon * rollout.num_envs
    assert batch % ppo.num_minibatches == 0
    assert config.trainer.total_timesteps >= 10 * batch


@pytest.mark.parametrize("env", ["CartPole-v1", "MountainCar-v0"])
def test_no_preset_is_used_when_an_environment_is_asked_for(env: str) -> None:
    trainer = TrainerConfig(curriculum=CurriculumConfig(env=env))
    assert find_preset(env) == (None, TrainingConfig(trainer=trainer))


def test_the_published_numbers_are_used_when_another_library_is_followed() -> None:
    # the constructor of stable_baselines3.PPO, and the arguments of cleanrl/ppo.py
    sb3, cleanrl = like_sb3(), like_cleanrl()
    for config, sizes in ((sb3, (1, 2048, 10)), (cleanrl, (4, 128, 4))):
        rollout, ppo = config.trainer.rollout, config.trainer.ppo
        assert (rollout.num_envs, rollout.horizon, ppo.update_epochs) == sizes
        assert (ppo.gamma, ppo.gae_lambda, ppo.clip_coef, ppo.vf_coef) == (0.99, 0.95, 0.2, 0.5)
        assert (ppo.max_grad_norm, config.trainer.optimizer.eps) == (0.5, 1e-5)
    assert (sb3.trainer.ppo.minibatch_size, sb3.trainer.optimizer.learning_rate) == (64, 3e-4)
    assert (sb3.trainer.ppo.ent_coef, sb3.trainer.ppo.vf_clip_coef) == (0.0, None)
    assert cleanrl.trainer.optimizer.schedule == "linear"
    assert (cleanrl.trainer.ppo.ent_coef, cleanrl.trainer.ppo.vf_clip_coef) == (0.01, 0.2)


def test_presets_are_importable_beside_the_classes_when_users_look_there() -> None:
    from metta.train import train_config

    assert train_config.small_fast_config is small_fast_config
    assert train_config.PRESETS is PRESETS
    with pytest.raises(AttributeError, match="has no attribute 'tiny_config'"):
        train_config.tiny_config  # noqa: B018 (looking it up is the test)


@pytest.mark.parametrize("name", PRESETS)
def test_nothing_is_lost_when_a_preset_goes_through_a_file(name: str, tmp_path: Path) -> None:
    config = PRESETS[name]()
    assert TrainingConfig.from_dict(config.to_dict()) == config
    assert TrainingConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert TrainingConfig.from_yaml(config.to_yaml(tmp_path / "config.yaml")) == config
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("name", PRESETS)
def test_sizes_fit_each_other_when_a_preset_is_resolved(name: str) -> None:
    resolved = resolve(name)
    assert resolved.config == PRESETS[name]()
    origins = {str(origin) for origin in resolved.origins.values()}
    assert origins == {"default", f"preset {name}"}


@pytest.mark.parametrize("name", ["carpole", "lunar-lander"])
def test_the_nearest_preset_is_named_when_a_name_is_misspelt(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown preset '{name}'; did you mean '(cart|lunar_)"):
        find_preset(name)


def test_presets_are_independent_when_they_are_built_twice() -> None:
    first, second = PRESETS["cartpole"](), PRESETS["cartpole"]()
    assert first == second
    with pytest.raises(ConfigError):
        type(first.trainer)(total_timesteps=0)
