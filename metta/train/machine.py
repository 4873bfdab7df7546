"""Applies sizes for this machine to a configuration."""

import os
from collections.abc import Collection

from metta.errors import ConfigError
from metta.train.batch_sizing import BatchPlan, propose_batch
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

__all__ = ["physical_memory_bytes", "plan_config", "require_memory"]

_NUM_ENVS = "trainer.rollout.num_envs"
_HORIZON = "trainer.rollout.horizon"
_BPTT_HORIZON = "trainer.rollout.bptt_horizon"
_MINIBATCH_SIZE = "trainer.ppo.minibatch_size"
_NUM_MINIBATCHES = "trainer.ppo.num_minibatches"


def physical_memory_bytes() -> int:
    """Total memory of this machine, not the free memory, so that equal machines make equal plans."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_memory(needed: int, what: str, advice: str) -> None:
    """Refuse what takes more memory than the machine has; `needed` are the bytes that it takes at least."""
    present = physical_memory_bytes()
    if needed > present:
        raise ConfigError(
            f"{what} needs at least {needed / 1e9:,.1f} GB, and this machine has {present / 1e9:,.1f} GB; "
            f"{advice}"
        )


def plan_config(
    config: TrainingConfig, was_set: Collection[str], *, agents_per_env: int, row_bytes: int
) -> tuple[TrainingConfig, BatchPlan]:
    """The configuration with sizes for this machine, and the plan they come from.

    Settings whose paths are in `was_set` keep their values, and the others are fitted to them.
    """
    rollout = config.trainer.rollout
    plan = propose_batch(
        agents_per_env=agents_per_env,
        cores=os.cpu_count() or 1,
        memory_bytes=physical_memory_bytes(),
        row_bytes=row_bytes,
        bptt_horizon=rollout.bptt_horizon,
        num_envs=rollout.num_envs if _NUM_ENVS in was_set else None,
        horizon=rollout.horizon if _HORIZON in was_set else None,
    )
    chosen = {_NUM_ENVS: plan.num_envs, _HORIZON: plan.horizon, _BPTT_HORIZON: plan.bptt_horizon}
    if _NUM_MINIBATCHES not in was_set:
        chosen[_MINIBATCH_SIZE] = plan.minibatch_size
    open_paths = {path: value for path, value in chosen.items() if path not in was_set}
    return apply_settings(config, open_paths), plan
