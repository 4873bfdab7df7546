"""`remote_workers`: workers that collect in processes of their own, or on a Ray cluster."""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from metta.agent.factory import as_policy
from metta.agent.policy import Policy
from metta.curriculum import Curriculum
from metta.envs.configured import configured_vec_env
from metta.envs.env_ids import name_of
from metta.envs.facts import recipe_of
from metta.envs.vec_env import VecEnv
from metta.errors import ConfigError
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.opponents import OpponentPool, with_opponents
from metta.rl.collect.rollout_data import origin_of
from metta.rl.own_settings import checked_parts
from metta.rl.ranks import Ranks
from metta.rl.remote.ledger import ShardLedger
from metta.rl.remote.make import collect_setup, make_pool, tell_restart
from metta.rl.remote.remote_shard import RemoteShard
from metta.rl.remote.workers import RemoteWorkers
from metta.train.train_config import TrainingConfig

__all__ = ["remote_workers"]


def remote_workers(
    n: int,
    env: Any,
    policy: nn.Module | str | None = None,
    *,
    kind: Literal["process", "ray", "here"] = "process",
    address: str | None = None,
    config: TrainingConfig | Mapping[str, Any] | None = None,
    **settings: Any,
) -> RemoteWorkers:
    """`n` workers that collect, each in a process of its own, or as an actor on Ray.

        with remote_workers(3, "CartPole-v1", trainer.policy) as workers:
            rollouts = [worker.collect_rollouts(1000) for worker in workers]
            trainer.learn(combine_rollouts(rollouts))
            workers.load_weights(trainer.policy)

    Arguments are those of `PPOTrainer`; `num_envs` are those of each worker. `env` must be made where it is
    stepped: an id, a class or a factory. `policy` stays the caller's: workers have copies of it. `address`
    is that of a Ray cluster, as host:port. With `kind` ``here`` this process collects, in turn and with the
    same bits.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ConfigError(f"remote_workers(n={n!r}): allowed is a whole number from 1")
    where = {"collect.kind": kind, "collect.address": address}
    module, whole, _ = checked_parts(policy, env, config, {**settings, **where}, None)
    _require_own(whole)
    curriculum = env if isinstance(env, Curriculum) else None
    about, tasks = whole.trainer.curriculum, curriculum and curriculum.tasks
    vec_env = configured_vec_env(
        tasks or env, whole.trainer.rollout, about.env_kwargs, about.wrappers, is_elsewhere=True
    )
    try:
        probed = env if curriculum is None else curriculum.task
        applied = recipe_of(whole, vec_env, probed)
        whole = whole if applied is None else applied.config
        agent = _policy_of(module, vec_env, whole)
        return _started(n, agent, vec_env, whole, curriculum, name_of(env))
    finally:
        vec_env.close()


def _require_own(config: TrainingConfig) -> None:
    """Refuse settings that say otherwise where, when and how much is collected."""
    rollout, collect = config.trainer.rollout, config.trainer.collect
    found = {
        f"num_shards={rollout.num_shards}": rollout.num_shards > 1,
        f"collect.num_actors={collect.num_actors}": collect.num_actors > 0,
        "collect.overlap=true": collect.overlap,
        "auto_batch=true": rollout.auto_batch,
        "self_play.opponents": bool(config.trainer.self_play.opponents),
    }
    wrong = [text for text, is_set in found.items() if is_set]
    if wrong:
        raise ConfigError(
            f"{', '.join(wrong)} has no effect on remote_workers: their number is the first argument, "
            "num_envs the environments of each, start() collects while something else happens, and "
            "opponents are past selves; leave it out"
        )


def _policy_of(module: nn.Module | None, vec_env: VecEnv, config: TrainingConfig) -> Policy:
    """The workers' own policy, which begins with the weights of the caller's."""
    spaces = vec_env.observation_space, vec_env.action_space
    policy = as_policy(module, *spaces, config.agent, seed=config.trainer.seed)
    own = copy.deepcopy(policy).to("cpu")
    own.precision = getattr(torch, config.trainer.numerics.precision)
    return own


def _started(  # the parts of workers
    n: int,
    policy: Policy,
    vec_env: VecEnv,
    config: TrainingConfig,
    curriculum: Curriculum | None,
    env_name: str | None,
) -> RemoteWorkers:
    trainer, origin = config.trainer, origin_of(policy, config, env_name)
    play, opponents, env = trainer.self_play, None, vec_env
    if play.learner_share < 1.0:
        opponents = OpponentPool(policy, interval=play.self_play_interval, size=play.pool_size)
        env = with_opponents(vec_env, opponents, play.learner_share, seed=trainer.seed, shard=0)
    setup = collect_setup(trainer, policy, env, curriculum)
    chooses = setup.curriculum
    shards = [
        RemoteShard(
            number, env, RolloutBuffer.for_env(policy, env, 1), actor_kind=setup.actor,
            curriculum=chooses,
        )
        for number in range(n)
    ]  # fmt: skip
    ledger = ShardLedger(make_pool(trainer.collect, setup, n), shards, trainer.collect)
    if trainer.verbose:
        ledger.on_restart.append(partial(tell_restart, Ranks()))
    try:
        return RemoteWorkers(
            trainer, policy, ledger, curriculum=chooses, opponents=opponents, origin=origin
        )
    except BaseException:
        ledger.close()
        raise
