"""The parts of a run, built in one place from a policy, an environment and settings."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from metta.agent.policy import Policy
from metta.curriculum import Curriculum, Task
from metta.envs.backends.sharded import ShardedVecEnv, shards_of
from metta.envs.configured import row_bytes
from metta.envs.factory import make_vec_env
from metta.envs.facts import recipe_of
from metta.envs.vec_env import VecEnv
from metta.errors import ConfigError, PolicyError
from metta.ops.threads import threads_set
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.collector import RolloutCollector
from metta.rl.collect.opponents import OpponentPool, OpponentVecEnv, with_opponents
from metta.rl.collect.sharded_collector import (
    Collector,
    Experience,
    ShardedCollector,
    ShardedExperience,
    buffers_of,
)
from metta.rl.compiled.cache import compiler_name
from metta.rl.compiled.choice import DriverChoice
from metta.rl.compiled.driver import Announce
from metta.rl.hooks.registry import HookRegistry
from metta.rl.learn.custom_losses import CustomLoss, LossFunction, as_custom_losses
from metta.rl.learn.numerics import (
    NumericsPlan,
    resolve_device,
    resolve_plan,
    threads_for,
)
from metta.rl.learn.optimizer import make_optimizer
from metta.rl.learn.ppo import PPOOptimizer
from metta.rl.ranks import Ranks
from metta.rl.remote.make import environment_states, make_remote_collector
from metta.rl.remote.remote_collector import RemoteCollector
from metta.rl.remote.remote_shard import RemoteEnvironments
from metta.rl.resume.conditions import RunConditions
from metta.rl.resume.environment_state import EnvironmentState, ShardedEnvironments
from metta.rl.resume.layout import RunLayout, layout_of
from metta.rl.resume.shard_states import shard_names
from metta.rl.training_state import TrainerState
from metta.stateful import NamedState, Stateful, StateRegistry
from metta.train.batch_sizing import BatchPlan, check_minibatch_size
from metta.train.changes import plain_settings
from metta.train.machine import plan_config
from metta.train.recipes import Applied
from metta.train.settings import given_paths
from metta.train.train_config import TrainerConfig, TrainingConfig

__all__ = [
    "TrainingComponents",
    "announcer",
    "build_components",
    "follow_recipe",
    "make_experience",
    "resolve_batch",
]


@dataclass
class TrainingComponents:
    """What one epoch needs; each part may be used on its own."""

    config: TrainerConfig
    vecenv: VecEnv
    policy: Policy
    experience: Experience
    optimizer: torch.optim.Optimizer
    collector: Collector
    environments: ShardedEnvironments
    """The state of the collector's environments."""
    ppo: PPOOptimizer
    custom_losses: list[CustomLoss]
    conditions: RunConditions
    state: TrainerState
    ranks: Ranks
    registry: StateRegistry
    """Everything that decides the numbers of the run from here on."""
    hooks: HookRegistry
    layout: RunLayout
    """Where the shards of the run are computed."""

    @property
    def plan(self) -> NumericsPlan:
        """What decides the last bits; a resumed run uses that of its checkpoint."""
        return self.conditions.plan

    def phase_seconds(self) -> dict[str, float]:
        """What only some layouts do, so far: to collect elsewhere, and to reduce over ranks."""
        found = self.ranks.timer.elapsed_all()
        if isinstance(self.collector, RemoteCollector):
            found |= self.collector.timer.elapsed_all()
        return found

    def use_state(self, state: TrainerState) -> None:
        """Continue with another state: counters, trackers, and what hooks see."""
        self.state = self.hooks.state = state
        for part in (state, state.stats, state.policies):
            self.registry.replace(part)


def make_experience(
    policy: Policy, vecenv: VecEnv, config: TrainerConfig, horizon: int | None = None
) -> Experience:
    """A buffer for rollouts of this horizon (default: the configured one), or one for each shard."""
    steps, segment = horizon or config.rollout.horizon, config.rollout.bptt_horizon
    buffers = [
        RolloutBuffer.for_env(policy, shard, steps, bptt_horizon=segment)
        for shard in shards_of(vecenv)
    ]
    return ShardedExperience(buffers) if isinstance(vecenv, ShardedVecEnv) else buffers[0]


