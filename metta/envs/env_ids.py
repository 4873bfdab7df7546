"""From the id of an environment to what makes it.

``CartPole-v1`` and ``module:Env-v0`` are gymnasium's, ``module:Class`` is an environment class of a module,
``pettingzoo:mpe2.simple_spread_v3`` the parallel environment of a module, ``mettagrid:arena_small`` a
world of mettagrid, ``envpool:Ant-v4`` one of EnvPool, ``grid/gather`` a task of the grid world that comes
with metta, and ``metta/cartpole`` its own CartPole-v1, many at once.
"""

import contextlib
import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from metta.curriculum import Curriculum
from metta.envs.agents.agents_env import (
    AgentsEnv,
    is_parallel_env,
)
from metta.envs.agents.mettagrid_env import WORLDS, make_mettagrid, require_mettagrid
from metta.envs.cartpole import CartPoleVecEnv
from metta.envs.families.atari import make_atari
from metta.envs.families.envpool import EnvPoolEnv, is_envpool_id, require_envpool
from metta.envs.families.minigrid import with_codes
from metta.envs.families.packages import ATARI, MINIGRID, find_spec, is_of, load_box2d
from metta.envs.grid import TASKS, GridVecEnv, GridWorldConfig
from metta.envs.rows.env_api import (
    is_aec_env,
    parallel_of_aec,
    require_gym_env,
    require_parallelizable,
)
from metta.envs.rows.row_spec import EnvFactory, GymEnv
from metta.envs.rows.wrappers import wrap_env
from metta.errors import ConfigError, EnvError, MissingExtraError, did_you_mean
from metta.secrets import resolve_all

__all__ = [
    "as_gym_env",
    "check_env_id",
    "factory_of",
    "factory_of_id",
    "is_cartpole_id",
    "is_grid_id",
    "make_cartpole",
    "make_grid",
    "module_of",
    "name_of",
]

_GRID = "grid/"
_CARTPOLE = "metta/cartpole"
_PETTINGZOO, _METTAGRID = "pettingzoo", "mettagrid"
_PETTINGZOO_PACKAGES = ("pettingzoo", "mpe2")
"""What the extra `pettingzoo` installs."""
_FAMILIES = (_PETTINGZOO, _METTAGRID, "envpool")
"""What may be in front of the colon of an id without being a module."""


def check_env_id(env_id: str) -> None:
    """`EnvError` if the environment does not exist; none is made."""
    if is_grid_id(env_id):
        _grid_task(env_id, {})
    elif not is_cartpole_id(env_id):
        factory_of_id(env_id, {})


def module_of(env_id: str) -> str | None:
    """The module that making this environment imports; None if it is of a package that metta knows."""
    module, _, name = env_id.rpartition(":")
    if module == _PETTINGZOO and name.partition(".")[0] not in _PETTINGZOO_PACKAGES:
        return name
    return module if module and module not in _FAMILIES else None


def factory_of(
    make: Callable[..., Any], kwargs: dict[str, Any], wrappers: tuple[str, ...] = ()
) -> EnvFactory:
    """A user's factory with its arguments and wrappers; environments of many agents become one."""
    return functools.partial(_make, make, kwargs, wrappers)


def factory_of_id(
    env_id: str, kwargs: dict[str, Any], wrappers: tuple[str, ...] = ()
) -> EnvFactory:
    """A factory that works in other processes too, where the id may not be registered."""
    if is_cartpole_id(env_id):
        raise EnvError(
            f"{env_id} steps all of its carts at once: there is no single one to make or to draw; use "
            "CartPole-v1, whose rules are the same"
        )
    module, _, name = env_id.rpartition(":")
    if module == _PETTINGZOO:
        return factory_of(_parallel_factory(name), kwargs, wrappers)
    if is_envpool_id(env_id):
        require_envpool(env_id)
        return factory_of(functools.partial(EnvPoolEnv, env_id), kwargs, wrappers)
    if module == _METTAGRID:
        return factory_of(functools.partial(make_mettagrid, _world_config(name)), kwargs, wrappers)
    if module:
        own = _env_class(env_id, module, name)
        if own is not None:
            return factory_of(own, kwargs, wrappers)
    try:
        spec = find_spec(name)
    except (gymnasium.error.Error, ImportError, ValueError) as error:
        raise EnvError(_why_unknown(env_id, module, error)) from error
    return factory_of(functools.partial(_make_registered, spec), kwargs, wrappers)


