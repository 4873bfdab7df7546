"""What is asked of a process that collects, and what it answers: plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.envs.configured import EnvSource
from metta.envs.vec_env import RestoreSupport
from metta.rl.collect.collector import CollectedPart
from metta.train.train_config import TrainerConfig

__all__ = ["CollectSetup", "Moment", "ShardFailure", "ShardResult", "ShardTask"]


@dataclass(frozen=True)
class CollectSetup:
    """What a process must know before its first task."""

    config: TrainerConfig
    policy: Policy
    """Its weights do not matter: each moment brings them."""
    source: EnvSource
    """Makes the environments of one shard."""
    curriculum: Curriculum | None
    """None where there is nothing to choose."""
    opponents: tuple[Policy, ...]
    """Saved policies that are always opponents."""
    actor: str
    """How actions are drawn: the same in all processes."""
    versions: Mapping[str, str]
    """Of the libraries of the process that trains."""


@dataclass(frozen=True)
class Moment:
    """What all shards of a rollout are collected with."""

    ticket: int
    """The number of the request: tasks of this moment have the same."""
    weights: Mapping[str, np.ndarray]
    """The whole state of the policy, normalisers included."""
    threads: int
    """Of torch, which the last bits depend on."""
    curriculum: Mapping[str, Any] | None = None
    opponents: Mapping[str, Any] | None = None


class ShardTask(NamedTuple):
    """One shard of one rollout; with a `horizon` of 0 environments are made, and nothing is collected."""

    ticket: int
    """The number of the request, by which its results are known."""
    number: int
    """Of the rollout, from 0."""
    shard: int
    horizon: int
    fresh: bool = False
    """Whether unfinished episodes are dropped first."""
    state: bytes | None = None
    """Where the shard is; None: where the process that gets the task left it."""


@dataclass(frozen=True)
class ShardResult:
    """What a task gave: a function of the task, its moment and the state of the shard."""

    ticket: int
    num_rollouts: int
    """Rollouts of the shard up to now."""
    shard: int
    state: bytes
    """Where the shard is now."""
    support: RestoreSupport
    """How its environments can be restored."""
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    """``[T, N / S, ...]`` on the host."""
    part: CollectedPart | None = None
    num_episodes: int = 0
    """Episodes of the shard that ended up to now."""
    num_boundaries: int = 0
    """How often its episodes were dropped because the environments could not be restored here."""
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    """That the task took."""


@dataclass(frozen=True)
class ShardFailure:
    """Why a place gave no result: it is gone, or what it ran raised an exception."""

    reason: str
    error: str = ""
    """Name of the exception's class; empty where the process is gone or hangs."""
