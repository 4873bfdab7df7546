import dataclasses
import pickle
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from metta.errors import ConfigError
from metta.train.parsing.problems import explain
from metta.train.settings import (
    ALIASES,
    apply_settings,
    given_paths,
    paths_set_by,
    setting_paths,
)
from metta.train.train_config import AgentConfig, PPOConfig, TrainerConfig, TrainingConfig

BASE = TrainingConfig()

OTHER_LIBRARIES = {
    # Stable-Baselines3
    "learning_rate": ("trainer.optimizer.learning_rate", 1e-3),
    "n_steps": ("trainer.rollout.horizon", 64),
    "batch_size": ("trainer.ppo.minibatch_size", 32),
    "n_epochs": ("trainer.ppo.update_epochs", 3),
    "gamma": ("trainer.ppo.gamma", 0.9),
    "gae_lambda": ("trainer.ppo.gae_lambda", 0.8),
    "clip_range": ("trainer.ppo.clip_coef", 0.1),
    "clip_range_vf": ("trainer.ppo.vf_clip_coef", 0.3),
    "normalize_advantage": ("trainer.ppo.normalize_advantages", False),
    "ent_coef": ("trainer.ppo.ent_coef", 0.01),
    "vf_coef": ("trainer.ppo.vf_coef", 0.7),
    "max_grad_norm": ("trainer.ppo.max_grad_norm", 1.0),
    "target_kl": ("trainer.ppo.target_kl", 0.02),
    "seed": ("trainer.seed", 5),
    "device": ("trainer.device", "cpu"),
    "n_envs": ("trainer.rollout.num_envs", 4),
    "total_timesteps": ("trainer.total_timesteps", 1000),
    # CleanRL
    "num_steps": ("trainer.rollout.horizon", 64),
    "num_envs": ("trainer.rollout.num_envs", 4),
    "num_minibatches": ("trainer.ppo.num_minibatches", 2),
    "update_epochs": ("trainer.ppo.update_epochs", 3),
    "clip_coef": ("trainer.ppo.clip_coef", 0.1),
    "norm_adv": ("trainer.ppo.normalize_advantages", False),
}


def value_at(config: TrainingConfig, path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part)
    return value


def test_every_alias_leads_to_a_field() -> None:
    assert len(ALIASES) > 10
    groups = [path for path in ALIASES.values() if dataclasses.is_dataclass(value_at(BASE, path))]
    assert groups == []


def test_no_alias_has_the_name_of_a_field() -> None:
    own = {path.rpartition(".")[2] for path in setting_paths().values()}
    assert not own & ALIASES.keys()


@pytest.mark.parametrize("name", OTHER_LIBRARIES)
def test_the_usual_name_works_when_it_comes_from_another_library(name: str) -> None:
    path, value = OTHER_LIBRARIES[name]
    config = apply_settings(BASE, {name: value})
    assert value_at(config, path) == value
    assert given_paths(config) == {path}


def test_every_field_can_be_set_when_its_path_is_given() -> None:
    for path in set(setting_paths().values()):
        value = value_at(BASE, path)
        assert value_at(apply_settings(BASE, {path: value}), path) == value


def test_the_base_is_unchanged_when_settings_are_laid_over_it() -> None:
    settings = {"gamma": 0.5}
    config = apply_settings(BASE, settings)
    assert BASE.trainer.ppo.gamma == 0.99
    assert config.trainer.ppo.gamma == 0.5
    assert settings == {"gamma": 0.5}


def test_other_values_of_the_base_stay_when_one_is_set() -> None:
    trainer = TrainerConfig(ppo=PPOConfig(gamma=0.7), verbose=False)
    base = TrainingConfig(agent=AgentConfig(hidden_size=8), trainer=trainer)
    config = apply_settings(base, {"lr": 0.5})
    kept = config.trainer.verbose, config.agent.hidden_size, config.trainer.ppo.gamma
    assert kept == (False, 8, 0.7)


