"""Checks of settings against the environment: restoring, speed, memory and batches."""

from collections.abc import Iterator

import numpy as np
from gymnasium import spaces

from metta.agent.policy import Policy
from metta.doctor.recording import Recording
from metta.doctor.report import Finding, verdict
from metta.envs.vec_env import VecEnv, find_support
from metta.errors import ConfigError
from metta.rl.collect.buffer_size import buffer_bytes
from metta.train.batch_sizing import check_minibatch_size, minibatch_sizes
from metta.train.machine import physical_memory_bytes
from metta.train.train_config import TrainingConfig

__all__ = ["check_action_bounds", "check_batch", "check_memory", "check_restore", "check_speed"]

_LARGE_SHARE, _TOO_LARGE_SHARE = 0.25, 0.75
_SMALL_MINIBATCH = 16
_FAST_LEARNING, _SLOW_LEARNING = 0.02, 1e-6
_SLOW_STEPS_PER_SECOND = 200.0
_NARROW, _WIDE = 0.05, 20.0


def check_restore(vec_env: VecEnv) -> Iterator[Finding]:
    """How a resumed run gets its environments back."""
    support = find_support(vec_env)
    yield verdict(
        "restore class",
        "note" if support.restore_class == "boundary" else "ok",
        support.describe(),
        "",
        "give the environment get_state() and set_state(state), or obey seeds",
    )


def check_speed(recording: Recording, config: TrainingConfig) -> Iterator[Finding]:
    """Steps per second of one environment in one process."""
    speed = recording.num_steps / max(recording.seconds, 1e-9)
    total = config.trainer.total_timesteps
    is_slow = speed < _SLOW_STEPS_PER_SECOND and not config.trainer.rollout.num_workers
    yield verdict(
        "throughput",
        "note" if is_slow else "ok",
        f"{speed:,.0f} agent steps per second in one process; stepping alone takes "
        f"{_duration(total / speed)} for {total:,} steps",
        "",
        "step environments in several processes: num_workers=4",
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.2g} seconds"
    return f"{seconds / 60:.2g} minutes" if seconds < 5400 else f"{seconds / 3600:,.1f} hours"


def check_memory(config: TrainingConfig, vec_env: VecEnv, policy: Policy) -> Iterator[Finding]:
    """Memory of a rollout, compared with that of this machine."""
    needed, available = buffer_bytes(config, vec_env, policy), physical_memory_bytes()
    rollout = config.trainer.rollout
    shown = (
        f"a rollout of {rollout.num_envs} environments x {rollout.horizon} steps takes "
        f"{needed / 1e6:,.1f} MB of {available / 1e6:,.0f} MB"
    )
    fits = max(1, int(rollout.num_envs * _LARGE_SHARE * available / needed))
    yield verdict(
        "memory",
        "fault"
        if needed > _TOO_LARGE_SHARE * available
        else "warning"
        if needed > _LARGE_SHARE * available
        else "ok",
        shown,
        "all observations of a rollout are kept until it is learned from",
        f"use fewer environments (num_envs={fits}), a shorter horizon or smaller observations",
    )


def check_batch(config: TrainingConfig, rows_per_env: int, policy: Policy) -> Iterator[Finding]:
    """Batch arithmetic, and step sizes far from all that is known to work."""
    rollout, ppo = config.trainer.rollout, config.trainer.ppo
    learners = max(1, round(rows_per_env * config.trainer.self_play.learner_share))
    rows = rollout.num_envs * learners
    batch = rows * rollout.horizon
    segment = min(rollout.bptt_horizon, rollout.horizon) if policy.is_recurrent else 1
    try:
        check_minibatch_size(
            ppo.minibatch_size, horizon=rollout.horizon, rows=rows, segment_length=segment
        )
    except ConfigError as error:
        message, _, cure = str(error).partition("; ")
        yield Finding("batch", "fault", message, "minibatches must have equal sizes", cure)
        return
    wanted = None if ppo.minibatch_size is None else ppo.minibatch_size // segment
    sizes = minibatch_sizes(batch // segment, ppo.num_minibatches, wanted)
    smallest = min(sizes) * segment
    shown = (
        f"{batch:,} steps per rollout, {len(sizes)} minibatches of {smallest} x "
        f"{ppo.update_epochs} passes"
    )
    yield verdict(
        "batch",
        "warning" if smallest < _SMALL_MINIBATCH else "ok",
        shown,
        "advantages are normalised inside each minibatch, and so few samples make noise of them",
        "use more environments (num_envs), a longer horizon or fewer minibatches (num_minibatches)",
    )
    rate = config.trainer.optimizer.learning_rate
    if config.trainer.optimizer.name != "sgd" and not _SLOW_LEARNING < rate < _FAST_LEARNING:
        yield Finding(
            "learning rate",
            "warning",
            f"learning_rate={rate:g}",
            "Adam moves each weight by about this much per step: too far to converge, or hardly at all",
            "use 1e-4 to 1e-3",
        )


def check_action_bounds(space: spaces.Space, policy: Policy) -> Iterator[Finding]:  # type: ignore[type-arg]  # its element does not matter
    """Bounds of continuous actions against the deviation with which they are drawn at first."""
    if not isinstance(space, spaces.Box) or policy.config.squash:
        return
    widths = (space.high.astype(np.float64) - space.low.astype(np.float64)) / 2
    finite = widths[np.isfinite(widths)]
    deviation = float(np.exp(policy.config.log_std_init))
    if not finite.size:
        return
    low, high = float(finite.min()) / deviation, float(finite.max()) / deviation
    shown = f"half-widths of {finite.min():.3g} to {finite.max():.3g}, drawn with deviation {deviation:.3g}"
    yield verdict(
        "action bounds",
        "warning" if low < _NARROW or high > _WIDE else "ok",
        shown,
        "samples are clipped at the bounds almost always, or never come near them",
        "set wrappers=[RescaleAction(-1, 1)], or squash=true",
    )
