"""Which settings `PPOTrainer` acts on, and the interface that acts on the others."""

import warnings
from collections.abc import Mapping
from typing import Any

from metta.errors import ConfigError, MettaWarning
from metta.rl.call_arguments import checked_folder, named_policy, require_env, require_own_count
from metta.train.settings import apply_settings, leaf_at, paths_set_by, setting_values
from metta.train.train_config import TrainerConfig, TrainingConfig

__all__ = ["checked_parts", "whole_config"]

_OFF = (None, False, 0, "off")
_RUN = 'Trainer(config, run_dir="runs/first") and `metta train` do'
_LOGS = f"it writes no logs; {_RUN}, or pass train(hooks=[MetricsHook(...)]) with a logger of yours"
_IDLE = {
    "experiment_name": f"it names the folder of a run; {_RUN}",
    "trainer.curriculum.": "the environment is the second argument; tasks are given as a Curriculum there",
    "trainer.evaluation.": f"it does not evaluate; {_RUN}, or pass train(hooks=[EvaluationHook(...)])",
    "trainer.logging.csv": _LOGS,
    "trainer.logging.tensorboard": _LOGS,
    "trainer.logging.wandb.": _LOGS,
    "trainer.system.": "it trains in one process, with the same numbers; use `metta train`",
    "trainer.checkpoint.wandb_checkpoint_interval": f"it uploads nothing; {_RUN}",
}
"""Start of a path -> why it has no effect in `PPOTrainer`, and what has."""
_SAVED = ("trainer.checkpoint.checkpoint_interval", "trainer.checkpoint.rescue_share")
_OTHERWISE = ("trainer.curriculum.env_kwargs", "trainer.curriculum.wrappers")
_SHARED = (
    "experiment_name",
    "trainer.curriculum.env",
    "trainer.checkpoint.checkpoint_interval",
    "trainer.checkpoint.rescue_share",
    "trainer.evaluation.eval_episodes",
    "trainer.evaluation.replay_interval",
)
"""What presets set: in a configuration no sign that somebody expects an effect here."""


def checked_parts(
    policy: Any, env: Any, config: Any, settings: Mapping[str, Any], checkpoint_dir: Any
) -> tuple[Any, TrainingConfig, dict[str, Any]]:
    """Policy, configuration and settings as `PPOTrainer` uses them; refuses what it cannot act on."""
    require_env(policy, env)
    policy, named = named_policy(policy, settings)
    is_saved = checked_folder(checkpoint_dir, "checkpoint_dir") is not None
    base = whole_config(config)
    whole = apply_settings(base, named)
    require_acting(whole, named, is_saved=is_saved)
    warn_of_idle(base)
    require_own_count(env, whole, named)
    return policy, whole, named


def whole_config(config: Any) -> TrainingConfig:
    """The configuration that `PPOTrainer` is given: whole, its trainer's part, a mapping, or None."""
    if config is None or isinstance(config, TrainingConfig):
        return config or TrainingConfig()
    if isinstance(config, TrainerConfig):
        return TrainingConfig(trainer=config)
    if isinstance(config, Mapping):
        return TrainingConfig.from_dict(config)
    raise ConfigError(
        f"config is a {type(config).__name__}; give a TrainingConfig, e.g. "
        "TrainingConfig.from_yaml(path), or a mapping of settings"
    )


def require_acting(config: TrainingConfig, settings: Mapping[str, Any], *, is_saved: bool) -> None:
    """Refuse settings of a call that would have no effect; `is_saved` where there is a checkpoint_dir."""
    found = _idle(config, paths_set_by(settings), is_saved=is_saved)
    if found:
        lines = [
            f"{path}={value!r} has no effect in PPOTrainer: {why}" for path, value, why in found
        ]
        raise ConfigError("; and ".join(lines))


def warn_of_idle(config: TrainingConfig) -> None:
    """Warn of the same in a configuration, which may be shared with a run that acts on it."""
    found = _idle(config, _changed(config) - {*_SHARED}, is_saved=True)
    if found:
        names = ", ".join(f"{path}={value!r}" for path, value, _ in found)
        warnings.warn(
            f"config sets {names}, which has no effect in PPOTrainer; {_RUN}",
            MettaWarning,
            stacklevel=4,
        )


def _idle(config: TrainingConfig, paths: set[str], *, is_saved: bool) -> list[tuple[str, Any, str]]:
    values = setting_values(config)
    found = []
    for path in sorted(paths):
        why = next((text for start, text in _IDLE.items() if path.startswith(start)), None)
        if path in _SAVED and not is_saved:
            why = "it saves where there is a checkpoint_dir; give PPOTrainer(..., checkpoint_dir=FOLDER)"
        if why is not None and path not in _OTHERWISE and values[path] not in _OFF:
            found.append((path, values[path], why))
    return found


def _changed(config: TrainingConfig) -> set[str]:
    """Settings that differ from their defaults."""
    return {
        path for path, value in setting_values(config).items() if value != leaf_at(path).default
    }
