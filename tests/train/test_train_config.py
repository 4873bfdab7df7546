import ast
import dataclasses
import inspect
import math
import pkgutil
from typing import Any

import pytest

import metta
from metta.errors import ConfigError
from metta.train import train_config
from metta.train.parsing.fields import Count, Name, config_class
from metta.train.train_config import (
    AgentConfig,
    NumericsConfig,
    OptimizerConfig,
    PPOConfig,
    RolloutConfig,
    TrainerConfig,
    TrainingConfig,
)

CONFIGS = [getattr(train_config, name) for name in train_config.__all__]


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_config_has_valid_defaults_and_neither_changes_nor_takes_what_it_does_not_know(
    kind: type,
) -> None:
    config = kind()
    assert config == kind()
    name = dataclasses.fields(kind)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, name, getattr(config, name))
    with pytest.raises(ConfigError, match=f"unknown setting '{name}x'; did you mean '{name}'?"):
        kind(**{f"{name}x": 1})
    with pytest.raises(ConfigError, match="positional"):
        kind(1)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (PPOConfig, "gamma", 1.01), (PPOConfig, "gamma", -0.01), (PPOConfig, "gae_lambda", 2.0),
        (PPOConfig, "clip_coef", 0.0), (PPOConfig, "vf_clip_coef", 0.0), (PPOConfig, "vf_coef", -1.0),
        (PPOConfig, "ent_coef", -0.1), (PPOConfig, "update_epochs", 0),
        (PPOConfig, "num_minibatches", 0), (PPOConfig, "minibatch_size", 0),
        (PPOConfig, "max_grad_norm", 0.0), (PPOConfig, "target_kl", 0.0),
        (PPOConfig, "advantage_estimator", "td"), (PPOConfig, "clip_schedule", "expo"),
        (PPOConfig, "gamma", math.nan), (PPOConfig, "vf_coef", math.inf),
        (PPOConfig, "update_epochs", 1.5), (PPOConfig, "gamma", "much"), (PPOConfig, "gamma", None),
        (OptimizerConfig, "learning_rate", 0.0), (OptimizerConfig, "learning_rate", math.nan),
        (OptimizerConfig, "beta1", 1.0), (OptimizerConfig, "beta2", 1.0), (OptimizerConfig, "eps", 0.0),
        (OptimizerConfig, "name", "lion"), (OptimizerConfig, "momentum", 1.0),
        (RolloutConfig, "horizon", 0), (RolloutConfig, "num_envs", -1),
        (RolloutConfig, "num_workers", -1), (RolloutConfig, "num_groups", 0),
        (RolloutConfig, "step_timeout_seconds", 0.0),
        (NumericsConfig, "threads", -1), (NumericsConfig, "actor", "cuda"),
        (TrainerConfig, "total_timesteps", 0), (TrainerConfig, "seed", -1),
        (TrainerConfig, "seed", None), (TrainerConfig, "ppo", {"gamma": 2.0}),
        (AgentConfig, "name", "resnet"), (AgentConfig, "hidden_size", 0),
        (AgentConfig, "observation_clip", 0.0), (AgentConfig, "log_std_init", math.inf),
        (TrainingConfig, "experiment_name", ""), (TrainerConfig, "seed", 2**63),
    ],
)  # fmt: skip
def test_a_value_out_of_bounds_is_named_when_a_config_is_built(
    kind: type, field: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=field):
        kind(**{field: value})


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (PPOConfig, "gamma", 0.0), (PPOConfig, "gamma", 1.0), (PPOConfig, "gae_lambda", 1.0),
        (PPOConfig, "ent_coef", 0.0), (PPOConfig, "max_grad_norm", None),
        (OptimizerConfig, "beta1", 0.0), (TrainerConfig, "seed", 0), (RolloutConfig, "num_workers", 0),
    ],
)  # fmt: skip
def test_a_bound_itself_is_legal_when_the_range_includes_it(
    kind: type, field: str, value: Any
) -> None:
    assert getattr(kind(**{field: value}), field) == value


def test_problems_are_config_errors_when_a_class_of_ones_own_is_checked() -> None:
    @config_class
    class Mine:
        size: Count = 1
        name: Name = "x"

    assert Mine(size=3).size == 3
    with pytest.raises(ConfigError) as caught:
        Mine(size=0, name="")
    assert str(caught.value).splitlines() == [
        "2 problems:",
        "  - size: found 0; allowed is a whole number of at least 1",
        "  - name: found ''; allowed is text that is not empty",
    ]


def test_every_problem_is_reported_when_a_config_has_several() -> None:
    with pytest.raises(ConfigError) as caught:
        PPOConfig(gamma=3.0, clip_coef=-1.0, ent_koef=0.1)  # type: ignore[call-arg]
    message = str(caught.value)
    assert "gamma: found 3.0; allowed is a number of at least 0 and at most 1" in message
    assert "clip_coef" in message
    assert "unknown setting 'ent_koef'; did you mean 'ent_coef'?" in message


def test_the_place_is_named_when_a_nested_config_is_wrong() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.ppo\.gamma"):
        TrainingConfig(trainer={"ppo": {"gamma": 2}})  # type: ignore[arg-type]


def test_nesting_keeps_its_objects_when_a_config_is_composed() -> None:
    ppo = PPOConfig(gamma=0.5)
    config = TrainingConfig(experiment_name="mine", trainer=TrainerConfig(ppo=ppo))
    assert config.trainer.ppo == ppo
    assert config.agent == AgentConfig()


def test_groups_must_divide_when_environments_are_split() -> None:
    with pytest.raises(ConfigError, match=r"num_envs=3 does not split.*try num_envs=4"):
        TrainerConfig(rollout=RolloutConfig(num_envs=3, num_groups=2))


def test_a_copy_is_checked_too_when_one_field_is_replaced() -> None:
    assert dataclasses.replace(PPOConfig(), gamma=0.5).gamma == 0.5
    with pytest.raises(ConfigError, match="gamma"):
        dataclasses.replace(PPOConfig(), gamma=5.0)


def test_a_device_object_becomes_its_name_when_it_is_given() -> None:
    class Device:
        def __str__(self) -> str:
            return "cuda:1"

    assert TrainerConfig(device=Device()).device == "cuda:1"  # type: ignore[arg-type]


def test_constructors_below_have_no_default_of_their_own_when_a_field_sets_it() -> None:
    """No function of the library takes a setting's name with another default than the field's."""
    fields = {
        field.name: getattr(kind(), field.name)
        for kind in (PPOConfig, OptimizerConfig, RolloutConfig, AgentConfig)
        for field in dataclasses.fields(kind)
    }
    differing = []
    for info in pkgutil.walk_packages(metta.__path__, "metta."):
        if info.name.endswith("_native"):
            continue
        source = inspect.getsource(__import__(info.name, fromlist=["_"]))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                differing += [
                    f"{info.name}.{node.name}({argument.arg}={default.value})"
                    for argument, default in pairs
                    if isinstance(default, ast.Constant)
                    and argument.arg in fields
                    and default.value is not None
                    and default.value != fields[argument.arg]
                    and argument.arg not in ALLOWED_DEFAULTS
                ]
    assert differing == []


ALLOWED_DEFAULTS = {
    "num_envs",  # make_vec_env makes one environment where nobody asks for more
    "schedule_end",  # of a custom loss, which is no field of the configuration
    "eps",  # FlatAdam keeps torch's default, like any torch optimizer
}