def test_text_becomes_numbers_when_it_comes_from_a_command_line() -> None:
    settings = {"lr": "1e-3", "n_steps": "64", "normalize_obs": "true", "device": "cpu"}
    config = apply_settings(BASE, settings)
    assert config.trainer.optimizer.learning_rate == 1e-3
    assert config.trainer.rollout.horizon == 64
    assert config.agent.normalize_observations is True


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("lerning_rate", "did you mean 'learning_rate'?"),
        ("clip_rang", "did you mean 'clip_range'?"),
        ("numenvs", "did you mean 'num_envs'?"),
    ],
)
def test_the_error_hints_when_a_name_is_misspelt(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_settings(BASE, {name: 1})
    assert f"unknown setting {name!r}" in str(caught.value)
    assert hint in str(caught.value)


def test_the_choices_are_named_when_a_name_is_ambiguous() -> None:
    with pytest.raises(
        ConfigError, match=r"ambiguous setting 'name'.*'agent.name'.*'trainer.optimizer.name'"
    ):
        apply_settings(BASE, {"name": "lstm"})


def test_both_names_are_in_the_error_when_a_setting_is_given_twice() -> None:
    with pytest.raises(ConfigError, match=r"'n_steps' and 'horizon' both set .*rollout\.horizon"):
        apply_settings(BASE, {"n_steps": 8, "horizon": 8})


def test_every_problem_is_reported_when_there_are_several() -> None:
    settings = {"gama": 1, "lr": -1.0, "num_envs": 0, "n_epochs": 1, "num_epochs": 2, "core": "rnn"}
    with pytest.raises(ConfigError) as caught:
        apply_settings(BASE, settings)
    message = str(caught.value)
    assert "unknown setting 'gama'; did you mean 'gamma'?" in message
    assert "trainer.optimizer.learning_rate: found -1.0; allowed is a number above 0" in message
    assert "trainer.rollout.num_envs" in message
    assert "'n_epochs' and 'num_epochs' both set" in message
    assert "agent.core" in message
    assert "'rnn'" in message


def test_the_fix_is_named_when_groups_do_not_divide() -> None:
    with pytest.raises(
        ConfigError, match=r"num_envs=7 does not split into num_groups=2.*num_envs=8"
    ):
        apply_settings(BASE, {"num_envs": 7, "num_groups": 2})


def test_nothing_counts_as_given_when_defaults_are_used() -> None:
    assert given_paths(BASE) == set()
    assert given_paths(TrainingConfig.from_dict({})) == set()


def test_a_setting_counts_as_given_when_it_equals_its_default() -> None:
    gamma = BASE.trainer.ppo.gamma
    expected = {"trainer.ppo.gamma"}
    config = TrainingConfig(trainer=TrainerConfig(ppo=PPOConfig(gamma=gamma)))
    assert given_paths(config) == expected
    assert given_paths(apply_settings(BASE, {"gamma": gamma})) == expected
    assert given_paths(TrainingConfig.from_dict({"ppo": {"gamma": gamma}})) == expected
    assert given_paths(pickle.loads(pickle.dumps(config))) == expected
    both = apply_settings(config, {"lr": 1e-3})
    assert given_paths(both) == {*expected, "trainer.optimizer.learning_rate"}


def test_only_what_differs_counts_as_given_when_a_configuration_is_replaced() -> None:
    ppo = dataclasses.replace(PPOConfig(), clip_coef=0.3)
    config = dataclasses.replace(BASE, trainer=dataclasses.replace(BASE.trainer, ppo=ppo))
    assert given_paths(config) == {"trainer.ppo.clip_coef"}


def test_each_problem_is_one_line_when_pydantic_finds_several() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(PPOConfig).validate_python({"gamma": "much", "clip": 1})
    assert [problem.text for problem in explain(caught.value, PPOConfig)] == [
        "gamma: found 'much'; allowed is a number of at least 0 and at most 1",
        "unknown setting 'clip'; did you mean 'clip_coef'?",
    ]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("ppo.gamma", "trainer.ppo.gamma"),
        ("trainer.gamma", "trainer.ppo.gamma"),
        ("trainer.lr", "trainer.optimizer.learning_rate"),
        ("optimizer.lr", "trainer.optimizer.learning_rate"),
        ("trainer.optimizer.type", "trainer.optimizer.name"),
        ("optimizer.name", "trainer.optimizer.name"),
        ("wandb.mode", "trainer.logging.wandb.mode"),
        ("exp_name", "experiment_name"),
    ],
)
def test_groups_may_be_left_out_when_the_name_stays_clear(name: str, path: str) -> None:
    assert setting_paths()[name] == path


@pytest.mark.parametrize("name", ["name", "trainer.name", "trainer.schedule_end", "ppo.lr"])
def test_a_name_is_refused_when_it_is_unclear_or_in_the_wrong_group(name: str) -> None:
    assert name not in setting_paths()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"trainer.optimizer.clip_coef": 1},
            "unknown setting 'trainer.optimizer.clip_coef'; it exists at trainer.ppo.clip_coef",
        ),
        (
            {"trainer.ppo.clip_koef": 1},
            "unknown setting 'trainer.ppo.clip_koef'; did you mean 'clip_coef'?",
        ),
        ({"trainer": {"pppo": {}}}, "unknown setting 'trainer.pppo'; did you mean 'ppo'?"),
        ({"agent": 3}, "agent: found 3; allowed is a group of settings"),
    ],
)
def test_the_right_place_is_named_when_a_setting_is_in_the_wrong_one(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_settings(BASE, settings)
    assert str(caught.value) == message


def test_broken_rules_are_reported_too_when_other_values_are_wrong() -> None:
    with pytest.raises(ConfigError) as caught:
        apply_settings(BASE, {"gamma": 2, "num_envs": 7, "num_groups": 2})
    assert "trainer.ppo.gamma: found 2" in str(caught.value)
    assert "trainer.rollout.num_envs: num_envs=7 does not split" in str(caught.value)


def test_a_rule_is_left_out_when_one_of_its_values_is_wrong_itself() -> None:
    with pytest.raises(ConfigError) as caught:
        apply_settings(BASE, {"num_envs": "many", "num_groups": 3})
    assert "split" not in str(caught.value)


def test_a_whole_group_is_laid_over_when_an_object_is_given() -> None:
    config = apply_settings(BASE, {"ppo": PPOConfig(gamma=0.5), "lr": 0.1})
    assert config.trainer.ppo == PPOConfig(gamma=0.5)
    assert paths_set_by({"lr": 1, "rollout": {"horizon": 2}, "nonsense": 3}) == {
        "trainer.optimizer.learning_rate",
        "trainer.rollout.horizon",
    }


def test_env_kwargs_are_named_when_a_setting_resembles_none() -> None:
    with pytest.raises(ConfigError, match=r"'xyzzy'; .* env_kwargs=\{'xyzzy': \.\.\.\}"):
        apply_settings(TrainingConfig(), {"xyzzy": 3})
