"""From anything that names an environment to a `VecEnv`."""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import gymnasium
from gymnasium.vector import VectorEnv

from metta.envs.multiprocess import MultiprocessVecEnv
from metta.envs.native import NativeVecEnv
from metta.envs.row_spec import EnvFactory, GymEnv, short_seed
from metta.envs.serial import SerialVecEnv
from metta.envs.supervision import OnEnvError
from metta.envs.vec_env import VecEnv
from metta.errors import ConfigError, EnvError, did_you_mean
from metta.secrets import resolve_all
from metta.seeding import derive_seed
from metta.train.train_config import RolloutConfig

__all__ = ["EnvLike", "configured_vec_env", "make_vec_env", "row_seeds"]

EnvLike = (
    str
    | GymEnv
    | VectorEnv[Any, Any, Any]
    | VecEnv
    | Callable[..., GymEnv]
    | Sequence[Callable[..., GymEnv]]
)

_DEFAULTS = RolloutConfig()
_NUM_SEEDS = 1 << 31


def make_vec_env(  # noqa: PLR0913  # what and how many, then how its workers are watched: by name
    env: EnvLike,
    *,
    num_envs: int = 1,
    num_workers: int = 0,
    num_groups: int = 1,
    env_kwargs: dict[str, Any] | None = None,
    step_timeout_seconds: float = _DEFAULTS.step_timeout_seconds,
    start_timeout_seconds: float = _DEFAULTS.start_timeout_seconds,
    max_worker_restarts: int = _DEFAULTS.max_worker_restarts,
    on_env_error: OnEnvError = _DEFAULTS.on_env_error,
) -> VecEnv:
    """A vectorised environment, which the caller closes.

        make_vec_env("CartPole-v1", num_envs=8)
        make_vec_env(make_my_env, num_envs=16, num_workers=4, num_groups=2)

    `env` is a gymnasium id, a factory (called once per row), a list of factories (one per row), a
    gymnasium `Env` (one row) or `VectorEnv`, or a `VecEnv`, which is returned as it is. `num_envs`
    counts for ids and single factories; everything else brings its own number of rows. `env_kwargs` go
    to `gymnasium.make` or to the factories. With ``num_workers=0`` everything runs in this process.
    """
    kwargs = env_kwargs or {}
    resolve_all(kwargs)  # here already: whoever asks hears of a missing one, and it is never shown
    if isinstance(env, VecEnv):
        return env
    if isinstance(env, VectorEnv):
        _refuse_options("a gymnasium VectorEnv", kwargs, num_workers, num_groups)
        return NativeVecEnv(env)
    if isinstance(env, gymnasium.Env):
        _refuse_options("a gymnasium Env", kwargs, num_workers, num_groups)
        return SerialVecEnv([lambda: env])
    factories = _factories(env, num_envs, kwargs)
    if num_workers < 0:
        raise ConfigError(f"num_workers={num_workers}; use 0 to step in this process, or more")
    if num_workers == 0:
        return SerialVecEnv(factories, num_groups)
    return MultiprocessVecEnv(
        factories,
        num_workers,
        num_groups,
        step_timeout_seconds=step_timeout_seconds,
        start_timeout_seconds=start_timeout_seconds,
        max_worker_restarts=max_worker_restarts,
        on_env_error=on_env_error,
    )


def configured_vec_env(
    env: EnvLike, rollout: RolloutConfig, env_kwargs: dict[str, Any] | None = None
) -> VecEnv:
    """The environment that a configuration asks for."""
    return make_vec_env(
        env,
        num_envs=rollout.num_envs,
        num_workers=rollout.num_workers,
        num_groups=rollout.num_groups,
        env_kwargs=env_kwargs,
        step_timeout_seconds=rollout.step_timeout_seconds,
        start_timeout_seconds=rollout.start_timeout_seconds,
        max_worker_restarts=rollout.max_worker_restarts,
        on_env_error=rollout.on_env_error,
    )


def row_seeds(seed: int, num_rows: int, rank: int = 0) -> list[int]:
    """One seed per row, all different; a row keeps its seed when rows are added.

    They have 31 bits, which every random generator accepts.
    """
    taken: set[int] = set()
    seeds = []
    for row in range(num_rows):
        candidate = short_seed(derive_seed(seed, "env", rank=rank, index=row))
        while candidate in taken:
            candidate = (candidate + 1) % _NUM_SEEDS
        taken.add(candidate)
        seeds.append(candidate)
    return seeds


def _factories(env: Any, num_envs: int, kwargs: dict[str, Any]) -> list[EnvFactory]:
    if isinstance(env, str):
        return [_factory_of_id(env, kwargs)] * _checked_count(num_envs)
    if callable(env):
        return [functools.partial(_make, env, kwargs)] * _checked_count(num_envs)
    if isinstance(env, (list, tuple)) and env and all(callable(factory) for factory in env):
        return [functools.partial(_make, factory, kwargs) for factory in env]
    raise EnvError(
        f"cannot make an environment of {env!r} ({type(env).__name__}); give a gymnasium id, a "
        "gymnasium.Env, a factory that returns one, a list of such factories, a gymnasium VectorEnv, or "
        "a metta VecEnv"
    )


def _factory_of_id(env_id: str, kwargs: dict[str, Any]) -> EnvFactory:
    """A factory that works in other processes too, where the id may not be registered."""
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        spec = gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        raise EnvError(
            f"gymnasium knows no environment {env_id!r}"
            f"{did_you_mean(env_id, gymnasium.registry) or f': {error}'}"
        ) from error
    make = functools.partial(gymnasium.make, spec, disable_env_checker=True)
    return functools.partial(_make, cast(EnvFactory, make), kwargs)


def _make(factory: Callable[..., GymEnv], kwargs: dict[str, Any]) -> GymEnv:
    """An environment; its secrets are resolved in the process where it lives."""
    return factory(**resolve_all(kwargs))


def _checked_count(num_envs: int) -> int:
    if num_envs < 1:
        raise ConfigError(f"num_envs={num_envs}; it must be at least 1")
    return num_envs


def _refuse_options(what: str, kwargs: dict[str, Any], num_workers: int, num_groups: int) -> None:
    if num_workers or num_groups != 1:
        raise ConfigError(
            f"num_workers={num_workers} and num_groups={num_groups} cannot be had with {what}, which "
            "exists already; use num_workers=0 and num_groups=1, or give an id or a factory instead"
        )
    if kwargs:
        raise ConfigError(
            f"env_kwargs={kwargs} came too late for {what}, which exists already; pass them where it is "
            "made, or give an id or a factory instead"
        )
