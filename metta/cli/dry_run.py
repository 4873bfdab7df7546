"""`metta train --dry-run`: batch sizes and memory of a run, without training it."""

import math
from collections.abc import Iterator

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.cli.tables import say, shown_bytes
from metta.envs.factory import make_vec_env
from metta.envs.facts import recipe_of
from metta.envs.vec_env import VecEnv
from metta.rl.collect.buffer_size import buffer_bytes
from metta.rl.training_components import resolve_batch
from metta.train.batch_sizing import check_minibatch_size, minibatch_sizes
from metta.train.layers import Resolved
from metta.train.train_config import TrainingConfig

__all__ = ["dry_run"]


def dry_run(resolved: Resolved) -> int:
    """Print what the run would do; makes one environment and one policy, and trains nothing."""
    config, chosen = resolved.config, ""
    curriculum = config.trainer.curriculum
    if config.trainer.rollout.auto_batch:
        config, plan = resolve_batch(config, config.env)
        chosen = plan.explanation
    env = make_vec_env(config.env, env_kwargs=curriculum.env_kwargs, wrappers=curriculum.wrappers)
    try:
        applied = recipe_of(config, env, config.env, num_envs=config.trainer.rollout.num_envs)
        config = config if applied is None else applied.config
        policy = make_policy(env.observation_space, env.action_space, config.agent)
        lines = [
            f"{config.env} for {config.trainer.total_timesteps:,} steps; nothing is trained (--dry-run)",
            *([f"auto_batch:   {chosen}"] if chosen else []),
            *([f"recipe:       {applied.describe()}"] if applied else []),
            *_batch_lines(config, _learning_rows(config, env.num_rows), policy),
            *_memory_lines(config, env, policy),
        ]
    finally:
        env.close()
    say("\n".join(lines))
    return 0


def _learning_rows(config: TrainingConfig, rows_per_env: int) -> int:
    """Agents of an environment that learn."""
    return max(1, round(rows_per_env * config.trainer.self_play.learner_share))


def _batch_lines(config: TrainingConfig, rows_per_env: int, policy: Policy) -> Iterator[str]:
    trainer, rollout, ppo = config.trainer, config.trainer.rollout, config.trainer.ppo
    rows = rollout.num_envs * rows_per_env
    batch = rows * rollout.horizon
    segment = min(rollout.bptt_horizon, rollout.horizon) if policy.is_recurrent else 1
    check_minibatch_size(
        ppo.minibatch_size, horizon=rollout.horizon, rows=rows, segment_length=segment
    )
    agents = f" x {rows_per_env} agents" if rows_per_env > 1 else ""
    yield (
        f"batch:        num_envs {rollout.num_envs}{agents} x horizon {rollout.horizon} = {batch:,} steps"
    )
    size = None if ppo.minibatch_size is None else ppo.minibatch_size // segment
    units = minibatch_sizes(batch // segment, ppo.num_minibatches, size)
    if policy.is_recurrent:
        yield f"segments:     {batch // segment:,} of {segment} steps"
    sizes = sorted({unit * segment for unit in units})
    yield f"minibatches:  {len(units)} x {' or '.join(str(size) for size in sizes)} steps"
    updates = len(units) * ppo.update_epochs
    yield f"update:       {ppo.update_epochs} passes x {len(units)} minibatches = {updates} optimizer steps"
    epochs = math.ceil(trainer.total_timesteps / batch)
    yield (
        f"run:          {epochs:,} epochs of {batch:,} steps = {epochs * batch:,} steps, "
        f"{epochs * updates:,} optimizer steps"
    )


def _memory_lines(config: TrainingConfig, env: VecEnv, policy: Policy) -> Iterator[str]:
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    weights = sum(tensor.nbytes for tensor in policy.parameters())
    optimizer = config.trainer.optimizer
    moments = 2 if optimizer.name != "sgd" else int(optimizer.momentum > 0)
    rollout = buffer_bytes(config, env, policy)
    total = rollout + (2 + moments) * weights
    yield f"rollout:      {shown_bytes(rollout)}"
    yield f"policy:       {parameters:,} parameters, {shown_bytes(weights)}, and as much for gradients"
    yield f"optimizer:    {optimizer.name}, {shown_bytes(moments * weights)}"
    yield f"memory:       {shown_bytes(total)}, without activations, environments and libraries"
