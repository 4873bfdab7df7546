"""What is examined: from anything that `PPOTrainer` takes as environment to players of it."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from metta.curriculum import Curriculum, Task
from metta.doctor.players import Inspector, Player, RawPlayer, VecPlayer
from metta.envs.agents.agents_env import AgentsSpace
from metta.envs.env_ids import factory_of, factory_of_id, is_cartpole_id, is_grid_id, name_of
from metta.envs.factory import make_vec_env
from metta.envs.rows.row_spec import EnvFactory, GymEnv, build_env
from metta.envs.vec_env import VecEnv

__all__ = ["Subject", "open_subject"]

_GROUPS = "agent_groups"
_CHUNK_OF_ENVS = 4
"""Environments of kinds that step many at once."""


@dataclass
class Subject:
    """An environment under examination."""

    name: str
    new_player: Callable[[Inspector | None], Player]
    """Another player, of a new environment where `is_fresh`; closed with the subject."""
    one_vec_env: Callable[[], VecEnv]
    """A single environment as a trainer has it; closed with the subject."""
    is_fresh: bool
    """Whether new environments can be made; False if one that exists was given."""
    is_raw: bool
    """Whether its own replies are seen; False for vectorised environments."""
    time_limit: int | None = None
    """Steps after which it is known to cut episodes."""
    num_envs: int | None = None
    """How often `one_vec_env` is trained, if that is not for settings to decide."""


@contextmanager
def open_subject(env: Any, env_kwargs: dict[str, Any]) -> Iterator[Subject]:
    """The environment as something to play; what is made here is closed at the end."""
    with ExitStack() as closing:
        yield _subject_of(env, env_kwargs, closing)


def _subject_of(env: Any, kwargs: dict[str, Any], closing: ExitStack) -> Subject:
    name = name_of(env)
    if isinstance(env, Curriculum):
        env = env.task
    if isinstance(env, Task):
        env, kwargs = env.env, {**kwargs, **env.env_kwargs}
    if isinstance(env, gymnasium.Env) and not kwargs:
        return _of_instance(name, env)
    if isinstance(env, VectorEnv | VecEnv):
        vec = make_vec_env(env, env_kwargs=kwargs)
        return Subject(name, lambda _: VecPlayer(vec), lambda: vec, False, False, num_envs=1)
    factory = _raw_factory(env, kwargs)
    if factory is not None:
        first = build_env(factory, 0)
        closing.callback(first.close)
        if not isinstance(first.observation_space, AgentsSpace):
            subject = _of_factory(name, factory, first, closing)
            subject.num_envs = len(env) if isinstance(env, list | tuple) else None
            return subject

    def vec_env(num_envs: int) -> VecEnv:
        vec = make_vec_env(env, num_envs=num_envs, env_kwargs=kwargs)
        closing.callback(vec.close)
        return vec

    return Subject(
        name,
        lambda _: VecPlayer(vec_env(_CHUNK_OF_ENVS)),
        functools.partial(vec_env, 1),
        True,
        False,
    )


def _of_instance(name: str, env: GymEnv) -> Subject:
    return Subject(
        name,
        functools.partial(RawPlayer, env),
        lambda: make_vec_env(env),
        False,
        True,
        _time_limit(env),
        num_envs=1,
    )


def _of_factory(name: str, factory: EnvFactory, first: GymEnv, closing: ExitStack) -> Subject:
    unused = [first]

    def player(inspector: Inspector | None) -> RawPlayer:
        if unused:
            return RawPlayer(unused.pop(), inspector)
        env = build_env(factory, 0)
        closing.callback(env.close)
        return RawPlayer(env, inspector)

    def vec_env() -> VecEnv:
        vec = make_vec_env(factory)
        closing.callback(vec.close)
        return vec

    return Subject(name, player, vec_env, True, True, _time_limit(first))


def _raw_factory(env: Any, kwargs: dict[str, Any]) -> EnvFactory | None:
    """What makes one gymnasium environment; None for kinds that exist only as many rows."""
    if _GROUPS in kwargs or is_grid_id(env) or is_cartpole_id(env):
        return None
    if isinstance(env, str):
        return factory_of_id(env, kwargs)
    if isinstance(env, list | tuple) and env and callable(env[0]):
        env = env[0]
    return factory_of(env, kwargs) if callable(env) else None


def _time_limit(env: GymEnv) -> int | None:
    """The limit that gymnasium itself imposes."""
    current: Any = env
    while isinstance(current, gymnasium.Wrapper):
        if isinstance(current, gymnasium.wrappers.TimeLimit):
            return int(current._max_episode_steps)
        current = current.env
    return None