def _make_registered(spec: EnvSpec, **kwargs: Any) -> GymEnv:
    """An environment that gymnasium knows, prepared as its family needs it."""
    if is_of(spec, ATARI):
        return make_atari(spec, **kwargs)
    load_box2d(spec)
    env = gymnasium.make(spec, disable_env_checker=True, **kwargs)
    return with_codes(env) if is_of(spec, MINIGRID) else env


def _env_class(env_id: str, module: str, name: str) -> Callable[..., Any] | None:
    """The environment class of this name in a module; None if it has nothing of this name.

    A configuration file may name it, so anything but an environment class is refused.
    """
    try:
        found = getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError) as error:
        raise EnvError(f"{env_id!r} cannot be made: {_why_no_import(module, error)}") from error
    if found is not None and not _is_env_class(found):
        raise EnvError(
            f"{env_id!r} names {found!r}, which is not a subclass of gymnasium.Env; name the class of an "
            "environment, or pass a factory from Python: PPOTrainer(None, make_env)"
        )
    return found


def _is_env_class(found: Any) -> bool:
    return isinstance(found, type) and (
        issubclass(found, gymnasium.Env) or hasattr(found, "possible_agents")
    )


def _why_unknown(env_id: str, module: str, error: Exception) -> str:
    """What there is instead: classes of the module that was named, or ids."""
    if not module:
        known = [_CARTPOLE, *gymnasium.registry, *(f"{_GRID}{task}" for task in TASKS)]
        return (
            f"gymnasium has no environment {env_id!r}{did_you_mean(env_id, known) or f': {error}'}"
        )
    own = vars(importlib.import_module(module)).items()
    known = [name for name, found in own if _is_env_class(found) and found.__module__ == module]
    has = f"it has {', '.join(known)}" if known else "it has no class of an environment"
    return (
        f"there is no environment {env_id!r}: neither a class of the module {module!r} ({has}) nor an id "
        f"that it registers with gymnasium{did_you_mean(env_id, [f'{module}:{name}' for name in known])}"
    )


def _why_no_import(module: str, error: Exception) -> str:
    missing = getattr(error, "name", None)
    if missing != module.partition(".")[0]:
        return f"importing {module!r} failed: {error}"
    where = "the current folder has it, but is" if Path(f"{missing}.py").is_file() else "it is"
    return (
        f"Python does not find the module {missing!r}: {where} not on Python's path; name its file in the "
        f"command (train, resume: env=PATH/{missing}.py:CLASS; eval, enjoy: --env ...), or install it"
    )


def _make(
    make: Callable[..., Any], kwargs: dict[str, Any], wrappers: tuple[str, ...] = ()
) -> GymEnv:
    """An environment; its secrets are resolved in the process that runs it."""
    env = make(**resolve_all(kwargs))
    try:
        return as_gym_env(env, wrappers)
    except EnvError:
        with contextlib.suppress(Exception):  # it may have no close, or fail in it
            env.close()
        raise


def as_gym_env(env: Any, wrappers: tuple[str, ...] = ()) -> GymEnv:
    """An environment as a `gymnasium.Env` in its wrappers, all agents at once where it has many.

    `EnvError` names the interface of anything else, and what to write.
    """
    if is_aec_env(env):
        env = parallel_of_aec(env)
    if is_parallel_env(env):
        if wrappers:
            raise EnvError(
                f"wrappers={list(wrappers)} cannot be used with {env}, which has many agents: they wrap "
                "environments of one; wrap it where it is made, e.g. with supersuit"
            )
        return AgentsEnv(env)
    return wrap_env(require_gym_env(env), wrappers)


