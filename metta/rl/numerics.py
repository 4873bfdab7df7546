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
from metta.train.batch_sizing import BatchPlan
from metta.train.machine import plan_config
from metta.train.settings import changed_paths, paths_set_by
from metta.train.train_config import TrainerConfig, TrainingConfig

__all__ = ["NumericsPlan", "resolve_batch", "resolve_device", "resolve_plan", "threads_for"]

_SMALL_POLICY = 1_000_000
"""Parameters below which one thread beats several."""
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

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Run a block with this plan's thread count and put the old one back."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def describe(self) -> str:
        """One line for people."""
        plural = "s" if self.threads > 1 else ""
        return (
            f"{self.device}, {self.threads} thread{plural}, {self.actor} actor, "
            f"{self.driver} update, {self.groups} group(s), {self.dtype}"
        )


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


def threads_for(policy: Policy) -> int:
    """One thread for small networks, for which several would only wait for each other."""
    size = sum(parameter.numel() for parameter in policy.parameters())
    convolves = any(isinstance(module, torch.nn.Conv2d) for module in policy.modules())
    return 1 if size < _SMALL_POLICY and not convolves else torch.get_num_threads()


def resolve_plan(
    config: TrainerConfig, policy: Policy, num_groups: int, actor: str
) -> NumericsPlan:
    """Fill in what the configuration leaves open; `actor` is the kind that was really built."""
    return NumericsPlan(
        threads=config.numerics.threads or threads_for(policy),
        actor=actor,
        driver=config.numerics.driver,
        groups=num_groups,
        dtype=str(policy.precision if policy.dtype == torch.float32 else policy.dtype),
        device=str(policy.device),
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
