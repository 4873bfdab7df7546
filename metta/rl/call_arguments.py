"""Checks what callers give to trainers and to the methods of `PPOTrainer`."""

import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from metta.curriculum import Curriculum
from metta.errors import ConfigError, PolicyError, RolloutError, did_you_mean
from metta.store.rollout_file import load_rollout
from metta.train.parsing.schema import MAX_INTEGER
from metta.train.settings import given_paths, leaf_at, paths_set_by
from metta.train.train_config import TrainingConfig

__all__ = [
    "checked_folder",
    "checked_hooks",
    "checked_steps",
    "checked_total",
    "chosen_curriculum",
    "named_policy",
    "refuse_arguments",
    "require_env",
    "require_own_count",
    "require_trainer",
    "rollout_of",
]


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


def rollout_of(rollout_data: Any, others: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The columns that ``learn`` is given, in memory or in a file; refuses what it cannot learn from.

    Such as the number of steps that ``train`` takes.
    """
    if isinstance(rollout_data, str | os.PathLike) and not others:
        return load_rollout(Path(rollout_data))
    if others:
        rollout_data = others.get("total_timesteps", rollout_data)
        if not isinstance(rollout_data, int | float):
            refuse_arguments("learn", others, ["rollout_data"])
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
    columns: Mapping[str, Tensor] = rollout_data
    return columns


def chosen_curriculum(
    config: TrainingConfig, env: Any, curriculum: Curriculum | None
) -> Curriculum:
    """What is trained on: the curriculum or the environment of the call, else that of the settings."""
    if isinstance(env, Curriculum) and curriculum is None:
        return env
    if env is not None and curriculum is not None:
        raise ConfigError(
            "env= and curriculum= both say what is trained on; give one of them, or the environment to the "
            "curriculum: Curriculum(config, env=...)"
        )
    if curriculum is not None and not isinstance(curriculum, Curriculum):
        raise ConfigError(
            f"curriculum is {curriculum!r:.80}, a {type(curriculum).__name__}; give an environment as "
            "env=, or a Curriculum of tasks"
        )
    if env is not None:
        require_own_count(env, config, dict.fromkeys(given_paths(config)))
    return curriculum or Curriculum(config.trainer.curriculum, env=env)


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


_POLICY_NAMES: dict[str, dict[str, Any]] = {
    "MlpPolicy": {"agent.name": "mlp"},
    "CnnPolicy": {"agent.name": "nature_cnn"},
    "MultiInputPolicy": {"agent.name": "auto"},
    "MlpLstmPolicy": {"agent.name": "mlp", "agent.core": "lstm"},
    "CnnLstmPolicy": {"agent.name": "nature_cnn", "agent.core": "lstm"},
    "MultiInputLstmPolicy": {"agent.name": "auto", "agent.core": "lstm"},
}
"""Policies of Stable-Baselines3 -> the built-in agents that are like them."""


def named_policy(policy: Any, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A policy given by name as None and the settings of that agent; anything else as it is."""
    if not isinstance(policy, str):
        return policy, dict(settings)
    names = {name: {"agent.name": name} for name in leaf_at("agent.name").choices} | _POLICY_NAMES
    if policy in names:
        for path, value in names[policy].items():
            if settings.get(path, value) != value:
                raise ConfigError(
                    f"{policy!r} and {path}={settings[path]!r} both set {path}; write one of them"
                )
        return None, {**names[policy], **settings}
    raise PolicyError(
        f"there is no policy {policy!r}; give an nn.Module, a Policy, None for a default agent, or one of "
        f"{', '.join(names)}; the environment is the second argument: PPOTrainer(None, 'CartPole-v1')"
        f"{did_you_mean(policy, names)}"
    )


def require_env(policy: Any, env: Any) -> None:
    """Refuse a call without an environment, or with policy and environment in each other's place."""
    is_policy = isinstance(env, nn.Module)
    if env is not None and not is_policy and not isinstance(policy, gymnasium.Env | VectorEnv):
        return
    found = "no environment" if env is None else f"a {type(env).__name__} as the environment"
    raise ConfigError(
        f"PPOTrainer(policy, env): found {found}; the policy comes first and may be None: "
        "PPOTrainer(None, env), where env is an id such as 'CartPole-v1', an environment, a factory or a "
        "list of factories"
    )


def checked_folder(folder: Any, where: str) -> Any:
    """A path, or None."""
    if folder is None or isinstance(folder, str | os.PathLike):
        return folder
    raise ConfigError(f"{where}: found {folder!r}; allowed is the path of a folder")


def checked_hooks(hooks: Any) -> list[Any]:
    """Hooks as a list."""
    if isinstance(hooks, Sequence) and not isinstance(hooks, str):
        return list(hooks)
    raise ConfigError(
        f"train(hooks=...): found a {type(hooks).__name__}; allowed is a list: train(steps, hooks=[hook])"
    )


_EVALUATION = (
    "evaluation is a hook: train(hooks=[EvaluationHook(...)]), or part of a run: "
    'Trainer(config, run_dir="runs/a")'
)
_HOOKS = "hooks are the callbacks here: train(steps, hooks=[MyHook()]), or on_epoch_end=function"
_ARGUMENTS = {
    "callback": _HOOKS,
    "callbacks": _HOOKS,
    "log_interval": "it is a setting: PPOTrainer(None, env, log_interval=10)",
    "tb_log_name": 'TensorBoard is written by Trainer(config, run_dir="runs/name") with tensorboard=True',
    "reset_num_timesteps": "train() always adds to the steps before; a new PPOTrainer begins at 0",
    "num_timesteps": "its name is total_timesteps",
    "total_steps": "its name is total_timesteps",
    "timesteps": "its name is total_timesteps",
    "eval_env": _EVALUATION,
    "eval_freq": _EVALUATION,
    "env": "the environment belongs to the trainer: trainer = PPOTrainer(None, env); trainer.load(path)",
    "device": "it is a setting: PPOTrainer(None, env, device='cpu')",
    "seed": "it is a setting: PPOTrainer(None, env, seed=1)",
}


def refuse_arguments(method: str, others: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse arguments that a method does not have, with what to write instead."""
    for name in others:
        if name == "reset_num_timesteps" and others[name] is False:
            continue  # this is what train() does
        instead = _ARGUMENTS.get(name)
        hint = f"; {instead}" if instead else did_you_mean(name, known)
        raise ConfigError(f"{method}() has no argument {name!r}{hint}")


def require_trainer(trainer: Any, kind: type) -> None:
    """Refuse ``PPOTrainer.load(path)``: a path in the place of the trainer."""
    if not isinstance(trainer, kind):
        raise ConfigError(
            f"{kind.__name__}.load({trainer!r}) has no trainer to load into; write "
            f"trainer = {kind.__name__}(None, env), then trainer.load({trainer!r}); to play a saved "
            "policy, metta.load_policy(path)"
        )
