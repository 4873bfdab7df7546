"""Training as a function: the loop in plain sight, with a step and losses of your own."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

from torch import nn

from metta.agent.factory import as_policy
from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.curriculum import Curriculum
from metta.envs.configured import configured_vec_env
from metta.envs.env_ids import name_of
from metta.envs.vec_env import VecEnv
from metta.errors import MettaWarning
from metta.rl.call_arguments import chosen_curriculum
from metta.rl.collect.sharded_collector import Experience
from metta.rl.hooks.checkpoint import CheckpointHook
from metta.rl.learn.custom_losses import CustomLoss, LossFunction
from metta.rl.loop import EpochFunction, default_training_step, run_training
from metta.rl.resume.checkpointer import TrainingCheckpointer
from metta.rl.resume.run_saver import RunSaver
from metta.rl.saved_opponents import load_opponents
from metta.rl.training_components import (
    TrainingComponents,
    build_components,
    follow_recipe,
    resolve_batch,
)
from metta.rl.training_state import PolicyTracker, TrainerState, crossed
from metta.sim.scores import EvalRewardSummary
from metta.store.policy_store import PolicyStore
from metta.timing import Stopwatch
from metta.train.train_config import PPOConfig, TrainerConfig, TrainingConfig

__all__ = [
    "create_training_components",
    "default_training_step",
    "functional_training_loop",
    "maybe_save_policy",
]


def create_training_components(  # noqa: PLR0913  # the first six by position, as in older scripts
    config: TrainerConfig,
    ppo_config: PPOConfig | None,
    policy: nn.Module | None,
    vecenv: Any,
    experience: Experience | None = None,
    policy_store: PolicyStore | None = None,
    *,
    custom_losses: Sequence[CustomLoss | LossFunction] = (),
    curriculum: Curriculum | None = None,
    allow_inexact: bool = False,
) -> TrainingComponents:
    """The parts of a run over an environment and a buffer of yours.

    `vecenv` is all that `PPOTrainer` takes: a `VecEnv`, or an id, class, factory, ..., of which
    environments are made as ``config.rollout`` and ``config.curriculum`` say.

        components = create_training_components(config, ppo_config, policy, vecenv, experience, store)
        while state.agent_steps < config.total_timesteps:
            metrics = default_training_step(state, components, config, experience)

    `ppo_config` replaces ``config.ppo`` where it is given. With a policy store, `run_training` saves
    checkpoints there at the configured interval, and the newest one is restored here, with a warning. A
    store that holds a run of other settings, or of another seed, is refused; `allow_inexact` accepts other
    libraries or threads.
    A `curriculum` of several tasks needs environments made of them: ``make_vec_env(curriculum.tasks)``.
    """
    if ppo_config is not None:
        config = dataclasses.replace(config, ppo=ppo_config)
    vec_env = vecenv if isinstance(vecenv, VecEnv) else _made(vecenv, config)
    spaces = vec_env.observation_space, vec_env.action_space
    whole = TrainingConfig(trainer=config)
    applied = follow_recipe(whole, vec_env, vecenv if curriculum is None else curriculum.task)
    whole = whole if applied is None else applied.config
    config = whole.trainer
    wrapped = as_policy(policy, *spaces, whole.agent, seed=config.seed)
    parts = build_components(
        config,
        wrapped,
        vec_env,
        experience=experience,
        custom_losses=custom_losses,
        curriculum=curriculum,
        opponents=load_opponents(config, vec_env),
    )
    if curriculum is not None or not isinstance(vecenv, VecEnv):
        parts.conditions.settings["environment"] = name_of(curriculum or vecenv)
    parts.conditions.allow_inexact = allow_inexact
    interval = config.checkpoint.checkpoint_interval
    if policy_store is not None and interval > 0:
        kept = config.checkpoint
        checkpointer = TrainingCheckpointer.from_config(policy_store.root, kept, policy_store)
        saving = RunSaver(checkpointer, interval)
        restore_with_warning(saving, parts)
        parts.hooks.add(CheckpointHook(checkpointer, interval, saving=saving))
    return parts


def _made(env: Any, config: TrainerConfig) -> VecEnv:
    task = config.curriculum
    return configured_vec_env(env, config.rollout, task.env_kwargs, task.wrappers)


def restore_with_warning(saving: RunSaver, parts: TrainingComponents) -> None:
    """Reusing a store may be intended or not: warn the caller which weights count."""
    if saving.restore(parts.registry):
        total = parts.config.total_timesteps
        text = saving.checkpointer.describe_resume(parts.state, total)
        warnings.warn(text, MettaWarning, stacklevel=2)


def functional_training_loop(  # noqa: PLR0913  # the first five by position, as in older scripts
    config: TrainerConfig,
    ppo_config: PPOConfig | None = None,
    policy: nn.Module | None = None,
    curriculum: Curriculum | None = None,
    policy_store: PolicyStore | None = None,
    *,
    env: Any = None,
    step_fn: EpochFunction = default_training_step,
    custom_losses: Sequence[CustomLoss | LossFunction] = (),
    hooks: Sequence[Any] = (),
    allow_inexact: bool = False,
) -> TrainerState:
    """Train until ``config.total_timesteps``; returns the state that was reached.

    `step_fn(state, components, config, experience)` runs one epoch and returns its metrics; it calls the
    parts as it likes. Environments are made from the curriculum, or from `env` (an id, class, factory, ...
    as for `PPOTrainer`), and closed at the end. Of what surrounds
    learning only checkpoints are made, where there is a store; evaluation and logging are hooks to add.
    A store that holds checkpoints of this run resumes it, with a warning; a run that is complete returns
    with the metrics of its last epoch. A store with a run of other settings or another seed is refused.
    """
    whole = TrainingConfig(trainer=config)
    curriculum = chosen_curriculum(whole, env, curriculum)
    config = dataclasses.replace(config, curriculum=curriculum.config)
    if config.rollout.auto_batch:
        whole = dataclasses.replace(whole, trainer=config)
        config = resolve_batch(whole, curriculum.task)[0].trainer
    vec_env = configured_vec_env(curriculum.tasks, config.rollout)
    try:
        parts = create_training_components(
            config,
            ppo_config,
            policy,
            vec_env,
            None,
            policy_store,
            custom_losses=custom_losses,
            curriculum=curriculum,
            allow_inexact=allow_inexact,
        )
        for hook in hooks:
            parts.hooks.add(hook)
        run_training(
            parts.state,
            lambda state: step_fn(state, parts, parts.config, parts.experience),
            until_step=config.total_timesteps,
            parts=parts,
            keep_history=False,
        )
    finally:
        vec_env.close()
    return parts.state


def maybe_save_policy(  # noqa: PLR0913  # each piece of state that it uses, and no more
    policy: Policy,
    policy_store: PolicyStore,
    policy_tracker: PolicyTracker,
    agent_step: int,
    epoch: int,
    evals: EvalRewardSummary,
    timer: Stopwatch,
    *,
    interval: int = 1,
) -> PolicyRecord | None:
    """For custom loops: save the policy in every `interval`-th epoch, and remember the record.

    Returns the record, or None where nothing was due. The score goes with it, and the time it took to
    the timer ``save_policy``.
    """
    if not crossed(epoch - 1, epoch, interval):
        return None
    score = evals.avg_category_score
    metadata = {} if score is None else {"score": score}
    with timer("save_policy"):
        record = policy_store.save(policy, "policy", epoch, agent_step, metadata)
    policy_tracker.add(record)
    return record
