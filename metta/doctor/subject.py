"""What is examined: from anything that `PPOTrainer` takes as environment to players of it."""

from contextlib import ExitStack
from typing import Any

from metta.curriculum import Curriculum, Task
from metta.doctor.players import GymPlayer, Player, VecPlayer
from metta.envs.backends.serial import SerialVecEnv
from metta.envs.env_ids import as_gym_env, factory_of, factory_of_id, name_of
from metta.envs.factory import exists_already, make_vec_env
from metta.envs.rows.row_spec import GymEnv, build_env
from metta.envs.vec_env import VecEnv
from metta.errors import EnvError
from metta.train.run_config import CurriculumConfig

__all__ = ["Subject"]

_CHUNK_OF_ENVS = 4
"""Environments of kinds that step many at once."""


class Subject:
    """An environment under examination, of which others are made; `close` closes all that were."""

    def __init__(self, env: Any, about: CurriculumConfig) -> None:
        self.name = env.name if isinstance(env, Task) else name_of(env)
        env = env.task if isinstance(env, Curriculum) else env
        self.num_envs: int | None = None
        """How many there are, if that is not for settings to decide."""
        if isinstance(env, list | tuple) and env:
            self.num_envs = len(env) if callable(env[0]) else None
            env = env[0]
        self._kwargs, self._wrappers = about.env_kwargs, about.wrappers
        if isinstance(env, Task):
            self._kwargs = {**self._kwargs, **env.env_kwargs}
            self._wrappers = env.wrappers or self._wrappers
            env = env.env
        self.env = env
        """What an environment is made of, or the one that was given."""
        self.is_given = exists_already(env)
        """Whether it exists: there is no other, and it stays open."""
        if self.is_given:
            self.num_envs = 1
        self._closing = ExitStack()
        self.vec_env = self._new_vec_env(1)
        """A single environment as a trainer has it."""
        self.is_gym = isinstance(self.vec_env, SerialVecEnv) and self.vec_env is not env
        """Whether `new_gym_env` makes one; False for kinds that exist only as many rows."""

    def new_player(self) -> Player:
        """Another player, of a new environment unless one was given."""
        if self.is_gym:
            return GymPlayer(self.new_gym_env())
        return VecPlayer(self.vec_env if self.is_given else self._new_vec_env(_CHUNK_OF_ENVS))

    def new_gym_env(self) -> GymEnv:
        """Another gymnasium environment in its wrappers, or the one that was given."""
        if self.is_given:
            return as_gym_env(self.env, self._wrappers)
        find = factory_of_id if isinstance(self.env, str) else factory_of
        made = build_env(find(self.env, self._kwargs, self._wrappers), 0)
        self._closing.callback(made.close)
        return made

    def close(self) -> None:
        """Close what was made here; `EnvError` where one of them fails to."""
        try:
            self._closing.close()
        except Exception as error:
            kind = "" if isinstance(error, EnvError) else f"close() raised {type(error).__name__}: "
            raise EnvError(f"{kind}{error}") from error

    def _new_vec_env(self, num_envs: int) -> VecEnv:
        options: dict[str, Any] = {"env_kwargs": self._kwargs, "wrappers": self._wrappers}
        made = make_vec_env(self.env, num_envs=num_envs, **options)
        if not self.is_given:
            self._closing.callback(made.close)
        return made