def build_components(  # noqa: PLR0913  # three parts by position, then what else there may be: by name
    config: TrainerConfig,
    policy: Policy,
    vecenv: VecEnv,
    *,
    experience: Experience | None = None,
    custom_losses: Sequence[CustomLoss | LossFunction] = (),
    hooks: HookRegistry | None = None,
    curriculum: Curriculum | None = None,
    opponents: Sequence[Policy] = (),
    ranks: Ranks | None = None,
) -> TrainingComponents:
    """Optimizer, collector, learner, plan and state; `hooks` keep theirs and learn of the parts.

    `opponents` play the agents that do not learn, where ``config.self_play`` leaves any.
    """
    device = resolve_device(config.device)
    policy.to(device)
    policy.precision = getattr(torch, config.numerics.precision)
    ranks = ranks or Ranks(config.rollout.num_shards)
    vecenv = _with_opponents(config, policy, vecenv, opponents, ranks)
    losses = as_custom_losses(custom_losses)
    optimizer = make_optimizer(_parameters(policy, losses, device), config.optimizer)
    ppo = PPOOptimizer(
        policy,
        optimizer,
        device,
        config.ppo,
        optimizer_config=config.optimizer,
        seed=config.seed,
        ranks=ranks,
    )
    buffer = experience or make_experience(policy, vecenv, config)
    _check_minibatches(config, policy, buffers_of(buffer)[0], ranks)
    collector: Collector
    if config.collect.is_elsewhere:
        collector = make_remote_collector(
            config, vecenv, ppo, buffer, ranks, curriculum=curriculum, opponents=opponents
        )
    else:
        collector = _make_collector(config, vecenv, policy, buffer, curriculum, ranks)
    layout = layout_of(config, ranks, str(device))
    conditions = _conditions(config, ppo, collector, losses, layout)
    ppo.before_update = conditions.complete_plan
    if hooks is None:
        hooks = HookRegistry(TrainerState())
    state = hooks.state
    states = environment_states(config.checkpoint, collector)
    registry = _register(conditions, policy, ppo, collector, states, state, optimizer, losses)
    hooks.policy, hooks.optimizer, hooks.config = policy, optimizer, config
    hooks.registry, hooks.is_master = registry, ranks.is_master
    return TrainingComponents(
        config, vecenv, policy, buffer, optimizer, collector, ShardedEnvironments(states), ppo, losses,
        conditions, state, ranks, registry, hooks, layout,
    )  # fmt: skip


def _check_minibatches(
    config: TrainerConfig, policy: Policy, buffer: RolloutBuffer, ranks: Ranks
) -> None:
    """A minibatch takes as many whole segments of every shard; `buffer` is that of one."""
    segment = buffer.segment_length if policy.is_recurrent else 1
    check_minibatch_size(
        config.ppo.minibatch_size,
        horizon=buffer.horizon,
        rows=buffer.num_rows * ranks.num_shards,
        segment_length=segment * ranks.num_shards,
    )


def _make_collector(  # the parts of a collector
    config: TrainerConfig,
    vecenv: VecEnv,
    policy: Policy,
    experience: Experience,
    curriculum: Curriculum | None,
    ranks: Ranks,
) -> Collector:
    """One collector for each shard of this rank."""
    parts = zip(ranks.shards, shards_of(vecenv), buffers_of(experience), strict=True)
    actor = config.numerics.actor
    shards = [
        RolloutCollector(
            env, policy, buffer, policy.device, seed=config.seed, shard=number, actor=actor,
            curriculum=curriculum,
        )
        for number, env, buffer in parts
    ]  # fmt: skip
    if isinstance(vecenv, ShardedVecEnv):
        return ShardedCollector(vecenv, shards, ranks)
    return shards[0]


def _conditions(
    config: TrainerConfig,
    ppo: PPOOptimizer,
    collector: Collector,
    losses: list[CustomLoss],
    layout: RunLayout,
) -> RunConditions:
    """The plan of the numbers; a driver that was asked for is in place, ``auto`` is decided later.

    By then it is known how long the run is, and whether it continues from a checkpoint.
    """
    policy, numerics = ppo.policy, config.numerics
    buffer, is_whole = buffers_of(collector.experience)[0], ppo.ranks.num_shards == 1
    batch = buffer.rewards.numel()
    num_samples = config.ppo.minibatch_size or batch // config.ppo.num_minibatches
    # shards use cores by being in several processes, and a number of threads would change the bits
    threads = numerics.threads or (threads_for(policy, num_samples) if is_whole else 1)
    announce = announcer(config)
    choice = DriverChoice(config, ppo, buffer, losses, announce)
    driver = numerics.driver if is_whole else "eager"  # compiled code is for updates of one shard
    if driver != "auto":
        with threads_set(threads):  # compiled code is made for a number of threads
            choice.select_driver(driver)
    plan = resolve_plan(
        policy, threads=threads, num_groups=collector.vec_env.num_groups,
        actor=collector.actor_kind, driver=driver,
        compiler="" if driver in ("auto", "eager") else compiler_name() or "",
    )  # fmt: skip
    chosen = {"threads": numerics.threads > 0, "driver": driver != "auto"}
    are_set = [name for name, is_set in chosen.items() if is_set]
    conditions = RunConditions(
        plan,
        are_set=are_set,
        select_saved=choice.select_driver_of_plan,
        select=choice.select_driver_for_run,
        announce=announce,
    )
    conditions.settings = plain_settings(config, "trainer.") | _loss_settings(losses)
    conditions.layout, conditions.notes = layout.to_dict(), layout.lines()
    return conditions


def _loss_settings(losses: Sequence[CustomLoss]) -> dict[str, Any]:
    """Names and weights of custom losses; their code cannot be compared."""
    return {
        "custom_losses": {
            loss.label: [loss.weight, loss.schedule, loss.schedule_end] for loss in losses
        }
    }


