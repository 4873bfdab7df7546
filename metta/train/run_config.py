"""Settings around learning: the task, checkpoints, evaluation and logging."""

import dataclasses
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import BeforeValidator, model_validator

from metta.train.agent_groups import agent_group_rules
from metta.train.parsing.fields import (
    Count,
    Fraction,
    Interval,
    Name,
    NonNegative,
    Positive,
    config_class,
)
from metta.train.parsing.problems import raise_broken
from metta.train.wrappers import wrapper_rules, wrapper_texts

__all__ = [
    "CheckpointConfig",
    "CollectConfig",
    "CurriculumConfig",
    "EvaluationConfig",
    "LoggingConfig",
    "SelfPlayConfig",
    "WandbConfig",
]


@config_class
class CurriculumConfig:
    """What is trained on: one task, or many, of which the next is chosen by their scores."""

    kind: Literal[
        "single", "random", "bucketed", "learning_progress", "prioritize_regressed", "progressive"
    ] = "single"
    """`single`: the environment below. `random` and `bucketed` draw by fixed weights; `learning_progress`
    prefers tasks whose scores move, `prioritize_regressed` those that fell below their best, `progressive`
    opens one task after the other."""
    env: str = "CartPole-v1"
    """Gymnasium id of the environment."""
    env_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of the environment, e.g. ``{"gravity": -9.0}``; ``agent_groups`` among them, e.g.
    ``[2, 1]``, gives groups of an environment's agents their own parameters."""
    wrappers: Annotated[tuple[str, ...], BeforeValidator(wrapper_texts)] = ()
    """Around each environment, the first one innermost, e.g. ``[FrameStack(4), TimeLimit(500)]``; in
    evaluations and replays too."""
    tasks: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Name of a task -> its keyword arguments, over `env_kwargs`; ``env`` among them is another id."""
    buckets: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Argument -> its values, or ``{"low", "high", "bins"}``; every combination is a task."""
    task_weights: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Name of a task -> how much more often it is drawn than its share; 1 if not given."""
    score_smoothing: Annotated[float, Gt(0), Le(1)] = 0.1
    """How fast the smoothed score of a task follows its episodes."""
    min_share: Fraction = 0.2
    """Share of episodes that is spread over all open tasks, whatever their scores."""
    mastery_score: float = 0.0
    """`progressive`: smoothed score of a task at which the next one opens."""

    @model_validator(mode="after")
    def _parts_are_known(self) -> "CurriculumConfig":
        raise_broken([*agent_group_rules(self.env_kwargs), *wrapper_rules(self.wrappers)])
        return self


@config_class
class CollectConfig:
    """Where and when rollouts are collected; with `overlap` alone does it decide what is learned."""

    kind: Literal["here", "process", "ray"] = "here"
    """`process`: other processes on this machine; `ray`: actors on Ray (extra `ray`)."""
    num_actors: Interval = 0
    """Processes or Ray actors that collect for each process that learns; 0: one for each of its shards."""
    address: str | None = None
    """Ray cluster to join, as host:port; None: a new one, on this machine alone."""
    overlap: bool = False
    """Collect the next rollout while this one is learned from: rollouts are one update old."""
    task_timeout_seconds: Positive = 600.0
    """Time in which a shard's rollout must come; a process or actor that takes longer counts as hung."""
    max_actor_restarts: Interval = 10
    """How often within any hour processes or actors that died or hung are started again; 0: never."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether shards are asked for as tasks, rather than collected one after the other."""
        return self.kind != "here" or self.overlap


@config_class
class SelfPlayConfig:
    """Agents that are played by policies that do not learn, in environments of many agents."""

    learner_share: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of an environment's agents that learn, at least one; 1: all, without opponents."""
    self_play_interval: Interval = 0
    """Epochs between past selves that join the opponents; 0: none does."""
    pool_size: Count = 8
    """Past selves that are kept, the newest ones."""
    opponents: tuple[str, ...] = ()
    """URIs of saved policies that are always opponents; none: the initial policy is the first opponent."""


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
    """Epochs whose multiples are always kept; 0: none."""
    rescue_share: Fraction = 0.005
    """Share of the time that may be spent on keeping a copy of the run in memory between checkpoints, to be
    saved if it fails; 0: none, 1: before every epoch."""
    env_restore: Literal["auto", "snapshot", "repeat", "sync_reset", "boundary"] = "auto"
    """How environments are restored in a resumed run: `auto` takes the best that works, by trying it;
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
    """Environments that run at the same time."""
    max_eval_failures: Count = 3
    """Failed evaluations in a row after which training stops; fewer only warn."""
    suite: Name | None = None
    """Name of a suite, or path of its YAML file, that is played in addition to the training task."""
    where: Literal["here", "process", "queue", "ray"] = "here"
    """Who plays. `here`: training waits for it. All others play while training continues, and scores arrive
    some epochs later, as records of the epoch that they belong to; an interrupted run collects missing ones
    when it is resumed. `process`: another process; `queue`: `metta worker`s, on any machine that shares the
    run's folder (extra `database`); `ray`: workers on Ray (extra `ray`)."""
    eval_timeout_seconds: Positive = 600.0
    """`process`: how long an evaluation may take."""
    end_wait_seconds: NonNegative = 600.0
    """How long the end of a run waits for scores that are missing; `metta resume` collects the rest."""
    database: Name | None = None
    """`queue`, `ray`: database with the queue, a SQLite file or a URL, or ``env:NAME``; None: the variable
    METTA_STATS_URL, else `stats.db` in the folder that holds the run."""
    ray_address: str | None = None
    """`ray`: cluster to join, as host:port; None: a new one, on this machine alone."""
    num_ray_workers: Count = 1
    """`ray`: workers that play at the same time."""
    replay_interval: Interval = 0
    """Epochs between replays, one episode of each simulation; 0: none. One more at the end of the run."""
    final_replay: bool = True
    """`metta train` records one episode of the final policy, of up to 500 steps or 10 seconds, unless
    there is a replay of its epoch already."""
    replay_max_steps: Annotated[int, Ge(1), Le(100_000)] = 5_000
    """Steps after which the recording of an episode is cut off."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether others play while training continues."""
        return self.where != "here"


@config_class
class WandbConfig:
    """Weights & Biases."""

    mode: Literal["off", "offline", "online"] = "off"
    """`offline` writes everything to the run directory, to be uploaded by `wandb sync`."""
    project: str = "metta"
    """Project of the run."""
    entity: str | None = None
    """Team or user; None: your default."""
    tags: tuple[str, ...] = ()
    """Labels of the run."""


@config_class
class LoggingConfig:
    """Where metrics are written, and how often."""

    log_interval: Count = 1
    """Epochs between records of metrics."""
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
    """Seconds between measurements of memory and processor; 0: none."""
    heartbeat_seconds: Positive = 15.0
    """Seconds between heartbeats in the event log."""