def _parallel_factory(module: str) -> Callable[..., Any]:
    """The `parallel_env` of a PettingZoo module, e.g. ``mpe2.simple_spread_v3``, or its `env`."""
    package = module.partition(".")[0]
    if package in _PETTINGZOO_PACKAGES and importlib.util.find_spec(package) is None:
        raise MissingExtraError(package, _PETTINGZOO, f"the environment {_PETTINGZOO}:{module}")
    try:
        found = importlib.import_module(module)
        make: Callable[..., Any] = getattr(found, "parallel_env", None) or found.env
    except (ImportError, AttributeError, ValueError) as error:
        raise EnvError(
            f"{_PETTINGZOO}:{module} is not a module with a parallel_env: {error}; give its full name, "
            f"e.g. {_PETTINGZOO}:mpe2.simple_spread_v3, and install what it needs"
        ) from error
    if not hasattr(found, "parallel_env"):
        # known before one is made where `raw_env` is the class
        metadata = getattr(getattr(found, "raw_env", None), "metadata", None)
        require_parallelizable(
            module, {"is_parallelizable": True} if metadata is None else metadata
        )
    return make


def _world_config(name: str) -> Callable[..., Any]:
    """What makes the ``MettaGridConfig`` of a world: one of `WORLDS`, or of mettagrid's own ``make_...``.

    A configuration file may name it, so other functions are refused.
    """
    require_mettagrid(name)
    if name in WORLDS:
        return WORLDS[name]
    makers = importlib.import_module("mettagrid.builder.envs")
    make: Callable[..., Any] | None = (
        getattr(makers, name, None) if name.startswith("make_") else None
    )
    if make is None:
        raise EnvError(
            f"there is no world {_METTAGRID}:{name}{did_you_mean(name, WORLDS)}; there are "
            f"{', '.join(f'{_METTAGRID}:{known}' for known in WORLDS)}, what mettagrid makes (e.g. "
            f"{_METTAGRID}:make_arena), and what a program puts into metta.envs.agents.mettagrid_env.WORLDS"
        )
    return make


def is_grid_id(env: Any) -> bool:
    """Whether this names a task of the grid world."""
    return isinstance(env, str) and env.startswith(_GRID)


def is_cartpole_id(env: Any) -> bool:
    """Whether this names metta's own carts."""
    return isinstance(env, str) and env == _CARTPOLE


def make_cartpole(
    kwargs: Mapping[str, Any], num_envs: int, num_workers: int, num_groups: int
) -> CartPoleVecEnv:
    """Carts with poles; ``max_episode_steps`` is the only argument."""
    _refuse_workers(num_workers, "metta/cartpole steps all of its carts")
    try:
        return CartPoleVecEnv(num_envs, num_groups, **kwargs)
    except TypeError as error:
        raise EnvError(
            f"{_CARTPOLE} was given {dict(kwargs)}; it takes max_episode_steps, a whole number: {error}"
        ) from error


def _refuse_workers(num_workers: int, reason: str) -> None:
    if num_workers:
        raise ConfigError(
            f"num_workers={num_workers}; {reason} at once in this process, faster than workers would: "
            "use num_workers=0"
        )


def make_grid(
    tasks: Sequence[tuple[str, Mapping[str, Any]]],
    num_envs: int,
    num_workers: int,
    num_groups: int,
) -> GridVecEnv:
    """Grid worlds that play tasks given as (id, arguments); the arguments are those of its config."""
    _refuse_workers(num_workers, "the grid world steps all of its worlds")
    return GridVecEnv(
        [_grid_task(env_id, kwargs) for env_id, kwargs in tasks], num_envs, num_groups
    )


def _grid_task(env_id: str, kwargs: Mapping[str, Any]) -> GridWorldConfig:
    name = env_id.removeprefix(_GRID)
    if name not in TASKS:
        raise EnvError(
            f"the grid world has no task {name!r}{did_you_mean(name, TASKS)}; it has "
            f"{', '.join(f'{_GRID}{task}' for task in TASKS)}"
        )
    chosen = vars(TASKS[name])
    settings = {field: value for field, value in chosen.items() if not field.startswith("_")}
    return GridWorldConfig(**{**settings, **kwargs})


def name_of(env: Any) -> str:
    """The id of an environment where it has one, else the name of its class or factory."""
    if isinstance(env, Curriculum):
        return env.task.name
    spec = None if isinstance(env, str) else getattr(env, "spec", None)
    named: str = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    return str(getattr(spec, "id", named))  # the specification of an EnvPool has none
