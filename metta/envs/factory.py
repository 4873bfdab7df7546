"""From anything that names an environment to a `VecEnv`."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from metta.curriculum import Task
from metta.envs.agents.agent_groups import GroupedVecEnv, split_agent_groups
from metta.envs.agents.agents_env import AgentsSpace, is_parallel_env
from metta.envs.agents.agents_vec_env import AgentsVecEnv
from metta.envs.backends.gymnasium_vector import GymnasiumVecEnv
from metta.envs.backends.multiprocess import MultiprocessVecEnv
from metta.envs.backends.serial import SerialVecEnv
from metta.envs.env_ids import (
    as_gym_env,
    factory_of,
    factory_of_id,
    is_cartpole_id,
    is_grid_id,
    make_cartpole,
    make_grid,
)
from metta.envs.families.envpool import EnvPoolEnvs, is_envpool, is_envpool_id
from metta.envs.rows.env_api import is_aec_env, what_it_is
from metta.envs.rows.row_spec import EnvFactory, GymEnv, short_seed
from metta.envs.rows.tasked_env import TaskedEnv
from metta.envs.vec_env import VecEnv
from metta.envs.workers.supervision import OnEnvError
from metta.errors import ConfigError, EnvError
from metta.secrets import resolve_all
from metta.seeding import derive_seed
from metta.train.train_config import RolloutConfig
from metta.train.wrappers import checked_wrappers

__all__ = [
    "EnvLike",
    "exists_already",
    "make_vec_env",
    "row_seeds",
    "tasks_of",
]

EnvLike = (
    str
    | Task
    | Sequence[Task]
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
    wrappers: Sequence[Any] = (),
    step_timeout_seconds: float = _DEFAULTS.step_timeout_seconds,
    start_timeout_seconds: float = _DEFAULTS.start_timeout_seconds,
    max_worker_restarts: int = _DEFAULTS.max_worker_restarts,
    on_env_error: OnEnvError = _DEFAULTS.on_env_error,
) -> VecEnv:
    """A vectorised environment, which the caller closes.

        make_vec_env("CartPole-v1", num_envs=8)
        make_vec_env(make_my_env, num_envs=16, num_workers=4, num_groups=2)

    `env` is an id (see `env_ids`), a factory (called once per row), a list of factories (one per row), a
    gymnasium `Env` (one row) or `VectorEnv`, or a `VecEnv`, which is returned as it is. `num_envs`
    counts for ids and single factories; everything else has its own number of rows. `env_kwargs` go
    to `gymnasium.make` or to the factories, `wrappers` (``["FrameStack(4)"]``, see
    `metta.train.wrappers`) around each environment. With ``num_workers=0`` everything runs in this process.
    Environments of many agents (the grid world, PettingZoo's parallel ones) have a row for each agent.

    A `Task` is its environment with its arguments. Of a list of tasks, every environment plays each
    (`TaskedVecEnv`), as set by ``next_tasks``; their own arguments override `env_kwargs`.

    ``agent_groups`` among the arguments, e.g. ``[2, 1]``, is not passed to the environment: the sizes of
    groups of its agents, which observations then name (`GroupedVecEnv`).
    """
    env, kwargs, sizes = _without_groups(env, env_kwargs or {})
    env, around = _without_wrappers(env, wrappers)
    env, kwargs = _without_task(env, kwargs)
    resolve_all(kwargs)  # early, to report a missing secret; values are never shown
    if isinstance(env, VecEnv):
        _refuse_wrappers("a VecEnv", around)
        return _grouped(env, sizes)
    watching = {
        "step_timeout_seconds": step_timeout_seconds,
        "start_timeout_seconds": start_timeout_seconds,
        "max_worker_restarts": max_worker_restarts,
        "on_env_error": on_env_error,
    }
    made = _ungrouped(env, kwargs, around, (num_envs, num_workers, num_groups), watching)
    try:
        return _grouped(made, sizes)
    except BaseException:
        made.close()
        raise


def _ungrouped(
    env: Any,
    kwargs: dict[str, Any],
    wrappers: tuple[str, ...],
    counts: tuple[int, int, int],
    watching: dict[str, Any],
) -> VecEnv:
    """A vectorised environment of anything else; `watching` holds the settings of worker supervision."""
    num_envs, num_workers, num_groups = counts
    if isinstance(env, VectorEnv) or is_envpool(env):
        _refuse_wrappers("a gymnasium VectorEnv", wrappers)
        _refuse_options("a gymnasium VectorEnv", kwargs, num_workers, num_groups)
        return GymnasiumVecEnv(EnvPoolEnvs(env) if is_envpool(env) else env)
    if exists_already(env):
        _refuse_options(f"the {type(env).__name__} given", kwargs, num_workers, num_groups)
        one = as_gym_env(env, wrappers)  # once: a second wrapper would not be another environment
        return _with_agents(SerialVecEnv([lambda: one]))
    tasks = tasks_of(env, kwargs)
    if num_workers < 0:
        raise ConfigError(f"num_workers={num_workers}; use 0 to step in this process, or more")
    if any(is_grid_id(task.env) or is_cartpole_id(task.env) for task in tasks):
        _refuse_wrappers(f"{tasks[0].env}, which steps all environments at once in C", wrappers)
        return _in_c(tasks, _checked_count(num_envs), num_workers, num_groups)
    if len(tasks) == 1 and is_envpool_id(tasks[0].env) and not (num_workers or wrappers):
        _refuse_options("EnvPool, which steps all rows at once", {}, 0, num_groups)
        pool = EnvPoolEnvs(
            tasks[0].env, _checked_count(num_envs), **resolve_all(tasks[0].env_kwargs)
        )
        return GymnasiumVecEnv(pool)
    if tasks:
        factories = _tasked_factories(tasks, num_envs, wrappers)
    else:
        factories = _factories(env, num_envs, kwargs, wrappers)
    if num_workers == 0:
        return _with_agents(SerialVecEnv(factories, num_groups))
    return _with_agents(MultiprocessVecEnv(factories, num_workers, num_groups, **watching))


def _in_c(tasks: list[Task], num_envs: int, num_workers: int, num_groups: int) -> VecEnv:
    """The worlds and carts that ship with metta."""
    if any(is_grid_id(task.env) for task in tasks):
        return make_grid(_grid_tasks(tasks), num_envs, num_workers, num_groups)
    return make_cartpole(_cartpole_kwargs(tasks), num_envs, num_workers, num_groups)


def _with_agents(made: SerialVecEnv | MultiprocessVecEnv) -> VecEnv:
    """A row for each agent where environments have many."""
    return AgentsVecEnv(made) if isinstance(made.observation_space, AgentsSpace) else made


def exists_already(env: Any) -> bool:
    """Whether this is an environment, which stays its owner's to close, and not what makes one."""
    if isinstance(env, gymnasium.Env | VectorEnv | VecEnv):
        return True
    return not isinstance(env, type) and (is_parallel_env(env) or is_aec_env(env))


def _grouped(env: VecEnv, sizes: tuple[int, ...]) -> VecEnv:
    """The environment with groups of agents: those asked for, or those of equal spaces."""
    sizes = sizes or getattr(env, "group_sizes", ())
    is_same = isinstance(env, GroupedVecEnv) and env.sizes == sizes
    return env if is_same or not sizes else GroupedVecEnv(env, sizes)


def _without_groups(
    env: Any, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any], tuple[int, ...]]:
    """What is asked for without groups of agents, and their sizes, which all tasks share."""
    kwargs, sizes = split_agent_groups(kwargs)
    is_list = isinstance(env, list | tuple)
    given = list(env) if is_list else [env]
    if not given or not all(isinstance(task, Task) for task in given):
        return env, kwargs, sizes
    split = [split_agent_groups(task.env_kwargs) for task in given]
    found = {own or sizes for _, own in split}
    if len(found) > 1:
        raise ConfigError(
            f"tasks have agent_groups of {sorted(map(list, found))}; all tasks of a curriculum need the "
            "same ones, because one policy learns them all"
        )
    tasks = [
        dataclasses.replace(task, env_kwargs=own)
        for task, (own, _) in zip(given, split, strict=True)
    ]
    return (tasks if is_list else tasks[0]), kwargs, found.pop()


