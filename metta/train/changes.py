"""The settings that checkpoints hold, and which of them may change when a run resumes."""

from collections.abc import Mapping
from typing import Any

from metta.errors import ConfigError
from metta.secrets import scrub_all
from metta.train.advice import FOR_COMPONENTS, Advice
from metta.train.foreign_names import EARLIER_NAMES
from metta.train.parsing.problems import shown
from metta.train.parsing.schema import leaves_of, setting_values
from metta.train.parsing.values import plain_data
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

__all__ = ["MAY_CHANGE", "check_changes", "config_of", "describe_changes", "plain_settings"]

MAY_CHANGE: tuple[str, ...] = (
    "experiment_name",
    "trainer.total_timesteps",
    "trainer.verbose",
    "trainer.device",
    "trainer.rollout.num_workers",
    "trainer.rollout.step_timeout_seconds",
    "trainer.system.",
    "trainer.collect.kind",
    "trainer.collect.num_actors",
    "trainer.collect.address",
    "trainer.collect.task_timeout_seconds",
    "trainer.collect.max_actor_restarts",
    "trainer.rollout.start_timeout_seconds",
    "trainer.rollout.max_worker_restarts",
    "trainer.rollout.on_env_error",
    "trainer.checkpoint.checkpoint_interval",
    "trainer.checkpoint.wandb_checkpoint_interval",
    "trainer.checkpoint.keep_last",
    "trainer.checkpoint.keep_every",
    "trainer.checkpoint.rescue_share",
    "trainer.checkpoint.env_restore",
    "trainer.numerics.",
    "trainer.evaluation.",
    "trainer.logging.",
)
"""Settings, and prefixes of groups, that do not decide what was learned up to now.

Settings that decide only the last bits (`numerics`, `device`) are compared with the checkpoint itself.
"""
_ENV_RESTORE = "trainer.checkpoint.env_restore"

Settings = Mapping[str, Any]
"""Path -> value, as plain data."""


def plain_settings(config: Any, prefix: str = "") -> dict[str, Any]:
    """Every setting of a configuration by its path, as plain data without secrets.

    For values that are not plain data, such as a function among an environment's arguments, it is the type.
    """
    found: dict[str, Any] = {}
    for path, value in setting_values(config, prefix).items():
        try:
            found[path] = plain_data(value, path)
        except ConfigError:
            found[path] = type(value).__name__
    scrubbed: dict[str, Any] = scrub_all(found)
    return scrubbed


def config_of(settings: Settings) -> TrainingConfig:
    """The configuration of `plain_settings`; settings that this version does not have are left out."""
    known = {*leaves_of(TrainingConfig), *EARLIER_NAMES}
    return apply_settings(
        TrainingConfig(), {path: value for path, value in settings.items() if path in known}
    )


def describe_changes(before: Settings, after: Settings) -> dict[str, str]:
    """Path -> a text with both values, for settings that both have and that differ."""
    return {
        path: f"{path} was {shown(before[path])}, now {shown(value)}"
        for path, value in after.items()
        if path in before and before[path] != value
    }


def check_changes(
    before: Settings, after: Settings, where: str, advice: Advice = FOR_COMPONENTS
) -> None:
    """Refuse to resume a run with other settings than it began with; names all of them."""
    may_change = MAY_CHANGE
    if "sync_reset" in (before.get(_ENV_RESTORE), after.get(_ENV_RESTORE)):
        # episodes end where checkpoints are made
        fixed = (_ENV_RESTORE, "trainer.checkpoint.checkpoint_interval")
        may_change = tuple(path for path in MAY_CHANGE if path not in fixed)
    changes = describe_changes(before, after).items()
    changed = [text for path, text in changes if not path.startswith(may_change)]
    if changed:
        raise ConfigError(
            f"{where} holds a run with other settings, which would mix two runs: "
            f"{'; '.join(changed)}. {advice.settings}"
        )
