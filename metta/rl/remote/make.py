"""`make_remote_collector`: a collector whose shards are elsewhere, from the settings of a run."""

import copy
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from metta.agent.actors.actor import make_actor
from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.envs.backends.elsewhere import VecEnvElsewhere
from metta.envs.backends.sharded import shards_of
from metta.envs.vec_env import VecEnv
from metta.errors import ConfigError
from metta.rl.collect.opponents import OpponentVecEnv
from metta.rl.collect.sharded_collector import (
    Collector,
    Experience,
    buffers_of,
    collectors_of,
)
from metta.rl.learn.ppo import PPOOptimizer
from metta.rl.ranks import Ranks
from metta.rl.remote.pool import CollectPool, InlinePool
from metta.rl.remote.process_pool import ProcessPool
from metta.rl.remote.remote_collector import RemoteCollector
from metta.rl.remote.remote_shard import RemoteEnvironments, RemoteShard
from metta.rl.remote.tasks import CollectSetup
from metta.rl.resume.environment_state import EnvironmentState
from metta.train.run_config import CheckpointConfig, CollectConfig
from metta.train.train_config import TrainerConfig
from metta.versions import library_versions

__all__ = [
    "collect_setup",
    "environment_states",
    "make_pool",
    "make_remote_collector",
    "tell_restart",
]


def make_remote_collector(
    config: TrainerConfig,
    vecenv: VecEnv,
    ppo: PPOOptimizer,
    experience: Experience,
    ranks: Ranks,
    *,
    curriculum: Curriculum | None = None,
    opponents: Sequence[Policy] = (),
) -> RemoteCollector:
    """Start what collects, and let it make the environments; closing `vecenv` ends it."""
    first: Any = shards_of(vecenv)[0]
    pool = first.pool if isinstance(first, OpponentVecEnv) else None
    setup = collect_setup(config, ppo.policy, first, curriculum, opponents)
    shards = [
        RemoteShard(number, first, buffer, actor_kind=setup.actor, curriculum=setup.curriculum)
        for number, buffer in zip(ranks.shards, buffers_of(experience), strict=True)
    ]
    size = config.collect.num_actors or len(shards)
    collector = RemoteCollector(
        vecenv, shards, ranks, experience, make_pool(config.collect, setup, size), ppo,
        config.collect, opponents=pool,
    )  # fmt: skip
    elsewhere = first.inner if pool is not None else first
    elsewhere.on_close.append(collector.close)
    if config.verbose or not ranks.is_master:  # other ranks are told to be quiet, not the run
        collector.on_restart.append(partial(tell_restart, ranks))
    collector.begin()
    return collector


def collect_setup(
    config: TrainerConfig,
    policy: Policy,
    vec_env: VecEnv,
    curriculum: Curriculum | None = None,
    opponents: Sequence[Policy] = (),
) -> CollectSetup:
    """What processes that collect must know; `vec_env` is that of one shard, and its example is closed."""
    elsewhere = vec_env.inner if isinstance(vec_env, OpponentVecEnv) else vec_env
    if not isinstance(elsewhere, VecEnvElsewhere):
        raise ConfigError(
            f"collect.kind={config.collect.kind} and collect.overlap need environments that are made where "
            f"they are stepped, and this {type(elsewhere).__name__} exists already; give an id, a class or "
            "a factory"
        )
    elsewhere.close_example()
    if curriculum is not None and curriculum.is_single:
        curriculum = None
    rows = vec_env.num_rows // vec_env.num_groups
    actor = make_actor(config.numerics.actor, policy, rows).kind
    own = copy.deepcopy(policy).to("cpu")
    return CollectSetup(
        config, own, elsewhere.source, curriculum, tuple(opponents), actor, library_versions()
    )


def environment_states(
    config: CheckpointConfig, collector: Collector
) -> list[EnvironmentState | RemoteEnvironments]:
    """The environments of each shard of this rank as components, wherever they are."""
    how = config.env_restore, config.checkpoint_interval
    return [
        RemoteEnvironments(shard, *how)
        if isinstance(shard, RemoteShard)
        else EnvironmentState(shard, *how)
        for shard in collectors_of(collector)
    ]


def tell_restart(ranks: Ranks, place: int, reason: str) -> None:
    """A line on standard error."""
    whose = f"rank {ranks.rank}: " if ranks.size > 1 else ""
    sys.stderr.write(f"metta: {whose}{reason}; another one collects in place {place} from now on\n")


def make_pool(config: CollectConfig, setup: CollectSetup, size: int) -> CollectPool:
    """So many places of the kind that is configured, or this process as the only one."""
    if config.kind == "ray":
        from metta.rl.remote.ray_pool import RayPool  # only for those who want it

        return RayPool(setup, size, config.address)
    return ProcessPool(setup, size) if config.kind == "process" else InlinePool(setup)
