"""EnvPool (extra `envpool`): environments in C++ threads, as gymnasium's vector environments."""

from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from metta.errors import EnvError

__all__ = ["PoolVector", "is_pool"]


def is_pool(env: Any) -> bool:
    """Whether an object is a pool, of any version."""
    return any(kind.__module__.startswith("envpool.") for kind in type(env).__mro__)


class PoolVector(VectorEnv[Any, Any, Any]):
    """A pool as a vector environment, which owns and closes it.

        PoolVector(envpool.make_gymnasium("CartPole-v1", num_envs=8, seed=1))

    A pool begins the next episode in the step after an episode's end, whatever its version declares. It
    is seeded when it is made: seeds given to `reset` have no effect.
    """

    obeys_seeds = False

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.num_envs = int(pool.config["num_envs"])
        if int(pool.config["batch_size"]) != self.num_envs:
            raise EnvError(
                f"{type(pool).__name__} returns {pool.config['batch_size']} of its {self.num_envs} "
                "environments at a time; metta steps all of them together: leave batch_size out"
            )
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        # the spaces of a pool are those of one row
        self.single_observation_space = pool.observation_space
        self.single_action_space = pool.action_space
        self.observation_space = batch_space(pool.observation_space, self.num_envs)
        self.action_space = batch_space(pool.action_space, self.num_envs)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every row."""
        del seed, options  # a pool takes neither
        observations, _ = self._pool.reset()
        return observations, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every row; those that ended in the step before are reset instead."""
        observations, rewards, terminated, truncated, _ = self._pool.step(actions)
        return observations, rewards, terminated, truncated, {}

    def close(self, **_: Any) -> None:
        """Close what the pool draws on."""
        self._pool.close()

    def __str__(self) -> str:
        return type(self._pool).__name__