def _without_wrappers(env: Any, wrappers: Sequence[Any]) -> tuple[Any, tuple[str, ...]]:
    """What is asked for without wrappers, and the wrappers, of which all tasks have the same."""
    given = checked_wrappers(wrappers)
    is_list = isinstance(env, list | tuple)
    tasks = [task for task in (env if is_list else [env]) if isinstance(task, Task)]
    found = {task.wrappers for task in tasks} | {given}
    if len(found - {()}) > 1:
        several = " and ".join(str(list(one)) for one in sorted(found - {()}))
        raise ConfigError(
            f"wrappers are given twice, and differ: {several}; a curriculum has its own ones, "
            "so leave the setting out, or write the same"
        )
    bare = [dataclasses.replace(task, wrappers=()) for task in tasks]
    around: tuple[str, ...] = max(found)
    return (env if not tasks else bare if is_list else bare[0]), around


def _without_task(env: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What one task plays, if that is neither an id nor a factory; everything else as it is."""
    tasks = tasks_of(env, kwargs)
    own = tasks[0].env if len(tasks) == 1 else None
    if own is None or isinstance(own, str) or callable(own):
        return env, kwargs
    return own, tasks[0].env_kwargs


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


def tasks_of(env: Any, kwargs: dict[str, Any]) -> list[Task]:
    """An id or a task as a list of one, a list of tasks as it is, with all arguments; else nothing."""
    if isinstance(env, str):
        return [Task(env, kwargs)]
    given = [env] if isinstance(env, Task) else env
    is_list = isinstance(given, list | tuple) and len(given) > 0
    if not is_list or not all(isinstance(item, Task) for item in given):
        return []
    return [Task(task.env, {**kwargs, **task.env_kwargs}, task.label) for task in given]


def _grid_tasks(tasks: list[Task]) -> list[tuple[str, dict[str, Any]]]:
    for task in tasks:
        if not is_grid_id(task.env):
            raise ConfigError(
                f"task {task.name!r} is not of the grid world, as others of this curriculum are; all tasks "
                "must be, or none"
            )
    return [(task.env, resolve_all(task.env_kwargs)) for task in tasks]


def _cartpole_kwargs(tasks: list[Task]) -> dict[str, Any]:
    if len(tasks) > 1:
        raise ConfigError(
            f"task {tasks[0].env!r} is one of {len(tasks)}, but metta's own carts play one task only; use "
            "CartPole-v1 in a curriculum"
        )
    return resolve_all(tasks[0].env_kwargs)


def _tasked_factories(
    tasks: list[Task], num_envs: int, wrappers: tuple[str, ...]
) -> list[EnvFactory]:
    """For each row a factory of one environment that plays all tasks."""
    tables = []
    for task in tasks:
        if len(tasks) > 1 and exists_already(task.env):
            raise ConfigError(
                f"task {task.name!r} is an environment that exists already; of several tasks each needs "
                "an id or a factory, because environments are made when they are first played"
            )
        tables.append(_factories(task.env, num_envs, task.env_kwargs, wrappers))
    if len(tasks) == 1:
        return tables[0]
    return [functools.partial(TaskedEnv, row) for row in zip(*tables, strict=True)]


def _factories(
    env: Any, num_envs: int, kwargs: dict[str, Any], wrappers: tuple[str, ...]
) -> list[EnvFactory]:
    if isinstance(env, str):
        return [factory_of_id(env, kwargs, wrappers)] * _checked_count(num_envs)
    if callable(env):
        return [factory_of(env, kwargs, wrappers)] * _checked_count(num_envs)
    if isinstance(env, (list, tuple)) and env and all(callable(factory) for factory in env):
        return [factory_of(factory, kwargs, wrappers) for factory in env]
    raise EnvError(f"cannot make an environment of {env!r:.80}: {what_it_is(env)}")


def _checked_count(num_envs: int) -> int:
    if num_envs < 1:
        raise ConfigError(f"num_envs={num_envs}; it must be at least 1")
    return num_envs


def _refuse_wrappers(what: str, wrappers: tuple[str, ...]) -> None:
    if wrappers:
        raise ConfigError(
            f"wrappers={list(wrappers)} cannot be used with {what}: they wrap single environments; leave "
            "them out, or give an id or a factory of one environment"
        )


def _refuse_options(what: str, kwargs: dict[str, Any], num_workers: int, num_groups: int) -> None:
    if num_workers or num_groups != 1:
        raise ConfigError(
            f"num_workers={num_workers} and num_groups={num_groups} cannot be used with {what}, which "
            "exists already; use num_workers=0 and num_groups=1, or give an id or a factory instead"
        )
    if kwargs:
        raise ConfigError(
            f"env_kwargs={kwargs} came too late for {what}, which exists already; pass them where it is "
            "made, or give an id or a factory instead"
        )