def announcer(config: TrainerConfig) -> Announce:
    """Where a line about how numbers are computed goes: standard error, unless the run is to be quiet."""

    def announce(text: str) -> None:
        if config.verbose:
            sys.stderr.write(f"metta: {text}\n")

    return announce


def _with_opponents(
    config: TrainerConfig, policy: Policy, vecenv: VecEnv, fixed: Sequence[Policy], ranks: Ranks
) -> VecEnv:
    """The environments without the agents that opponents play."""
    play = config.self_play
    if play.learner_share == 1.0:
        return vecenv
    pool = OpponentPool(policy, fixed, interval=play.self_play_interval, size=play.pool_size)
    shards = [
        with_opponents(env, pool, play.learner_share, seed=config.seed, shard=number)
        for number, env in zip(ranks.shards, shards_of(vecenv), strict=True)
    ]
    if isinstance(vecenv, ShardedVecEnv):
        return cast("VecEnv", ShardedVecEnv(shards, ranks.num_shards))
    return shards[0]


def _parameters(
    policy: Policy, losses: Sequence[CustomLoss], device: torch.device
) -> dict[nn.Parameter, None]:
    """The policy's and those of losses that are modules."""
    name = type(policy.module).__name__
    if policy.dtype != torch.float32:
        raise PolicyError(
            f"the policy module {name} has parameters of {policy.dtype}, and training is in float32; pass "
            "module.float() (for faster networks there is precision='bfloat16')"
        )
    modules = [loss.fn for loss in losses if isinstance(loss.fn, nn.Module)]
    extra = [p for module in modules for p in module.to(device).parameters()]
    # a loss may hold the policy itself: each parameter counts once
    found = dict.fromkeys([*policy.parameters(), *extra])
    if not any(parameter.requires_grad for parameter in found):
        raise PolicyError(
            f"the policy module {name} has {len(found)} parameters, and none can "
            "be trained; keep layers as attributes or in an nn.ModuleList (a plain list hides them), "
            "and do not freeze all of them with requires_grad_(False)"
        )
    return found


def _register(  # noqa: PLR0913  # every part of a run
    conditions: RunConditions,
    policy: Policy,
    ppo: PPOOptimizer,
    collector: Collector,
    environments: Sequence[EnvironmentState | RemoteEnvironments],
    state: TrainerState,
    optimizer: torch.optim.Optimizer,
    losses: Sequence[CustomLoss],
) -> StateRegistry:
    """Components in the order of restoring: conditions may refuse, environments need the collector."""
    registry = StateRegistry()
    parts: list[Any] = [conditions, policy, ppo]
    first = shards_of(collector.vec_env)[0]
    if isinstance(first, OpponentVecEnv):
        parts.append(first.pool)  # before the environments, whose opponents it holds
    if isinstance(collector, RemoteCollector) and collector.config.overlap:
        parts.append(collector.ahead)
    for part in environments:
        parts += [part.collector, part]
    parts += [state, state.stats, state.policies, NamedState("optimizer", optimizer)]
    if collector.curriculum is not None:
        parts.append(collector.curriculum)
    parts += [
        NamedState(f"loss/{loss.label}", loss.fn)
        for loss in losses
        if isinstance(loss.fn, nn.Module | Stateful)
    ]
    for part in parts:
        registry.add(part)
    if ppo.ranks.num_shards > 1:
        names, own = shard_names(range(ppo.ranks.num_shards)), registry.names()
        registry.elsewhere = dict.fromkeys(name for name in names if name not in own)
    return registry


def follow_recipe(
    config: TrainingConfig,
    vec_env: VecEnv,
    env: Any,
    *,
    frozen: Mapping[str, Any] | None = None,
) -> Applied | None:
    """Settings that were not chosen, as the recipe of the environment has them; says which it is.

    `env` is what `vec_env` was made of. `frozen` are values of an earlier recipe, which stay.
    """
    applied = recipe_of(config, vec_env, env, frozen=frozen or {})
    if applied is not None:
        announcer(config.trainer)(applied.describe())
    return applied


def resolve_batch(config: TrainingConfig, env: Any) -> tuple[TrainingConfig, BatchPlan]:
    """Sizes that were not set, chosen for this machine and the observations of `env`.

    One environment is made and closed to measure its rows.
    """
    given = env.env if isinstance(env, Task) else env
    if isinstance(given, VecEnv) or not (isinstance(given, str) or callable(given)):
        raise ConfigError(
            f"auto_batch chooses the number of environments, but {type(given).__name__} has its own; "
            "give an id or a factory, or leave auto_batch off"
        )
    task = config.trainer.curriculum
    probe = make_vec_env(env, env_kwargs=task.env_kwargs, wrappers=task.wrappers)
    try:
        rows, size, chosen = probe.num_rows, row_bytes(probe), given_paths(config)
        return plan_config(config, chosen, agents_per_env=rows, row_bytes=size)
    finally:
        probe.close()
