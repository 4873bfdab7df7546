"""Flat settings by any usual name, laid over a configuration: the one alias table."""

import dataclasses
from typing import Any

from pydantic import TypeAdapter, ValidationError

from metta.errors import ConfigError, did_you_mean
from metta.train.train_config import TrainingConfig

__all__ = ["ALIASES", "apply_settings"]

ALIASES: dict[str, str] = {
    "lr": "trainer.optimizer.learning_rate",
    "lr_schedule": "trainer.optimizer.schedule",
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
    "n_steps": "trainer.rollout.horizon",
    "num_steps": "trainer.rollout.horizon",
    "n_envs": "trainer.rollout.num_envs",
    "normalize_obs": "agent.normalize_observations",
    "total_steps": "trainer.total_timesteps",
}
"""Other spelling -> path. Every field is also known by its own name where that name is unique."""


def _leaf_paths(config: Any, prefix: str = "") -> list[str]:
    paths = []
    for field in dataclasses.fields(config):
        path = f"{prefix}{field.name}"
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            paths += _leaf_paths(value, f"{path}.")
        else:
            paths.append(path)
    return paths


def _name_table(config: TrainingConfig) -> dict[str, str]:
    by_name: dict[str, list[str]] = {}
    for path in _leaf_paths(config):
        by_name.setdefault(path.rpartition(".")[2], []).append(path)
    unique = {name: paths[0] for name, paths in by_name.items() if len(paths) == 1}
    return {**unique, **ALIASES}


def apply_settings(base: TrainingConfig, settings: dict[str, Any]) -> TrainingConfig:
    """A configuration with flat `settings` laid over `base`; every problem in one `ConfigError`.

    apply_settings(TrainingConfig(), {"learning_rate": 1e-3, "n_steps": 64})
    """
    names = _name_table(base)
    values: dict[str, Any] = dataclasses.asdict(base)
    problems: list[str] = []
    seen: dict[str, str] = {}
    for name, value in settings.items():
        path = names.get(name)
        if path is None:
            problems.append(f"unknown setting {name!r}{did_you_mean(name, names)}")
            continue
        if path in seen:
            problems.append(f"{seen[path]!r} and {name!r} both set {path}; give one of them")
        seen[path] = name
        node = values
        *parents, leaf = path.split(".")
        for parent in parents:
            node = node[parent]
        node[leaf] = value
    if problems:
        raise ConfigError("; ".join(problems))
    try:
        return TypeAdapter(TrainingConfig).validate_python(values)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"]) or "config"
        found = "" if isinstance(problem["input"], dict) else f" (found {problem['input']!r})"
        lines.append(f"{where}: {problem['msg']}{found}")
    return "; ".join(lines)
