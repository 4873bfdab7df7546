"""What decides the last bits of a run's numbers, resolved once and then obeyed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from metta.agent.policy import Policy
from metta.curriculum import Task
from metta.envs.factory import make_vec_env
from metta.envs.vec_env import VecEnv
from metta.errors import ConfigError
from metta.rl.graph_cache import compiler_name
from metta.train.batch_sizing import BatchPlan
from metta.train.machine import plan_config
from metta.train.settings import changed_paths, paths_set_by
from metta.train.train_config import TrainerConfig, TrainingConfig

__all__ = [
    "NumericsPlan",
    "pays_back",
    "resolve_batch",
    "resolve_device",
    "resolve_plan",
    "threads_for",
    "threads_set",
]

_SMALL_POLICY = 1_000_000
"""Parameters below which one thread beats several."""
_LITTLE_WORK = 100_000_000
"""Parameters times samples of a minibatch below which one thread beats several."""
_SECONDS_PER_MINIBATCH, _SECONDS_PER_SAMPLE = 2e-3, 1e-6
_SECONDS_WORTH_COMPILING = 100.0
_ROW_NUMBERS_BYTES = 64
"""Rewards, flags, values and the like of one row and step, rounded up."""


@dataclass(frozen=True)
class NumericsPlan:
    """Thread count, actor, driver, groups and dtype: equal plans on one machine give equal bits."""

    threads: int
    actor: str
    driver: str
    groups: int
    dtype: str
    device: str
    compiler: str = ""
    """What compiled the update; empty for eager ones."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Run a block with this plan's thread count and put the old one back."""
        with threads_set(self.threads):
            yield

    def describe(self) -> str:
        """One line for people."""
        plural = "s" if self.threads > 1 else ""
        compiled = f" compiled by {self.compiler}" if self.compiler else ""
        return (
            f"{self.device}, {self.threads} thread{plural}, {self.actor} actor, "
            f"{self.driver} update{compiled}, {self.groups} group(s), {self.dtype}"
        )


@contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """Run a block with so many threads of torch, and put the old number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def resolve_device(device: str | torch.device) -> torch.device:
    """The device that a setting names; ``auto`` is a GPU where there is one."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        # read back: a device without data (meta) cannot train
        torch.zeros(1, device=resolved).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        if reason.startswith("Expected one of"):
            reason = "torch knows no device of this kind"
        raise ConfigError(
            f"device={str(device)!r} cannot be used here: {reason}; use 'cpu' or 'auto'"
        ) from error
    return resolved


def threads_for(policy: Policy, num_samples: int = 1) -> int:
    """One thread for little work, for which several would only wait for each other.

    The work is that of one minibatch of `num_samples`; convolutions are never little.
    """
    size = sum(parameter.numel() for parameter in policy.parameters())
    convolves = any(isinstance(module, torch.nn.Conv2d) for module in policy.modules())
    is_little = size < _SMALL_POLICY and size * num_samples < _LITTLE_WORK
    return 1 if is_little and not convolves else torch.get_num_threads()


def pays_back(config: TrainerConfig, num_samples: int, total_timesteps: int = 0) -> bool:
    """Whether a run with rollouts of `num_samples` is long enough to wait for a compiler.

    It is as long as its settings say, or `total_timesteps`, whichever is more.

    Compiled minibatches save the overhead of each operation, and some time per sample. A run must save
    about three times what compiling takes, so that one that is stopped early has lost nothing either.
    """
    ppo = config.ppo
    size = ppo.minibatch_size
    minibatches = max(1, num_samples // size) if size else ppo.num_minibatches
    rollouts = max(config.total_timesteps, total_timesteps) / num_samples
    saved = (
        rollouts
        * ppo.update_epochs
        * (minibatches * _SECONDS_PER_MINIBATCH + num_samples * _SECONDS_PER_SAMPLE)
    )
    return saved > _SECONDS_WORTH_COMPILING


def resolve_plan(
    policy: Policy,
    *,
    threads: int,
    num_groups: int,
    actor: str,
    driver: str,
) -> NumericsPlan:
    """What was chosen, in one place; `actor` and `driver` are those that were built, or ``auto``."""
    return NumericsPlan(
        threads=threads,
        actor=actor,
        driver=driver,
        groups=num_groups,
        dtype=str(policy.precision if policy.dtype == torch.float32 else policy.dtype),
        device=str(policy.device),
        compiler="" if driver in ("auto", "eager") else compiler_name() or "",
    )


def resolve_batch(
    config: TrainingConfig,
    env: Any,
    settings: Mapping[str, Any],
    env_kwargs: dict[str, Any] | None = None,
) -> tuple[TrainingConfig, BatchPlan]:
    """Sizes that nobody set, chosen for this machine and the observations of `env`.

    Set is what `settings` names and what differs from the defaults. One environment is made and closed
    to measure its rows.
    """
    if isinstance(env, VecEnv) or not (isinstance(env, str | Task) or callable(env)):
        raise ConfigError(
            f"auto_batch chooses the number of environments, but {type(env).__name__} brings its own; "
            "give an id or a factory, or leave auto_batch off"
        )
    was_set = changed_paths(config) | paths_set_by(settings)
    probe = make_vec_env(env, env_kwargs=env_kwargs)
    try:
        actions = int(np.prod(probe.action_space.shape or (1,)))
        row_bytes = probe.obs_spec.nbytes + probe.mask_size + 8 * actions + _ROW_NUMBERS_BYTES
        return plan_config(config, was_set, agents_per_env=probe.num_rows, row_bytes=row_bytes)
    finally:
        probe.close()
