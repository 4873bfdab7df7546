"""Flat settings by any usual name, laid over a configuration: the one alias table."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from metta.errors import ConfigError, did_you_mean
from metta.train.problems import explain
from metta.train.train_config import TrainingConfig

__all__ = ["ALIASES", "apply_settings", "changed_paths", "setting_paths", "setting_values"]

ALIASES: dict[str, str] = {
    "lr": "trainer.optimizer.learning_rate",
    "lr_schedule": "trainer.optimizer.schedule",
    "lr_schedule_end": "trainer.optimizer.schedule_end",
    "optimizer_name": "trainer.optimizer.name",
    "n_epochs": "trainer.ppo.update_epochs",
    "num_epochs": "trainer.ppo.update_epochs",
    "clip_range": "trainer.ppo.clip_coef",
    "clip_epsilon": "trainer.ppo.clip_coef",
    "clip_range_vf": "trainer.ppo.vf_clip_coef",
    "value_coef": "trainer.ppo.vf_coef",
    "entropy_coef": "trainer.ppo.ent_coef",
    "batch_size": "trainer.ppo.minibatch_size",
    "normalize_advantage": "trainer.ppo.normalize_advantages",
    "norm_adv": "trainer.ppo.normalize_advantages",
    "n_steps": "trainer.rollout.horizon",
    "num_steps": "trainer.rollout.horizon",
    "n_envs": "trainer.rollout.num_envs",
    "agent_name": "agent.name",
    "normalize_obs": "agent.normalize_observations",
    "total_steps": "trainer.total_timesteps",
}
"""Other spelling -> path. Every field also goes by its path, and by its own name where that is unique."""


def setting_values(config: Any, prefix: str = "") -> dict[str, Any]:
    """Every setting by its path, e.g. ``trainer.ppo.gamma``."""
    leaves: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        path = f"{prefix}{field.name}"
        value = getattr(config, field.name)
        leaves |= (
            setting_values(value, f"{path}.") if dataclasses.is_dataclass(value) else {path: value}
        )
    return leaves


def _paths_by_name(config: TrainingConfig) -> dict[str, list[str]]:
    by_name: dict[str, list[str]] = {}
    for path in setting_values(config):
        by_name.setdefault(path.rpartition(".")[2], []).append(path)
    return by_name


def setting_paths(config: TrainingConfig) -> dict[str, str]:
    """Every name under which a setting is known, with the path of its field."""
    by_name = _paths_by_name(config)
    unique = {name: paths[0] for name, paths in by_name.items() if len(paths) == 1}
    return {path: path for path in setting_values(config)} | unique | ALIASES


def changed_paths(config: TrainingConfig) -> set[str]:
    """Paths of the settings that differ from their defaults."""
    defaults = setting_values(TrainingConfig())
    return {path for path, value in setting_values(config).items() if value != defaults[path]}


def apply_settings(base: TrainingConfig, settings: Mapping[str, Any]) -> TrainingConfig:
    """A configuration with flat `settings` laid over `base`; every problem in one `ConfigError`.

    apply_settings(TrainingConfig(), {"learning_rate": 1e-3, "n_steps": 64})
    """
    names, by_name = setting_paths(base), _paths_by_name(base)
    values: dict[str, Any] = dataclasses.asdict(base)
    problems: list[str] = []
    seen: dict[str, str] = {}
    for name, value in settings.items():
        path = names.get(name)
        if path is None:
            several = " or ".join(repr(other) for other in by_name.get(name, []))
            hint = f"; say which: {several}" if several else did_you_mean(name, names)
            problems.append(f"{'ambiguous' if several else 'unknown'} setting {name!r}{hint}")
            continue
        if path in seen:
            problems.append(f"{seen[path]!r} and {name!r} both set {path}; give one of them")
        seen[path] = name
        node = values
        *parents, leaf = path.split(".")
        for parent in parents:
            node = node[parent]
        node[leaf] = value
    try:
        config = TypeAdapter(TrainingConfig).validate_python(values)
    except ValidationError as error:
        problems.append(explain(error))
    if problems:
        raise ConfigError("; ".join(problems))
    return config
