"""`EnvironmentManager`: the environments of a run, from task to close."""

import dataclasses
import os
from typing import Any, Literal

from gymnasium import spaces

from metta.curriculum import Curriculum
from metta.envs.configured import configured_vec_env
from metta.envs.vec_env import VecEnv
from metta.errors import ConfigError, EnvError
from metta.train.batch_sizing import minibatch_sizes
from metta.train.train_config import TrainerConfig

__all__ = ["EnvironmentManager", "Vectorization"]

Vectorization = Literal["serial", "multiprocessing"]
"""Environments in this process, or in worker processes."""


class EnvironmentManager:
    """The interface of `make_vec_env` and of the batch arithmetic."""

    def __init__(self, config: TrainerConfig, curriculum: Curriculum | None = None) -> None:
        self.config = config
        self.curriculum = curriculum or Curriculum(config.curriculum)
        self.num_local = 0
        """Shards of this process; 0: all of them."""
        self._vec_env: VecEnv | None = None

    def create(self, vectorization: Vectorization | None = None) -> VecEnv:
        """Make the environments; by default with ``rollout.num_workers``.

        ``multiprocessing`` takes the configured number of workers, or one per core where that is 0.
        """
        rollout = self.config.rollout
        if vectorization == "serial":
            rollout = dataclasses.replace(rollout, num_workers=0)
        elif vectorization == "multiprocessing":
            automatic = min(os.cpu_count() or 1, rollout.num_envs)
            rollout = dataclasses.replace(rollout, num_workers=rollout.num_workers or automatic)
        elif vectorization is not None:
            raise ConfigError(
                f"vectorization={vectorization!r}; use 'serial', 'multiprocessing', or None to use "
                "trainer.rollout.num_workers"
            )
        self.close()
        self._vec_env = configured_vec_env(
            self.curriculum.tasks,
            rollout,
            num_local=self.num_local,
            is_elsewhere=self.config.collect.is_elsewhere,
        )
        return self._vec_env

    @property
    def vec_env(self) -> VecEnv:
        """The environments that `create` made."""
        if self._vec_env is None:
            raise EnvError("there are no environments yet; call create() or Trainer.setup() first")
        return self._vec_env

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """What one agent sees."""
        return self.vec_env.observation_space

    @property
    def action_space(self) -> spaces.Space[Any]:
        """What one agent does."""
        return self.vec_env.action_space

    @property
    def num_agents(self) -> int:
        """Rows that step together."""
        return self.vec_env.num_rows

    @property
    def batch_size(self) -> int:
        """Agent steps per rollout."""
        return self.num_agents * self.config.rollout.horizon

    @property
    def minibatch_sizes(self) -> list[int]:
        """Agent steps of each minibatch of one pass, without recurrence."""
        ppo = self.config.ppo
        return minibatch_sizes(self.batch_size, ppo.num_minibatches, ppo.minibatch_size)

    def close(self) -> None:
        """Close the environments and their workers; may be called more than once."""
        if self._vec_env is not None:
            self._vec_env.close()
            self._vec_env = None
