"""Settings of what surrounds learning: the task, checkpoints, evaluation, and where numbers go."""

import dataclasses
from typing import Any, Literal

from metta.train.fields import Count, Fraction, Interval, NonNegative, Positive, config_class

__all__ = [
    "CheckpointConfig",
    "CurriculumConfig",
    "EvaluationConfig",
    "LoggingConfig",
    "WandbConfig",
]


@config_class
class CurriculumConfig:
    """What is trained on."""

    env: str = "CartPole-v1"
    """Gymnasium id of the environment."""
    env_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of the environment, e.g. ``{"gravity": -9.0}``."""


@config_class
class CheckpointConfig:
    """When training is saved, and what is kept."""

    checkpoint_interval: Interval = 50
    """Epochs between checkpoints; 0: none at all. One more is made at the end of the run."""
    wandb_checkpoint_interval: Interval = 0
    """Epochs between uploads of the policy to W&B; 0: none. One more is made at the end of the run."""
    keep_last: Count = 3
    """Newest checkpoints that are kept."""
    keep_every: Interval = 0
    """Epochs whose multiples are kept for good; 0: none."""
    rescue_share: Fraction = 0.005
    """Share of the time that may go into keeping the run in memory between checkpoints, to be saved if it
    fails; 0: none, 1: before every epoch."""
    env_restore: Literal["auto", "snapshot", "replay", "sync_reset", "boundary"] = "auto"
    """How environments come back in a resumed run: `auto` takes the best that works, by trying it;
    `sync_reset` begins fresh episodes after every checkpoint, so that any seedable environment is exact;
    `boundary` begins fresh episodes when a run is resumed."""


@config_class
class EvaluationConfig:
    """When the policy is scored on fresh episodes."""

    evaluate_interval: Interval = 0
    """Epochs between evaluations; 0: only at the end of the run."""
    eval_episodes: Interval = 20
    """Episodes per evaluation; 0: never evaluate."""
    eval_envs: Count = 8
    """Environments that play them at the same time."""
    max_eval_failures: Count = 3
    """Failed evaluations in a row after which training stops; fewer only warn."""


@config_class
class WandbConfig:
    """Weights & Biases."""

    mode: Literal["off", "offline", "online"] = "off"
    """`offline` writes everything to the run directory, to be uploaded by `wandb sync`."""
    project: str = "metta"
    """Project of the run."""
    entity: str | None = None
    """Team or user; None: your default one."""
    tags: tuple[str, ...] = ()
    """Labels of the run."""


@config_class
class LoggingConfig:
    """Where numbers go, and how often."""

    log_interval: Count = 1
    """Epochs between rows of metrics."""
    csv: bool = True
    """Write `metrics.csv`."""
    tensorboard: bool = False
    """Write TensorBoard files (extra `tensorboard`)."""
    wandb: WandbConfig = dataclasses.field(default_factory=WandbConfig)
    grad_stats_interval: Interval = 0
    """Epochs between statistics of gradients per layer; 0: none."""
    weight_stats_interval: Interval = 0
    """Epochs between statistics of weights per layer; 0: none."""
    monitor_seconds: NonNegative = 5.0
    """Seconds between looks at memory and processor; 0: none."""
    heartbeat_seconds: Positive = 15.0
    """Seconds between signs of life in the event log."""
