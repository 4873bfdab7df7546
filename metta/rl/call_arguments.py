"""Checks what callers give to the methods of `PPOTrainer`."""

import operator
from collections.abc import Mapping
from typing import Any

from gymnasium.vector import VectorEnv
from torch import Tensor

from metta.errors import ConfigError, RolloutError
from metta.train.parsing.schema import MAX_INTEGER
from metta.train.settings import paths_set_by
from metta.train.train_config import TrainingConfig

__all__ = ["checked_steps", "checked_total", "require_own_count", "require_tensors"]


def checked_total(total_timesteps: Any) -> int:
    """The steps that ``train`` is asked for: 1 or more."""
    total = checked_steps(total_timesteps, "train(total_timesteps=...)")
    if not 1 <= total <= MAX_INTEGER:
        raise ConfigError(
            f"train(total_timesteps={total}): allowed is a whole number from 1 to {MAX_INTEGER:,}, the "
            "agent steps to add to this trainer"
        )
    return total


def checked_steps(steps: Any, where: str) -> int:
    """A number of steps as an integer; `where` names the argument."""
    if not isinstance(steps, bool):
        try:
            return operator.index(steps)
        except TypeError:
            if isinstance(steps, float) and steps.is_integer():
                return int(steps)
    raise ConfigError(f"{where}: found {steps!r}; allowed is a whole number of steps")


def require_tensors(rollout_data: Any) -> None:
    """Refuse what ``learn`` cannot learn from, such as the number of steps that ``train`` takes."""
    if isinstance(rollout_data, int | float):
        raise RolloutError(
            f"learn({rollout_data!r}): learn() makes one update from a rollout that was collected; to "
            f"collect and learn for a number of steps use train(total_timesteps={rollout_data!r})"
        )
    if not isinstance(rollout_data, Mapping):
        kind = type(rollout_data).__name__
        raise RolloutError(
            f"learn() needs a mapping of names to tensors or the path of a rollout file, got a {kind}; "
            "pass what collect_rollouts() returns"
        )
    if not all(isinstance(column, Tensor) for column in rollout_data.values()):
        kinds = {name: type(column).__name__ for name, column in rollout_data.items()}
        raise RolloutError(f"learn() needs a mapping of names to tensors, got {kinds}")


def require_own_count(env: Any, config: TrainingConfig, settings: Mapping[str, Any]) -> None:
    """Refuse a `num_envs` among `settings` that is not the number of environments in `env`."""
    asked, own = config.trainer.rollout.num_envs, _own_count(env)
    if own in (None, asked) or "trainer.rollout.num_envs" not in paths_set_by(settings):
        return
    raise ConfigError(
        f"num_envs={asked}, but the {_described(env)} given has {own}; leave num_envs out, write "
        f"num_envs={own}, or give one factory, of which metta makes {asked}"
    )


def _own_count(env: Any) -> int | None:
    """How many environments this is; None for anything but a VectorEnv or a list of factories."""
    if isinstance(env, VectorEnv):
        return int(env.num_envs)
    is_list = isinstance(env, list | tuple) and all(callable(factory) for factory in env)
    return len(env) or None if is_list else None


def _described(env: Any) -> str:
    return "list of factories" if isinstance(env, list | tuple) else type(env).__name__
